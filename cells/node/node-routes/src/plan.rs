//! The routes of a node, as a function of what is known of it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use devices::{HOST_DEVICE, SCOPE_LINK};
use ipnetwork::IpNetwork;
use local_node::LocalNode;
use node_manager::Node;
use routes::DesiredRoute;

use crate::Error;

/// `MTU` that IPv6 requires of every link (RFC 8200).
const MIN_MTU_V6: u32 = 1280;

/// How pods of other nodes are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// By the tunnel, behind `cilium_host`.
    Tunnel,
    /// By the node itself, which must be reachable without a gateway.
    Direct {
        /// Whether a node behind a gateway gets no route instead of an error.
        skip_unreachable: bool,
    },
    /// By routes that are not this agent's.
    None,
    /// Within a group of subnets directly or by routes that are not this agent's, by the tunnel between groups.
    Hybrid {
        /// Whether nodes of the group are reached directly, and of these whether one behind a gateway gets no route instead
        /// of an error.
        direct: Option<bool>,
    },
}

impl Mode {
    /// Whether the kernel's ways to nodes matter.
    pub(crate) fn is_direct(self) -> bool {
        matches!(self, Mode::Direct { .. } | Mode::Hybrid { direct: Some(_) })
    }

    /// Returns the mode of a range: `is_near` if it is in a group of subnets that pods of this node are in, too.
    fn of_range(self, is_near: impl FnOnce() -> bool) -> Mode {
        match self {
            Mode::Hybrid { direct } if is_near() => {
                direct.map_or(Mode::None, |skip_unreachable| Mode::Direct { skip_unreachable })
            }
            Mode::Hybrid { .. } => Mode::Tunnel,
            mode => mode,
        }
    }
}

/// Groups of subnets by range; `None` for a range that is in none.
pub(crate) type Groups<'a> = &'a dyn Fn(IpNetwork) -> Option<u32>;

/// Settings of all routes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) mode: Mode,
    pub(crate) metric: u32,
    pub(crate) is_local_routed: bool,
    pub(crate) has_ipv4: bool,
    pub(crate) has_ipv6: bool,
}

/// The kernel's way to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// The device; none if it is unknown.
    pub(crate) device: Option<String>,
    pub(crate) gateway: Option<IpAddr>,
}

/// The kernel's ways to nodes by their addresses: `None` for those that are unreachable.
pub(crate) type Ways = BTreeMap<IpAddr, Result<Option<Way>, String>>;

impl Settings {
    fn has(&self, range: IpNetwork) -> bool {
        if range.is_ipv4() { self.has_ipv4 } else { self.has_ipv6 }
    }

    fn route(&self, range: IpNetwork) -> DesiredRoute {
        DesiredRoute::new(range).priority(self.metric)
    }

    /// Whether the router has an address of each enabled family: without it no route by `cilium_host` is complete.
    pub(crate) fn is_routable(&self, own: &LocalNode) -> bool {
        (!self.has_ipv4 || own.router_ipv4.is_some()) && (!self.has_ipv6 || own.router_ipv6.is_some())
    }

    /// Returns the route to a range by `cilium_host`; `None` while the router has no address of its family.
    fn by_host(&self, range: IpNetwork, own: &LocalNode) -> Option<DesiredRoute> {
        let route = self.route(range);
        match range {
            IpNetwork::V4(_) => {
                let router = own.router_ipv4?.into();
                Some(route.via(router, HOST_DEVICE).src(router))
            }
            // Without a next hop: the kernel refuses an own address as IPv6 gateway.
            IpNetwork::V6(_) => Some(route.device(HOST_DEVICE).src(own.router_ipv6?.into())),
        }
    }

    /// Returns the routes to the router and to the pods of this node.
    pub(crate) fn local_routes(&self, own: &LocalNode) -> Vec<DesiredRoute> {
        let ranges: Vec<IpNetwork> = own.routed_cidrs().filter(|range| self.has(*range)).collect();
        let v4 = own.router_ipv4.map(IpAddr::from).filter(|_| ranges.iter().any(IpNetwork::is_ipv4));
        let v6 = own.router_ipv6.map(IpAddr::from).filter(|_| ranges.iter().any(IpNetwork::is_ipv6));
        let routers = v4.into_iter().chain(v6).map(|router| {
            let scope = if router.is_ipv4() { SCOPE_LINK } else { 0 };
            DesiredRoute::new(router.into()).device(HOST_DEVICE).scope(scope)
        });
        let pods = ranges.iter().filter(|_| self.is_local_routed);
        routers.chain(pods.filter_map(|range| self.by_host(*range, own))).collect()
    }

