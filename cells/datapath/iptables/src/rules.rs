//! The desired chains and rules: a pure function of options, addresses and routes.
//!
//! Rules are written as `iptables-save` prints them, so that they can be compared as text. Chains, rules, their order
//! and their comments are Cilium's.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use datapath_abi::mark;
use devices::HOST_DEVICE;
use ipnetwork::IpNetwork;

use crate::no_track::Untracked;
use crate::saved::Saved;

/// An IP family; each has its own tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4: `iptables`.
    V4,
    /// IPv6: `ip6tables`.
    V6,
}

impl Family {
    /// Both families.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// Returns the name in health.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Family::V4 => "ipv4",
            Family::V6 => "ipv6",
        }
    }

    /// Returns the IP family.
    pub(crate) fn ip(self) -> tunnel::Family {
        match self {
            Family::V4 => tunnel::Family::Ipv4,
            Family::V6 => tunnel::Family::Ipv6,
        }
    }

    fn loopback(self) -> &'static str {
        match self {
            Family::V4 => "127.0.0.1",
            Family::V6 => "::1",
        }
    }

    /// The length of an address in bits.
    fn bits(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }
}

/// The inputs of the rules of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// The UDP port of the tunnel; none without a tunnel.
    pub tunnel_port: Option<u16>,
    /// Whether the kernel can match the socket that a packet belongs to (`xt_socket`).
    pub socket_match: bool,
    /// The interfaces by which packets reach pods: `cilium_host`, or `lxc+` if pods have routes of their own.
    pub delivery: String,
    /// Chains of iptables without a rule that leads to a chain of the agent.
    pub no_feeder: Vec<String>,
    /// How packets that leave the cluster are masqueraded; none if they are not, or if the router has no address yet.
    pub masquerade: Option<Masquerade>,
    /// The ports of proxies, by their names: packets that the programs have marked for one are led to it.
    pub proxies: BTreeMap<Arc<str>, u16>,
    /// The range of which netfilter tracks no traffic at all.
    pub untracked_range: Option<IpNetwork>,
    /// Traffic of pods that netfilter does not track.
    pub untracked: Untracked,
}

/// How packets that leave the cluster get an address of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masquerade {
    /// The range of the node's pods; none in modes of address management without a single range.
    pub alloc_cidr: Option<IpNetwork>,
    /// The range that is not masqueraded.
    pub excluded: Option<IpNetwork>,
    /// The router's address.
    pub router: IpAddr,
    /// Devices whose packets are masqueraded; all if empty.
    pub interfaces: Vec<String>,
    /// Routes whose source is taken instead of the device's address, most specific first.
    pub routes: Option<Vec<RouteSource>>,
    /// Whether source ports are chosen at random.
    pub random_fully: bool,
    /// The set with the addresses of all nodes, to which packets go as they are.
    pub node_set: Option<&'static str>,
}

/// A route with a preferred source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteSource {
    /// The destination.
    pub dst: IpNetwork,
    /// The device's name; none for a route without a device.
    pub device: Option<String>,
    /// The source of packets to the destination.
    pub src: IpAddr,
}

/// A chain of the agent in one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The table.
    pub table: &'static str,
    /// The built-in chain with the rule that leads here.
    pub hook: &'static str,
    /// The name.
    pub name: &'static str,
    /// Whether there is a rule that leads here.
    pub has_feeder: bool,
    /// The rules as `iptables-save` prints them, without `-A` and the chain.
    pub rules: Vec<String>,
}

/// Table, hook and name of all chains, and whether IPv6 has them as well.
const CHAINS: [(&str, &str, &str, bool); 10] = [
    ("filter", "INPUT", "CILIUM_INPUT", true),
    ("filter", "OUTPUT", "CILIUM_OUTPUT", true),
    ("raw", "OUTPUT", "CILIUM_OUTPUT_raw", true),
    ("nat", "POSTROUTING", "CILIUM_POST_nat", true),
    ("nat", "OUTPUT", "CILIUM_OUTPUT_nat", false),
    ("nat", "PREROUTING", "CILIUM_PRE_nat", false),
    ("mangle", "POSTROUTING", "CILIUM_POST_mangle", false),
    ("mangle", "PREROUTING", "CILIUM_PRE_mangle", true),
    ("raw", "PREROUTING", "CILIUM_PRE_raw", true),
    ("filter", "FORWARD", "CILIUM_FORWARD", true),
];

