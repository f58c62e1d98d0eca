//! The names of all histories: names with their addresses, and addresses with their names.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

use crate::name_set::NameSet;
use crate::small_map::SmallMap;

/// Pairs of a name and an address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    names: HashMap<Arc<str>, SmallMap<IpAddr, ()>>,
    addresses: HashMap<IpAddr, NameSet>,
    /// The number of pairs.
    len: usize,
}

impl Index {
    /// Inserts the addresses of a name. Returns those that it did not have.
    pub(crate) fn insert(&mut self, name: &Arc<str>, addresses: &[IpAddr]) -> Vec<IpAddr> {
        let mut new = Vec::new();
        if addresses.is_empty() {
            return new;
        }
        let name = match self.names.get_key_value(name) {
            Some((name, _)) => name.clone(),
            None => name.clone(),
        };
        let own = self.names.entry(name.clone()).or_default();
        for &address in addresses {
            if !own.insert_new(address, ()) {
                continue;
            }
            match self.addresses.entry(address) {
                Entry::Occupied(mut names) => names.get_mut().insert(name.clone()),
                Entry::Vacant(none) => drop(none.insert(NameSet::One(name.clone()))),
            }
            new.push(address);
        }
        own.shrink_to_fit();
        self.len += new.len();
        new
    }

    /// Removes a pair. Returns whether there was one.
    pub(crate) fn remove(&mut self, name: &str, address: IpAddr) -> bool {
        let Some(own) = self.names.get_mut(name) else { return false };
        if !own.remove(&address) {
            return false;
        }
        if own.is_empty() {
            self.names.remove(name);
        }
        if let Some(names) = self.addresses.get_mut(&address)
            && !names.remove(name)
        {
            self.addresses.remove(&address);
        }
        self.len -= 1;
        true
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Iterates over all names.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.names.keys()
    }

    /// Iterates over the addresses of a name, in order.
    pub fn addresses(&self, name: &str) -> impl Iterator<Item = IpAddr> {
        self.names.get(name).into_iter().flat_map(SmallMap::iter).map(|(address, ())| address)
    }

    /// Iterates over all addresses.
    pub fn all_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.keys().copied()
    }

    /// Iterates over the names of an address, in order.
    pub fn names_of(&self, address: IpAddr) -> impl Iterator<Item = &Arc<str>> {
        self.addresses.get(&address).into_iter().flat_map(NameSet::iter)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn both_directions_have_the_same_pairs(steps in prop::collection::vec((0_u8..5, 0_u8..5, any::<bool>()), 0..60)) {
            let (mut index, mut model) = (Index::default(), BTreeSet::new());
            for (name, last, is_insertion) in steps {
                let (name, address): (Arc<str>, _) = (format!("{name}.").into(), IpAddr::from([192, 0, 2, last]));
                if is_insertion {
                    let is_new = model.insert((name.clone(), address));
                    prop_assert_eq!(index.insert(&name, &[address, address]).len(), usize::from(is_new));
                } else {
                    let was_there = model.remove(&(name.clone(), address));
                    prop_assert_eq!(index.remove(&name, address), was_there);
                }
                let by_name = index.names().flat_map(|name| index.addresses(name).map(|ip| (name.clone(), ip)));
                prop_assert_eq!(by_name.collect::<BTreeSet<_>>(), model.clone());
                let by_address =
                    index.all_addresses().flat_map(|ip| index.names_of(ip).map(move |name| (name.clone(), ip)));
                prop_assert_eq!(by_address.collect::<BTreeSet<_>>(), model.clone());
                prop_assert_eq!(index.len(), model.len());
            }
        }
    }
}