    /// Returns the addresses by which the ranges of a node are reached directly.
    pub(crate) fn lookups(&self, node: &Node) -> Vec<IpAddr> {
        if !self.mode.is_direct() {
            return Vec::new();
        }
        let own = |range: &IpNetwork| {
            if range.is_ipv4() { node.ipv4().map(IpAddr::from) } else { node.ipv6().map(IpAddr::from) }
        };
        let mut addresses: Vec<IpAddr> =
            node.pod_cidrs.iter().filter(|range| self.has(**range)).filter_map(own).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Returns the routes to the pods of another node, and the reasons for those that are missing.
    pub(crate) fn node_routes(
        &self,
        node: &Node,
        own: &LocalNode,
        mtu: u32,
        ways: &Ways,
        groups: Groups<'_>,
    ) -> (Vec<DesiredRoute>, Vec<Error>) {
        let (mut routes, mut errors) = (Vec::new(), Vec::new());
        if self.mode == Mode::None {
            return (routes, errors);
        }
        for range in node.pod_cidrs.iter().copied().filter(|range| self.has(*range)) {
            if let Some(own) = own.routed_cidrs().find(|own| contains(*own, range)) {
                errors.push(Error::OwnRange { range, own });
                continue;
            }
            let by_tunnel = || {
                let mtu = if range.is_ipv6() { mtu.max(MIN_MTU_V6) } else { mtu };
                self.by_host(range, own).map(|route| route.mtu(mtu))
            };
            let is_near = || {
                let group = groups(range);
                let same = |own: IpNetwork| own.is_ipv4() == range.is_ipv4() && groups(own) == group;
                group.is_some() && own.routed_cidrs().any(same)
            };
            match self.mode.of_range(is_near) {
                Mode::Tunnel => routes.extend(by_tunnel()),
                Mode::Direct { skip_unreachable } => {
                    let address = if range.is_ipv4() {
                        node.ipv4().map(IpAddr::from)
                    } else {
                        node.ipv6().map(IpAddr::from)
                    };
                    let Some(address) = address else { continue };
                    match way(address, ways) {
                        Ok(device) => routes.push(self.route(range).via(address, &device)),
                        Err(Error::Gateway { .. }) if skip_unreachable => {}
                        Err(error) => {
                            errors.push(error);
                            // The program of cilium_host encapsulates: slower, but it arrives.
                            routes.extend(by_tunnel().filter(|_| matches!(self.mode, Mode::Hybrid { .. })));
                        }
                    }
                }
                Mode::None | Mode::Hybrid { .. } => {}
            }
        }
        errors.dedup();
        (routes, errors)
    }
}

/// Returns the device by which a node is reached directly.
fn way(destination: IpAddr, ways: &Ways) -> Result<String, Error> {
    let way = match ways.get(&destination) {
        Some(Ok(Some(way))) => way,
        Some(Ok(None)) | None => return Err(Error::Unreachable { destination }),
        Some(Err(reason)) => return Err(Error::Lookup { destination, reason: reason.clone() }),
    };
    if let Some(gateway) = way.gateway.filter(|gateway| *gateway != destination && !gateway.is_unspecified())
    {
        return Err(Error::Gateway { destination, gateway });
    }
    let device = way.device.clone().ok_or(Error::Unreachable { destination })?;
    if device == HOST_DEVICE || device == "lo" {
        return Err(Error::Local { destination, device });
    }
    Ok(device)
}

/// Whether all addresses of the second range are in the first.
fn contains(outer: IpNetwork, inner: IpNetwork) -> bool {
    outer.is_ipv4() == inner.is_ipv4() && outer.prefix() <= inner.prefix() && outer.contains(inner.ip())
}

#[cfg(test)]
mod tests {
    use node_manager::testing::node;
    use statedb::TableDisplay;

    use super::*;

    fn settings(mode: Mode) -> Settings {
        Settings { mode, metric: 0, is_local_routed: true, has_ipv4: true, has_ipv6: true }
    }

