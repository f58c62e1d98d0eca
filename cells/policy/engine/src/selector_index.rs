//! The index of selectors: which of them may select an identity with some labels and prefixes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use labels::CIDR;
use smallvec::SmallVec;

use crate::Test;
use crate::identities::Identity;
use crate::selections::SelectorId;
use crate::selector::{Requirement, Selector};

/// Selectors by a condition that each identity they select fulfils.
#[derive(Debug, Default)]
pub(crate) struct SelectorIndex {
    by_key: HashMap<Box<str>, ByKey>,
    /// By prefix of which the identity's is a subset.
    by_prefix: BTreeSet<(IpNetwork, SelectorId)>,
    /// The number of prefixes in `by_prefix` by family and length: lookups try only these lengths.
    lengths: BTreeMap<(bool, u8), usize>,
    /// Selectors without such a condition.
    others: BTreeSet<SelectorId>,
}

/// Selectors that require a label with a key.
#[derive(Debug, Default)]
struct ByKey {
    any_value: Vec<SelectorId>,
    by_value: HashMap<Box<str>, SmallVec<[SelectorId; 1]>>,
}

/// A condition for all identities that a selector selects.
enum Condition<'a> {
    /// There are none.
    Never,
    Key(&'a str),
    /// A label with this key and one of these values.
    Values(&'a str, &'a [String]),
    Inside(IpNetwork),
}

