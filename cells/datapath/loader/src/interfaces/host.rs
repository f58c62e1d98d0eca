//! The host's side: cilium_host and cilium_net, the router's addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use devices::rtnetlink::{AddressSpec, LinkChange, VethPeer, VethSpec};
use devices::{Link, Netlink, NetlinkError};
use ipnetwork::IpNetwork;

/// The interface by which the host sends packets to pods.
pub const HOST_DEVICE: &str = "cilium_host";
/// The peer of `cilium_host`.
pub const NET_DEVICE: &str = "cilium_net";

/// The input of the host's side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSettings {
    /// The router's IPv4 address (CiliumInternalIP).
    pub router_ipv4: Option<Ipv4Addr>,
    /// The router's IPv6 address.
    pub router_ipv6: Option<Ipv6Addr>,
}

/// The pair of host devices.
#[derive(Clone, Debug)]
pub struct HostDevices {
    /// `cilium_host`.
    pub host: Link,
    /// `cilium_net`.
    pub net: Link,
}

/// Creates the pair unless it exists, both sides up and without ARP. Links of another kind with these names lead to the
/// kernel's error `EEXIST`.
pub fn ensure_devices(nl: &mut Netlink) -> Result<HostDevices, NetlinkError> {
    if nl.find_link(HOST_DEVICE)?.is_none() {
        let peer = VethPeer { name: NET_DEVICE, ..VethPeer::default() };
        nl.add_veth(&VethSpec { name: HOST_DEVICE, peer, ..VethSpec::default() })?;
    }
    let ready = |link: &Link| link.is_up() && link.raw_flags & IFF_NOARP != 0;
    for name in [NET_DEVICE, HOST_DEVICE] {
        let link = nl.link_by_name(name)?;
        if !ready(&link) {
            nl.change_link(
                link.index,
                &LinkChange { up: Some(true), arp: Some(false), ..LinkChange::default() },
            )?;
        }
    }
    Ok(HostDevices { host: nl.link_by_name(HOST_DEVICE)?, net: nl.link_by_name(NET_DEVICE)? })
}

/// `IFF_NOARP` of `linux/if.h`.
const IFF_NOARP: u32 = 0x80;

impl HostSettings {
    /// Returns the router's addresses as on cilium_host.
    pub fn addresses(&self) -> Vec<IpNetwork> {
        let v4 = self.router_ipv4.map(|ip| IpNetwork::from(IpAddr::V4(ip)));
        let v6 = self.router_ipv6.map(|ip| IpNetwork::from(IpAddr::V6(ip)));
        v4.into_iter().chain(v6).collect()
    }
}

/// Adds the router's addresses to cilium_host, and removes those of a previous configuration (link-local ones stay).
pub fn ensure_addresses(nl: &mut Netlink, host: &Link, settings: &HostSettings) -> Result<(), NetlinkError> {
    let wanted = settings.addresses();
    for address in nl.addresses(host.index)? {
        let link_local = matches!(address.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
        if !link_local && !wanted.contains(&address) {
            nl.delete_address(host.index, address)?;
        }
    }
    wanted.into_iter().try_for_each(|address| nl.add_address(host.index, AddressSpec::from(address)))
}

/// Returns descriptions of the addresses that are missing on cilium_host.
pub fn missing(nl: &mut Netlink, host: &Link, settings: &HostSettings) -> Result<Vec<String>, NetlinkError> {
    let addresses = nl.addresses(host.index)?;
    let lost = settings.addresses().into_iter().filter(|address| !addresses.contains(address));
    Ok(lost.map(|address| format!("address {address} of {HOST_DEVICE}")).collect())
}
