//! Parses one rule: `spec`, or an element of `specs`.

use std::sync::Arc;

use labels::{Label, UNSPECIFIED};

use super::cursor::{Field, Object, Problems};
use super::icmp::icmp;
use super::peers::peers;
use super::ports::port_rule;
use super::selectors::LabelSelector;
use super::{Context, Section, label_texts};
use crate::model::{Direction, Entry, Kind, Peers, PortSpec, Ports, Subject, Tier};

const FIELDS: [&str; 9] = [
    "description",
    "egress",
    "egressDeny",
    "enableDefaultDeny",
    "endpointSelector",
    "ingress",
    "ingressDeny",
    "labels",
    "nodeSelector",
];

/// Reads the entries of a rule, in the order ingress, ingressDeny, egress, egressDeny.
pub(super) fn rule(field: &Field<'_>, context: &Context<'_>, problems: &mut Problems) -> Vec<Entry> {
    let Some(rule) = field.object(problems) else { return Vec::new() };
    rule.check_names(problems, &FIELDS, &[("log", "a value for the log of verdicts")]);
    rule.text("description", problems);
    let labels = label_texts(&context.origin, user_labels(&rule, problems));
    let subject = subject(&rule, context, problems);
    let subject_is_init = subject.as_ref().is_some_and(|(_, is_init)| *is_init);
    let default_deny = DefaultDeny::read(&rule, context, problems);

    let mut entries = Vec::new();
    let mut filled = false;
    for section in Section::ALL {
        let list = rule.field(section.name()).and_then(|field| field.list(problems)).unwrap_or_default();
        filled |= !list.is_empty();
        for field in list {
            let Some((peers, ports)) = entry(&field, section, context, subject_is_init, problems) else {
                continue;
            };
            let Some((subject, _)) = &subject else { continue };
            entries.push(Entry {
                subject: subject.clone(),
                direction: section.direction(),
                action: section.action(),
                tier: Tier::Normal,
                priority: 0,
                default_deny: default_deny.of(section.direction()),
                peers,
                ports,
                path: field.path.into(),
                labels: Arc::clone(&labels),
            });
        }
    }
    let wrong_type = Section::ALL.iter().any(|s| rule.field(s.name()).is_some_and(|f| !f.value.is_array()));
    if !filled && !wrong_type {
        problems.add(
            &rule.path,
            "ingress, ingressDeny, egress and egressDeny are all absent or empty",
            "write one of them; `ingress: [{}]` denies what nothing allows",
        );
    }
    entries
}

/// Reads the subject of a rule, and whether its selector names the label `reserved:init`.
fn subject(rule: &Object<'_>, context: &Context<'_>, problems: &mut Problems) -> Option<(Subject, bool)> {
    let (endpoints, nodes) = (rule.field("endpointSelector"), rule.field("nodeSelector"));
    match (endpoints, nodes) {
        (Some(endpoints), Some(nodes)) => {
            problems.add(
                &nodes.path,
                "given beside endpointSelector",
                "a rule is about endpoints or about nodes",
            );
            LabelSelector::read(&endpoints, problems);
            LabelSelector::read(&nodes, problems);
            None
        }
        (None, None) => {
            problems.add(&rule.path_of("endpointSelector"), "missing", "`endpointSelector: {}` selects all");
            None
        }
        (Some(endpoints), None) => {
            let selector = LabelSelector::read(&endpoints, problems)?;
            if selector.names_other_namespace(context.namespace) {
                problems.warn(
                    &endpoints.path,
                    format!("names another namespace: the policy selects in {} only", context.namespace),
                    "write the policy in that namespace",
                );
            }
            let is_init = selector.names_init();
            Some((Subject::Endpoints(selector.into_subject(context.namespace)), is_init))
        }
        (None, Some(nodes)) => {
            if context.kind == Kind::CiliumNetworkPolicy {
                problems.add(
                    &nodes.path,
                    "a policy of a namespace cannot be about nodes",
                    "use a CiliumClusterwideNetworkPolicy",
                );
            }
            let selector = LabelSelector::read(&nodes, problems)?;
            Some((Subject::Node(selector.into_node()), false))
        }
    }
}

