//! The last good manifests of a folder, on the disk: read at the start, written behind the changes.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use state_file::{Records, Rewrite};

use super::last_good::LastGood;
use super::manifests::Good;
use crate::object::Kind;

/// What is lost with a damaged record.
const CONSEQUENCE: &str = "if the file of manifests is refused now, what it said before is not in force";

/// A record for each file of manifests.
#[derive(Debug)]
pub(crate) struct Kept {
    records: Records,
    /// Files of the run before.
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
        let names = self.records.check::<LastGood>(CONSEQUENCE)?;
        // Once a life, by the start hook.
        let _ = self.before.set(names);
        Ok(())
    }
}

/// The records, for the one who reads the files.
#[derive(Debug, Default)]
pub(crate) struct Keep {
    kept: Option<Arc<Kept>>,
    /// Files of the run before that were not asked for yet; none before anything was.
    rest: Option<BTreeSet<String>>,
}

impl Keep {
    pub(crate) fn new(kept: Arc<Kept>) -> Keep {
        Keep { kept: Some(kept), rest: None }
    }

    /// What a file said in the run before; given once.
    pub(crate) fn before(&mut self, name: &str) -> Option<LastGood> {
        let kept = self.kept.clone()?;
        if !self.rest().remove(name) {
            return None;
        }
        match kept.records.get(name) {
            Ok(before) => before,
            Err(error) => {
                tracing::warn!(file = name, %error, "Unable to read what a file of manifests said before");
                None
            }
        }
    }

    /// Files of the run before that were not asked for.
    pub(crate) fn unasked(&mut self) -> Vec<String> {
        self.rest().iter().cloned().collect()
    }

    fn rest(&mut self) -> &mut BTreeSet<String> {
        let before = self.kept.as_ref().and_then(|kept| kept.before.get());
        self.rest.get_or_insert_with(|| before.into_iter().flatten().cloned().collect())
    }

    /// A file is gone.
    pub(crate) fn forget(&mut self, name: &str) {
        self.rest().remove(name);
        if let Some(kept) = &self.kept {
            kept.records.remove(name);
        }
    }

    /// A file says this now; none if it is gone.
    pub(crate) fn note(&mut self, name: &str, good: Option<Good>, accepted: &[Kind]) {
        let Some(kept) = self.kept.clone() else { return };
        let Some(Good { taken: mut manifests, kept: objects }) = good else { return self.forget(name) };
        if !objects.is_empty() {
            let before = kept.records.get::<LastGood>(name).ok().flatten().unwrap_or_default();
            let stays = |object: crate::object::Object| objects.contains(&object.key());
            manifests
                .extend(before.manifests.into_iter().filter(|old| old.object(accepted).is_some_and(stays)));
        }
        match manifests.is_empty() {
            true => kept.records.remove(name),
            false => kept.records.put(name, &LastGood { manifests }),
        }
    }
}
