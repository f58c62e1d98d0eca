//! Targets of mutations.

use std::fmt;

use k8s_types::{Key, Kind};

/// An object, or a part of it that is written by itself.
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
    /// An object as a whole. A mutation about it takes the place of those about its parts.
    pub fn new(kind: Kind, key: Key) -> Target {
        Target { kind, key, part: "" }
    }

    /// A part of the object, by a name of the caller's choice: mutations about other parts stay.
    #[must_use]
    pub fn part(self, part: &'static str) -> Target {
        Target { part, ..self }
    }
}

/// `ciliumendpoints/shop/web-0`, with `#labels` behind it if it is a part. Names of objects have neither of the signs.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.plural(), self.key)?;
        match self.part {
            "" => Ok(()),
            part => write!(f, "#{part}"),
        }
    }
}
