//! The desired state of the host's side, computed from options and tables. Pure, without a kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use datapath_abi::{DIRECT_ROUTING, MasqueradeAddresses, NodeConfig, fib_flag, ipv4_word, ipv6_words};
use datapath_api::SocketCoverage;
use devices::{Device, NodeAddress, WILDCARD_DEVICE};
use local_node::LocalNode;
use maps::{FamilyConfig, MapsConfig};
use tunnel::{EndpointRoutesConfig, MtuConfig, Protocol, Tunnel};

use crate::config::{ConntrackConfig, LoaderConfig, Notifications};
use crate::interfaces::host::HostSettings;
use crate::interfaces::tunnel::TunnelSettings;
use crate::programs::balancing::Balancing;
use crate::programs::egress::EgressFeatures;
use crate::programs::host_routing::HostRouting;
use crate::programs::ipip::IpipSettings;
use crate::programs::xdp::Acceleration;
use crate::services::ServiceSettings;

/// A device that faces the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NativeDevice {
    /// Its index.
    pub(crate) ifindex: u32,
    /// Its MAC address; none for a device without Ethernet.
    pub(crate) mac: Option<[u8; 6]>,
}

/// The desired state of the host's side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Desired {
    /// Addresses of `cilium_host`.
    pub(crate) host: HostSettings,
    /// The tunnel device, if packets between nodes are encapsulated.
    pub(crate) tunnel: Option<TunnelSettings>,
    /// The devices that add outer IP headers, if packets leave in some.
    pub(crate) ipip: Option<IpipSettings>,
    /// Constants of the programs, without indexes and MAC addresses of the agent's devices, which the kernel assigns.
    pub(crate) constants: NodeConfig,
    /// The mode of XDP on them.
    pub(crate) acceleration: Acceleration,
    /// Devices that face the network, by name.
    pub(crate) devices: BTreeMap<String, NativeDevice>,
    /// Rows of `ep_masquerade` by the device's index; that of the node by [`DIRECT_ROUTING`].
    pub(crate) masquerade: BTreeMap<u32, MasqueradeAddresses>,
    /// The host's own addresses, and those of the ingress: packets to them go up to the host's stack.
    pub(crate) addresses: BTreeSet<IpAddr>,
}

/// The facts that [`Desired`] is computed from.
#[derive(Clone, Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) config: &'a LoaderConfig,
    pub(crate) conntrack: &'a ConntrackConfig,
    pub(crate) services: &'a ServiceSettings,
    pub(crate) clock: &'a bpf::Clock,
    pub(crate) maps: &'a MapsConfig,
    pub(crate) notifications: Notifications,
    pub(crate) socket_coverage: SocketCoverage,
    pub(crate) families: &'a FamilyConfig,
    pub(crate) node: &'a LocalNode,
    pub(crate) host_endpoint: u16,
    pub(crate) tunnel: &'a Tunnel,
    pub(crate) egress: &'a EgressFeatures,
    pub(crate) host_routing: HostRouting,
    pub(crate) balancing: &'a Balancing,
    pub(crate) acceleration: Acceleration,
    /// Policies may require authentication of peers.
    pub(crate) mesh_auth: bool,
    /// Programs assign redirected packets to sockets of proxies.
    pub(crate) bpf_tproxy: bool,
    pub(crate) mtu: MtuConfig,
    pub(crate) endpoint_routes: EndpointRoutesConfig,
    pub(crate) features: bpf::Features,
}