    fn own() -> LocalNode {
        LocalNode {
            router_ipv4: Some([10, 0, 1, 1].into()),
            router_ipv6: Some("fd00:1::1".parse().unwrap()),
            ipv4_alloc_cidr: Some("10.0.1.0/24".parse().unwrap()),
            ipv6_alloc_cidr: Some("fd00:1::/112".parse().unwrap()),
            withdrawn_alloc_cidrs: vec!["10.0.9.0/24".parse().unwrap()],
            ..LocalNode::default()
        }
    }

    /// Prefix, priority, next hop, source, device, MTU.
    fn text(routes: &[DesiredRoute]) -> Vec<String> {
        let columns = [2, 3, 6, 7, 8, 10];
        routes.iter().map(|route| columns.map(|column| route.row()[column].clone()).join(" ")).collect()
    }

    #[test]
    fn routes_of_this_node_are_those_of_cilium() {
        let own = own();
        let local = settings(Mode::None).local_routes(&own);
        assert_eq!(
            text(&local),
            [
                "10.0.1.1/32 none none none cilium_host (0) none",
                "fd00:1::1/128 none none none cilium_host (0) none",
                "10.0.1.0/24 none 10.0.1.1 10.0.1.1 cilium_host (0) none",
                "fd00:1::/112 none none fd00:1::1 cilium_host (0) none",
                "10.0.9.0/24 none 10.0.1.1 10.0.1.1 cilium_host (0) none",
            ]
        );
        let only_router = Settings { is_local_routed: false, has_ipv6: false, ..settings(Mode::None) };
        assert_eq!(text(&only_router.local_routes(&own)).len(), 1);
        let early = LocalNode { router_ipv6: None, ..own };
        assert!(!settings(Mode::None).is_routable(&early) && only_router.is_routable(&early));
        assert_eq!(settings(Mode::None).local_routes(&early).len(), 3);
    }

    #[test]
    fn by_tunnel_all_ranges_have_the_mtu_of_routes() {
        let node = node("b", &["192.0.2.2"], &["10.0.2.0/24", "fd00:2::/112", "10.0.12.0/24"]);
        let settings = Settings { metric: 7, ..settings(Mode::Tunnel) };
        let (routes, errors) = settings.node_routes(&node, &own(), 1250, &Ways::new(), &|_| None);
        assert_eq!(
            text(&routes),
            [
                "10.0.2.0/24 7 10.0.1.1 10.0.1.1 cilium_host (0) 1250",
                "fd00:2::/112 7 none fd00:1::1 cilium_host (0) 1280",
                "10.0.12.0/24 7 10.0.1.1 10.0.1.1 cilium_host (0) 1250",
            ]
        );
        assert!(errors.is_empty() && settings.lookups(&node).is_empty());
    }

    #[test]
    fn ranges_of_this_node_cannot_be_claimed() {
        let node = node(
            "b",
            &["192.0.2.2"],
            &["10.0.1.0/24", "10.0.1.128/25", "10.0.9.0/24", "10.0.0.0/16", "fd00::/16"],
        );
        let (routes, errors) =
            settings(Mode::Tunnel).node_routes(&node, &own(), 1450, &Ways::new(), &|_| None);
        assert_eq!(
            routes.iter().map(|route| route.key.prefix.to_string()).collect::<Vec<_>>(),
            ["10.0.0.0/16", "fd00::/16"]
        );
        let texts: Vec<String> = errors.iter().map(Error::to_string).collect();
        assert_eq!(texts[1], "range 10.0.1.128/25 is part of this node's own 10.0.1.0/24");
        assert_eq!(texts.len(), 3);
    }