impl SelectorIndex {
    /// Adds a selector.
    pub(crate) fn insert(&mut self, id: SelectorId, selector: &Selector) {
        // Values of labels restrict more than their presence, and a label that few selectors require is rare: an
        // identity then has few candidates.
        let cost = |condition: &Condition<'_>| match condition {
            Condition::Key(_) => (1, 0),
            Condition::Values(key, values) => {
                let known = self.by_key.get(*key);
                let users = |value: &String| {
                    known.and_then(|known| known.by_value.get(value.as_str())).map_or(0, SmallVec::len)
                };
                (0, values.iter().map(users).sum::<usize>())
            }
            Condition::Never | Condition::Inside(_) => (0, 0),
        };
        match conditions(selector).min_by_key(cost) {
            None => drop(self.others.insert(id)),
            Some(Condition::Never) => {}
            Some(Condition::Key(key)) => self.by_key.entry(key.into()).or_default().any_value.push(id),
            Some(Condition::Values(key, values)) => {
                let known = self.by_key.entry(key.into()).or_default();
                for value in values {
                    known.by_value.entry(value.as_str().into()).or_default().push(id);
                }
            }
            Some(Condition::Inside(prefix)) => {
                if !self.has_prefix(&prefix) {
                    *self.lengths.entry((prefix.is_ipv4(), prefix.prefix())).or_default() += 1;
                }
                self.by_prefix.insert((prefix, id));
            }
        }
    }

    /// Removes a selector.
    pub(crate) fn remove(&mut self, id: SelectorId, selector: &Selector) {
        self.others.remove(&id);
        for condition in conditions(selector) {
            match condition {
                Condition::Never => {}
                Condition::Key(key) | Condition::Values(key, _) => {
                    let Some(known) = self.by_key.get_mut(key) else { continue };
                    match condition {
                        Condition::Values(_, values) => {
                            values.iter().for_each(|value| remove(&mut known.by_value, value.as_str(), id));
                        }
                        _ => known.any_value.retain(|other| *other != id),
                    }
                    if known.any_value.is_empty() && known.by_value.is_empty() {
                        self.by_key.remove(key);
                    }
                }
                Condition::Inside(prefix) => {
                    let was_there = self.by_prefix.remove(&(prefix, id));
                    let length = (prefix.is_ipv4(), prefix.prefix());
                    if was_there
                        && !self.has_prefix(&prefix)
                        && let Some(count) = self.lengths.get_mut(&length)
                    {
                        *count -= 1;
                        self.lengths.retain(|_, count| *count > 0);
                    }
                }
            }
        }
    }

    /// Rebuilds the index of prefixes.
    pub(crate) fn compact(&mut self) {
        self.by_prefix = std::mem::take(&mut self.by_prefix).into_iter().collect();
    }

    /// Iterates over the prefixes of selectors, exceptions apart; some repeatedly.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = IpNetwork> {
        self.by_prefix.iter().map(|(prefix, _)| *prefix)
    }

    /// Whether a selector is of this prefix.
    pub(crate) fn has_prefix(&self, prefix: &IpNetwork) -> bool {
        self.of_prefix(*prefix).next().is_some()
    }

    /// Iterates over the selectors of the network of a prefix.
    pub(crate) fn named(&self, prefix: IpNetwork) -> impl Iterator<Item = SelectorId> {
        network(prefix.ip(), prefix.prefix()).into_iter().flat_map(|network| self.of_prefix(network))
    }

    fn of_prefix(&self, prefix: IpNetwork) -> impl Iterator<Item = SelectorId> {
        self.by_prefix.range((prefix, SelectorId::FIRST)..=(prefix, SelectorId::LAST)).map(|(_, id)| *id)
    }

    /// Returns the selectors that may select one of these identities, sorted: a superset of those that do. Costs a few
    /// lookups per label and prefix.
    pub(crate) fn candidates<'a>(&self, identities: impl Iterator<Item = &'a Identity>) -> Vec<SelectorId> {
        let mut found: Vec<SelectorId> = self.others.iter().copied().collect();
        for identity in identities {
            for label in identity.labels.iter() {
                let Some(known) = self.by_key.get(label.key) else { continue };
                found.extend(&known.any_value);
                found.extend(known.by_value.get(label.value).into_iter().flatten());
            }
            for prefix in identity.prefixes() {
                let of_family = (prefix.is_ipv4(), 0)..=(prefix.is_ipv4(), prefix.prefix());
                for ((_, length), _) in self.lengths.range(of_family) {
                    let outer = network(prefix.ip(), *length).into_iter();
                    found.extend(outer.flat_map(|outer| self.of_prefix(outer)));
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// Iterates over the conditions of a selector; each of them holds for all identities that it selects.
fn conditions(selector: &Selector) -> impl Iterator<Item = Condition<'_>> {
    let (one, requirements) = match selector {
        Selector::None => (Some(Condition::Never), &[][..]),
        Selector::Fqdn(fqdn) => (Some(Condition::Key(fqdn.label_key())), &[][..]),
        Selector::Cidr(cidr) => match network(cidr.prefix.ip(), cidr.prefix.prefix()) {
            Some(prefix) if prefix.prefix() > 0 => (Some(Condition::Inside(prefix)), &[][..]),
            _ => (Some(Condition::Key(cidr.world.label())), &[][..]),
        },
        Selector::Labels(requirements) => (None, &requirements[..]),
    };
    one.into_iter().chain(requirements.iter().filter_map(condition))
}

fn condition(requirement: &Requirement) -> Option<Condition<'_>> {
    // Those of prefixes hold for other labels than the one they name.
    if requirement.source == CIDR {
        return None;
    }
    let key = requirement.key.as_str();
    match &requirement.test {
        Test::Equals(value) => Some(Condition::Values(key, std::slice::from_ref(value))),
        Test::In(values) => Some(Condition::Values(key, values)),
        Test::Exists => Some(Condition::Key(key)),
        Test::NotIn(_) | Test::DoesNotExist => None,
    }
}

fn network(ip: IpAddr, length: u8) -> Option<IpNetwork> {
    IpNetwork::new(IpNetwork::new(ip, length).ok()?.network(), length).ok()
}

fn remove<K, Q>(index: &mut HashMap<K, SmallVec<[SelectorId; 1]>>, key: &Q, id: SelectorId)
where
    K: std::borrow::Borrow<Q> + std::hash::Hash + Eq,
    Q: std::hash::Hash + Eq + ?Sized,
{
    if let Some(ids) = index.get_mut(key) {
        ids.retain(|other| *other != id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}
