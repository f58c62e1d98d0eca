//! The last valid objects of each file, kept for the next run: a manifest that is refused at a start has an earlier
//! version, as one that is refused later has.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use state_file::Schema;

use bytes::Bytes;
use k8s_types::Kind;

use crate::object::{ObjectKey, key_of, object};

/// The manifests of a file that were taken.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LastGood {
    pub(crate) manifests: Vec<Taken>,
}

/// A manifest that was taken, and where it was.
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

    /// The object, if this agent still takes it.
    pub(crate) fn object(&self, accepted: &[Kind], node: &str) -> Option<(ObjectKey, Bytes)> {
        object(self.kind(accepted)?, &self.manifest, node).ok()
    }

    /// Its name, if this agent still takes such objects.
    pub(crate) fn key(&self, accepted: &[Kind]) -> Option<ObjectKey> {
        key_of(self.kind(accepted)?, &self.manifest)
    }

    fn kind(&self, accepted: &[Kind]) -> Option<Kind> {
        accepted.iter().copied().find(|kind| kind.name() == self.kind)
    }
}
