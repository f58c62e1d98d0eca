//! The last good manifests of a folder on disk: read at the start, written in the background after changes.

use std::path::PathBuf;
use std::sync::Arc;

use k8s_types::Kind;
use state_file::Records;

use super::last_good::LastGood;
use super::outcome::Good;
use crate::object::ObjectKey;

/// The consequence of a damaged record.
const CONSEQUENCE: &str = "if the file of manifests is refused now, what it said before is not in force";

/// Returns the records in a folder, one for each file of manifests.
pub(crate) fn records(folder: PathBuf) -> Arc<Records<LastGood>> {
    Arc::new(Records::new(folder, CONSEQUENCE))
}

/// The records of a folder; none without a state folder.
#[derive(Debug, Default)]
pub(crate) struct Keep(Option<Arc<Records<LastGood>>>);

impl Keep {
    pub(crate) fn new(records: Arc<Records<LastGood>>) -> Keep {
        Keep(Some(records))
    }

    /// Returns the content of a file in the previous run, once.
    pub(crate) fn before(&self, name: &str) -> Option<LastGood> {
        self.0.as_ref()?.claim(name)
    }

    /// Returns the files of the previous run that were not requested by [`before`](Self::before).
    pub(crate) fn unasked(&self) -> Vec<String> {
        self.0.as_ref().map(|records| records.unclaimed()).unwrap_or_default()
    }

    /// Deletes the record of a file.
    pub(crate) fn forget(&self, name: &str) {
        if let Some(records) = &self.0 {
            records.remove(name);
        }
    }

    /// Records the objects of a file; deletes the record if the file was removed.
    pub(crate) fn note(&self, name: &str, good: Option<Good>, accepted: &[Kind]) {
        let Some(records) = &self.0 else { return };
        let Some(Good { taken: mut manifests, kept: objects }) = good else { return self.forget(name) };
        if !objects.is_empty() {
            let before = records.get(name).ok().flatten().unwrap_or_default();
            let stays = |key: ObjectKey| objects.contains(&key);
            manifests.extend(before.manifests.into_iter().filter(|old| old.key(accepted).is_some_and(stays)));
        }
        match manifests.is_empty() {
            true => records.remove(name),
            false => records.put(name, &LastGood { manifests }),
        }
    }
}
