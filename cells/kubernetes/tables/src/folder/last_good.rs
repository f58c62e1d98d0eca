//! The last valid objects of each file, recorded for the next run, so that the last good version is known also for a
//! manifest that is refused at the start.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use state_file::Schema;

use bytes::Bytes;
use k8s_types::Kind;

use crate::object::{ObjectKey, key_of, object};

/// The accepted manifests of a file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LastGood {
    pub(crate) manifests: Vec<Taken>,
}

/// An accepted manifest with its location.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Taken {
    kind: String,
    pub(crate) origin: String,
    pub(crate) document: usize,
    pub(crate) line: usize,
    manifest: Value,
}

impl Schema for LastGood {
    const VERSION: u32 = 1;
    const HOLDS: &'static str = "the last good manifests of a file, which stay in force while it is refused";
}

impl Taken {
    pub(crate) fn new(kind: Kind, manifest: &Value, origin: &str, document: usize, line: usize) -> Taken {
        let (kind, origin, manifest) = (kind.name().to_owned(), origin.to_owned(), manifest.clone());
        Taken { kind, origin, document, line, manifest }
    }

    /// Returns the object, if this agent still accepts it.
    pub(crate) fn object(&self, accepted: &[Kind], node: &str) -> Option<(ObjectKey, Bytes)> {
        object(self.kind(accepted)?, &self.manifest, node).ok()
    }

    /// Returns its name, if this agent still accepts objects of its kind.
    pub(crate) fn key(&self, accepted: &[Kind]) -> Option<ObjectKey> {
        key_of(self.kind(accepted)?, &self.manifest)
    }

    fn kind(&self, accepted: &[Kind]) -> Option<Kind> {
        accepted.iter().copied().find(|kind| kind.name() == self.kind)
    }
}
