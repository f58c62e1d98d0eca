//! The wiring: the options, the start hook that writes the file, the job that keeps it, its status.

use std::sync::Arc;
use std::time::Duration;

use api::StatusSource;
use api_models::{CniChainingStatus, Status};
use file_watch::FileWatch;
use hive::config::Settings;
use hive::job::Backoff;
use hive::prelude::*;
use parking_lot::Mutex;
use tokio::time::sleep;

use crate::config::CniConfig;
use crate::error::Error;
use crate::folder::Folder;

/// Delays between attempts after failures.
const MIN_RETRY_INTERVAL: Duration = Duration::from_secs(10);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(120);
/// Between visits of a folder that changes all the time: two agents that rename each other's files do it slowly.
const MIN_VISIT_INTERVAL: Duration = Duration::from_secs(1);

/// Writes the CNI configuration file and keeps it.
pub fn cell() -> Cell {
    let parts = [config::<CniConfig>(), provide_private(ManagedFile::new), provide(status), invoke(start)];
    module("cni-config", "CNI configuration file", parts)
}

/// The file that the agent manages, if it manages one, with the outcome of the last visit.
struct ManagedFile {
    folder: Option<Folder>,
    outcome: Mutex<Option<Result<(), String>>>,
}

impl ManagedFile {
    fn new(config: Config<CniConfig>, settings: Arc<Settings>) -> Result<Arc<ManagedFile>, Error> {
        let debug = settings.get("debug").is_some_and(|debug| debug.value == "true");
        let is_managed = !config.write_cni_conf_when_ready.is_empty();
        let folder = is_managed.then(|| Folder::new(&config, debug)).transpose()?;
        Ok(Arc::new(ManagedFile { folder, outcome: Mutex::default() }))
    }
}

fn status(file: Arc<ManagedFile>, config: Config<CniConfig>) -> Member<StatusSource> {
    Member(StatusSource::new("cni", move |status| {
        let (mode, _) = config.chaining();
        status.cni_chaining = Some(CniChainingStatus { mode: mode.as_str().to_owned() });
        let Some(outcome) = &*file.outcome.lock() else { return };
        let path = &config.write_cni_conf_when_ready;
        let (state, msg) = match outcome {
            Ok(()) => ("Ok", format!("successfully wrote CNI configuration file to {path}")),
            Err(error) => ("Failure", format!("failed to write CNI configuration file {path}: {error}")),
        };
        status.cni_file = Some(Status { state: state.to_owned(), msg });
    }))
}

fn start(file: Arc<ManagedFile>, lifecycle: Lifecycle, jobs: JobGroup, health: Health) {
    let Some(folder) = file.folder.clone() else { return };
    let health = health.child("file");
    let visit = Visit { file, folder, health };
    let first = visit.clone();
    // A failure is the job's to retry: pods that run already do not need the file.
    lifecycle
        .hook("cni-config")
        .on_start(move |_| async move {
            first.run().await;
            Ok(())
        })
        .add();
    jobs.one_shot("keep-cni-config", move |cx: JobCx| async move {
        cx.token().run_until_cancelled(visit.keep()).await.unwrap_or(Ok(()))
    })
    .add();
}

/// Visits of the folder.
#[derive(Clone)]
struct Visit {
    file: Arc<ManagedFile>,
    folder: Folder,
    health: Health,
}

impl Visit {
    /// Makes file and folder as desired, and reports the outcome. Returns whether this succeeded.
    async fn run(&self) -> bool {
        let folder = self.folder.clone();
        let outcome = hive::blocking(move || folder.apply()).await;
        let path = self.folder.path().display();
        match &outcome {
            Ok(changes) => {
                if changes.is_written {
                    tracing::info!(%path, "Wrote the CNI configuration file");
                }
                for renamed in &changes.renamed {
                    tracing::info!(path = renamed, "Renamed the CNI configuration of another plugin");
                }
                self.health.ok(format!("{path} is written"));
            }
            Err(error) => self.health.degraded("CNI configuration file not written", error),
        }
        let is_written = outcome.is_ok();
        *self.file.outcome.lock() = Some(outcome.map(drop).map_err(|error| error.to_string()));
        is_written
    }

    /// Visits the folder after each change of it, and after failures.
    async fn keep(&self) -> anyhow::Result<()> {
        let mut watch = FileWatch::new()?;
        let mut backoff = Backoff::exponential(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        loop {
            // Before the visit, so that no change after it is missed.
            watch.follow(self.folder.folder())?;
            if self.run().await {
                backoff.reset();
                watch.changed().await?;
            } else {
                let delay = backoff.next_wait().unwrap_or(MAX_RETRY_INTERVAL);
                let _ = tokio::time::timeout(delay, watch.changed()).await;
            }
            sleep(MIN_VISIT_INTERVAL).await;
        }
    }
}
