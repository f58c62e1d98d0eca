//! Parses ClusterNetworkPolicies: Kubernetes' own, of the whole cluster, in tiers and with priorities.

use std::collections::BTreeSet;
use std::sync::Arc;

use labels::{K8S, Label};

use super::cidr::network;
use super::cursor::{Field, Object, Problems, quoted};
use super::ports::{SCTP, TCP, UDP, is_service_name};
use super::selectors::LabelSelector;
use super::{Context, label_texts};
use crate::model::{Action, Direction, Entry, Peers, Port, PortSpec, Ports, RedirectSpec, Subject, Tier};
use crate::proxy::{DnsRule, L7Rules, ProxyRules};
use crate::selector::{FqdnSelector, Requirement, Selector};

/// Maximum number of rules of a direction: the limit of the CRD. A rule's index is a fraction of the priority, which
/// 100 rules would fill.
const MAX_RULES: usize = 25;
const MAX_PRIORITY: u32 = 1000;
/// RFC 1035, 2.3.4.
const MAX_LABEL_LENGTH: usize = 63;
const MAX_NAME_LENGTH: usize = 253;

/// Known kinds of peers.
const INGRESS_PEERS: &[&str] = &["namespaces", "pods"];
const EGRESS_PEERS: &[&str] = &["namespaces", "pods", "networks", "nodes", DOMAIN_NAMES];
const DOMAIN_NAMES: &str = "domainNames";

/// The label of the cluster's DNS servers, and the names of their ports with the protocols.
const DNS_SERVERS: (&str, &str) = ("k8s-app", "kube-dns");
const DNS_PORTS: [(&str, u8); 2] = [("dns", UDP), ("dns-tcp", TCP)];

/// Reads the entries of a ClusterNetworkPolicy, in the order ingress, egress; one for each peer of a rule.
pub(super) fn cluster_network_policy(
    object: &Object<'_>,
    context: &Context<'_>,
    problems: &mut Problems,
) -> Vec<Entry> {
    let Some(field) = object.field("spec") else {
        problems.add("spec", "missing", "tier, priority, subject, ingress and egress");
        return Vec::new();
    };
    let Some(spec) = field.object(problems) else { return Vec::new() };
    spec.check_names(problems, &["tier", "priority", "subject", "ingress", "egress"], &[]);
    let tier = tier(&spec, problems);
    let priority = priority(&spec, problems);
    let subject = subject(&spec, problems);
    let labels = label_texts(&context.origin, Vec::<Label>::new());
    let mut entries = Vec::new();
    for direction in [Direction::Ingress, Direction::Egress] {
        let parts = rules(&spec, direction, context, problems);
        let (Some(tier), Some(priority), Some(subject)) = (tier, priority, &subject) else { continue };
        entries.extend(parts.into_iter().map(|part| Entry {
            subject: Subject::Endpoints(subject.clone()),
            direction,
            action: part.action,
            tier,
            priority: 100 * priority + part.index,
            default_deny: false,
            peers: part.peers,
            ports: part.ports,
            services: Vec::new(),
            redirects: part.redirects,
            authentication: None,
            log: "".into(),
            path: part.path.into(),
            labels: Arc::clone(&labels),
        }));
    }
    entries
}

fn tier(spec: &Object<'_>, problems: &mut Problems) -> Option<Tier> {
    required(spec, "tier", "Admin or Baseline", problems)?.choice(
        &[("Admin", Tier::Admin), ("Baseline", Tier::Baseline)],
        "a tier",
        "Admin or Baseline",
        problems,
    )
}

fn priority(spec: &Object<'_>, problems: &mut Problems) -> Option<u32> {
    let field = required(spec, "priority", "a number from 0 to 1000", problems)?;
    let number = field.value.as_u64().and_then(|number| u32::try_from(number).ok());
    let number = number.filter(|number| *number <= MAX_PRIORITY);
    if number.is_none() {
        let reason = format!("{}: not a priority (0-{MAX_PRIORITY})", quoted(field.value));
        problems.add(&field.path, reason, "write it as a number, without quotes");
    }
    number
}

/// Reads the selected pods, of all clusters.
fn subject(spec: &Object<'_>, problems: &mut Problems) -> Option<Selector> {
    let remedy = "namespaces or pods";
    let subject = required(spec, "subject", remedy, problems)?.object(problems)?;
    subject.check_names(problems, &["namespaces", "pods"], &[]);
    match (subject.field("namespaces"), subject.field("pods")) {
        (Some(namespaces), None) => in_namespaces(&namespaces, problems),
        (None, Some(pods)) => {
            let (pods, namespaces) = namespaced_pods(&pods, problems)?;
            Some(pods.in_namespaces(namespaces))
        }
        (None, None) => {
            problems.add(&subject.path, "selects no pods", remedy);
            None
        }
        (Some(_), Some(_)) => {
            problems.add(&subject.path, "both namespaces and pods", "give one of them");
            None
        }
    }
}

