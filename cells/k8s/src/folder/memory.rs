//! Whether the folder was there in the run before: a folder that is missing since is late, not empty.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A file with the path of the folder, as long as the folder is there.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    file: Option<PathBuf>,
    noted: Option<bool>,
}

impl Memory {
    /// Remembers in this file.
    pub(crate) fn new(file: PathBuf) -> Memory {
        Memory { file: Some(file), noted: None }
    }

    /// Whether the run before had this folder.
    pub(crate) fn knows(&self, folder: &Path) -> bool {
        let content = self.file.as_ref().and_then(|file| fs::read(file).ok());
        content.is_some_and(|content| content == folder.as_os_str().as_bytes())
    }

    /// The folder is there, or it is gone for good.
    pub(crate) fn note(&mut self, folder: &Path, there: bool) {
        let Some(file) = self.file.as_ref().filter(|_| self.noted != Some(there)) else { return };
        let done = match there {
            true => write(file, folder.as_os_str().as_bytes()),
            false => fs::remove_file(file).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            }),
        };
        match done {
            Ok(()) => self.noted = Some(there),
            Err(error) => {
                let path = file.display();
                tracing::warn!(%path, %error, "Unable to note whether the folder of manifests is there");
            }
        }
    }
}

/// Whole or not at all.
fn write(file: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(parent) = file.parent() {
        fs::create_dir_all(parent)?;
    }
    let draft = file.with_extension("new");
    fs::write(&draft, content)?;
    fs::rename(draft, file)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use hive::prelude::*;
    use statedb::Table;

    use super::*;
    use crate::Pod;

    /// Of a mount that comes late nobody knows at the start that it comes; that it was there before tells.
    #[tokio::test]
    async fn a_folder_that_was_there_in_the_run_before_is_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let (cluster, aside) = (root.path().join("cluster"), root.path().join("aside"));
        let start = async || {
            let reader = |_: Arc<Table<Pod>>| ();
            let state = config::<local_node::StateConfig>();
            let cells = [statedb::cell(), metrics::cell(), state, crate::cell(), invoke(reader)];
            let mut hive = TestHive::new(cells)
                .set("cluster-folder", cluster.to_str().unwrap())
                .set("state-dir", root.path().to_str().unwrap());
            hive.start().await;
            let pods = hive.get::<Table<Pod>>();
            (hive, pods)
        };
        let initialized = async |pods: &Table<Pod>, millis| {
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

        fs::rename(&cluster, &aside).unwrap();
        let (mut hive, pods) = start().await;
        assert!(!initialized(&pods, 300).await, "it is late");
        assert_eq!(hive.health("k8s.cluster-folder").level, Level::Degraded);
        fs::rename(&aside, &cluster).unwrap();
        assert!(initialized(&pods, 10_000).await);
        assert_eq!(pods.all(&pods.snapshot()).count(), 1);
        hive.stop().await;
    }
}