/// The beginning of the name of a chain that Cilium is replacing.
const OLD: &str = "OLD_";

/// The chain and the rule that mark the host's own packets.
const HOST_MARK_CHAIN: &str = "CILIUM_OUTPUT";
const HOST_MARK_COMMENT: &str = "cilium: host->any mark as from host";

/// Interfaces of pods, and those of the agent.
pub(crate) const POD_INTERFACES: &str = "lxc+";
const NET_DEVICE: &str = "cilium_net";
const OWN_INTERFACES: &str = "cilium_+";

/// Marks and masks as Cilium's rules spell them. The mask of a proxy's mark leaves out the bit of its direction.
const PROXY_MASK: u32 = 0xe00;
const PROXY: u32 = mark::PROXY_INGRESS;
const PROXY_UPSTREAM: u32 = mark::SKIP_TPROXY;
/// Packets that a proxy returns to a pod: all bits but the direction's, so that no identity is in the mark.
const PROXY_RETURN_MASK: u32 = 0xffff_feff;
const TO_PROXY: u32 = mark::TO_PROXY;

/// Whether a chain of this table is the agent's, or one that Cilium is replacing.
#[must_use]
pub fn is_own(table: &str, chain: &str) -> bool {
    let chain = chain.strip_prefix(OLD).unwrap_or(chain);
    CHAINS.iter().any(|(own_table, _, name, _)| *own_table == table && *name == chain)
}

/// Whether a chain of any table may be the agent's, or have a rule that leads to one that is.
#[must_use]
pub(crate) fn is_related(chain: &str) -> bool {
    CHAINS.iter().any(|(_, hook, name, _)| chain == *hook || chain == *name)
}

/// Returns the rule of a hook that leads to a chain.
#[must_use]
pub fn feeder(chain: &str) -> String {
    format!("-m comment --comment \"cilium-feeder: {chain}\" -j {chain}")
}

/// Whether a rule of a hook leads to a chain of the agent and was made by an agent.
#[must_use]
pub fn is_feeder(rule: &str) -> bool {
    let comment = ["--comment \"cilium-feeder: ", "--comment cilium-feeder:"];
    let target = rule.rsplit_once("-j ").map_or("", |(_, target)| target);
    let target = target.strip_prefix(OLD).unwrap_or(target);
    comment.iter().any(|comment| rule.contains(comment))
        && CHAINS.iter().any(|(_, _, name, _)| *name == target)
}

/// Whether these rules of a chain mark the host's own packets.
#[must_use]
pub fn marks_host(chain: &Chain) -> bool {
    chain.name == HOST_MARK_CHAIN
        && chain.has_feeder
        && chain.rules.iter().any(|rule| rule.contains(HOST_MARK_COMMENT))
}

/// Returns the desired chains of a family, in Cilium's order.
#[must_use]
pub fn chains(family: Family, inputs: &Inputs) -> Vec<Chain> {
    let of_family = CHAINS.iter().filter(|(_, _, _, both)| *both || family == Family::V4);
    let is_fed = |hook: &str| !inputs.no_feeder.iter().any(|name| name.trim().eq_ignore_ascii_case(hook));
    of_family
        .map(|&(table, hook, name, _)| Chain {
            table,
            hook,
            name,
            has_feeder: is_fed(hook),
            rules: rules(family, name, inputs),
        })
        .collect()
}

fn rules(family: Family, chain: &str, inputs: &Inputs) -> Vec<String> {
    let mut rules = base_rules(family, chain, inputs);
    if !matches!(chain, "CILIUM_PRE_mangle" | "CILIUM_POST_nat") {
        rules.extend(inputs.untracked.rules(chain, inputs.untracked_range.is_none()));
    }
    rules
}

/// Returns the rules of a range of which nothing is tracked. Cilium inserts them one by one, so that the last is first.
fn not_tracked_range(inputs: &Inputs) -> Vec<String> {
    let rules = |pods: String| {
        ["-d", "-s"]
            .map(|end| rule(&format!("{end} {pods}"), "cilium: NOTRACK for pod traffic", "CT --notrack"))
    };
    inputs.untracked_range.map(range).into_iter().flat_map(rules).collect()
}

