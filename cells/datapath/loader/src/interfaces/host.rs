//! The host's side: cilium_host and cilium_net, the router's addresses, routes to the pods.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use devices::rtnetlink::{AddressSpec, LinkChange, RouteSpec, VethPeer, VethSpec};
use devices::{Link, Netlink, NetlinkError, Route, TABLE_MAIN};
use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};

/// The interface by which the host sends packets to pods.
pub const HOST_DEVICE: &str = "cilium_host";
/// The peer of `cilium_host`.
pub const NET_DEVICE: &str = "cilium_net";
/// `RTPROT_KERNEL`: the protocol of Cilium's routes.
const PROTOCOL_KERNEL: u8 = 2;
/// The kernel's metric of IPv6 routes that name none.
const METRIC_V6: u32 = 1024;

/// The input of the host's side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSettings {
    /// The router's IPv4 address (CiliumInternalIP).
    pub router_ipv4: Option<Ipv4Addr>,
    /// The router's IPv6 address.
    pub router_ipv6: Option<Ipv6Addr>,
    /// The ranges of the pods' IPv4 addresses.
    pub pods_ipv4: Vec<Ipv4Network>,
    /// The ranges of the pods' IPv6 addresses.
    pub pods_ipv6: Vec<Ipv6Network>,
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

    /// Returns the routes to the router itself and through it to the pods.
    pub fn routes(&self, host_index: u32) -> Vec<RouteSpec> {
        let route = |dst: IpNetwork| RouteSpec {
            protocol: PROTOCOL_KERNEL,
            table: TABLE_MAIN,
            ..RouteSpec::on_link(dst, host_index)
        };
        let mut routes = Vec::new();
        if let Some(router) = self.router_ipv4.filter(|_| !self.pods_ipv4.is_empty()) {
            routes.push(route(IpNetwork::from(IpAddr::V4(router))));
            for pods in &self.pods_ipv4 {
                let to_pods = RouteSpec { src: Some(router.into()), ..route((*pods).into()) };
                routes.push(to_pods.via(router.into()));
            }
        }
        if let Some(router) = self.router_ipv6.filter(|_| !self.pods_ipv6.is_empty()) {
            let route = |dst| RouteSpec { priority: METRIC_V6, ..route(dst) };
            routes.push(route(IpNetwork::from(IpAddr::V6(router))));
            // Without "via": the kernel refuses an own address as IPv6 gateway.
            let to_pods =
                |pods: &Ipv6Network| RouteSpec { src: Some(router.into()), ..route((*pods).into()) };
            routes.extend(self.pods_ipv6.iter().map(to_pods));
        }
        routes
    }
}

/// Adds the router's addresses and the routes to the pods to cilium_host, and removes those of a previous configuration
/// (link-local ones stay).
pub fn ensure_addresses(nl: &mut Netlink, host: &Link, settings: &HostSettings) -> Result<(), NetlinkError> {
    let wanted = settings.addresses();
    for address in nl.addresses(host.index)? {
        let link_local = matches!(address.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
        if !link_local && !wanted.contains(&address) {
            nl.delete_address(host.index, address)?;
        }
    }
    for address in wanted {
        nl.add_address(host.index, AddressSpec::from(address))?;
    }
    let routes = settings.routes(host.index);
    for found in nl.routes()? {
        let of_ours = found.key.link_index == host.index && found.key.table == TABLE_MAIN;
        let automatic =
            matches!(found.key.dst.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local() || ip.is_multicast());
        if of_ours && !automatic && !routes.iter().any(|route| route.dst == found.key.dst) {
            let stale =
                RouteSpec { priority: found.key.priority, ..RouteSpec::on_link(found.key.dst, host.index) };
            match nl.delete_route(&RouteSpec { protocol: 0, ..stale }) {
                Err(e) if !e.is_not_found() => return Err(e),
                _ => {}
            }
        }
    }
    routes.iter().try_for_each(|route| nl.replace_route(route))
}

/// Returns descriptions of the addresses and routes that are missing on cilium_host.
pub fn missing(nl: &mut Netlink, host: &Link, settings: &HostSettings) -> Result<Vec<String>, NetlinkError> {
    let addresses = nl.addresses(host.index)?;
    let routes = nl.routes()?;
    let there = |route: &RouteSpec| {
        let same = |found: &&Route| {
            found.key.table == TABLE_MAIN
                && found.key.link_index == host.index
                && found.key.dst == route.dst
                && (found.gateway, found.src) == (route.gateway, route.src)
        };
        routes.iter().find(same).is_some()
    };
    let lost = settings.addresses().into_iter().filter(|address| !addresses.contains(address));
    let lost = lost.map(|address| format!("address {address} of {HOST_DEVICE}"));
    let wanted = settings.routes(host.index).into_iter().filter(|route| !there(route));
    Ok(lost.chain(wanted.map(|route| format!("route to {} by {HOST_DEVICE}", route.dst))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_those_of_cilium() {
        let settings = HostSettings {
            router_ipv4: Some(Ipv4Addr::new(10, 244, 71, 14)),
            router_ipv6: Some("fd00::b".parse().unwrap()),
            pods_ipv4: vec!["10.244.0.0/16".parse().unwrap()],
            pods_ipv6: vec!["fd00::/64".parse().unwrap()],
        };
        let routes = settings.routes(4);
        let short: Vec<(String, Option<IpAddr>, Option<IpAddr>)> =
            routes.iter().map(|r| (r.dst.to_string(), r.gateway, r.src)).collect();
        let router4 = Some(IpAddr::V4(Ipv4Addr::new(10, 244, 71, 14)));
        let router6 = settings.router_ipv6.map(IpAddr::V6);
        assert_eq!(
            short,
            [
                ("10.244.71.14/32".to_owned(), None, None),
                ("10.244.0.0/16".to_owned(), router4, router4),
                ("fd00::b/128".to_owned(), None, None),
                ("fd00::/64".to_owned(), None, router6),
            ]
        );
        assert!(HostSettings::default().routes(4).is_empty());
    }
}
