//! The record that the folder existed in the previous run. If it is missing at the start, it is mounted late: its
//! policies must not be deleted.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use state_file::{Rewrite, Schema, StateFile, Version, quarantine};

/// The content of the record. It exists as long as the folder does.
#[derive(Debug, Serialize, Deserialize)]
struct Known {
    folder: PathBuf,
}

impl Schema for Known {
    const VERSION: u32 = 1;
    const HOLDS: &'static str =
        "whether there was a folder of manifests, whose policies stay while it is missing";

    /// Migrates version 0, in which the file contained only the path.
    fn migrate(version: u32, content: &[u8]) -> Result<Known, String> {
        match std::str::from_utf8(content) {
            Ok(path) if version == 0 && path.starts_with('/') => Ok(Known { folder: path.into() }),
            _ => Err("it names no folder".to_owned()),
        }
    }
}

/// Returns the format version of the file.
pub(crate) fn version() -> Version {
    Version::of::<Known>()
}

/// A file with the path of the folder, which exists while the folder does. It is synced to disk: after a power cut, a
/// late folder must not be mistaken for a deleted one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory(Option<Arc<Kept>>);

#[derive(Debug)]
struct Kept {
    file: StateFile,
    folder: PathBuf,
    before: AtomicBool,
    there: AtomicBool,
    rewrite: std::sync::OnceLock<Rewrite>,
}

impl Memory {
    /// Creates the record of a folder in a file.
    pub(crate) fn new(file: PathBuf, folder: PathBuf) -> Memory {
        let file = StateFile::new(file).flushed().limit(64 << 10);
        let [before, there] = [false; 2].map(AtomicBool::new);
        Memory(Some(Arc::new(Kept { file, folder, before, there, rewrite: Default::default() })))
    }

    /// Sets the job that writes changes by calling [`write`](Self::write).
    pub(crate) fn rewrite_by(&self, rewrite: Rewrite) {
        if let Some(kept) = &self.0 {
            // Set once, by the cell.
            let _ = kept.rewrite.set(rewrite);
        }
    }

    /// Reads the record of the previous run. If it is damaged, the agent waits for a missing folder.
    pub(crate) fn restore(&self) -> Result<(), state_file::Error> {
        let Some(kept) = &self.0 else { return Ok(()) };
        let before = match kept.file.load::<Known>() {
            Ok(known) => known.is_some_and(|known| known.folder == kept.folder),
            Err(error @ state_file::Error::Damaged { .. }) => {
                let quarantined = quarantine(kept.file.path())?;
                if let Some(rewrite) = kept.rewrite.get() {
                    rewrite.put_aside(
                        &error,
                        &quarantined,
                        "if the folder of manifests is missing, it is waited for",
                    );
                }
                true
            }
            Err(error) => return Err(error),
        };
        kept.before.store(before, Ordering::Release);
        kept.there.store(before, Ordering::Release);
        Ok(())
    }

    /// Whether the folder existed in the previous run.
    pub(crate) fn knows(&self) -> bool {
        self.0.as_ref().is_some_and(|kept| kept.before.load(Ordering::Acquire))
    }

    /// Records whether the folder exists now.
    pub(crate) fn note(&self, there: bool) {
        if let Some(kept) = &self.0
            && kept.there.swap(there, Ordering::AcqRel) != there
            && let Some(rewrite) = kept.rewrite.get()
        {
            rewrite.wake();
        }
    }

    /// Writes the current state: stores or removes the file.
    pub(crate) fn write(&self) -> Result<(), state_file::Error> {
        match &self.0 {
            Some(kept) if kept.there.load(Ordering::Acquire) => {
                kept.file.store(&Known { folder: kept.folder.clone() })
            }
            Some(kept) => kept.file.remove(),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hive::prelude::*;
    use statedb::Table;

    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::Row;
    use k8s_types::core::Pod;

    #[test]
    fn records_of_older_agents_are_read() {
        let root = tempfile::tempdir().unwrap();
        let (file, folder) = (root.path().join("state/cluster-folder"), Path::new("/etc/cluster"));
        let knows = |content: &str| {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, content).unwrap();
            let memory = Memory::new(file.clone(), folder.to_owned());
            memory.restore().map(|()| memory.knows())
        };
        assert!(knows("/etc/cluster").unwrap());
        assert!(!knows("/etc/other").unwrap());
        assert!(knows("{\"version\":1,\"folder\":\"/etc/cluster\"}").unwrap());
        assert!(knows("{\"vers").unwrap(), "a damaged record counts as an existing folder");
        assert!(!file.exists() && root.path().join("state/cluster-folder.unreadable").exists());
        assert!(matches!(knows("{\"version\":2}"), Err(state_file::Error::Newer { .. })));
    }

    /// At a start, only the record of the previous run distinguishes a late mount from a removed folder.
    #[tokio::test]
    async fn a_folder_that_existed_in_the_previous_run_is_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let (cluster, renamed) = (root.path().join("cluster"), root.path().join("renamed"));
        let start = async || {
            let reader = |_: Arc<Table<Row<Pod>>>| ();
            let state = config::<local_node::StateConfig>();
            let cells = [statedb::cell(), metrics::cell(), state, crate::cell(), invoke(reader)];
            let mut hive = TestHive::new(cells)
                .set("cluster-folder", cluster.to_str().unwrap())
                .set("state-dir", root.path().to_str().unwrap());
            hive.start().await;
            let pods = hive.get::<Table<Row<Pod>>>();
            (hive, pods)
        };
        let initialized = async |pods: &Table<Row<Pod>>, millis| {
            tokio::time::timeout(Duration::from_millis(millis), pods.wait_initialized()).await.is_ok()
        };
        let (mut hive, pods) = start().await;
        assert!(initialized(&pods, 10_000).await, "one that never was is empty");
        hive.stop().await;
        fs::create_dir(&cluster).unwrap();
        fs::write(cluster.join("a.yaml"), "kind: Pod\nmetadata: {name: a}\n").unwrap();
        let (mut hive, pods) = start().await;
        assert!(initialized(&pods, 10_000).await);
        hive.stop().await;

        fs::rename(&cluster, &renamed).unwrap();
        let (mut hive, pods) = start().await;
        assert!(!initialized(&pods, 300).await, "it is late");
        assert_eq!(hive.health("k8s.cluster-folder").level, Level::Degraded);
        fs::rename(&renamed, &cluster).unwrap();
        assert!(initialized(&pods, 10_000).await);
        assert_eq!(pods.all(&pods.snapshot()).count(), 1);
        hive.stop().await;
    }
}
