//! The rows of each chain, compared with recorded ones.

use super::*;

/// The rules of the default chart as they were recorded: a tunnel, masquerading, no replacement of kube-proxy.
const RECORDED: &str = include_str!("../../tests/data/iptables-save.txt");

pub(crate) fn inputs() -> Inputs {
    let pods: IpNetwork = "10.244.0.0/16".parse().unwrap();
    Inputs {
        tunnel_port: Some(8472),
        socket_match: true,
        delivery: HOST_DEVICE.to_owned(),
        no_feeder: Vec::new(),
        masquerade: Some(Masquerade {
            alloc_cidr: Some(pods),
            excluded: None,
            router: "10.244.71.14".parse().unwrap(),
            interfaces: Vec::new(),
            routes: None,
            random_fully: false,
            node_set: None,
        }),
        proxies: BTreeMap::new(),
        untracked_range: None,
        untracked: Untracked::default(),
    }
}

fn masquerading(change: impl FnOnce(&mut Masquerade)) -> Inputs {
    let mut inputs = inputs();
    inputs.masquerade.as_mut().into_iter().next().map(change);
    inputs
}

fn rules_of(family: Family, inputs: &Inputs, chain: &str) -> Vec<String> {
    chains(family, inputs).into_iter().find(|c| c.name == chain).unwrap().rules
}

fn post_nat(inputs: &Inputs) -> Vec<String> {
    rules_of(Family::V4, inputs, "CILIUM_POST_nat")
}

#[test]
fn rules_of_the_default_chart_are_the_recorded_ones() {
    let recorded = Saved::parse(RECORDED);
    let desired = chains(Family::V4, &inputs());
    for chain in &desired {
        let found = recorded.rules(chain.table, chain.name).unwrap();
        assert_eq!(chain.rules, found, "{}", chain.name);
        let hook = recorded.rules(chain.table, chain.hook).unwrap();
        assert_eq!(hook, [feeder(chain.name)], "{}", chain.hook);
    }
    let names = recorded.chains().filter(|(_, chain)| chain.starts_with("CILIUM_"));
    assert_eq!(names.count(), desired.len());
    assert_eq!(RECORDED.lines().filter(|line| line.starts_with("-A")).count(), 30);
    assert!(desired.iter().any(marks_host));
}

#[test]
fn ipv6_has_no_chains_of_its_own_for_nat_of_input_and_no_upstream_accept() {
    let v6 = Inputs { masquerade: None, ..inputs() };
    let names: Vec<&str> = chains(Family::V6, &v6).iter().map(|chain| chain.name).collect();
    assert_eq!(
        names,
        [
            "CILIUM_INPUT",
            "CILIUM_OUTPUT",
            "CILIUM_OUTPUT_raw",
            "CILIUM_POST_nat",
            "CILIUM_PRE_mangle",
            "CILIUM_PRE_raw",
            "CILIUM_FORWARD"
        ]
    );
    assert_eq!(rules_of(Family::V6, &v6, "CILIUM_OUTPUT").len(), 3);
    assert!(rules_of(Family::V6, &v6, "CILIUM_POST_nat").is_empty());
    let v6 = masquerading(|m| {
        m.alloc_cidr = Some("fd00:10:244::/112".parse().unwrap());
        m.router = "fd00:10:244::1".parse().unwrap();
    });
    let rules = rules_of(Family::V6, &v6, "CILIUM_POST_nat");
    assert_eq!(
        rules[3],
        "-s ::1/128 -o cilium_host -m comment --comment \"cilium host->cluster from ::1 masquerade\" \
         -j SNAT --to-source fd00:10:244::1"
    );
}

/// The form of Cilium's rules, from which it reads ports back. The mark has the port in network byte order.
#[test]
fn each_proxy_has_a_rule_for_each_protocol_after_that_of_sockets() {
    let proxies = BTreeMap::from([("cilium-dns-egress".into(), 41_015)]);
    let with = Inputs { proxies, ..inputs() };
    let rules = rules_of(Family::V4, &with, "CILIUM_PRE_mangle");
    let text = |protocol: &str, ip: &str| {
        format!(
            "-p {protocol} -m mark --mark 0x37a00200 -m comment --comment \"cilium: TPROXY to host \
             cilium-dns-egress proxy\" -j TPROXY --on-port 41015 --on-ip {ip} --tproxy-mark 0x200/0xffffffff"
        )
    };
    assert_eq!(rules[1..], [text("tcp", "127.0.0.1"), text("udp", "127.0.0.1")]);
    assert_eq!(
        rules_of(Family::V6, &with, "CILIUM_PRE_mangle")[1..],
        [text("tcp", "::1"), text("udp", "::1")]
    );
    let saved = |chain: &str| Saved::parse(&format!("*mangle\n:{chain} - [0:0]\n-A {chain} {}\n", rules[1]));
    for chain in ["CILIUM_PRE_mangle", "OLD_CILIUM_PRE_mangle"] {
        let expected = BTreeMap::from([("cilium-dns-egress".to_owned(), 41_015)]);
        assert_eq!(saved_proxies(&saved(chain)), expected, "{chain}");
    }
    assert!(saved_proxies(&Saved::parse(RECORDED)).is_empty());
}