impl Desired {
    /// Computes the desired state; `None` while the router lacks an address of an enabled family.
    pub(crate) fn compute<'a>(
        facts: &Facts<'_>,
        devices: impl Iterator<Item = &'a Device>,
        addresses: impl Iterator<Item = &'a NodeAddress>,
    ) -> Option<Desired> {
        let (node, families) = (facts.node, facts.families);
        let host = HostSettings {
            router_ipv4: node.router_ipv4.filter(|_| families.enable_ipv4),
            router_ipv6: node.router_ipv6.filter(|_| families.enable_ipv6),
        };
        // Ranges of the cluster may be known later than the node: programs without the router's address would be wrong.
        if families.enable_ipv4 && host.router_ipv4.is_none()
            || families.enable_ipv6 && host.router_ipv6.is_none()
        {
            return None;
        }
        let devices: Vec<&Device> = devices.filter(|device| device.selected).collect();
        let mtu = facts.mtu.device_mtu(facts.tunnel, devices.iter().copied());
        let tunnel = TunnelSettings::new(facts.tunnel, mtu);
        let ipip = facts.egress.ipip.devices(families, mtu);
        let mut constants = constants(facts, &host);
        facts.egress.apply(&mut constants);
        facts.balancing.apply(&mut constants);
        facts.acceleration.apply(&mut constants);
        // Wrong ids were refused when the options were read.
        if let Ok(vlans) = facts.config.vlans() {
            vlans.apply(&devices, &mut constants);
        }
        let direct_routing = facts.egress.direct_routing_row(&devices, node);
        let selected = devices.into_iter().map(|device| {
            let native = NativeDevice { ifindex: device.index, mac: device.hardware_addr.ethernet() };
            (device.name.clone(), native)
        });
        let selected: BTreeMap<String, NativeDevice> = selected.collect();
        let addresses: Vec<&NodeAddress> = addresses.collect();
        let indexes = selected.iter().map(|(name, device)| (name.as_str(), device.ifindex));
        let mut masquerade = facts.egress.masquerade_rows(indexes, &addresses, node);
        masquerade.extend(direct_routing.map(|row| (DIRECT_ROUTING, row)));
        let enabled = |ip: &IpAddr| if ip.is_ipv4() { families.enable_ipv4 } else { families.enable_ipv6 };
        let own = addresses.into_iter().filter(|row| row.device_name != WILDCARD_DEVICE).map(|row| row.addr);
        let routers = host.addresses().into_iter().map(|address| address.ip());
        let ingress = [node.ingress_ipv4.map(IpAddr::V4), node.ingress_ipv6.map(IpAddr::V6)];
        let own = own.chain(routers).chain(ingress.into_iter().flatten());
        let addresses = own.filter(|ip| !ip.is_loopback()).filter(enabled).collect();
        let acceleration = facts.acceleration;
        Some(Desired {
            constants,
            acceleration,
            devices: selected,
            masquerade,
            addresses,
            host,
            tunnel,
            ipip,
        })
    }

    /// Returns why the host firewall does not see all packets of the host: no device, or devices without Ethernet
    /// headers. `None` if it does, or if it is off.
    pub(crate) fn unfiltered(&self) -> Option<String> {
        if self.constants.host_firewall == 0 {
            return None;
        }
        if self.devices.is_empty() {
            return Some("no device faces the network: see the option devices".to_owned());
        }
        let names = self.devices.iter().filter(|(_, device)| device.mac.is_none());
        let names: Vec<&str> = names.map(|(name, _)| name.as_str()).collect();
        (!names.is_empty()).then(|| format!("{} without Ethernet headers", names.join(", ")))
    }
}

