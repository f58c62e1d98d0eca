//! Parses the peers of an entry.

use std::collections::HashSet;

use labels::{K8S, POLICY_CLUSTER};

use super::cidr::{cidr, cidr_rule};
use super::cursor::{Field, Object, Problems, quoted};
use super::selectors::LabelSelector;
use super::{Context, Section};
use crate::model::{Direction, Peers};
use crate::selector::{Requirement, Selector};

/// Implemented fields of ingress that select peers, in the order in which they are read.
const INGRESS: [&str; 4] = ["fromEndpoints", "fromEntities", "fromCIDR", "fromCIDRSet"];
const EGRESS: [&str; 4] = ["toEndpoints", "toEntities", "toCIDR", "toCIDRSet"];

/// Fields of ingress that select peers and are not implemented, with descriptions.
const INGRESS_UNBUILT: &[(&str, &str)] = &[
    ("fromNodes", "peers by labels of nodes"),
    ("fromGroups", "peers by groups of cloud providers"),
    ("fromRequires", "requirements on peers"),
];
const EGRESS_UNBUILT: &[(&str, &str)] = &[
    ("toNodes", "peers by labels of nodes"),
    ("toGroups", "peers by groups of cloud providers"),
    ("toRequires", "requirements on peers"),
    ("toServices", "peers by service"),
    ("toFQDNs", "peers by DNS name"),
];

impl Section {
    /// Returns the fields that select peers, in this order: endpoints, entities, prefixes, prefixes with exceptions.
    pub(super) fn peer_fields(self) -> [&'static str; 4] {
        match self.direction() {
            Direction::Ingress => INGRESS,
            Direction::Egress => EGRESS,
        }
    }

    /// Returns the fields that select peers and are not implemented, with descriptions.
    pub(super) fn unbuilt_peer_fields(self) -> &'static [(&'static str, &'static str)] {
        match (self.direction(), self.allows()) {
            (Direction::Ingress, _) => INGRESS_UNBUILT,
            (Direction::Egress, true) => EGRESS_UNBUILT,
            // DNS names can only be allowed: `egressDeny` has no `toFQDNs`, the last one.
            (Direction::Egress, false) => &EGRESS_UNBUILT[..EGRESS_UNBUILT.len() - 1],
        }
    }
}

/// The presence of a list field: present with elements, present and empty, or absent.
enum Filled {
    Yes,
    Empty,
    Absent,
}

fn filled(object: &Object<'_>, name: &str) -> Filled {
    match object.field(name).map(|field| field.value.as_array().is_some_and(Vec::is_empty)) {
        None => Filled::Absent,
        Some(true) => Filled::Empty,
        Some(false) => Filled::Yes,
    }
}

/// Reads the peers of an entry; `None` if no field selects peers.
pub(super) fn peers(
    entry: &Object<'_>,
    section: Section,
    context: &Context<'_>,
    subject_is_init: bool,
    problems: &mut Problems,
) -> Option<Peers> {
    let [endpoints, entities, cidrs, cidr_sets] = section.peer_fields();
    let kinds =
        section.peer_fields().into_iter().chain(section.unbuilt_peer_fields().iter().map(|(name, _)| *name));
    let kinds: Vec<&str> = kinds.filter(|name| matches!(filled(entry, name), Filled::Yes)).collect();
    if kinds.len() > 1 {
        let reason = format!("{} in one entry", kinds.join(" and "));
        problems.add(&entry.path, reason, "make each an entry of its own");
    }

    let mut selectors = Vec::new();
    for field in elements(entry, endpoints, problems) {
        let selector = LabelSelector::read(&field, problems);
        selectors.extend(selector.map(|selector| selector.into_peer(context, subject_is_init)));
    }
    for field in elements(entry, entities, problems) {
        selectors.extend(entity(&field, context, problems));
    }
    for field in elements(entry, cidrs, problems) {
        selectors.extend(cidr(&field, context, problems));
    }
    for field in elements(entry, cidr_sets, problems) {
        selectors.extend(cidr_rule(&field, context, problems));
    }

    // A list that is present and empty selects no peers, regardless of other fields.
    let nodes = if section.direction() == Direction::Ingress { "fromNodes" } else { "toNodes" };
    let lists = section.peer_fields().into_iter().chain([nodes]);
    if lists.into_iter().any(|name| matches!(filled(entry, name), Filled::Empty)) {
        return Some(Peers::Nothing);
    }
    if kinds.is_empty() {
        return None;
    }
    // A wildcard makes the other selectors redundant.
    if kinds.first() == Some(&entities) && selectors.iter().any(Selector::is_wildcard) {
        return Some(Peers::Of(vec![Selector::Labels(Vec::new())]));
    }
    let mut seen = HashSet::new();
    selectors.retain(|selector| seen.insert(selector.clone()));
    Some(Peers::Of(selectors))
}

fn elements<'a>(entry: &Object<'a>, name: &str, problems: &mut Problems) -> Vec<Field<'a>> {
    entry.field(name).and_then(|field| field.list(problems)).unwrap_or_default()
}

/// Returns the selectors of an entity.
fn entity(field: &Field<'_>, context: &Context<'_>, problems: &mut Problems) -> Vec<Selector> {
    let Some(name) = field.text(problems) else { return Vec::new() };
    match name {
        "all" => vec![Selector::Labels(Vec::new())],
        "none" => vec![Selector::None],
        "world" => ["world", "world-ipv4", "world-ipv6"].map(Selector::reserved).to_vec(),
        "world-ipv4" | "world-ipv6" | "host" | "init" | "ingress" | "remote-node" | "health"
        | "unmanaged" | "kube-apiserver" => vec![Selector::reserved(name)],
        "cluster" => {
            let reserved =
                ["host", "remote-node", "init", "ingress", "health", "unmanaged", "kube-apiserver"];
            let own = Requirement::equals(K8S, POLICY_CLUSTER, &context.settings.cluster);
            let own = Selector::Labels(vec![own]);
            reserved.into_iter().map(Selector::reserved).chain([own]).collect()
        }
        _ => {
            let remedy = "all, world, world-ipv4, world-ipv6, cluster, host, remote-node, kube-apiserver, init, \
                          ingress, health, unmanaged or none";
            problems.add(&field.path, format!("{}: not an entity", quoted(field.value)), remedy);
            Vec::new()
        }
    }
}
