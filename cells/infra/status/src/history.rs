//! The history of health as a file, over restarts.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hive::HealthTree;
use hive::prelude::*;
use parking_lot::Mutex;
use state_file::StateFile;

/// The name of the file in the state folder.
const NAME: &str = "cilium-agent-health-history.log";

/// Many lines that come together are written together.
const GATHER: Duration = Duration::from_millis(200);

/// How long after a write that failed the next is tried.
const RETRY: Duration = Duration::from_secs(5);

/// The file, and how much of the history is in it.
pub(crate) struct History {
    tree: Arc<HealthTree>,
    file: StateFile,
    written: Mutex<u64>,
}

impl History {
    /// The history of a state folder, beginning with what previous runs have left. What cannot be read is left out: it
    /// only reports the past.
    pub(crate) fn open(tree: Arc<HealthTree>, folder: &Path) -> Self {
        let file = StateFile::new(folder.join(NAME)).mode(0o600).limit(8 << 20);
        let before = match file.read_text() {
            Ok(text) => text.unwrap_or_default().lines().map(str::to_owned).collect(),
            Err(error) => {
                tracing::warn!(path = %file.path().display(), %error, "History of health is begun anew");
                Vec::new()
            }
        };
        let written = tree.restore_history(before);
        Self { tree, file, written: Mutex::new(written) }
    }

    /// Writes what is not in the file.
    pub(crate) fn write(&self) -> Result<(), state_file::Error> {
        let mut written = self.written.lock();
        let (new, next) = self.tree.history_from(*written);
        if new.is_empty() {
            return Ok(());
        }
        let mut text = self.tree.history().join("\n");
        text.push('\n');
        self.file.write(text.as_bytes())?;
        *written = next;
        Ok(())
    }

    /// Writes whenever there is something new, until the job is to end.
    pub(crate) async fn follow(&self, cx: JobCx) {
        let mut changes = self.tree.watch();
        let mut failed = false;
        loop {
            match self.write() {
                Ok(()) if failed => {
                    cx.health.ok("Running");
                    failed = false;
                }
                Ok(()) => {}
                Err(error) => {
                    cx.health.degraded("The history of health cannot be written", error);
                    failed = true;
                }
            }
            let next = async {
                if failed {
                    return tokio::time::sleep(RETRY).await;
                }
                // The tree lives as long as the hive.
                let _gone = changes.changed().await;
                tokio::time::sleep(GATHER).await;
            };
            if cx.token().run_until_cancelled(next).await.is_none() {
                return;
            }
        }
    }
}
