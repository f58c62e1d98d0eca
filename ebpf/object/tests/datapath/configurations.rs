//! Every configuration loads: the verifier accepts all programs with each switch alone, with all pairs, and as
//! nodes are really configured. A run of `make test` has one in three, of pairs one in six; which ones changes with the commit.

use crate::kit::{Datapath, default_config};
use anyhow::{Context as _, Result};
use aya::util::KernelVersion;
use aya::{EbpfLoader, VerifierLogLevel};
use datapath_abi::{
    MAGLEV_TEMPLATE_SIZE, NodeConfig, Pod, before_services, dsr, fib_flag, trace::aggregation,
};
use datapath_object::{NODE_CONFIG, PROGRAMS};
use test_kit::Slice;

type Switch = (&'static str, fn(&mut NodeConfig, bool));

/// Those before this one decide where packets go, the others what is remembered and told of them.
const FORWARDING: usize = 14;

const SWITCHES: [Switch; 34] = [
    ("enable_ipv4", |c, on| c.enable_ipv4 = on.into()),
    ("enable_ipv6", |c, on| c.enable_ipv6 = on.into()),
    ("source_ip_verification", |c, on| c.source_ip_verification = on.into()),
    ("arp_responder", |c, on| c.arp_responder = on.into()),
    ("redirect_peer", |c, on| c.redirect_peer = on.into()),
    ("host_routing", |c, on| c.host_routing = on.into()),
    ("endpoint_routes", |c, on| c.endpoint_routes = on.into()),
    ("tunnel", |c, on| (c.tunnel, c.tunnel_ifindex) = (on.into(), if on { 7 } else { 0 })),
    ("nodeport", |c, on| c.nodeport = on.into()),
    ("host_firewall", |c, on| c.host_firewall = on.into()),
    ("drop_notify", |c, on| c.drop_notify = on.into()),
    ("trace_notify", |c, on| c.trace_notify = on.into()),
    ("identity_mark", |c, on| c.identity_mark = on.into()),
    ("monitor_aggregation", |c, on| {
        c.monitor_aggregation = if on { aggregation::MEDIUM } else { aggregation::NONE }
    }),
    ("policy_verdict_notify", |c, on| c.policy_verdict_notify = on.into()),
    ("mesh_auth", |c, on| c.mesh_auth = on.into()),
    ("bpf_tproxy", |c, on| c.bpf_tproxy = on.into()),
    ("policy_deny_response", |c, on| c.policy_deny_response = on.into()),
    ("policy_accounting", |c, on| c.policy_accounting = on.into()),
    ("ct_accounting", |c, on| c.ct_accounting = on.into()),
    ("icmp_rules", |c, on| c.icmp_rules = on.into()),
    ("allow_icmp_frag_needed", |c, on| c.allow_icmp_frag_needed = on.into()),
    ("ipv4_fragments", |c, on| c.ipv4_fragments = on.into()),
    ("ipv6_fragments", |c, on| c.ipv6_fragments = on.into()),
    ("sctp", |c, on| c.sctp = on.into()),
    ("extended_protocols", |c, on| c.extended_protocols = on.into()),
    ("jiffies_clock", |c, on| c.jiffies_clock = on.into()),
    ("per_packet_lb", |c, on| c.per_packet_lb = on.into()),
    ("masquerade", |c, on| {
        (c.masquerade_ipv4, c.masquerade_ipv6, c.snat_min_port) = (on.into(), on.into(), 32768);
    }),
    ("ip_masq_agent", |c, on| c.ip_masq_agent = on.into()),
    ("remote_node_masquerade", |c, on| c.remote_node_masquerade = on.into()),
    ("maglev", |c, on| {
        (c.maglev, c.algorithm_annotation) = (on.into(), on.into());
        c.maglev_table_size = if on { MAGLEV_TEMPLATE_SIZE } else { 0 };
    }),
    ("ipip_termination", |c, on| c.before_services = if on { before_services::IPIP } else { 0 }),
    ("dsr", |c, on| (c.nodeport, c.dsr) = if on { (1, dsr::BY_SERVICE) } else { (c.nodeport, dsr::NONE) }),
];

/// A configuration as nodes have it: a name and what differs from the default.
type Named = (&'static str, fn(&mut NodeConfig));

const NAMED: [Named; 56] = [
    ("default", |_| {}),
    ("host-routing", |c| c.host_routing = 1),
    ("ipv4-only", |c| c.enable_ipv6 = 0),
    ("ipv6-only", |c| c.enable_ipv4 = 0),
    ("legacy-host-routing", |c| c.redirect_peer = 0),
    ("legacy-host-routing-ipv4-only", |c| (c.redirect_peer, c.enable_ipv6) = (0, 0)),
    ("legacy-host-routing-ipv6-only", |c| (c.redirect_peer, c.enable_ipv4) = (0, 0)),
    ("host-routing-ipv6-only", |c| (c.host_routing, c.enable_ipv4) = (1, 0)),
    ("endpoint-routes", |c| (c.endpoint_routes, c.redirect_peer) = (1, 0)),
    ("endpoint-routes-host-routing", |c| (c.endpoint_routes, c.host_routing) = (1, 1)),
    ("endpoint-routes-ipv4-only", |c| (c.endpoint_routes, c.redirect_peer, c.enable_ipv6) = (1, 0, 0)),
    ("chained-cni", |c| {
        (c.endpoint_routes, c.redirect_peer, c.arp_responder) = (1, 0, 0);
        c.source_ip_verification = 0;
    }),
    ("chained-cni-arp", |c| (c.endpoint_routes, c.redirect_peer) = (1, 0)),
    ("no-services", |c| c.per_packet_lb = 0),
    ("empty-services-silent", |c| c.empty_services_reject = 0),
    ("empty-services-routed", |c| c.empty_services_drop = 0),
    ("no-source-check", |c| c.source_ip_verification = 0),
    ("no-identity-mark", |c| c.identity_mark = 0),
    ("monitor-everything", |c| (c.monitor_aggregation, c.trace_payload_len) = (aggregation::NONE, 1500)),
    ("monitor-low", |c| c.monitor_aggregation = aggregation::LOW),
    ("monitor-maximum", |c| c.monitor_aggregation = aggregation::MAXIMUM),
    ("drops-only", |c| c.trace_notify = 0),
    ("traces-only", |c| c.drop_notify = 0),
    ("silent", |c| (c.trace_notify, c.drop_notify) = (0, 0)),
    ("tunnel", |c| (c.tunnel, c.tunnel_ifindex, c.tunnel_port) = (1, 7, 8472u16.to_be())),
    ("tunnel-without-device", |c| c.tunnel = 1),
    ("hybrid", |c| (c.tunnel, c.tunnel_ifindex, c.hybrid) = (1, 7, 1)),
    ("hybrid-everything", |c| {
        (c.tunnel, c.tunnel_ifindex, c.hybrid, c.nodeport, c.host_routing) = (1, 7, 1, 1, 1);
        (c.masquerade_ipv4, c.masquerade_ipv6, c.snat_min_port) = (1, 1, 32768);
        (c.host_firewall, c.sctp, c.extended_protocols, c.ct_accounting) = (1, 1, 1, 1);
        (c.policy_deny_response, c.ip_masq_agent, c.monitor_aggregation) = (1, 1, aggregation::NONE);
        c.bpf_tproxy = 1;
    }),
    ("tunnel-ipv4-only", |c| (c.tunnel, c.tunnel_ifindex, c.enable_ipv6) = (1, 7, 0)),
    ("tunnel-endpoint-routes", |c| {
        (c.tunnel, c.tunnel_ifindex, c.endpoint_routes, c.redirect_peer) = (1, 7, 1, 0);
    }),
    ("kube-proxy-replacement", |c| c.nodeport = 1),
    ("kube-proxy-replacement-host-routing", |c| (c.nodeport, c.host_routing) = (1, 1)),
    ("kube-proxy-replacement-sources-of-routes", |c| {
        (c.nodeport, c.dynamic_source, c.sctp, c.ct_accounting) = (1, 1, 1, 1);
        c.monitor_aggregation = aggregation::NONE;
    }),
    ("kube-proxy-replacement-ipv4-only", |c| (c.nodeport, c.enable_ipv6) = (1, 0)),
    ("kube-proxy-replacement-tunnel", |c| {
        (c.tunnel, c.tunnel_ifindex, c.nodeport) = (1, 7, 1);
        (c.sctp, c.ct_accounting, c.trace_notify, c.monitor_aggregation) = (1, 1, 1, aggregation::NONE);
    }),
    ("kube-proxy-replacement-tunnel-host-routing", |c| {
        (c.tunnel, c.tunnel_ifindex, c.nodeport, c.host_routing, c.dynamic_source) = (1, 7, 1, 1, 1);
        (c.sctp, c.ct_accounting, c.monitor_aggregation) = (1, 1, aggregation::NONE);
    }),
    ("kube-proxy-replacement-probes", |c| {
        (c.nodeport, c.probes, c.dsr, c.dsr_dispatch) = (1, 1, dsr::ALL, dsr::dispatch::IPIP);
        (c.ipip_ifindex_ipv4, c.ipip_ifindex_ipv6, c.fib_flags) = (7, 8, fib_flag::SKIP_NEIGHBOUR);
        (c.masquerade_ipv4, c.masquerade_ipv6, c.snat_min_port, c.host_firewall) = (1, 1, 32768, 1);
    }),
    ("kube-proxy-replacement-maglev", |c| {
        (c.nodeport, c.maglev, c.maglev_table_size) = (1, 1, MAGLEV_TEMPLATE_SIZE);
    }),
    ("kube-proxy-replacement-maglev-by-service", |c| {
        (c.nodeport, c.algorithm_annotation, c.maglev_table_size) = (1, 1, MAGLEV_TEMPLATE_SIZE);
    }),
    ("kube-proxy-replacement-xdp", |c| {
        (c.nodeport, c.host_routing, c.before_services) = (1, 1, before_services::XDP)
    }),
    ("direct-server-return", |c| (c.nodeport, c.dsr, c.sctp) = (1, dsr::ALL, 1)),
    ("direct-server-return-masquerade", |c| {
        (c.nodeport, c.dsr, c.dsr_icmp, c.sctp, c.ct_accounting) = (1, dsr::BY_SERVICE, 1, 1, 1);
        (c.masquerade_ipv4, c.masquerade_ipv6, c.snat_min_port) = (1, 1, 32768);
        c.monitor_aggregation = aggregation::NONE;
    }),
    ("direct-server-return-geneve", |c| {
        (c.tunnel, c.tunnel_ifindex, c.nodeport) = (1, 7, 1);
        (c.dsr, c.dsr_dispatch, c.sctp, c.ct_accounting) = (dsr::ALL, dsr::dispatch::GENEVE, 1, 1);
        c.monitor_aggregation = aggregation::NONE;
    }),
    ("direct-server-return-ipip", |c| {
        (c.nodeport, c.dsr, c.dsr_dispatch, c.dsr_icmp) = (1, dsr::BY_SERVICE, dsr::dispatch::IPIP, 1);
        (c.ipip_ifindex_ipv4, c.ipip_ifindex_ipv6, c.before_services) = (8, 9, before_services::IPIP);
        (c.sctp, c.ct_accounting, c.monitor_aggregation) = (1, 1, aggregation::NONE);
    }),
    ("ipip-termination-everything", |c| {
        (c.nodeport, c.host_routing, c.host_firewall, c.masquerade_ipv4, c.masquerade_ipv6) = (1, 1, 1, 1, 1);
        (c.snat_min_port, c.tunnel, c.tunnel_ifindex) = (32768, 1, 7);
        (c.nat46x64, c.nat46x64_gateway, c.vlan_filter, c.vlans[0]) = (1, 1, 1, 7);
        c.before_services = before_services::XDP | before_services::IPIP;
        (c.sctp, c.ct_accounting, c.monitor_aggregation) = (1, 1, aggregation::NONE);
        c.bpf_tproxy = 1;
    }),
    ("services-of-both-families", |c| (c.nodeport, c.nat46x64, c.snat_min_port) = (1, 1, 32768)),
    ("gateway-between-families", |c| {
        (c.nodeport, c.host_routing, c.snat_min_port) = (1, 1, 32768);
        (c.nat46x64, c.nat46x64_gateway, c.vlan_filter, c.vlans[0]) = (1, 1, 1, 7);
    }),
    ("gateway-between-families-everything", |c| {
        (c.nodeport, c.host_firewall, c.masquerade_ipv4, c.masquerade_ipv6) = (1, 1, 1, 1);
        (c.snat_min_port, c.tunnel, c.tunnel_ifindex, c.host_routing) = (32768, 1, 7, 1);
        (c.nat46x64, c.nat46x64_gateway, c.dynamic_source, c.sctp) = (1, 1, 1, 1);
        (c.endpoint_routes, c.ct_accounting, c.monitor_aggregation) = (1, 1, aggregation::NONE);
        c.bpf_tproxy = 1;
    }),
    ("masquerade", |c| (c.masquerade_ipv4, c.masquerade_ipv6, c.snat_min_port) = (1, 1, 32768)),
    ("masquerade-ipv4", |c| (c.masquerade_ipv4, c.enable_ipv6, c.snat_min_port) = (1, 0, 32768)),
    ("masquerade-ipv6", |c| (c.masquerade_ipv6, c.enable_ipv4, c.snat_min_port) = (1, 0, 32768)),
    ("kube-proxy-replacement-masquerade", |c| {
        (c.nodeport, c.masquerade_ipv4, c.masquerade_ipv6, c.snat_min_port) = (1, 1, 1, 32768);
        c.host_routing = 1;
    }),
    ("masquerade-everything", |c| {
        (c.masquerade_ipv4, c.masquerade_ipv6, c.snat_min_port) = (1, 1, 32768);
        (c.tunnel, c.tunnel_ifindex, c.sctp, c.extended_protocols) = (1, 7, 1, 1);
        (c.ip_masq_agent, c.remote_node_masquerade, c.monitor_aggregation) = (1, 1, aggregation::NONE);
    }),
    ("host-firewall-ipv4-only", |c| (c.host_firewall, c.host_routing, c.enable_ipv6) = (1, 0, 0)),
    ("host-firewall-everything", |c| {
        (c.host_firewall, c.nodeport, c.masquerade_ipv4, c.masquerade_ipv6) = (1, 1, 1, 1);
        (c.snat_min_port, c.tunnel, c.tunnel_ifindex, c.host_routing) = (32768, 1, 7, 0);
        (c.endpoint_routes, c.redirect_peer, c.monitor_aggregation) = (1, 0, aggregation::NONE);
        (c.sctp, c.extended_protocols, c.ct_accounting) = (1, 1, 1);
    }),
    ("fastest", |c| {
        (c.trace_notify, c.drop_notify, c.identity_mark) = (0, 0, 0);
        (c.source_ip_verification, c.enable_ipv6) = (0, 0);
    }),
];

/// The share of the kernel's limit of one million instructions that a program may take, with everything on: 44,822 were
/// counted with the gateway between the families beside authentication and answers to denied packets.
const VERIFIED_AT_MOST: u32 = 50_000;

/// Loads the configurations with one parser, as parsing the kernel's own types again would take most of the time.
fn load_all(configurations: &[(String, NodeConfig)]) -> Result<()> {
    let mut loader = EbpfLoader::new();
    loader.verifier_log_level(VerifierLogLevel::DISABLE);
    let mut most: Option<(u32, String)> = None;
    for (name, config) in configurations {
        loader.override_global(NODE_CONFIG, config.as_bytes(), true);
        let datapath = Datapath::load_with(&mut loader).with_context(|| format!("configuration {name}"))?;
        for program in PROGRAMS {
            let verified = datapath.program(program.name)?.info()?.verified_instruction_count();
            most = most.max(verified.map(|count| (count, format!("{} with {name}", program.name))));
        }
    }
    // Kernels before 5.16 do not report the count.
    match most {
        Some((count, name)) => assert!(count < VERIFIED_AT_MOST, "{count} verified instructions: {name}"),
        None => {
            assert!(KernelVersion::current()? < KernelVersion::new(5, 16, 0), "the kernel reports no count")
        }
    }
    Ok(())
}

/// Loads those of this run's slice, which are one in `count`, and those that switch on everything of a kind.
fn load_slice(configurations: Vec<(String, NodeConfig)>, count: u64) -> Result<()> {
    let slice = Slice::of(count);
    let covered = (0..)
        .zip(configurations)
        .filter(|(case, (name, _))| slice.covers(*case) || name.ends_with("everything"));
    load_all(&covered.map(|(_, configuration)| configuration).collect::<Vec<_>>())
}

fn only(switches: &[usize]) -> (String, NodeConfig) {
    let mut config = NodeConfig { trace_payload_len: 128, ..NodeConfig::default() };
    for (_, set) in SWITCHES {
        set(&mut config, false);
    }
    let mut names = Vec::new();
    for &index in switches {
        let (name, set) = SWITCHES[index];
        set(&mut config, true);
        names.push(name);
    }
    (names.join("+"), config)
}

#[test]
fn each_switch_alone_loads() -> Result<()> {
    test_kit::require_root!();
    let mut configurations = vec![("nothing".to_owned(), only(&[]).1)];
    configurations.extend((0..SWITCHES.len()).map(|index| only(&[index])));
    for (name, set) in SWITCHES {
        let mut config = default_config();
        set(&mut config, false);
        configurations.push((format!("all but {name}"), config));
    }
    load_slice(configurations, 3)
}

#[test]
fn all_pairs_of_switches_of_forwarding_load() -> Result<()> {
    test_kit::require_root!();
    let pairs = (0..FORWARDING).flat_map(|a| (0..a).map(move |b| only(&[b, a]))).collect::<Vec<_>>();
    assert_eq!(pairs.len(), 91);
    load_slice(pairs, 6)
}

/// The others do nothing without a family, so both are on.
#[test]
fn all_pairs_of_switches_of_connections_load() -> Result<()> {
    test_kit::require_root!();
    let others = FORWARDING..SWITCHES.len();
    let pairs = others.flat_map(|a| (FORWARDING..a).map(move |b| only(&[0, 1, b, a])));
    let pairs = pairs.collect::<Vec<_>>();
    assert_eq!(pairs.len(), 190);
    load_slice(pairs, 6)
}

#[test]
fn named_configurations_load() -> Result<()> {
    test_kit::require_root!();
    let configurations = NAMED.map(|(name, change)| {
        let mut config = default_config();
        change(&mut config);
        (name.to_owned(), config)
    });
    load_slice(configurations.into(), 3)
}

/// The control: a configuration that is not one is refused.
#[test]
fn a_short_configuration_is_refused() {
    let config = default_config();
    let mut loader = EbpfLoader::new();
    loader.override_global(NODE_CONFIG, &config.as_bytes()[..size_of::<NodeConfig>() - 1], true);
    assert!(Datapath::load_with(&mut loader).is_err());
}

#[test]
fn objects_have_names_of_functions_and_no_source_lines() {
    let has_lines = option_env!("APIARY_EBPF_LINES").is_some();
    for bytes in [datapath_object::datapath(), datapath_object::sock::object()] {
        let functions = aya_obj::Object::parse(bytes).unwrap().functions;
        assert!(functions.values().all(|function| function.func_info.len() > 0));
        assert!(functions.values().all(|function| (function.line_info.len() > 0) == has_lines));
    }
}