fn base_rules(family: Family, chain: &str, inputs: &Inputs) -> Vec<String> {
    match chain {
        "CILIUM_PRE_raw" => pre_raw(inputs),
        "CILIUM_OUTPUT_raw" => output_raw(inputs),
        "CILIUM_PRE_mangle" => pre_mangle(family, inputs),
        "CILIUM_INPUT" => {
            vec![rule(&marked(TO_PROXY, mark::MAGIC_MASK), "cilium: ACCEPT for proxy traffic", "ACCEPT")]
        }
        "CILIUM_FORWARD" => forward(inputs),
        "CILIUM_OUTPUT" => output(family, inputs),
        "CILIUM_POST_nat" => {
            inputs.masquerade.as_ref().map(|m| post_nat(family, inputs, m)).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// Returns a rule of matches, a comment and a target with its options.
fn rule(matches: &str, comment: &str, target: &str) -> String {
    format!("{matches} -m comment --comment \"{comment}\" -j {target}")
}

fn marked(value: u32, mask: u32) -> String {
    format!("-m mark --mark {value:#x}/{mask:#x}")
}

fn not_marked(value: u32, mask: u32) -> String {
    format!("-m mark ! --mark {value:#x}/{mask:#x}")
}

fn tunnel(port: u16) -> String {
    format!("-p udp -m udp --dport {port}")
}

fn pre_raw(inputs: &Inputs) -> Vec<String> {
    let tunnel = inputs.tunnel_port.map(not_tracked_tunnel);
    let proxy =
        rule(&marked(TO_PROXY, mark::MAGIC_MASK), "cilium: NOTRACK for proxy traffic", "CT --notrack");
    not_tracked_range(inputs).into_iter().chain(tunnel).chain([proxy]).collect()
}

fn not_tracked_tunnel(port: u16) -> String {
    rule(&tunnel(port), "cilium: NOTRACK for tunnel traffic", "CT --notrack")
}

fn output_raw(inputs: &Inputs) -> Vec<String> {
    let mut rules = not_tracked_range(inputs);
    rules.extend(inputs.tunnel_port.map(not_tracked_tunnel));
    let delivery = (inputs.delivery != HOST_DEVICE).then_some(inputs.delivery.as_str());
    for (value, mask, comment) in [
        (PROXY, PROXY_RETURN_MASK, "cilium: NOTRACK for proxy return traffic"),
        (PROXY_UPSTREAM, PROXY_MASK, "cilium: NOTRACK for L7 proxy upstream traffic"),
    ] {
        for interface in delivery.into_iter().chain([HOST_DEVICE]) {
            rules.push(rule(&format!("-o {interface} {}", marked(value, mask)), comment, "CT --notrack"));
        }
    }
    rules
}

fn pre_mangle(family: Family, inputs: &Inputs) -> Vec<String> {
    let matches = format!(
        "! -o lo -m socket --transparent {} {}",
        not_marked(mark::ENCRYPT, mark::MAGIC_MASK),
        not_marked(PROXY_UPSTREAM, mark::MAGIC_MASK)
    );
    let target = format!("MARK --set-xmark {TO_PROXY:#x}/0xffffffff");
    let redirect = || rule(&matches, "cilium: any->pod redirect proxied traffic to host proxy", &target);
    let mut rules: Vec<String> = inputs.socket_match.then(redirect).into_iter().collect();
    for (name, port) in &inputs.proxies {
        rules.extend(["tcp", "udp"].map(|protocol| tproxy(family, protocol, name, *port)));
    }
    rules
}

/// The comment of a rule that leads packets to a proxy, around the proxy's name: Cilium reads ports back from it.
const TPROXY_COMMENT: (&str, &str) = ("cilium: TPROXY to host ", " proxy");

fn tproxy(family: Family, protocol: &str, name: &str, port: u16) -> String {
    let matches = format!("-p {protocol} -m mark --mark {:#x}", mark::to_proxy(port.to_be()));
    let comment = format!("{}{name}{}", TPROXY_COMMENT.0, TPROXY_COMMENT.1);
    let loopback = family.loopback();
    let target = format!("TPROXY --on-port {port} --on-ip {loopback} --tproxy-mark {TO_PROXY:#x}/0xffffffff");
    rule(&matches, &comment, &target)
}

/// Returns the ports of proxies that rules of a previous run lead to, by their names; also in chains that Cilium was
/// replacing.
#[must_use]
pub fn saved_proxies(saved: &Saved) -> BTreeMap<String, u16> {
    let chain = "CILIUM_PRE_mangle";
    let all = [format!("{OLD}{chain}"), chain.to_owned()];
    let rules = all.iter().filter_map(|chain| saved.rules("mangle", chain)).flatten();
    let proxy = |rule: &String| {
        let (_, name) = rule.split_once(TPROXY_COMMENT.0)?;
        let (_, port) = rule.split_once("--on-port ")?;
        let name = name.split_once(TPROXY_COMMENT.1)?.0;
        Some((name.to_owned(), port.split(' ').next()?.parse().ok()?))
    };
    rules.filter_map(proxy).collect()
}

fn forward(inputs: &Inputs) -> Vec<String> {
    let accept = |matches: &str, comment: &str| rule(matches, &format!("cilium: {comment}"), "ACCEPT");
    let both = |interface: &str| {
        [
            accept(&format!("-o {interface}"), &format!("any->cluster on {interface} forward accept")),
            accept(
                &format!("-i {interface}"),
                &format!("cluster->any on {interface} forward accept (nodeport)"),
            ),
        ]
    };
    let mut rules = Vec::from(both(HOST_DEVICE));
    rules.push(accept(
        &format!("-i {POD_INTERFACES}"),
        &format!("cluster->any on {POD_INTERFACES} forward accept"),
    ));
    rules.push(accept(
        &format!("-i {NET_DEVICE}"),
        &format!("cluster->any on {NET_DEVICE} forward accept (nodeport)"),
    ));
    if inputs.delivery != HOST_DEVICE {
        rules.extend(both(&inputs.delivery));
    }
    rules
}

fn output(family: Family, inputs: &Inputs) -> Vec<String> {
    let mut rules = Vec::new();
    if let Some(port) = inputs.tunnel_port {
        rules.push(rule(&tunnel(port), "cilium: ACCEPT for tunnel traffic", "ACCEPT"));
    }
    rules.push(rule(&marked(PROXY, PROXY_MASK), "cilium: ACCEPT for proxy traffic", "ACCEPT"));
    if family == Family::V4 {
        let comment = "cilium: ACCEPT for l7 proxy upstream traffic";
        rules.push(rule(&marked(PROXY_UPSTREAM, PROXY_MASK), comment, "ACCEPT"));
    }
    // Marks of tunnels, proxies and encryption stay.
    let kept = [
        not_marked(mark::DECRYPT, mark::MAGIC_MASK),
        not_marked(mark::ENCRYPT, mark::MAGIC_MASK),
        not_marked(mark::OVERLAY, mark::MAGIC_MASK),
        not_marked(PROXY, PROXY_MASK),
        not_marked(PROXY_UPSTREAM, PROXY_MASK),
    ];
    let target = format!("MARK --set-xmark {:#x}/{:#x}", mark::HOST, mark::MAGIC_MASK);
    rules.push(rule(&kept.join(" "), HOST_MARK_COMMENT, &target));
    rules
}

fn post_nat(family: Family, inputs: &Inputs, m: &Masquerade) -> Vec<String> {
    let random = if m.random_fully { " --random-fully" } else { "" };
    let to_router = format!("SNAT --to-source {}{random}", m.router);
    let masquerade = format!("MASQUERADE{random}");
    let mut rules = to_nodes(m);
    match &m.routes {
        Some(routes) => rules.extend(to_route_source(m, routes, random)),
        None => rules.extend(to_any(m, &masquerade)),
    }
    rules.push(rule(&marked(PROXY, PROXY_MASK), "exclude proxy return traffic from masquerade", "ACCEPT"));
    if let (Some(_), Some(pods)) = (inputs.tunnel_port, m.alloc_cidr.map(range)) {
        let matches = format!("! -s {pods} ! -d {pods} -o {HOST_DEVICE}");
        rules.push(rule(&matches, "cilium host->cluster masquerade", &to_router));
    }
    let (loopback, delivery) = (family.loopback(), &inputs.delivery);
    let matches = format!("-s {loopback}/{} -o {delivery}", family.bits());
    let comment = format!("cilium host->cluster from {loopback} masquerade");
    rules.push(rule(&matches, &comment, &to_router));
    if inputs.delivery == HOST_DEVICE {
        let identity = marked(mark::IDENTITY, mark::MAGIC_MASK);
        let matches = format!("-o {delivery} {identity} -m conntrack --ctstate DNAT");
        rules.push(rule(&matches, "hairpin traffic that originated from a local pod", &to_router));
    }
    rules
}

/// Packets to other nodes go as they are, if the network routes pods' addresses.
fn to_nodes(m: &Masquerade) -> Vec<String> {
    let Some(set) = m.node_set else { return Vec::new() };
    let of = |matches: String| {
        let matches = format!("{matches} -m set --match-set {set} dst");
        rule(&matches, "exclude traffic to cluster nodes from masquerade", "ACCEPT")
    };
    match &m.interfaces[..] {
        [] => m.alloc_cidr.map(range).iter().map(|pods| of(format!("-s {pods}"))).collect(),
        interfaces => interfaces.iter().map(|interface| of(format!("-o {interface}"))).collect(),
    }
}

/// Packets to anywhere else get the address of the device.
fn to_any(m: &Masquerade, target: &str) -> Vec<String> {
    const COMMENT: &str = "cilium masquerade non-cluster";
    let Some(excluded) = exclusion(m) else { return Vec::new() };
    match &m.interfaces[..] {
        [] => {
            let of_pods = |pods: &String| format!("-s {pods} {excluded} ! -o {OWN_INTERFACES}");
            m.alloc_cidr.map(range).iter().map(|pods| rule(&of_pods(pods), COMMENT, target)).collect()
        }
        interfaces => {
            let of = |interface| rule(&format!("{excluded} -o {interface}"), COMMENT, target);
            interfaces.iter().map(of).collect()
        }
    }
}

/// Packets to the destination of a route get its source.
fn to_route_source(m: &Masquerade, routes: &[RouteSource], random: &str) -> Vec<String> {
    let Some(pods) = m.alloc_cidr.map(range) else { return Vec::new() };
    let of = |route: &RouteSource| {
        let to = match route.dst.prefix() {
            0 => exclusion(m)?,
            _ => format!("-d {}", range(route.dst)),
        };
        let by =
            route.device.as_ref().map_or(format!("! -o {OWN_INTERFACES}"), |device| format!("-o {device}"));
        let target = format!("SNAT --to-source {}{random}", route.src);
        Some(rule(&format!("-s {pods} {to} {by}"), "cilium snat non-cluster via source route", &target))
    };
    routes.iter().filter_map(of).collect()
}

/// Returns the match of destinations that are masqueraded; none if all are excluded, which nf_tables has no match for.
fn exclusion(m: &Masquerade) -> Option<String> {
    let excluded = m.excluded.or(m.alloc_cidr)?;
    (excluded.prefix() > 0).then(|| format!("! -d {}", range(excluded)))
}

/// Returns a range without the bits behind its prefix, which programs of iptables do not print.
fn range(range: IpNetwork) -> String {
    format!("{}/{}", range.network(), range.prefix())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The rules of the default chart as they were recorded: a tunnel, masquerading, no replacement of kube-proxy.
    const RECORDED: &str = include_str!("../tests/data/iptables-save.txt");

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
        let saved =
            |chain: &str| Saved::parse(&format!("*mangle\n:{chain} - [0:0]\n-A {chain} {}\n", rules[1]));
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
            format!(
                "{end} 10.0.0.0/8 -m comment --comment \"cilium: NOTRACK for pod traffic\" -j CT --notrack"
            )
        };
        for chain in ["CILIUM_PRE_raw", "CILIUM_OUTPUT_raw"] {
            let rules = rules_of(Family::V4, &native, chain);
            assert_eq!(rules[..2], [row("-d"), row("-s")], "{chain}");
            assert!(!rules.iter().any(|rule| rule.contains("10.244.0.9")), "{chain}: {rules:#?}");
            let without = rules_of(Family::V4, &tracked, chain);
            assert_eq!(rules[2..], without[..without.len() - 4], "{chain}");
        }
        assert!(
            !rules_of(Family::V4, &native, "CILIUM_FORWARD").iter().any(|rule| rule.contains("10.244.0.9"))
        );
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
                format!(
                    "-s 10.244.0.0/16 ! -d 10.244.0.0/16 -o eth0 {comment} -j SNAT --to-source 192.0.2.9"
                ),
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
        assert!(
            !post_nat(&all).iter().any(|rule| rule.contains("MASQUERADE")),
            "nf_tables has no such match"
        );
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
}
