//! The desired state, computed from options and tables.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use devices::{Device, HOST_DEVICE, Route, TABLE_MAIN};
use ipnetwork::IpNetwork;
use local_node::{IpamMode, LocalNode};
use masquerade::MasqueradeConfig;
use tunnel::Tunnel;

use crate::config::IptablesConfig;
use crate::ipset::node_set;
use crate::no_track::{NoTrack, Untracked};
use crate::pass::Desired;
use crate::rules::{Family, Inputs, Masquerade, POD_INTERFACES, RouteSource};

/// The kind of a route that delivers packets (`RTN_UNICAST`).
const UNICAST: u8 = libc::RTN_UNICAST;

/// All that the desired state depends on.
pub(crate) struct Facts<'a> {
    pub(crate) config: &'a IptablesConfig,
    pub(crate) masquerade: &'a MasqueradeConfig,
    pub(crate) tunnel: &'a Tunnel,
    /// Whether pods have routes of their own.
    pub(crate) has_endpoint_routes: bool,
    /// The enabled families.
    pub(crate) families: &'a [Family],
    pub(crate) node: &'a LocalNode,
    pub(crate) routes: Vec<&'a Route>,
    pub(crate) devices: Vec<&'a Device>,
    pub(crate) proxies: BTreeMap<Arc<str>, u16>,
    /// The IPv4 range of which nothing is tracked.
    pub(crate) untracked_range: Option<IpNetwork>,
    /// Traffic that is not tracked, and whether all of it is known.
    pub(crate) untracked: (Vec<&'a NoTrack>, bool),
}

impl Facts<'_> {
    /// Returns the desired state.
    pub(crate) fn desired(&self) -> Desired {
        let install = self.config.install_iptables_rules;
        let families = self.families.iter().filter(|_| install);
        Desired {
            families: families.map(|family| (*family, self.inputs(*family))).collect(),
            prepend: self.config.prepend_iptables_chains,
            socket_fallback: self.config.enable_xt_socket_fallback,
        }
    }

    fn inputs(&self, family: Family) -> Inputs {
        Inputs {
            tunnel_port: self.tunnel.is_tunnel().then_some(self.tunnel.port),
            socket_match: true,
            delivery: if self.has_endpoint_routes { POD_INTERFACES } else { HOST_DEVICE }.to_owned(),
            no_feeder: self.config.disable_iptables_feeder_rules.clone(),
            masquerade: self.masquerade(family),
            proxies: self.proxies.clone(),
            untracked_range: self.untracked_range.filter(|_| family == Family::V4),
            untracked: Untracked::of(family, self.untracked.0.iter().copied(), self.untracked.1),
        }
    }

    fn masquerade(&self, family: Family) -> Option<Masquerade> {
        if !self.masquerade.is_in_iptables(family.ip()) {
            return None;
        }
        let router: IpAddr = match family {
            Family::V4 => self.node.router_ipv4?.into(),
            Family::V6 => self.node.router_ipv6?.into(),
        };
        Some(Masquerade {
            alloc_cidr: alloc_cidr(self.node, family),
            // Options are checked before the start.
            excluded: self.masquerade.native_routing_cidr(family.ip()).unwrap_or_default(),
            router,
            interfaces: self.masquerade.egress_masquerade_interfaces.clone(),
            routes: self.masquerade.enable_masquerade_to_route_source.then(|| self.route_sources(family)),
            random_fully: self.masquerade.iptables_random_fully,
            node_set: needs_set(self.config, self.masquerade, self.tunnel, family).then(|| node_set(family)),
        })
    }

    /// Returns the routes of the main table with a source, most specific first, by the devices that face the network or
    /// are chosen by an option.
    fn route_sources(&self, family: Family) -> Vec<RouteSource> {
        let device = |index: u32| self.devices.iter().find(|device| device.index == index);
        let chosen = &self.masquerade.egress_masquerade_interfaces;
        let is_chosen = |device: &Device| match &chosen[..] {
            [] => device.selected,
            chosen => chosen.contains(&device.name),
        };
        let source = |route: &&Route| {
            let src = route.src.filter(|src| src.is_ipv4() == (family == Family::V4))?;
            let device = match route.key.link_index {
                0 => None,
                index => Some(device(index).filter(|device| is_chosen(device))?.name.clone()),
            };
            Some(RouteSource { dst: route.key.dst, device, src })
        };
        let main = self.routes.iter().filter(|route| route.key.table == TABLE_MAIN && route.kind == UNICAST);
        let mut sources: Vec<RouteSource> = main.filter_map(source).collect();
        sources.sort_by(|a, b| b.dst.prefix().cmp(&a.dst.prefix()).then_with(|| a.cmp(b)));
        sources.dedup();
        sources
    }
}

/// Whether packets to nodes are excluded from masquerading by a set of their addresses.
pub(crate) fn needs_set(
    config: &IptablesConfig,
    masquerade: &MasqueradeConfig,
    tunnel: &Tunnel,
    family: Family,
) -> bool {
    config.install_iptables_rules && masquerade.is_in_iptables(family.ip()) && !tunnel.is_tunnel()
}

/// Returns the range of the node's pods.
pub(crate) fn alloc_cidr(node: &LocalNode, family: Family) -> Option<IpNetwork> {
    match family {
        Family::V4 => node.ipv4_alloc_cidr.map(IpNetwork::V4),
        Family::V6 => node.ipv6_alloc_cidr.map(IpNetwork::V6),
    }
}

/// Returns why packets of pods cannot be masqueraded with these options.
pub(crate) fn missing_interfaces(ipam: IpamMode, masquerade: &MasqueradeConfig) -> Option<String> {
    let has_range = matches!(ipam, IpamMode::ClusterPool | IpamMode::Kubernetes);
    let name = || hive::config::FlagValue::render(&ipam);
    (!has_range && masquerade.egress_masquerade_interfaces.is_empty()).then(|| {
        format!(
            "pods have no single range with ipam={}: set egress-masquerade-interfaces to the devices that face the \
             network, or enable-ipv4-masquerade and enable-ipv6-masquerade to false",
            name()
        )
    })
}
