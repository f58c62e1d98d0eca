//! The last valid version of each policy on disk, which a start uses while the current version is refused.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_tables::{PolicyBody, PolicyObject};
use serde::{Deserialize, Serialize};
use state_file::{Records, Schema, Version};

/// The consequence of a damaged record.
const CONSEQUENCE: &str = "if that policy is refused now, its previous version is not in force";

/// A valid policy.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LastGood {
    origin: String,
    manifest: PolicyBody,
}

impl Schema for LastGood {
    const VERSION: u32 = 1;
    const HOLDS: &'static str = "the last good version of a policy, which stays in force while it is refused";
}

/// Returns the version of the records.
pub(crate) fn version() -> Version {
    Version::of::<LastGood>()
}

/// Returns the records in a folder, one per policy.
pub(crate) fn records(folder: PathBuf) -> Arc<Records<LastGood>> {
    Arc::new(Records::new(folder, CONSEQUENCE))
}

/// The records, for the repository. Without them nothing is stored.
#[derive(Debug, Default)]
pub(crate) struct Keep(Option<Arc<Records<LastGood>>>);

impl Keep {
    pub(crate) fn new(records: Arc<Records<LastGood>>) -> Keep {
        Keep(Some(records))
    }

    /// Returns the last valid version of a policy in the previous run; the first call for a key takes it.
    pub(crate) fn before(&self, key: &str, now: &PolicyObject) -> Option<PolicyObject> {
        let LastGood { origin, manifest: body } = self.0.as_ref()?.claim(key)?;
        Some(PolicyObject { origin, body, ..now.clone() })
    }

    /// Stores a valid version.
    pub(crate) fn note(&self, key: &str, object: &PolicyObject) {
        if let Some(records) = &self.0 {
            records.put(key, &LastGood { origin: object.origin.clone(), manifest: object.body.clone() });
        }
    }

    /// Removes the record of a policy.
    pub(crate) fn forget(&self, key: &str) {
        if let Some(records) = &self.0 {
            records.remove(key);
        }
    }

    /// Removes policies of the previous run that no longer exist.
    pub(crate) fn retain(&self, known: &BTreeSet<String>) {
        let Some(records) = &self.0 else { return };
        records.unclaimed().iter().filter(|key| !known.contains(*key)).for_each(|key| records.remove(key));
    }
}