#[test]
fn native_routing_excludes_the_routed_range_and_nodes() {
    let mut native = masquerading(|m| {
        m.excluded = Some("10.0.0.0/8".parse().unwrap());
        m.node_set = Some("cilium_node_set_v4");
        m.random_fully = true;
    });
    native.tunnel_port = None;
    let rules = post_nat(&native);
    assert_eq!(
        rules[..2],
        [
            "-s 10.244.0.0/16 -m set --match-set cilium_node_set_v4 dst -m comment --comment \"exclude traffic to \
             cluster nodes from masquerade\" -j ACCEPT",
            "-s 10.244.0.0/16 ! -d 10.0.0.0/8 ! -o cilium_+ -m comment --comment \"cilium masquerade non-cluster\" \
             -j MASQUERADE --random-fully",
        ]
    );
    assert_eq!(rules.len(), 5, "none of the tunnel: {rules:#?}");
    for chain in ["CILIUM_PRE_raw", "CILIUM_OUTPUT_raw", "CILIUM_OUTPUT"] {
        assert!(!rules_of(Family::V4, &native, chain).iter().any(|rule| rule.contains("tunnel")));
    }
}

/// As Cilium inserts them: in front of all others, the last one first.
#[test]
fn an_untracked_range_precedes_all_rules_and_replaces_those_of_its_pods() {
    let pod = ("10.244.0.9".parse().unwrap(), 53);
    let untracked = Untracked { pods: [pod].into(), is_complete: true, ..Untracked::default() };
    let tracked = Inputs { tunnel_port: None, masquerade: None, untracked, ..inputs() };
    let range = "10.0.0.0/8".parse().ok();
    let native = Inputs { untracked_range: range, ..tracked.clone() };
    let row = |end: &str| {
        format!("{end} 10.0.0.0/8 -m comment --comment \"cilium: NOTRACK for pod traffic\" -j CT --notrack")
    };
    for chain in ["CILIUM_PRE_raw", "CILIUM_OUTPUT_raw"] {
        let rules = rules_of(Family::V4, &native, chain);
        assert_eq!(rules[..2], [row("-d"), row("-s")], "{chain}");
        assert!(!rules.iter().any(|rule| rule.contains("10.244.0.9")), "{chain}: {rules:#?}");
        let without = rules_of(Family::V4, &tracked, chain);
        assert_eq!(rules[2..], without[..without.len() - 4], "{chain}");
    }
    assert!(!rules_of(Family::V4, &native, "CILIUM_FORWARD").iter().any(|rule| rule.contains("10.244.0.9")));
}

#[test]
fn devices_and_routes_replace_the_masquerading_of_everything() {
    let some = masquerading(|m| {
        m.interfaces = vec!["eth0".into(), "ens+".into()];
        m.node_set = Some("cilium_node_set_v4");
    });
    let rules = post_nat(&some);
    assert!(rules[0].starts_with("-o eth0 -m set --match-set cilium_node_set_v4 dst "), "{rules:#?}");
    assert!(rules[2].starts_with("! -d 10.244.0.0/16 -o eth0 -m comment "), "{rules:#?}");
    assert!(rules[3].starts_with("! -d 10.244.0.0/16 -o ens+ -m comment "), "{rules:#?}");
    let route = |dst: &str, device: Option<&str>, src: &str| RouteSource {
        dst: dst.parse().unwrap(),
        device: device.map(str::to_owned),
        src: src.parse().unwrap(),
    };
    let routed = masquerading(|m| {
        m.routes = Some(vec![
            route("192.0.2.0/24", Some("eth0"), "192.0.2.1"),
            route("198.51.100.0/24", None, "192.0.2.7"),
            route("0.0.0.0/0", Some("eth0"), "192.0.2.9"),
        ]);
    });
    let comment = "-m comment --comment \"cilium snat non-cluster via source route\"";
    assert_eq!(
        post_nat(&routed)[..3],
        [
            format!("-s 10.244.0.0/16 -d 192.0.2.0/24 -o eth0 {comment} -j SNAT --to-source 192.0.2.1"),
            format!(
                "-s 10.244.0.0/16 -d 198.51.100.0/24 ! -o cilium_+ {comment} -j SNAT --to-source 192.0.2.7"
            ),
            format!("-s 10.244.0.0/16 ! -d 10.244.0.0/16 -o eth0 {comment} -j SNAT --to-source 192.0.2.9"),
        ]
    );
}

#[test]
fn routes_of_endpoints_change_where_packets_are_delivered() {
    let routed = Inputs { delivery: "lxc+".into(), ..inputs() };
    let interfaces: Vec<String> = rules_of(Family::V4, &routed, "CILIUM_OUTPUT_raw")
        .iter()
        .filter_map(|rule| rule.strip_prefix("-o ")?.split(' ').next().map(str::to_owned))
        .collect();
    assert_eq!(interfaces, ["lxc+", "cilium_host", "lxc+", "cilium_host"]);
    assert_eq!(rules_of(Family::V4, &routed, "CILIUM_FORWARD").len(), 6);
    let rules = post_nat(&routed);
    assert!(rules.last().unwrap().starts_with("-s 127.0.0.1/32 -o lxc+ "), "no hairpin rule: {rules:#?}");
}

#[test]
fn everything_excluded_and_missing_parts_leave_rules_out() {
    let all = masquerading(|m| m.excluded = Some("0.0.0.0/0".parse().unwrap()));
    assert!(!post_nat(&all).iter().any(|rule| rule.contains("MASQUERADE")), "nf_tables has no such match");
    let none = masquerading(|m| m.alloc_cidr = None);
    assert_eq!(post_nat(&none).len(), 3);
    let without = Inputs { socket_match: false, no_feeder: vec!["output ".into()], ..inputs() };
    let found = chains(Family::V4, &without);
    assert!(rules_of(Family::V4, &without, "CILIUM_PRE_mangle").is_empty());
    let fed: Vec<&str> = found.iter().filter(|chain| !chain.has_feeder).map(|chain| chain.name).collect();
    assert_eq!(fed, ["CILIUM_OUTPUT", "CILIUM_OUTPUT_raw", "CILIUM_OUTPUT_nat"]);
    assert!(!found.iter().any(marks_host));
    assert!(post_nat(&Inputs { masquerade: None, ..inputs() }).is_empty());
}