/// Reads a selector of namespaces, as the selector of their pods.
fn in_namespaces(field: &Field<'_>, problems: &mut Problems) -> Option<Selector> {
    let namespaces = LabelSelector::read_k8s(field, problems)?;
    Some(LabelSelector::default().in_namespaces(namespaces))
}

/// Reads the selectors of pods and of their namespaces.
fn namespaced_pods(field: &Field<'_>, problems: &mut Problems) -> Option<(LabelSelector, LabelSelector)> {
    let object = field.object(problems)?;
    object.check_names(problems, &["namespaceSelector", "podSelector"], &[]);
    let mut read = |name| {
        let field = required(&object, name, "`{}` selects all", problems)?;
        LabelSelector::read_k8s(&field, problems)
    };
    let namespaces = read("namespaceSelector");
    Some((read("podSelector")?, namespaces?))
}

/// A rule's part for one peer.
struct Part {
    index: u32,
    action: Action,
    peers: Peers,
    ports: Ports,
    redirects: Vec<RedirectSpec>,
    path: String,
}

/// Reads the rules of a direction.
fn rules(
    spec: &Object<'_>,
    direction: Direction,
    context: &Context<'_>,
    problems: &mut Problems,
) -> Vec<Part> {
    let (section, peers_name) = match direction {
        Direction::Ingress => ("ingress", "from"),
        Direction::Egress => ("egress", "to"),
    };
    let list = elements(spec, section, problems);
    if list.len() > MAX_RULES {
        let reason = format!("{} rules: more than {MAX_RULES}", list.len());
        problems.add(&spec.path_of(section), reason, "split the policy");
        return Vec::new();
    }
    let mut parts = Vec::new();
    for (index, field) in (0..).zip(list) {
        let Some(rule) = field.object(problems) else { continue };
        rule.check_names(problems, &["name", "action", peers_name, "protocols"], &[]);
        rule.text("name", problems);
        let action = action(&rule, problems);
        let protocols = elements(&rule, "protocols", problems);
        let ports = match protocols.is_empty() {
            true => Ports::All,
            false => {
                Ports::Of(protocols.iter().filter_map(|field| protocol(field, problems)).flatten().collect())
            }
        };
        let peers = elements(&rule, peers_name, problems);
        let part = |action, peers, path: &str| Part {
            index,
            action,
            peers,
            ports: ports.clone(),
            redirects: Vec::new(),
            path: path.to_owned(),
        };
        if let (true, Some(action)) = (peers.is_empty(), action) {
            parts.push(part(action, Peers::All, &field.path));
        }
        for peer in peers {
            let found = self::peer(&peer, direction, context, problems);
            match (found, action) {
                (Some(Some(peers)), Some(action)) => {
                    let dns = dns_rules(&peers);
                    if !dns.is_empty() {
                        check_domain_names(&peer, action, context, problems);
                        let (peers, redirects) = dns_servers(dns);
                        let ports = Ports::Of(Vec::new());
                        parts.push(Part { redirects, ports, ..part(action, peers, &peer.path) });
                    }
                    parts.push(part(action, peers, &peer.path));
                }
                // The peer is of a kind that a later version has: fail closed, as the API demands.
                (Some(None), Some(Action::Allow)) => {
                    problems.warn(&peer.path, "a kind of peer that is unknown: it accepts nothing", "");
                }
                (Some(None), Some(_)) => {
                    problems.warn(
                        &peer.path,
                        "a kind of peer that is unknown: the rule denies all peers",
                        "",
                    );
                    parts.push(part(Action::Deny, Peers::All, &peer.path));
                }
                _ => {}
            }
        }
    }
    parts
}

fn action(rule: &Object<'_>, problems: &mut Problems) -> Option<Action> {
    required(rule, "action", "Accept, Deny or Pass", problems)?.choice(
        &[("Accept", Action::Allow), ("Deny", Action::Deny), ("Pass", Action::Pass)],
        "an action",
        "Accept, Deny or Pass",
        problems,
    )
}

