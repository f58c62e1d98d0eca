//! Parses the peers of an entry.

use std::collections::HashSet;

use labels::{K8S, POLICY_CLUSTER};

use super::cidr::{cidr, cidr_rule};
use super::cursor::{Field, Object, Problems, quoted};
use super::dns::fqdn;
use super::selectors::LabelSelector;
use super::{Context, Section};
use crate::model::{Direction, Peers};
use crate::selector::{Requirement, Selector};

/// Implemented fields of ingress that select peers, in the order in which they are read.
const INGRESS: [&str; 5] = ["fromEndpoints", "fromEntities", "fromCIDR", "fromCIDRSet", "fromNodes"];
/// Those of egress; DNS names can only be allowed: `egressDeny` has no `toFQDNs`, the last one.
const EGRESS: [&str; 6] = ["toEndpoints", "toEntities", "toCIDR", "toCIDRSet", "toNodes", "toFQDNs"];

/// Fields of ingress that select peers and are not implemented, with descriptions.
const INGRESS_UNBUILT: &[(&str, &str)] = &[("fromGroups", "peers by groups of cloud providers")];
const EGRESS_UNBUILT: &[(&str, &str)] = &[("toGroups", "peers by groups of cloud providers")];

/// Fields with requirements on all peers, which Cilium has removed: the API accepts empty lists only.
pub(super) const REQUIRES: [&str; 2] = ["fromRequires", "toRequires"];

/// The field of egress that selects services, which are translated into selectors later.
pub(super) const SERVICES: &str = "toServices";

impl Section {
    /// Returns the fields that select peers, in this order: endpoints, entities, prefixes, prefixes with exceptions,
    /// nodes, DNS names.
    pub(super) fn peer_fields(self) -> &'static [&'static str] {
        match (self.direction(), self.allows()) {
            (Direction::Ingress, _) => &INGRESS,
            (Direction::Egress, true) => &EGRESS,
            (Direction::Egress, false) => &EGRESS[..EGRESS.len() - 1],
        }
    }

    /// Returns the fields that select peers and are not implemented, with descriptions.
    pub(super) fn unbuilt_peer_fields(self) -> &'static [(&'static str, &'static str)] {
        match self.direction() {
            Direction::Ingress => INGRESS_UNBUILT,
            Direction::Egress => EGRESS_UNBUILT,
        }
    }
}

/// Indexes into the fields that select peers.
const ENDPOINTS: usize = 0;
const ENTITIES: usize = 1;
const CIDRS: usize = 2;
const CIDR_SETS: usize = 3;
const NODES: usize = 4;

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

/// Whether a list of peers is present and empty: it selects no peers, regardless of other fields. One of DNS names counts as
/// absent.
pub(super) fn has_empty_list(entry: &Object<'_>, section: Section) -> bool {
    section.peer_fields()[..=NODES].iter().any(|name| matches!(filled(entry, name), Filled::Empty))
}

/// Reads the peers of an entry; `None` if no field selects peers.
pub(super) fn peers(
    entry: &Object<'_>,
    section: Section,
    context: &Context<'_>,
    subject_is_init: bool,
    problems: &mut Problems,
) -> Option<Peers> {
    let fields = section.peer_fields();
    let kinds = fields.iter().copied().chain(section.unbuilt_peer_fields().iter().map(|(name, _)| *name));
    let kinds = kinds.chain((section.direction() == Direction::Egress).then_some(SERVICES));
    let kinds: Vec<&str> = kinds.filter(|name| matches!(filled(entry, name), Filled::Yes)).collect();
    if kinds.len() > 1 {
        let reason = format!("{} in one entry", kinds.join(" and "));
        problems.add(&entry.path, reason, "make each an entry of its own");
    }

    let mut selectors = Vec::new();
    for (kind, name) in fields.iter().enumerate() {
        for field in entry.elements(name, problems) {
            match kind {
                ENDPOINTS => {
                    let selector = LabelSelector::read(&field, problems);
                    selectors.extend(selector.map(|selector| selector.into_peer(context, subject_is_init)));
                }
                ENTITIES => selectors.extend(entity(&field, context, problems)),
                CIDRS => selectors.extend(cidr(&field, context, problems)),
                CIDR_SETS => selectors.extend(cidr_rule(&field, context, problems)),
                NODES => selectors.extend(node(&field, context, problems)),
                _ => selectors.extend(fqdn(&field, problems)),
            }
        }
    }

    if has_empty_list(entry, section) {
        return Some(Peers::Nothing);
    }
    if kinds.is_empty() {
        return None;
    }
    if kinds == [SERVICES] {
        return Some(Peers::Nothing);
    }
    // A wildcard makes the other selectors redundant.
    if kinds.first() == Some(&fields[ENTITIES]) && selectors.iter().any(Selector::is_wildcard) {
        return Some(Peers::Of(vec![Selector::Labels(Vec::new())]));
    }
    let mut seen = HashSet::new();
    selectors.retain(|selector| seen.insert(selector.clone()));
    Some(Peers::Of(selectors))
}

/// Reads a selector of nodes: an element of `fromNodes` or `toNodes`.
pub(super) fn node(field: &Field<'_>, context: &Context<'_>, problems: &mut Problems) -> Option<Selector> {
    if !context.settings.node_selector_labels {
        let remedy = "they need enable-node-selector-labels";
        problems.add(&field.path, "peers by labels of nodes are off", remedy);
    }
    LabelSelector::read(field, problems).map(|selector| selector.into_node_peer(context))
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
