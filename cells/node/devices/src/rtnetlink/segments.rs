//! Maximum sizes of segments: of packets that a device sends in one piece (GSO) or merges on receipt (GRO).

use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};

use super::link::all_links;
use crate::{Netlink, NetlinkError, event};

/// The maximum sizes of one IP family, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSizes {
    /// Of packets to send.
    pub gso: u32,
    /// Of received packets that are merged.
    pub gro: u32,
}

/// The maximum sizes of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSegments {
    /// Interface index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// The largest size that its driver sends; `None` on kernels before 5.19.
    pub tso_max: Option<u32>,
    /// Sizes of IPv6, and of IPv4 on kernels before 6.3.
    pub ipv6: Option<SegmentSizes>,
    /// Sizes of IPv4; `None` on kernels before 6.3.
    pub ipv4: Option<SegmentSizes>,
}

impl Netlink {
    /// Lists the sizes of all links of the namespace.
    pub fn segments(&mut self) -> Result<Vec<LinkSegments>, NetlinkError> {
        self.dump("list links", &all_links(), |message| match message {
            Message::NewLink(m) => Some(parse(&m)),
            _ => None,
        })
    }

    /// Sets sizes of a link.
    ///
    /// # Errors
    /// The driver does not send as large packets, or the kernel does not know the sizes of the family.
    pub fn set_segments(
        &mut self,
        index: u32,
        ipv6: Option<SegmentSizes>,
        ipv4: Option<SegmentSizes>,
    ) -> Result<(), NetlinkError> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        let attributes = &mut message.attributes;
        // The kernel applies these in this order, and sizes of IPv6 up to 64 KiB to IPv4 as well.
        if let Some(sizes) = ipv6 {
            attributes.extend([LinkAttribute::GsoMaxSize(sizes.gso), LinkAttribute::GroMaxSize(sizes.gro)]);
        }
        if let Some(sizes) = ipv4 {
            attributes
                .extend([LinkAttribute::GsoIpv4MaxSize(sizes.gso), LinkAttribute::GroIpv4MaxSize(sizes.gro)]);
        }
        let describe = || format!("set segment sizes of link {index}: IPv6 {ipv6:?}, IPv4 {ipv4:?}");
        self.request(describe, Message::SetLink(message), 0)
    }
}

fn parse(message: &LinkMessage) -> LinkSegments {
    let link = event::link(message);
    let find = |kind: fn(&LinkAttribute) -> Option<u32>| message.attributes.iter().find_map(kind);
    let sizes = |gso: Option<u32>, gro: Option<u32>| Some(SegmentSizes { gso: gso?, gro: gro? });
    use LinkAttribute as A;
    LinkSegments {
        index: link.index,
        name: link.name,
        tso_max: find(|a| if let A::TsoMaxSize(size) = a { Some(*size) } else { None }),
        ipv6: sizes(
            find(|a| if let A::GsoMaxSize(size) = a { Some(*size) } else { None }),
            find(|a| if let A::GroMaxSize(size) = a { Some(*size) } else { None }),
        ),
        ipv4: sizes(
            find(|a| if let A::GsoIpv4MaxSize(size) = a { Some(*size) } else { None }),
            find(|a| if let A::GroIpv4MaxSize(size) = a { Some(*size) } else { None }),
        ),
    }
}