/// Reads a peer: `Some(None)` if it is of an unknown kind, `None` if it is invalid.
#[expect(clippy::option_option, reason = "unknown and invalid are two results")]
fn peer(
    field: &Field<'_>,
    direction: Direction,
    context: &Context<'_>,
    problems: &mut Problems,
) -> Option<Option<Peers>> {
    let peer = field.object(problems)?;
    let known = if direction == Direction::Ingress { INGRESS_PEERS } else { EGRESS_PEERS };
    let given: Vec<&str> = known.iter().copied().filter(|name| peer.field(name).is_some()).collect();
    let [kind] = given[..] else {
        if given.is_empty() {
            return Some(None);
        }
        problems.add(
            &peer.path,
            format!("{} in one peer", given.join(" and ")),
            "make each a peer of its own",
        );
        return None;
    };
    peer.check_names(problems, known, &[]);
    let field = peer.field(kind)?;
    let selectors = match kind {
        "namespaces" => vec![in_namespaces(&field, problems)?],
        "pods" => {
            let (pods, namespaces) = namespaced_pods(&field, problems)?;
            vec![pods.in_cluster(context).in_namespaces(namespaces)]
        }
        "networks" => {
            let networks = field.list(problems)?;
            if networks.is_empty() {
                problems.add(&field.path, "selects no peers", "name one or more prefixes");
            }
            networks.iter().filter_map(|field| network(field, context, problems)).collect()
        }
        "nodes" => vec![super::peers::node(&field, context, problems)?],
        _ => {
            let names = field.list(problems)?;
            if names.is_empty() {
                problems.add(&field.path, "selects no peers", "give one or more names");
            }
            names.iter().filter_map(|field| domain_name(field, problems)).collect()
        }
    };
    (!selectors.is_empty()).then_some(Some(Peers::Of(selectors)))
}

/// Reads an element of `domainNames`: a name, or `*.` before a name for all names below it.
fn domain_name(field: &Field<'_>, problems: &mut Problems) -> Option<Selector> {
    let text = field.text(problems)?;
    let (is_pattern, name) = match text.strip_prefix("*.") {
        Some(name) => (true, name),
        None => (false, text),
    };
    let is_label = |label: &str| {
        let is_inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        let is_end = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = label.as_bytes();
        bytes.len() <= MAX_LABEL_LENGTH
            && bytes.iter().copied().all(is_inner)
            && is_end(bytes.first())
            && is_end(bytes.last())
    };
    let labels = name.strip_suffix('.').unwrap_or(name).split('.');
    if name.len() > MAX_NAME_LENGTH || labels.clone().count() < 2 || !labels.clone().all(is_label) {
        let reason = format!("{}: not a domain name", quoted(field.value));
        problems.add(&field.path, reason, "two or more labels between dots, perhaps `*.` before them");
        return None;
    }
    // A pattern's `*` matches within one label; the API means all labels.
    let (match_name, match_pattern) = match is_pattern {
        true => (String::new(), format!("**.{name}")),
        false => (name.to_owned(), String::new()),
    };
    Some(Selector::Fqdn(FqdnSelector { match_name: match_name.into(), match_pattern: match_pattern.into() }))
}

/// Checks that a rule with peers by name can be in force.
fn check_domain_names(peer: &Field<'_>, action: Action, context: &Context<'_>, problems: &mut Problems) {
    let path = format!("{}.{DOMAIN_NAMES}", peer.path);
    if action != Action::Allow {
        problems.add(&path, "in a rule that does not accept", "names can only be accepted");
    }
    if !context.settings.l7_proxy {
        problems.add(&path, "names, and the DNS proxy is off", "switch enable-l7-proxy on");
    }
}

/// Returns the DNS rules that allow queries of the names among the peers.
fn dns_rules(peers: &Peers) -> BTreeSet<DnsRule> {
    let selectors = if let Peers::Of(selectors) = peers { &selectors[..] } else { &[] };
    let rule = |selector: &Selector| match selector {
        Selector::Fqdn(FqdnSelector { match_name, match_pattern }) => {
            Some(DnsRule { match_name: match_name.to_string(), match_pattern: match_pattern.to_string() })
        }
        _ => None,
    };
    selectors.iter().filter_map(rule).collect()
}

/// Returns the cluster's DNS servers as peers, with the redirects of queries: the addresses of names are known only from
/// answers that pass the DNS proxy, so a rule with names allows these queries, too.
fn dns_servers(rules: BTreeSet<DnsRule>) -> (Peers, Vec<RedirectSpec>) {
    let (key, value) = DNS_SERVERS;
    let servers = Selector::Labels(vec![Requirement::equals(K8S, key, value)]);
    let rules = Arc::new(ProxyRules { l7: L7Rules::Dns(rules), ..ProxyRules::default() });
    let redirect = |(name, protocol): (&str, u8)| {
        let port = PortSpec { protocol, port: Port::Named { name: name.into(), end: None } };
        RedirectSpec { port, rules: rules.clone() }
    };
    (Peers::Of(vec![servers]), DNS_PORTS.map(redirect).into())
}

