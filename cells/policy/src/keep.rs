//! The last good version of each policy, on the disk: in force at a start whose version is refused.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use k8s::PolicyObject;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use state_file::{Records, Rewrite, Schema};

/// What is lost with a damaged record.
const CONSEQUENCE: &str = "if that policy is refused now, what it said before is not in force";

/// A policy that was right.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct LastGood {
    origin: String,
    manifest: Arc<Value>,
}

impl Schema for LastGood {
    const VERSION: u32 = 1;
    const HOLDS: &'static str = "the last good version of a policy, which stays in force while it is refused";
}

/// A record for each policy.
#[derive(Debug)]
pub(crate) struct Kept {
    records: Records,
    /// Policies of the run before.
    before: OnceLock<Vec<String>>,
}

impl Kept {
    /// Records in this folder.
    pub(crate) fn new(folder: PathBuf) -> Kept {
        Kept { records: Records::new(folder), before: OnceLock::new() }
    }

    /// What is noted is written by a job, which calls [`write`](Self::write).
    pub(crate) fn rewrite_by(&self, rewrite: Rewrite) {
        self.records.rewrite_by(rewrite);
    }

    /// Writes what was noted.
    pub(crate) fn write(&self) -> Result<(), state_file::Error> {
        self.records.write()
    }

    /// Finds what the run before has left.
    pub(crate) fn restore(&self) -> Result<(), state_file::Error> {
        let keys = self.records.check::<LastGood>(CONSEQUENCE)?;
        // Once a life, by the start hook.
        let _ = self.before.set(keys);
        Ok(())
    }
}

/// The records, for the repository. Without any nothing is kept.
#[derive(Debug, Default)]
pub(crate) struct Keep(Option<Arc<Kept>>);

impl Keep {
    pub(crate) fn new(kept: Arc<Kept>) -> Keep {
        Keep(Some(kept))
    }

    /// The version of a policy that was right in the run before.
    pub(crate) fn before(&self, key: &str, now: &PolicyObject) -> Option<PolicyObject> {
        match self.0.as_ref()?.records.get::<LastGood>(key) {
            Ok(before) => {
                let LastGood { origin, manifest: body } = before?;
                Some(PolicyObject { origin, body, ..now.clone() })
            }
            Err(error) => {
                tracing::warn!(policy = key, %error, "Unable to read what a policy said before");
                None
            }
        }
    }

    /// This version is right.
    pub(crate) fn note(&self, key: &str, object: &PolicyObject) {
        if let Some(kept) = &self.0 {
            kept.records.put(key, &LastGood { origin: object.origin.clone(), manifest: object.body.clone() });
        }
    }

    /// The policy is gone.
    pub(crate) fn forget(&self, key: &str) {
        if let Some(kept) = &self.0 {
            kept.records.remove(key);
        }
    }

    /// Forgets policies of the run before that are not there any more.
    pub(crate) fn retain(&self, known: &BTreeSet<String>) {
        let before = self.0.as_ref().and_then(|kept| kept.before.get());
        before.into_iter().flatten().filter(|key| !known.contains(*key)).for_each(|key| self.forget(key));
    }
}