fn constants(facts: &Facts<'_>, host: &HostSettings) -> NodeConfig {
    let (config, conntrack) = (facts.config, facts.conntrack);
    let is_host_bypassed = facts.host_routing == HostRouting::Bpf;
    let has_endpoint_routes = facts.endpoint_routes.enable_endpoint_routes;
    let ticks = |span| facts.clock.ticks(span);
    NodeConfig {
        router_ipv6: host.router_ipv6.map_or([0; 4], ipv6_words),
        router_ipv4: host.router_ipv4.map_or(0, ipv4_word),
        host_endpoint_id: facts.host_endpoint.into(),
        trace_payload_len: config.trace_payloadlen,
        monitor_aggregation: facts.notifications.aggregation,
        enable_ipv4: facts.families.enable_ipv4.into(),
        enable_ipv6: facts.families.enable_ipv6.into(),
        // Always on here: the settings entry of each endpoint has its own switch.
        source_ip_verification: 1,
        arp_responder: facts.families.enable_ipv4.into(),
        // With endpoint routes the host's stack delivers to pods.
        redirect_peer: (!config.enable_host_legacy_routing && !has_endpoint_routes).into(),
        endpoint_routes: has_endpoint_routes.into(),
        host_routing: is_host_bypassed.into(),
        drop_notify: facts.notifications.drops.into(),
        trace_notify: facts.notifications.traces.into(),
        identity_mark: config.enable_identity_mark.into(),
        policy_verdict_notify: facts.notifications.verdicts.into(),
        policy_accounting: config.policy_accounting.into(),
        ct_accounting: conntrack.bpf_conntrack_accounting.into(),
        icmp_rules: config.enable_icmp_rules.into(),
        host_firewall: config.enable_host_firewall.into(),
        mesh_auth: facts.mesh_auth.into(),
        bpf_tproxy: facts.bpf_tproxy.into(),
        // As below: an invalid value was refused.
        policy_deny_response: config.answers_denied().unwrap_or_default().into(),
        allow_icmp_frag_needed: config.allow_icmp_frag_needed.into(),
        ipv4_fragments: facts.maps.enable_ipv4_fragment_tracking.into(),
        ipv6_fragments: facts.maps.enable_ipv6_fragment_tracking.into(),
        sctp: conntrack.enable_sctp.into(),
        extended_protocols: conntrack.enable_extended_ip_protocols.into(),
        jiffies_clock: facts.clock.is_jiffies().into(),
        // The default is never used: invalid names were refused when the options were read.
        ct_report_flags: conntrack.report_flags().unwrap_or_default(),
        ct_report_interval: ticks(conntrack.monitor_aggregation_interval),
        ct_tcp_lifetime: ticks(conntrack.bpf_ct_timeout_regular_tcp),
        ct_any_lifetime: ticks(conntrack.bpf_ct_timeout_regular_any),
        ct_service_tcp_lifetime: ticks(conntrack.bpf_ct_timeout_service_tcp),
        ct_service_any_lifetime: ticks(conntrack.bpf_ct_timeout_service_any),
        ct_service_tcp_grace: ticks(conntrack.bpf_ct_timeout_service_tcp_grace),
        ct_syn_timeout: ticks(conntrack.bpf_ct_timeout_regular_tcp_syn),
        ct_close_timeout: ticks(conntrack.bpf_ct_timeout_regular_tcp_fin),
        service_loopback_ipv6: facts.node.service_loopback_ipv6.map_or([0; 4], ipv6_words),
        service_loopback_ipv4: facts.node.service_loopback_ipv4.map_or(0, ipv4_word),
        ticks_in_256_seconds: ticks(Duration::from_secs(256)),
        per_packet_lb: needs_per_packet_lb(facts.socket_coverage, conntrack.enable_sctp).into(),
        empty_services_drop: facts.services.drop_empty.into(),
        empty_services_reject: facts.services.reject.into(),
        tunnel: facts.tunnel.is_tunnel().into(),
        // Kernels with tcx (Linux 6.6) have this flag (6.3).
        fib_flags: if facts.features.tcx { fib_flag::SKIP_NEIGHBOUR } else { 0 },
        hybrid: facts.tunnel.is_hybrid().into(),
        tunnel_port: if facts.tunnel.is_tunnel() { facts.tunnel.port.to_be() } else { 0 },
        tunnel_source_ports: facts.tunnel.source_ports.into(),
        tunnel_geneve: (facts.tunnel.is_tunnel() && facts.tunnel.protocol == Protocol::Geneve).into(),
        ..NodeConfig::default()
    }
}

/// Whether each packet of pods is translated: not if their sockets are. SCTP has no hooks at sockets.
fn needs_per_packet_lb(coverage: SocketCoverage, has_sctp: bool) -> bool {
    coverage != SocketCoverage::All || has_sctp
}

#[cfg(test)]
pub(crate) mod tests {
    use devices::{HardwareAddr, Link};
    use tunnel::{Family, RoutingMode};

    use super::*;
    use crate::programs::host_routing::LegacyReason;

    pub(crate) fn config() -> LoaderConfig {
        LoaderConfig {
            enable_tcx: true,
            bpf_filter_priority: 1,
            endpoint_bpf_prog_watchdog_interval: Duration::ZERO,
            enable_host_legacy_routing: false,
            enable_identity_mark: true,
            trace_payloadlen: 128,
            monitor_aggregation: "medium".to_owned(),
            bpf_events_drop_enabled: true,
            bpf_events_trace_enabled: false,
            bpf_events_policy_verdict_enabled: true,
            policy_accounting: true,
            enable_icmp_rules: true,
            enable_pmtu_discovery: false,
            allow_icmp_frag_needed: false,
            enable_host_firewall: false,
            policy_deny_response: "none".to_owned(),
            enable_ipip_termination: false,
            vlan_bpf_bypass: Vec::new(),
        }
    }

    pub(crate) fn conntrack() -> ConntrackConfig {
        ConntrackConfig {
            enable_sctp: true,
            enable_extended_ip_protocols: false,
            bpf_conntrack_accounting: false,
            bpf_ct_timeout_regular_tcp: Duration::from_secs(8000),
            bpf_ct_timeout_regular_any: Duration::from_secs(60),
            bpf_ct_timeout_regular_tcp_fin: Duration::from_secs(10),
            bpf_ct_timeout_regular_tcp_syn: Duration::from_secs(61),
            bpf_ct_timeout_service_tcp: Duration::from_secs(8001),
            bpf_ct_timeout_service_any: Duration::from_secs(62),
            bpf_ct_timeout_service_tcp_grace: Duration::from_secs(63),
            monitor_aggregation_interval: Duration::from_secs(5),
            monitor_aggregation_flags: vec!["syn".to_owned(), "fin".to_owned()],
        }
    }

