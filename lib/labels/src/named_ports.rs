//! Named ports.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// The port numbers behind names: container ports of an endpoint, or of all endpoints of an identity.
///
/// A pointer in size, and no allocation without a port: thousands of identities have none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NamedPorts(Option<Box<Ports>>);

/// Name, protocol and port of each; never empty within [`NamedPorts`].
type Ports = BTreeSet<(Arc<str>, u8, u16)>;

impl NamedPorts {
    /// Adds a port; its name is stored in lower case.
    pub fn add(&mut self, name: &str, protocol: u8, port: u16) {
        self.0.get_or_insert_default().insert((name.to_lowercase().into(), protocol, port));
    }

    /// Returns the port with this name and protocol; `None` if there is none or more than one.
    pub fn port(&self, name: &str, protocol: u8) -> Option<u16> {
        let mut ports = self.ports().filter(|(known, of, _)| **known == *name && *of == protocol);
        match (ports.next(), ports.next()) {
            (Some((_, _, port)), None) => Some(*port),
            _ => None,
        }
    }

    /// Returns name, protocol and port of each, in the order of names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u8, u16)> {
        self.ports().map(|(name, protocol, port)| (&**name, *protocol, *port))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Adds the ports of another set.
    pub fn extend(&mut self, other: &NamedPorts) {
        if !other.is_empty() {
            self.0.get_or_insert_default().extend(other.ports().cloned());
        }
    }

    fn ports(&self) -> impl Iterator<Item = &(Arc<str>, u8, u16)> {
        self.0.iter().flat_map(|ports| ports.iter())
    }
}

/// Serializes as a list of names, protocols and ports.
impl Serialize for NamedPorts {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.ports())
    }
}

impl<N: AsRef<str>> FromIterator<(N, u8, u16)> for NamedPorts {
    fn from_iter<T: IntoIterator<Item = (N, u8, u16)>>(ports: T) -> NamedPorts {
        let mut all = NamedPorts::default();
        ports.into_iter().for_each(|(name, protocol, port)| all.add(name.as_ref(), protocol, port));
        all
    }
}
