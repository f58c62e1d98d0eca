//! The node's links, as far as endpoints need them.

use std::collections::HashMap;

use devices::{Device, Netlink, NetlinkError};

use crate::model::mac::Mac;

/// The links of the node by name.
pub type Links = HashMap<String, Link>;

/// A link of the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    /// MAC address.
    pub mac: Option<Mac>,
    /// Index of the peer of a veth, in the peer's namespace; zero without one.
    pub peer: u32,
}

impl From<&Device> for Link {
    fn from(device: &Device) -> Link {
        Link { index: device.index, mac: device.hardware_addr.ethernet().map(Mac), peer: device.parent }
    }
}

/// Lists the node's links as the kernel has them. Blocks for as long as the kernel does.
pub fn kernel_links() -> Result<Links, NetlinkError> {
    let links = Netlink::open()?.links()?.into_iter();
    let link = |link: devices::Link| {
        let mac = link.hardware_addr.ethernet().map(Mac);
        (link.name, Link { index: link.index, mac, peer: link.parent })
    };
    Ok(links.map(link).collect())
}

/// Lists the node's links; tests replace it.
#[cfg_attr(
    not(any(test, feature = "test-util")),
    expect(unreachable_pub, reason = "tests of other crates name it")
)]
pub struct LinkSource(Box<dyn Fn() -> Result<Links, NetlinkError> + Send + Sync>);

impl LinkSource {
    pub(crate) fn new(list: impl Fn() -> Result<Links, NetlinkError> + Send + Sync + 'static) -> LinkSource {
        LinkSource(Box::new(list))
    }

    /// Returns a source that queries the kernel.
    pub(crate) fn kernel() -> LinkSource {
        LinkSource::new(kernel_links)
    }

    /// Lists the links. Blocks for as long as the kernel does.
    pub(crate) fn list(&self) -> Result<Links, NetlinkError> {
        (self.0)()
    }
}
