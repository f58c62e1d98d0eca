//! Parses ClusterNetworkPolicies: Kubernetes' own, of the whole cluster, in tiers and with priorities.

use std::sync::Arc;

use labels::Label;

use super::cidr::network;
use super::cursor::{Field, Object, Problems, quoted};
use super::ports::{SCTP, TCP, UDP, is_service_name};
use super::selectors::LabelSelector;
use super::{Context, label_texts};
use crate::model::{Action, Direction, Entry, Peers, Port, PortSpec, Ports, Subject, Tier};
use crate::selector::Selector;

/// Maximum number of rules of a direction: the limit of the CRD. A rule's index is a fraction of the priority, which
/// 100 rules would fill.
const MAX_RULES: usize = 25;
const MAX_PRIORITY: u32 = 1000;

/// Known kinds of peers; those that are not implemented have a description.
const INGRESS_PEERS: &[(&str, Option<&str>)] = &[("namespaces", None), ("pods", None)];
const EGRESS_PEERS: &[(&str, Option<&str>)] = &[
    ("namespaces", None),
    ("pods", None),
    ("networks", None),
    ("nodes", None),
    ("domainNames", Some("peers by DNS name")),
];

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
            redirects: Vec::new(),
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
        let mut add = |action, peers, path: &str| {
            parts.push(Part { index, action, peers, ports: ports.clone(), path: path.to_owned() });
        };
        if let (true, Some(action)) = (peers.is_empty(), action) {
            add(action, Peers::All, &field.path);
        }
        for peer in peers {
            let found = self::peer(&peer, direction, context, problems);
            match (found, action) {
                (Some(Some(peers)), Some(action)) => add(action, peers, &peer.path),
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
                    add(Action::Deny, Peers::All, &peer.path);
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
    let given: Vec<&str> =
        known.iter().map(|(name, _)| *name).filter(|name| peer.field(name).is_some()).collect();
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
    let built: Vec<&str> =
        known.iter().filter(|(_, unbuilt)| unbuilt.is_none()).map(|(name, _)| *name).collect();
    let unbuilt: Vec<_> = known.iter().filter_map(|(name, text)| Some((*name, (*text)?))).collect();
    peer.check_names(problems, &built, &unbuilt);
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
        _ => return None,
    };
    (!selectors.is_empty()).then_some(Some(Peers::Of(selectors)))
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