/// Reads an element of `protocols`.
fn protocol(field: &Field<'_>, problems: &mut Problems) -> Option<Vec<PortSpec>> {
    let object = field.object(problems)?;
    object.check_names(problems, &["tcp", "udp", "sctp", "destinationNamedPort"], &[]);
    let remedy = "one of tcp, udp, sctp and destinationNamedPort";
    let given: Vec<Field<'_>> =
        object.fields().map(|(_, field)| field).filter(|f| !f.value.is_null()).collect();
    let [_] = &given[..] else {
        problems.add(&object.path, format!("{} fields", given.len()), remedy);
        return None;
    };
    for (name, protocol) in [("tcp", TCP), ("udp", UDP), ("sctp", SCTP)] {
        if let Some(field) = object.field(name) {
            return Some(vec![PortSpec { protocol, port: destination(&field, problems)? }]);
        }
    }
    let field = object.field("destinationNamedPort")?;
    let name = field.text(problems)?;
    if !is_service_name(name) {
        let reason = format!("{}: not a port's name", quoted(field.value));
        problems.add(
            &field.path,
            reason,
            "names have at most 15 letters, digits and single dashes, and a letter",
        );
        return None;
    }
    let port = Port::Named { name: name.to_ascii_lowercase().into(), end: None };
    Some([TCP, UDP, SCTP].map(|protocol| PortSpec { protocol, port: port.clone() }).into())
}

/// Reads the ports of a protocol: a number or a range.
fn destination(field: &Field<'_>, problems: &mut Problems) -> Option<Port> {
    let object = field.object(problems)?;
    object.check_names(problems, &["destinationPort"], &[]);
    let remedy = "number or range";
    let port = required(&object, "destinationPort", remedy, problems)?.object(problems)?;
    port.check_names(problems, &["number", "range"], &[]);
    match (port.field("number"), port.field("range")) {
        (Some(number), None) => number_of(&number, problems).map(|number| Port::Range(number, number)),
        (None, Some(range)) => {
            let range = range.object(problems)?;
            range.check_names(problems, &["start", "end"], &[]);
            let mut end_of = |name| {
                let field = required(&range, name, "a number from 1 to 65535", problems)?;
                number_of(&field, problems)
            };
            let (start, end) = (end_of("start"), end_of("end"));
            let (start, end) = (start?, end?);
            if start >= end {
                problems.add(&range.path, format!("{end} is not above {start}"), "start is below end");
                return None;
            }
            Some(Port::Range(start, end))
        }
        (None, None) => {
            problems.add(&port.path, "names no port", remedy);
            None
        }
        (Some(_), Some(_)) => {
            problems.add(&port.path, "both number and range", "give one of them");
            None
        }
    }
}

fn number_of(field: &Field<'_>, problems: &mut Problems) -> Option<u16> {
    let number = field.value.as_u64().and_then(|number| u16::try_from(number).ok());
    let number = number.filter(|number| *number > 0);
    if number.is_none() {
        let reason = format!("{}: not a port (1-65535)", quoted(field.value));
        problems.add(&field.path, reason, "write it as a number, without quotes");
    }
    number
}

/// Returns a field that must exist.
fn required<'a>(
    object: &Object<'a>,
    name: &str,
    remedy: &'static str,
    problems: &mut Problems,
) -> Option<Field<'a>> {
    let field = object.field(name);
    if field.is_none() {
        problems.add(&object.path_of(name), "missing", remedy);
    }
    field
}

fn elements<'a>(object: &Object<'a>, name: &str, problems: &mut Problems) -> Vec<Field<'a>> {
    object.field(name).and_then(|field| field.list(problems)).unwrap_or_default()
}

impl Field<'_> {
    /// Returns the value that the text stands for.
    fn choice<T: Copy>(
        &self,
        choices: &[(&str, T)],
        what: &str,
        remedy: &'static str,
        problems: &mut Problems,
    ) -> Option<T> {
        let text = self.text(problems)?;
        let found = choices.iter().find(|(name, _)| *name == text);
        if found.is_none() {
            problems.add(&self.path, format!("{}: not {what}", quoted(self.value)), remedy);
        }
        found.map(|(_, value)| *value)
    }
}