    fn tunnel() -> Tunnel {
        Tunnel {
            mode: RoutingMode::Tunnel,
            protocol: Protocol::Vxlan,
            port: 8472,
            source_ports: (0, 0),
            underlay: Family::Ipv4,
            is_ipv6_enabled: true,
        }
    }

    fn node() -> LocalNode {
        LocalNode {
            ipv4_alloc_cidr: Some("10.244.0.0/16".parse().unwrap()),
            ipv6_alloc_cidr: Some("fd00::/64".parse().unwrap()),
            router_ipv4: Some([10, 244, 0, 1].into()),
            router_ipv6: Some("fd00::1".parse().unwrap()),
            service_loopback_ipv4: Some([169, 254, 42, 1].into()),
            ..LocalNode::default()
        }
    }

    fn compute(node: &LocalNode, families: FamilyConfig) -> Option<Desired> {
        let legacy = HostRouting::Legacy(LegacyReason::NoReplacement);
        compute_with(node, families, EndpointRoutesConfig { enable_endpoint_routes: false }, legacy)
    }

    fn compute_with(
        node: &LocalNode,
        families: FamilyConfig,
        endpoint_routes: EndpointRoutesConfig,
        host_routing: HostRouting,
    ) -> Option<Desired> {
        let notifications = config().notifications().unwrap();
        let facts = Facts {
            config: &config(),
            conntrack: &conntrack(),
            services: &crate::services::tests::config().settings().unwrap(),
            clock: &bpf::Clock::Seconds,
            maps: &MapsConfig { enable_ipv6_fragment_tracking: false, ..MapsConfig::default() },
            notifications,
            socket_coverage: SocketCoverage::None,
            families: &families,
            node,
            host_endpoint: 500,
            tunnel: &tunnel(),
            egress: &EgressFeatures::default(),
            host_routing,
            balancing: &Balancing::default(),
            acceleration: Acceleration::default(),
            mesh_auth: false,
            bpf_tproxy: false,
            mtu: MtuConfig { mtu: 0 },
            endpoint_routes,
            features: bpf::Features { tcx: families.enable_ipv4 },
        };
        let device = |index, name: &str, selected, mac: &[u8]| Device {
            link: Link {
                index,
                mtu: 1400 + index - 2,
                name: name.to_owned(),
                hardware_addr: HardwareAddr::new(mac),
                ..Link::default()
            },
            selected,
            ..Device::default()
        };
        let devices = [
            device(2, "eth0", true, &[2, 0, 0, 0, 0, 1]),
            device(3, "tun0", true, &[]),
            device(4, "lxc1", false, &[2, 0, 0, 0, 0, 2]),
        ];
        let address = |ip: &str, name: &str| NodeAddress {
            addr: ip.parse().unwrap(),
            device_name: name.to_owned(),
            node_port: false,
            primary: false,
        };
        let addresses = [
            address("10.99.0.1", "eth0"),
            address("10.99.0.1", WILDCARD_DEVICE),
            address("10.99.0.2", WILDCARD_DEVICE),
            address("fd99::1", "eth0"),
            address("127.0.0.1", "lo"),
        ];
        Desired::compute(&facts, devices.iter(), addresses.iter())
    }

    #[test]
    fn packets_to_the_ingress_are_the_hosts() {
        let ingress_ipv4 = Some([10, 244, 0, 250].into());
        let ingress_ipv6 = "fd00::250".parse().ok();
        let node = LocalNode { ingress_ipv4, ingress_ipv6, ..node() };
        let has =
            |families, ip: &str| compute(&node, families).unwrap().addresses.contains(&ip.parse().unwrap());
        let only_ipv4 = FamilyConfig { enable_ipv6: false, ..FamilyConfig::default() };
        assert!(has(FamilyConfig::default(), "10.244.0.250") && has(FamilyConfig::default(), "fd00::250"));
        assert!(has(only_ipv4.clone(), "10.244.0.250") && !has(only_ipv4, "fd00::250"));
    }

