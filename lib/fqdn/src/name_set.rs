//! The names of an address: nearly always one, which needs no allocation.

use std::collections::BTreeSet;
use std::sync::Arc;

/// A set of names that is not empty. One name has one form only, so that equal sets compare as equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NameSet {
    One(Arc<str>),
    Many(BTreeSet<Arc<str>>),
}

impl NameSet {
    pub(crate) fn insert(&mut self, name: Arc<str>) {
        match self {
            NameSet::One(own) if *own == name => {}
            NameSet::One(own) => *self = NameSet::Many(BTreeSet::from([own.clone(), name])),
            NameSet::Many(names) => drop(names.insert(name)),
        }
    }

    /// Removes a name. Returns false if it was the last one, which stays.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        match self {
            NameSet::One(own) => **own != *name,
            NameSet::Many(names) => {
                names.remove(name);
                if names.len() == 1
                    && let Some(last) = names.pop_first()
                {
                    *self = NameSet::One(last);
                }
                true
            }
        }
    }

    /// Iterates over the names, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<str>> {
        let (one, many) = match self {
            NameSet::One(name) => (Some(name), None),
            NameSet::Many(names) => (None, Some(names.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_one_is_the_same_however_it_became_one() {
        let name = |text: &str| Arc::<str>::from(text);
        let mut set = NameSet::One(name("b."));
        set.insert(name("b."));
        assert_eq!(set, NameSet::One(name("b.")));
        set.insert(name("a."));
        assert_eq!(set.iter().map(|name| &**name).collect::<Vec<_>>(), ["a.", "b."]);
        assert!(set.remove("c.") && set.remove("b."));
        assert_eq!(set, NameSet::One(name("a.")));
        assert!(set.remove("b.") && !set.remove("a."));
    }
}
