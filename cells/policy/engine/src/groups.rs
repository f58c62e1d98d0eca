//! CIDR groups: named sets of prefixes outside of the cluster, with labels. Identities of prefixes inside a group carry
//! labels of the group, by which policies select them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnetwork::IpNetwork;
use labels::{Label, LabelArray, LabelRef, RESERVED};

use crate::engine::{Change, Engine};
use crate::identities::Identity;
use crate::model::World;
use crate::selector::contains;
use crate::settings::Settings;

/// Source of the labels of groups.
pub(crate) const CIDR_GROUP: &str = "cidrgroup";
/// Key of the label with the name of a group, before the name.
const NAME: &str = "io.cilium.policy.cidrgroupname/";

/// A CiliumCIDRGroup.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CidrGroup {
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its prefixes.
    pub prefixes: BTreeSet<IpNetwork>,
}

/// All groups by name.
pub type CidrGroups = BTreeMap<Arc<str>, CidrGroup>;

/// Returns the key of the label that identities in a group of this name have.
pub(crate) fn name_key(group: &str) -> String {
    format!("{NAME}{group}")
}

/// Returns the key of the label that identities in a group with this label have. The value is a part of the key, since
/// two groups of an identity can have two values of a label.
pub(crate) fn value_key(key: &str, value: &str) -> String {
    format!("{key}+{value}")
}

/// Returns the prefixes of all groups that need an identity; those of length 0 are the world of the family.
pub fn cidr_group_prefixes(groups: &CidrGroups) -> impl Iterator<Item = IpNetwork> {
    let all = groups.values().flat_map(|group| &group.prefixes);
    all.filter(|prefix| prefix.prefix() > 0)
        .filter_map(|prefix| IpNetwork::new(prefix.network(), prefix.prefix()).ok())
}

/// Returns the labels of an identity: its own, and those of the groups that contain one of its prefixes.
pub(crate) fn with_groups(
    own: &LabelArray,
    prefixes: &[IpNetwork],
    groups: &CidrGroups,
    settings: &Settings,
) -> LabelArray {
    let is_member = |group: &CidrGroup| {
        group.prefixes.iter().any(|outer| match outer.prefix() {
            0 => own.has(RESERVED, World::of(outer.ip(), settings.ipv4, settings.ipv6).label()),
            _ => prefixes.iter().any(|inner| contains(outer, inner)),
        })
    };
    let mut all: Vec<Label> = own.iter().map(LabelRef::to_label).collect();
    for (name, group) in groups.iter().filter(|(_, group)| is_member(group)) {
        let label =
            |key: String, value: &str| Label { source: CIDR_GROUP.to_owned(), key, value: value.to_owned() };
        all.push(label(name_key(name), ""));
        for (key, value) in &group.labels {
            all.extend([label(key.clone(), value), label(value_key(key, value), "")]);
        }
    }
    all.into_iter().collect()
}

impl Engine {
    /// Sets all groups. Identities of prefixes that enter or leave a group get other labels: rules that select them by
    /// these apply to them then. Linear in the identities if the groups have changed.
    pub fn set_cidr_groups(&mut self, groups: &CidrGroups) -> Change {
        let mut change = self.unchanged();
        if self.groups == *groups {
            return change;
        }
        self.groups = groups.clone();
        let changed: Vec<(u32, Identity)> = self
            .identities
            .ids()
            .filter_map(|id| {
                let old = self.identities.get(id)?;
                let new = old.in_groups(&self.groups, &self.settings);
                (new != *old).then_some((id, new))
            })
            .collect();
        for (id, identity) in changed {
            change.merge(self.replace_identity(id, identity));
        }
        change
    }
}