    #[test]
    fn selected_devices_and_own_addresses_with_the_routers() {
        let desired = compute(&node(), FamilyConfig::default()).unwrap();
        let names: Vec<&String> = desired.devices.keys().collect();
        assert_eq!(names, ["eth0", "tun0"]);
        assert_eq!(desired.devices["tun0"].mac, None);
        let addresses: Vec<String> = desired.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.99.0.1", "10.244.0.1", "fd00::1", "fd99::1"]);
        let constants = desired.constants;
        assert_eq!((constants.host_endpoint_id, constants.monitor_aggregation), (500, 3));
        assert_eq!((constants.drop_notify, constants.trace_notify, constants.redirect_peer), (1, 0, 1));
        assert_eq!(constants.host_routing, 0, "the programs redirect in neither direction");
        assert_eq!((constants.sctp, constants.extended_protocols), (1, 0));
        assert_eq!((constants.icmp_rules, constants.allow_icmp_frag_needed), (1, 0));
        assert_eq!((constants.ipv4_fragments, constants.ipv6_fragments), (1, 0));
        assert_eq!(constants.service_loopback_ipv4.to_ne_bytes(), [169, 254, 42, 1]);
        assert_eq!((constants.empty_services_drop, constants.empty_services_reject), (1, 1));
        assert_eq!((constants.tunnel, constants.tunnel_port), (1, 8472u16.to_be()));
        assert_eq!(constants.fib_flags, fib_flag::SKIP_NEIGHBOUR);
        let old = compute(&node(), FamilyConfig { enable_ipv4: false, enable_ipv6: true }).unwrap();
        assert_eq!(old.constants.fib_flags, 0, "a kernel without tcx");
        assert_eq!(desired.tunnel, TunnelSettings::new(&tunnel(), 1400));
    }

    #[test]
    fn devices_that_the_host_firewall_does_not_see_are_named() {
        let mut desired = compute(&node(), FamilyConfig::default()).unwrap();
        assert_eq!(desired.unfiltered(), None, "it is off");
        desired.constants.host_firewall = 1;
        assert_eq!(desired.unfiltered().as_deref(), Some("tun0 without Ethernet headers"));
        desired.devices.remove("tun0");
        assert_eq!(desired.unfiltered(), None);
        desired.devices.clear();
        assert!(desired.unfiltered().unwrap().starts_with("no device faces the network"));
    }

    #[test]
    fn with_endpoint_routes_the_stack_delivers_to_pods() {
        let constants = |enable_endpoint_routes, host_routing| {
            let routes = EndpointRoutesConfig { enable_endpoint_routes };
            let desired = compute_with(&node(), FamilyConfig::default(), routes, host_routing);
            let constants = desired.unwrap().constants;
            (constants.endpoint_routes, constants.redirect_peer, constants.host_routing)
        };
        let legacy = HostRouting::Legacy(LegacyReason::NoReplacement);
        assert_eq!(constants(false, legacy), (0, 1, 0));
        assert_eq!(constants(true, legacy), (1, 0, 0));
        assert_eq!(constants(false, HostRouting::Bpf), (0, 1, 1));
    }

    #[test]
    fn times_of_connections_are_those_of_the_options() {
        let c = compute(&node(), FamilyConfig::default()).unwrap().constants;
        assert_eq!((c.ct_tcp_lifetime, c.ct_any_lifetime, c.ct_close_timeout), (8000, 60, 10));
        assert_eq!((c.ct_service_tcp_lifetime, c.ct_service_any_lifetime), (8001, 62));
        assert_eq!(c.ticks_in_256_seconds, 256);
        assert_eq!((c.ct_service_tcp_grace, c.ct_syn_timeout), (63, 61));
        assert_eq!((c.ct_report_interval, c.ct_report_flags, c.jiffies_clock), (5, 3, 0));
    }

    #[test]
    fn a_family_that_is_off_has_no_part_in_it() {
        let off = FamilyConfig { enable_ipv4: true, enable_ipv6: false };
        let desired = compute(&LocalNode { router_ipv6: None, ..node() }, off).unwrap();
        assert!(desired.addresses.iter().all(IpAddr::is_ipv4));
        assert_eq!(desired.constants.enable_ipv6, 0);
    }

    #[test]
    fn packets_of_pods_are_translated_unless_their_sockets_are() {
        for (coverage, has_sctp, expected) in [
            (SocketCoverage::None, false, true),
            (SocketCoverage::Host, false, true),
            (SocketCoverage::All, false, false),
            (SocketCoverage::All, true, true),
        ] {
            assert_eq!(needs_per_packet_lb(coverage, has_sctp), expected, "{coverage:?} {has_sctp}");
        }
        assert_eq!(compute(&node(), FamilyConfig::default()).unwrap().constants.per_packet_lb, 1);
    }

    #[test]
    fn without_the_routers_address_there_is_nothing_to_do_yet() {
        assert_eq!(compute(&LocalNode { router_ipv6: None, ..node() }, FamilyConfig::default()), None);
        assert_eq!(compute(&LocalNode { router_ipv4: None, ..node() }, FamilyConfig::default()), None);
    }
}
