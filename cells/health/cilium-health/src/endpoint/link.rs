//! The veth pair between the health endpoint's namespace and the node.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd as _;

use devices::rtnetlink::{RouteSpec, VethPeer, VethSpec};
use devices::{Netlink, NetlinkError};
use ipnetwork::IpNetwork;

use super::namespace::EndpointNamespace;

/// The node's end.
pub(crate) const HOST_LINK: &str = "lxc_health";
/// The endpoint's end.
const ENDPOINT_LINK: &str = "cilium";
/// The node's end of older versions of Cilium.
const OLD_HOST_LINK: &str = "cilium_health";
/// The index of the loopback interface, the first one of each namespace.
const LOOPBACK: u32 = 1;

/// Addresses, routes and MTUs of the pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkSpec {
    /// The endpoint's addresses, each with the router's of its family.
    pub(crate) addresses: Vec<(IpAddr, IpAddr)>,
    /// MTU of both ends.
    pub(crate) mtu: u32,
    /// MTU of the endpoint's default routes, which leaves space for the headers of the tunnel.
    pub(crate) route_mtu: u32,
}

/// The pair as it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// Index of the node's end.
    pub(crate) index: u32,
    /// MAC address of the node's end.
    pub(crate) host_mac: [u8; 6],
    /// MAC address of the endpoint's end.
    pub(crate) mac: [u8; 6],
}

/// Makes the pair in place of one that may be there. The node's end stays down: the endpoint's reconciler sets it up when
/// its program is attached, so that no packet passes without policy. Blocks.
pub(crate) fn create(namespace: &mut EndpointNamespace, spec: &LinkSpec) -> Result<Pair, NetlinkError> {
    let mut node = Netlink::open()?;
    remove(&mut node)?;
    let (host_mac, mac) = (random_mac(), random_mac());
    let link = node.add_veth(&VethSpec {
        name: HOST_LINK,
        mac: Some(host_mac),
        mtu: Some(spec.mtu),
        peer: VethPeer {
            name: ENDPOINT_LINK,
            mac: Some(mac),
            mtu: Some(spec.mtu),
            netns: Some(namespace.as_fd()),
        },
        ..VethSpec::default()
    })?;
    configure(&mut namespace.netlink, spec)?;
    Ok(Pair { index: link.index, host_mac, mac })
}

/// Sets addresses and routes in the endpoint's namespace.
fn configure(inside: &mut Netlink, spec: &LinkSpec) -> Result<(), NetlinkError> {
    inside.set_link_up(LOOPBACK, true)?;
    let link = inside.link_by_name(ENDPOINT_LINK)?.index;
    inside.set_link_up(link, true)?;
    for (address, _) in &spec.addresses {
        inside.add_address(link, IpNetwork::from(*address))?;
    }
    routes(spec, link).iter().try_for_each(|route| inside.replace_route(route))
}

/// Returns the routes of the endpoint's namespace: as in a pod, everything is behind the router, which is on the link.
fn routes(spec: &LinkSpec, link: u32) -> Vec<RouteSpec> {
    let of_family = |router: IpAddr| {
        let to_router = RouteSpec::on_link(router.into(), link);
        let default = RouteSpec::on_link(all_of_family(router), link).via(router);
        [to_router, RouteSpec { mtu: spec.route_mtu, ..default }]
    };
    spec.addresses.iter().flat_map(|(_, router)| of_family(*router)).collect()
}

/// Returns the prefix of length 0 of the address's family.
fn all_of_family(ip: IpAddr) -> IpNetwork {
    let unspecified: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Length 0 is valid in both families.
    IpNetwork::new(unspecified, 0).unwrap_or(IpNetwork::from(unspecified))
}

/// Returns the index of the node's end, if there is one. Blocks.
pub(crate) fn index() -> Result<Option<u32>, NetlinkError> {
    Ok(Netlink::open()?.find_link(HOST_LINK)?.map(|link| link.index))
}

/// Removes pairs of previous runs and of Cilium: one of a killed agent is there until the kernel has freed its namespace.
/// Blocks.
pub(crate) fn remove_leftovers() -> Result<(), NetlinkError> {
    remove(&mut Netlink::open()?)
}

fn remove(node: &mut Netlink) -> Result<(), NetlinkError> {
    for name in [HOST_LINK, OLD_HOST_LINK] {
        let Some(link) = node.find_link(name)? else { continue };
        match node.delete_link(link.index) {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Returns a locally administered unicast address.
fn random_mac() -> [u8; 6] {
    let [first, rest @ .., _, _] = RandomState::new().hash_one("MAC").to_be_bytes();
    let mut mac = [first & 0xfc | 2; 6];
    mac[1..].copy_from_slice(&rest);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_behind_the_router_of_its_family() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let addresses = vec![(ip("10.0.0.9"), ip("10.0.0.1")), (ip("fd00::9"), ip("fd00::1"))];
        let spec = LinkSpec { addresses, mtu: 1500, route_mtu: 1450 };
        let routes: Vec<_> = routes(&spec, 2)
            .iter()
            .map(|route| (route.dst.to_string(), route.gateway, route.mtu, route.link_index))
            .collect();
        let expected = [
            ("10.0.0.1/32", None, 0),
            ("0.0.0.0/0", Some(ip("10.0.0.1")), 1450),
            ("fd00::1/128", None, 0),
            ("::/0", Some(ip("fd00::1")), 1450),
        ];
        assert_eq!(routes, expected.map(|(dst, via, mtu)| (dst.to_owned(), via, mtu, 2)));
    }

    #[test]
    fn addresses_are_local_and_of_one_station() {
        let (a, b) = (random_mac(), random_mac());
        assert!(a != b && [a, b].iter().all(|mac| mac[0] & 3 == 2), "{a:?} {b:?}");
    }
}