    #[test]
    fn direct_routes_are_by_nodes_without_a_gateway() {
        let mode = Mode::Direct { skip_unreachable: false };
        let node = node("b", &["192.0.2.2", "2001:db8::2"], &["10.0.2.0/24", "fd00:2::/112", "10.0.3.0/24"]);
        let settings = settings(mode);
        let [v4, v6]: [IpAddr; 2] = ["192.0.2.2".parse().unwrap(), "2001:db8::2".parse().unwrap()];
        assert_eq!(settings.lookups(&node), [v4, v6]);
        let to = |gateway: Option<&str>, device: &str| {
            Ok(Some(Way { device: Some(device.to_owned()), gateway: gateway.map(|ip| ip.parse().unwrap()) }))
        };
        let plan = |ways: &Ways| {
            let (routes, errors) = settings.node_routes(&node, &own(), 1450, ways, &|_| None);
            (text(&routes), errors.iter().map(Error::to_string).collect::<Vec<_>>())
        };
        let (routes, errors) =
            plan(&Ways::from([(v4, to(None, "eth0")), (v6, to(Some("2001:db8::2"), "eth1"))]));
        assert_eq!(
            routes,
            [
                "10.0.2.0/24 none 192.0.2.2 none eth0 (0) none",
                "fd00:2::/112 none 2001:db8::2 none eth1 (0) none",
                "10.0.3.0/24 none 192.0.2.2 none eth0 (0) none",
            ]
        );
        assert!(errors.is_empty());
        let (routes, errors) =
            plan(&Ways::from([(v4, to(Some("192.0.2.254"), "eth0")), (v6, to(None, "cilium_host"))]));
        assert!(routes.is_empty());
        assert_eq!(
            errors,
            [
                "route to destination 192.0.2.2 contains gateway 192.0.2.254, must be directly reachable",
                "route to destination 2001:db8::2 is by cilium_host, which leads to no other node",
                "route to destination 192.0.2.2 contains gateway 192.0.2.254, must be directly reachable",
            ]
        );
        assert_eq!(plan(&Ways::from([(v4, Ok(None))])).1[0], "no route to destination 192.0.2.2");

        let skipping = Settings { mode: Mode::Direct { skip_unreachable: true }, ..settings };
        let ways = Ways::from([(v4, to(Some("192.0.2.254"), "eth0")), (v6, to(None, "eth0"))]);
        let (routes, errors) = skipping.node_routes(&node, &own(), 1450, &ways, &|_| None);
        assert_eq!((routes.len(), errors.len()), (1, 0));
    }
    /// Own pods are in the groups 1 and 7, and `192.0.2.254` is a gateway.
    #[test]
    fn with_hybrid_routing_the_group_of_a_range_decides() {
        let groups = |range: IpNetwork| match range.to_string().as_str() {
            "10.0.1.0/24" | "10.0.2.0/24" => Some(1),
            "10.0.3.0/24" => Some(2),
            "fd00:1::/112" | "fd00:2::/112" => Some(7),
            _ => None,
        };
        let node = node(
            "b",
            &["192.0.2.2", "2001:db8::2"],
            &["10.0.2.0/24", "10.0.3.0/24", "10.0.4.0/24", "fd00:2::/112", "fd00:7::/112"],
        );
        let [v4, v6]: [IpAddr; 2] = ["192.0.2.2".parse().unwrap(), "2001:db8::2".parse().unwrap()];
        let way = |gateway| Ok(Some(Way { device: Some("eth0".to_owned()), gateway }));
        let gateway: IpAddr = "192.0.2.254".parse().unwrap();
        let plan = |direct, gateway| {
            let settings = settings(Mode::Hybrid { direct });
            let ways = Ways::from([(v4, way(gateway)), (v6, way(None))]);
            let (routes, errors) = settings.node_routes(&node, &own(), 1450, &ways, &groups);
            (text(&routes), errors.iter().map(Error::to_string).collect::<Vec<_>>(), settings.lookups(&node))
        };
        let by_tunnel = |range| format!("{range} none 10.0.1.1 10.0.1.1 cilium_host (0) 1450");
        let far = [
            by_tunnel("10.0.3.0/24"),
            by_tunnel("10.0.4.0/24"),
            "fd00:7::/112 none none fd00:1::1 cilium_host (0) 1450".to_owned(),
        ];
        assert_eq!(
            plan(None, None),
            (far.to_vec(), vec![], vec![]),
            "the network has routes within the group"
        );
        let near = [
            "10.0.2.0/24 none 192.0.2.2 none eth0 (0) none",
            "fd00:2::/112 none 2001:db8::2 none eth0 (0) none",
        ];
        let all =
            |first: String| vec![first, far[0].clone(), far[1].clone(), near[1].to_owned(), far[2].clone()];
        assert_eq!(plan(Some(false), None), (all(near[0].to_owned()), vec![], vec![v4, v6]));
        let (routes, errors, _) = plan(Some(false), Some(gateway));
        assert_eq!(routes, all(by_tunnel("10.0.2.0/24")));
        assert!(errors[0].contains("contains gateway 192.0.2.254") && errors.len() == 1, "{errors:?}");
        assert_eq!(plan(Some(true), Some(gateway)).0, all(String::new())[1..]);
    }
}
