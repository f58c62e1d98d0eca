//! The users of an identity.

use std::sync::Arc;

use labels::NamedPorts;
use serde::{Serialize, Serializer};

/// The users of an identity (`endpoint/12`, `policy`) with their named ports, in the order of their names. Most
/// identities have one. Cheap to clone: the identities of thousands of prefixes share a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Users(Arc<[(Arc<str>, NamedPorts)]>);

impl Users {
    /// Returns one user without named ports.
    pub(crate) fn one(user: impl Into<Arc<str>>) -> Users {
        Users([(user.into(), NamedPorts::default())].into())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this is one of them.
    pub fn contains(&self, user: &str) -> bool {
        self.find(user).is_ok()
    }

    /// Returns the named ports of a user; `None` if it is none.
    pub fn get(&self, user: &str) -> Option<&NamedPorts> {
        Some(&self.0[self.find(user).ok()?].1)
    }

    /// Iterates over their names.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.iter().map(|(name, _)| name)
    }

    /// Iterates over their named ports.
    pub fn ports(&self) -> impl Iterator<Item = &NamedPorts> {
        self.0.iter().map(|(_, ports)| ports)
    }

    /// Adds a user, or replaces its named ports.
    pub(crate) fn insert(&mut self, user: impl Into<Arc<str>>, ports: NamedPorts) {
        let (user, mut list) = (user.into(), self.0.to_vec());
        match self.find(&user) {
            Ok(at) => list[at].1 = ports,
            Err(at) => list.insert(at, (user, ports)),
        }
        self.0 = list.into();
    }

    /// Removes a user.
    pub(crate) fn remove(&mut self, user: &str) {
        if let Ok(at) = self.find(user) {
            let mut list = self.0.to_vec();
            list.remove(at);
            self.0 = list.into();
        }
    }

    fn find(&self, user: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(name, _)| (**name).cmp(user))
    }
}

/// Serializes as a map from names to named ports.
impl Serialize for Users {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(name, ports)| (name, ports)))
    }
}
