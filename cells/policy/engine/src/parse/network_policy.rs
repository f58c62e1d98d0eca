//! Parses NetworkPolicies: Kubernetes' own.

use std::sync::Arc;

use labels::Label;

use super::cidr::ip_block;
use super::cursor::{Field, Object, Problems, quoted};
use super::ports::network_policy_port;
use super::selectors::LabelSelector;
use super::{Context, label_texts};
use crate::model::{Action, Direction, Entry, Peers, PortSpec, Ports, Subject, Tier};
use crate::selector::Selector;

/// Reads the entries of a NetworkPolicy, in the order ingress, egress. A direction that the policy has without rules
/// gives one entry that matches nothing, so that its default deny applies.
pub(super) fn network_policy(
    object: &Object<'_>,
    context: &Context<'_>,
    problems: &mut Problems,
) -> Vec<Entry> {
    let Some(field) = object.field("spec") else {
        problems.add("spec", "missing", "`podSelector: {}` selects all pods of the namespace");
        return Vec::new();
    };
    let Some(spec) = field.object(problems) else { return Vec::new() };
    spec.check_names(problems, &["podSelector", "policyTypes", "ingress", "egress"], &[]);
    let subject = match spec.field("podSelector") {
        Some(field) => LabelSelector::read_k8s(&field, problems),
        None => Some(LabelSelector::default()),
    };
    let types = policy_types(&spec, problems);
    let rules = Rules {
        subject: subject.map(|selector| Subject::Endpoints(selector.into_subject(context.namespace))),
        labels: label_texts(&context.origin, Vec::<Label>::new()),
        context,
    };
    let mut entries = rules.of(&spec, Direction::Ingress, problems);
    if entries.is_empty() && (types.ingress || !types.egress) {
        entries.extend(rules.nothing(Direction::Ingress));
    }
    let egress = rules.of(&spec, Direction::Egress, problems);
    match egress.is_empty() && types.egress {
        true => entries.extend(rules.nothing(Direction::Egress)),
        false => entries.extend(egress),
    }
    entries
}

/// The directions in `policyTypes`. They add the default deny of a direction without rules; rules of a direction that
/// is not listed apply nevertheless, as in Cilium.
#[derive(Default)]
struct PolicyTypes {
    ingress: bool,
    egress: bool,
}

fn policy_types(spec: &Object<'_>, problems: &mut Problems) -> PolicyTypes {
    let mut types = PolicyTypes::default();
    for field in elements(spec, "policyTypes", problems) {
        match field.text(problems) {
            Some("Ingress") => types.ingress = true,
            Some("Egress") => types.egress = true,
            Some(_) => {
                let reason = format!("{}: not a direction", quoted(field.value));
                problems.add(&field.path, reason, "Ingress or Egress");
            }
            None => {}
        }
    }
    types
}

/// The parts that all rules of a NetworkPolicy share.
struct Rules<'a> {
    /// The selected pods; `None` if their selector is invalid.
    subject: Option<Subject>,
    labels: Arc<[String]>,
    context: &'a Context<'a>,
}

impl Rules<'_> {
    /// Reads the rules of a direction.
    fn of(&self, spec: &Object<'_>, direction: Direction, problems: &mut Problems) -> Vec<Entry> {
        let (section, peers_name) = names(direction);
        let mut entries = Vec::new();
        for field in elements(spec, section, problems) {
            let Some(rule) = field.object(problems) else { continue };
            rule.check_names(problems, &[peers_name, "ports"], &[]);
            let peers: Vec<Selector> = elements(&rule, peers_name, problems)
                .iter()
                .filter_map(|field| peer(field, self.context, problems))
                .collect();
            // An absent and an empty list of peers, or of ports, do not restrict the rule.
            let any_peer = rule.field(peers_name).is_none_or(|field| is_empty(&field));
            let ports = elements(&rule, "ports", problems);
            let specs: Vec<PortSpec> =
                ports.iter().filter_map(|field| network_policy_port(field, problems)).flatten().collect();
            let peers = if any_peer { Peers::All } else { Peers::Of(peers) };
            let ports = if ports.is_empty() { Ports::All } else { Ports::Of(specs) };
            entries.extend(self.entry(direction, peers, ports, field.path.as_str()));
        }
        entries
    }

    /// Returns the entry of a direction without rules.
    fn nothing(&self, direction: Direction) -> Option<Entry> {
        self.entry(direction, Peers::Nothing, Ports::All, "spec.policyTypes")
    }

    fn entry(&self, direction: Direction, peers: Peers, ports: Ports, path: &str) -> Option<Entry> {
        Some(Entry {
            subject: self.subject.clone()?,
            direction,
            action: Action::Allow,
            tier: Tier::Normal,
            priority: 0,
            default_deny: true,
            peers,
            ports,
            services: Vec::new(),
            redirects: Vec::new(),
            authentication: None,
            log: "".into(),
            path: path.into(),
            labels: Arc::clone(&self.labels),
        })
    }
}

/// Returns the names of a direction's list of rules, and of the list of peers in each.
fn names(direction: Direction) -> (&'static str, &'static str) {
    match direction {
        Direction::Ingress => ("ingress", "from"),
        Direction::Egress => ("egress", "to"),
    }
}

/// Reads a peer: an `ipBlock`, or pods by their labels, their namespaces', or both.
fn peer(field: &Field<'_>, context: &Context<'_>, problems: &mut Problems) -> Option<Selector> {
    let peer = field.object(problems)?;
    peer.check_names(problems, &["podSelector", "namespaceSelector", "ipBlock"], &[]);
    let (pods, namespaces) = (peer.field("podSelector"), peer.field("namespaceSelector"));
    if let Some(block) = peer.field("ipBlock") {
        if pods.is_some() || namespaces.is_some() {
            problems.add(&block.path, "given beside a selector", "make each a peer of its own");
        }
        return ip_block(&block, context, problems);
    }
    if pods.is_none() && namespaces.is_none() {
        let remedy =
            "podSelector, namespaceSelector or ipBlock; `podSelector: {}` selects all pods of the namespace";
        problems.add(&peer.path, "selects no peers", remedy);
        return None;
    }
    let pods = match pods {
        Some(field) => LabelSelector::read_k8s(&field, problems),
        None => Some(LabelSelector::default()),
    };
    let namespaces = match namespaces {
        Some(field) => Some(LabelSelector::read_k8s(&field, problems)?),
        None => None,
    };
    Some(pods?.into_pod_peer(namespaces, context))
}

fn elements<'a>(object: &Object<'a>, name: &str, problems: &mut Problems) -> Vec<Field<'a>> {
    object.field(name).and_then(|field| field.list(problems)).unwrap_or_default()
}

fn is_empty(field: &Field<'_>) -> bool {
    field.value.as_array().is_some_and(Vec::is_empty)
}
