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
pub(crate) mod tests;
