//! Addresses of links.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};

use crate::event::{self, Event};
use crate::{Netlink, NetlinkError};

/// An address to add.
#[derive(Clone, Copy, Debug)]
pub struct AddressSpec {
    /// Address with the length of its subnet's prefix.
    pub address: IpNetwork,
    /// Scope: 0 universe, 253 link, 254 host.
    pub scope: u8,
    /// Whether the kernel adds no route to the subnet.
    pub no_prefix_route: bool,
}

impl From<IpNetwork> for AddressSpec {
    fn from(address: IpNetwork) -> Self {
        Self { address, scope: 0, no_prefix_route: false }
    }
}

pub(super) fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn message(index: u32, address: IpNetwork) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family(address.ip());
    message.header.index = index;
    message.header.prefix_len = address.prefix();
    message.attributes = vec![AddressAttribute::Address(address.ip()), AddressAttribute::Local(address.ip())];
    message
}

impl Netlink {
    /// Adds an address, or changes the properties of an existing one. IPv6 addresses are added without duplicate address
    /// detection, which would make them unusable for a second.
    pub fn add_address(&mut self, index: u32, spec: impl Into<AddressSpec>) -> Result<(), NetlinkError> {
        let spec = spec.into();
        let mut message = message(index, spec.address);
        message.header.scope = AddressScope::from(spec.scope);
        let mut flags = AddressFlags::empty();
        flags.set(AddressFlags::Nodad, spec.address.is_ipv6());
        flags.set(AddressFlags::Noprefixroute, spec.no_prefix_route);
        message.attributes.push(AddressAttribute::Flags(flags));
        let describe = || format!("add address {} to link {index}", spec.address);
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        self.request(describe, Message::NewAddress(message), flags)
    }

    /// Deletes an address.
    pub fn delete_address(&mut self, index: u32, address: IpNetwork) -> Result<(), NetlinkError> {
        let describe = || format!("delete address {address} of link {index}");
        self.request(describe, Message::DelAddress(message(index, address)), 0)
    }

    /// Lists the addresses of a link.
    pub fn addresses(&mut self, index: u32) -> Result<Vec<IpNetwork>, NetlinkError> {
        let all = Message::GetAddress(AddressMessage::default());
        self.dump("list addresses", &all, |message| {
            event::events(&message).into_iter().filter_map(|event| match event {
                Event::Addr(i, a) if i == index => IpNetwork::new(a.addr, a.prefix_len).ok(),
                _ => None,
            })
        })
    }
}
