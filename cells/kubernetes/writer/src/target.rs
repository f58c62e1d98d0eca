//! Targets of mutations.

use std::fmt;

use k8s_types::{Key, Kind};

/// An object, or a part of it that is written separately.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub key: Key,
    /// The part; empty for the object as a whole.
    pub part: &'static str,
}

impl Target {
    /// Returns a complete object. A mutation of it replaces those of its parts.
    pub fn new(kind: Kind, key: Key) -> Target {
        Target { kind, key, part: "" }
    }

    /// Returns a part of the object, with a name chosen by the caller. Mutations of other parts are independent.
    #[must_use]
    pub fn part(self, part: &'static str) -> Target {
        Target { part, ..self }
    }
}

/// Formats the target as `ciliumendpoints/shop/web-0`, with a suffix such as `#labels` for a part. Names of objects
/// contain neither `/` nor `#`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.plural(), self.key)?;
        match self.part {
            "" => Ok(()),
            part => write!(f, "#{part}"),
        }
    }
}