/// The default deny of a rule per direction: whether traffic that no rule allows is dropped.
struct DefaultDeny {
    ingress: bool,
    egress: bool,
}

impl DefaultDeny {
    fn read(rule: &Object<'_>, context: &Context<'_>, problems: &mut Problems) -> DefaultDeny {
        let object = rule.field("enableDefaultDeny").and_then(|field| field.object(problems));
        if let Some(object) = &object {
            object.check_names(problems, &["ingress", "egress"], &[]);
        }
        let mut read = |name| {
            let field = object.as_ref().and_then(|object| object.field(name));
            let given = field.and_then(|field| field.boolean(problems));
            given.unwrap_or(true) || !context.settings.non_default_deny
        };
        DefaultDeny { ingress: read("ingress"), egress: read("egress") }
    }

    fn of(&self, direction: Direction) -> bool {
        match direction {
            Direction::Ingress => self.ingress,
            Direction::Egress => self.egress,
        }
    }
}

/// Reads the peers and ports of an element of a section.
fn entry(
    field: &Field<'_>,
    section: Section,
    context: &Context<'_>,
    subject_is_init: bool,
    problems: &mut Problems,
) -> Option<(Peers, Ports)> {
    let entry = field.object(problems)?;
    let known: Vec<&str> = section.peer_fields().into_iter().chain(["toPorts", "icmps"]).collect();
    // An unimplemented field with an empty list has no effect, so it is accepted.
    let is_empty =
        |name: &str| entry.field(name).is_some_and(|f| f.value.as_array().is_some_and(Vec::is_empty));
    let unbuilt = section.unbuilt_peer_fields().iter().copied();
    let authentication = section.allows().then_some(("authentication", "authentication of peers"));
    let (empty, unbuilt): (Vec<_>, Vec<_>) =
        unbuilt.chain(authentication).partition(|(name, _)| is_empty(name));
    let known: Vec<&str> = known.into_iter().chain(empty.iter().map(|(name, _)| *name)).collect();
    entry.check_names(problems, &known, &unbuilt);

    let peers = peers(&entry, section, context, subject_is_init, problems);
    let (ports, icmps) = (elements(&entry, "toPorts", problems), elements(&entry, "icmps", problems));
    if !ports.is_empty() && !icmps.is_empty() {
        problems.add(&entry.path_of("icmps"), "given beside toPorts", "make each an entry of its own");
    }
    let named = !ports.is_empty() || !icmps.is_empty();
    let mut specs: Vec<PortSpec> =
        ports.iter().flat_map(|field| port_rule(field, section, context, problems)).collect();
    specs.extend(icmps.iter().flat_map(|field| icmp(field, context, problems)));
    let ports = if named { Ports::Of(specs) } else { Ports::All };
    // `{}` selects neither peers nor ports: the entry matches nothing, and its default deny applies.
    let peers = peers.unwrap_or(if named { Peers::All } else { Peers::Nothing });
    Some((peers, ports))
}

fn elements<'a>(entry: &Object<'a>, name: &str, problems: &mut Problems) -> Vec<Field<'a>> {
    entry.field(name).and_then(|field| field.list(problems)).unwrap_or_default()
}

/// Reads the user's own labels of a rule: texts or `{key, source, value}`.
fn user_labels(rule: &Object<'_>, problems: &mut Problems) -> Vec<Label> {
    let mut labels = Vec::new();
    for field in elements(rule, "labels", problems) {
        let label = match field.value.as_str() {
            Some(text) => Label::parse(text),
            None => {
                let Some(object) = field.object(problems) else { continue };
                object.check_names(problems, &["key", "source", "value"], &[]);
                let mut text = |name| object.text(name, problems).to_owned();
                Label { key: text("key"), value: text("value"), source: text("source") }
            }
        };
        if label.key.is_empty() {
            problems.add(&field.path, "a label without a key", "write key, value and source");
            continue;
        }
        let source = if label.source.is_empty() { UNSPECIFIED.to_owned() } else { label.source };
        labels.push(Label { source, ..label });
    }
    labels
}
