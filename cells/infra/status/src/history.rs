//! The history of health as a file that survives restarts.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hive::HealthTree;
use hive::prelude::*;
use parking_lot::Mutex;
use state_file::StateFile;

/// The name of the file in the state folder.
const FILE_NAME: &str = "cilium-agent-health-history.log";

/// Delay of a write after a change, so that lines of one burst are written at once.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// Delay of the retry after a failed write.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// The file, and the position in the history up to which it is written.
pub(crate) struct History {
    tree: Arc<HealthTree>,
    file: StateFile,
    written: Mutex<u64>,
}

impl History {
    /// Opens the history of a state folder and restores the lines of previous runs. An unreadable file is logged and
    /// replaced: it only reports the past.
    pub(crate) fn open(tree: Arc<HealthTree>, folder: &Path) -> Self {
        let file = StateFile::new(folder.join(FILE_NAME)).mode(0o600).limit(8 << 20);
        let before = match file.read_text() {
            Ok(text) => text.unwrap_or_default().lines().map(str::to_owned).collect(),
            Err(error) => {
                tracing::warn!(path = %file.path().display(), %error, "The history of health is unreadable and starts empty");
                Vec::new()
            }
        };
        let written = tree.restore_history(before);
        Self { tree, file, written: Mutex::new(written) }
    }

    /// Replaces the file if the history has new lines.
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

    /// Writes new lines until the job is cancelled, on a thread that may wait for a disk.
    pub(crate) async fn follow(self: Arc<Self>, cx: JobCx) {
        let mut changes = self.tree.watch();
        let mut failed = false;
        loop {
            let history = self.clone();
            match hive::blocking(move || history.write()).await {
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
                    return tokio::time::sleep(RETRY_DELAY).await;
                }
                // Fails only if the tree is dropped, which lives as long as the hive.
                let _gone = changes.changed().await;
                tokio::time::sleep(DEBOUNCE).await;
            };
            if cx.token().run_until_cancelled(next).await.is_none() {
                return;
            }
        }
    }
}
