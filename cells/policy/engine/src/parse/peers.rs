//! The other side of an entry.

use std::collections::HashSet;

use labels::{K8S, POLICY_CLUSTER};

use super::cidr::{cidr, cidr_rule};
use super::cursor::{Field, Object, Problems, quoted};
use super::selectors::LabelSelector;
use super::{Context, Section};
use crate::model::{Direction, Peers};
use crate::selector::{Requirement, Selector};

/// Fields of ingress that name peers and are built, in the order in which they are looked at.
const INGRESS: [&str; 4] = ["fromEndpoints", "fromEntities", "fromCIDR", "fromCIDRSet"];
const EGRESS: [&str; 4] = ["toEndpoints", "toEntities", "toCIDR", "toCIDRSet"];

/// Fields of ingress that name peers and are not built.
const INGRESS_UNBUILT: &[(&str, &str)] = &[
    ("fromNodes", "peers by labels of nodes"),
    ("fromGroups", "peers by groups of cloud providers"),
    ("fromRequires", "requirements on peers"),
];
const EGRESS_UNBUILT: &[(&str, &str)] = &[
    ("toNodes", "peers by labels of nodes"),
    ("toGroups", "peers by groups of cloud providers"),
    ("toRequires", "requirements on peers"),
    ("toFQDNs", "peers by DNS name"),
    ("toServices", "peers by service"),
];

impl Section {
    /// Fields that name peers, in order: endpoints, entities, prefixes, prefixes with exceptions.
    pub(super) fn peer_fields(self) -> [&'static str; 4] {
        match self.direction() {
            Direction::Ingress => INGRESS,
            Direction::Egress => EGRESS,
        }
    }

    /// Fields that name peers in a way that is not built.
    pub(super) fn unbuilt_peer_fields(self) -> &'static [(&'static str, &'static str)] {
        match (self.direction(), self.allows()) {
            (Direction::Ingress, _) => INGRESS_UNBUILT,
            (Direction::Egress, true) => EGRESS_UNBUILT,
            // Names of DNS only ever allow.
            (Direction::Egress, false) => &EGRESS_UNBUILT[..3],
        }
    }
}

/// Whether a field is there with elements, there without, or absent.
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

/// The peers of an entry; none if no field names any.
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

    // A list that is there and empty: the writer left nobody, whatever else is named.
    let nodes = if section.direction() == Direction::Ingress { "fromNodes" } else { "toNodes" };
    let lists = section.peer_fields().into_iter().chain([nodes]);
    if lists.into_iter().any(|name| matches!(filled(entry, name), Filled::Empty)) {
        return Some(Peers::Nothing);
    }
    if kinds.is_empty() {
        return None;
    }
    // With everybody among them, the others add nothing; nor does one twice.
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

/// The selectors of an entity.
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
