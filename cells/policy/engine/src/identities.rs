//! The identities that policies may select, indexed by label and prefix.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use labels::{CIDR, LabelArray, LabelRef};

use crate::Test;
use crate::density::Density;
use crate::groups::{CidrGroups, with_groups};
use crate::selector::{Requirement, Selector, contains, prefix_of_key};
use crate::settings::Settings;
use labels::NamedPorts;

/// An identity that is in use somewhere in the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Its own labels, and those of the CIDR groups that it is in.
    pub(crate) labels: LabelArray,
    /// Its own labels, if groups add some.
    own: Option<Box<LabelArray>>,
    /// Container ports of its endpoints.
    pub(crate) ports: NamedPorts,
}

impl Identity {
    pub(crate) fn new(
        own: LabelArray,
        ports: NamedPorts,
        groups: &CidrGroups,
        settings: &Settings,
    ) -> Identity {
        Identity { labels: own, own: None, ports }.in_groups(groups, settings)
    }

    /// Returns the identity with the labels of the groups that it is in.
    pub(crate) fn in_groups(&self, groups: &CidrGroups, settings: &Settings) -> Identity {
        let own = self.own.as_deref().unwrap_or(&self.labels);
        let ports = self.ports.clone();
        if groups.is_empty() {
            return Identity { labels: own.clone(), own: None, ports };
        }
        let prefixes: Vec<IpNetwork> = self.prefixes().collect();
        let labels = with_groups(own, &prefixes, groups, settings);
        let own = (labels != *own).then(|| Box::new(own.clone()));
        Identity { labels, own, ports }
    }

    /// Iterates over the prefixes among its labels. They are parsed each time: stored, they would take as much memory as
    /// the labels.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = IpNetwork> {
        let of_prefix = self.labels.iter().filter(|label| label.source == CIDR);
        of_prefix.filter_map(|label| prefix_of_key(label.key))
    }

    /// Whether one of its prefixes is a subset of this one.
    pub(crate) fn is_inside(&self, prefix: &IpNetwork) -> bool {
        self.prefixes().any(|own| contains(prefix, &own))
    }

    /// Whether the selector selects it.
    pub(crate) fn is_selected_by(&self, selector: &Selector) -> bool {
        let possible = match selector {
            Selector::Cidr(cidr) if cidr.prefix.prefix() > 0 => self.is_inside(&cidr.prefix),
            _ => true,
        };
        possible && selector.matches(&self.labels)
    }
}

/// Whether a label names a prefix.
fn is_prefix(label: &LabelRef<'_>) -> bool {
    label.source == CIDR && prefix_of_key(label.key).is_some()
}

/// All identities, indexed by id, label and prefix.
#[derive(Debug, Default)]
pub(crate) struct Identities {
    all: BTreeMap<u32, Identity>,
    /// Ids by key and value; not by labels of prefixes, which thousands of identities have one each of.
    by_label: HashMap<String, HashMap<String, BTreeSet<u32>>>,
    /// Ids by first address and length of their prefixes.
    by_prefix: BTreeSet<(IpAddr, u8, u32)>,
    density: Density,
}

impl Identities {
    /// Inserts an identity. Returns the previous one.
    pub(crate) fn insert(&mut self, id: u32, identity: Identity) -> Option<Identity> {
        let old = self.remove(id);
        for prefix in identity.prefixes() {
            self.by_prefix.insert((prefix.network(), prefix.prefix(), id));
        }
        for label in identity.labels.iter().filter(|label| !is_prefix(label)) {
            let values = self.by_label.entry(label.key.to_owned()).or_default();
            values.entry(label.value.to_owned()).or_default().insert(id);
        }
        self.all.insert(id, identity);
        old
    }

    /// Removes an identity and returns it.
    pub(crate) fn remove(&mut self, id: u32) -> Option<Identity> {
        let old = self.all.remove(&id)?;
        for prefix in old.prefixes() {
            self.by_prefix.remove(&(prefix.network(), prefix.prefix(), id));
        }
        for label in old.labels.iter().filter(|label| !is_prefix(label)) {
            let Some(values) = self.by_label.get_mut(label.key) else { continue };
            if let Some(ids) = values.get_mut(label.value) {
                ids.remove(&id);
                if ids.is_empty() {
                    values.remove(label.value);
                }
            }
            if values.is_empty() {
                self.by_label.remove(label.key);
            }
        }
        Some(old)
    }

    /// Returns the identity with the id.
    pub(crate) fn get(&self, id: u32) -> Option<&Identity> {
        self.all.get(&id)
    }

    /// Rebuilds the indexes if many identities were inserted since the last time.
    pub(crate) fn compact(&mut self) {
        if !self.density.is_due(self.all.len()) {
            return;
        }
        self.all = std::mem::take(&mut self.all).into_iter().collect();
        self.by_prefix = std::mem::take(&mut self.by_prefix).into_iter().collect();
        for ids in self.by_label.values_mut().flat_map(HashMap::values_mut).filter(|ids| ids.len() > 1) {
            *ids = std::mem::take(ids).into_iter().collect();
        }
    }

    /// Returns the number of identities.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Iterates over the named ports of each identity.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &NamedPorts> {
        self.all.values().map(|identity| &identity.ports)
    }

    /// Iterates over all ids, in order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> {
        self.all.keys().copied()
    }

    /// Iterates over the identities that the selector may select, in the order of their ids: a superset of its
    /// selection.
    pub(crate) fn candidates<'a>(
        &'a self,
        selector: &'a Selector,
    ) -> Box<dyn Iterator<Item = (u32, &'a Identity)> + 'a> {
        match self.narrowed(selector) {
            Some(ids) => Box::new(ids.into_iter().filter_map(|id| Some((id, self.all.get(&id)?)))),
            None => Box::new(self.all.iter().map(|(id, identity)| (*id, identity))),
        }
    }

    /// Returns the smallest candidate set that an index holds for the selector; `None` if no index applies.
    fn narrowed(&self, selector: &Selector) -> Option<BTreeSet<u32>> {
        let requirements = match selector {
            Selector::None => return Some(BTreeSet::new()),
            Selector::Cidr(cidr) if cidr.prefix.prefix() == 0 => return None,
            Selector::Cidr(cidr) => {
                let first = (cidr.prefix.network(), 0, 0);
                let last = (cidr.prefix.broadcast(), u8::MAX, u32::MAX);
                return Some(self.by_prefix.range(first..=last).map(|(_, _, id)| *id).collect());
            }
            Selector::Fqdn(fqdn) => {
                let values = self.by_label.get(fqdn.label_key());
                return Some(values.into_iter().flat_map(HashMap::values).flatten().copied().collect());
            }
            Selector::Labels(requirements) => requirements,
        };
        let is_indexed = |r: &&Requirement| r.source != CIDR && prefix_of_key(&r.key).is_none();
        let sets = requirements.iter().filter(is_indexed).filter_map(|r| {
            let values = self.by_label.get(&r.key);
            let one = |value: &String| values.and_then(|values| values.get(value)).into_iter();
            let sets: Vec<&BTreeSet<u32>> = match &r.test {
                Test::Equals(value) => one(value).collect(),
                Test::In(list) => list.iter().flat_map(one).collect(),
                Test::Exists => values.into_iter().flat_map(HashMap::values).collect(),
                Test::NotIn(_) | Test::DoesNotExist => return None,
            };
            Some(sets)
        });
        let smallest = sets.min_by_key(|sets| sets.iter().map(|set| set.len()).sum::<usize>())?;
        Some(smallest.into_iter().flatten().copied().collect())
    }
}
