//! The jobs: the file of dynamic metrics is followed; series of pods that have ended are removed.

use std::collections::HashSet;
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use endpoints::Endpoint;
use file_watch::FileWatch;
use hive::JobCx;
use ipcache::Entry;
use statedb::{Db, Table};
use tokio::time::{Instant, sleep};

use crate::set::MetricSet;
use crate::spec::{BadMetrics, of_file};

/// The interval at which the file is read without a notification: network file systems have none.
const READ_INTERVAL: Duration = Duration::from_secs(10);

/// The maximum size of the file.
const MAX_FILE: u64 = 1 << 20;

/// The interval at which series of pods that have ended are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);

/// Follows a file with metrics.
pub(crate) struct Follow {
    pub(crate) path: PathBuf,
    pub(crate) set: MetricSet,
    pub(crate) content: Option<Vec<u8>>,
}

impl Follow {
    /// Replaces the metrics when the file changes, until the job ends.
    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        let token = cx.token().clone();
        let Some(error) = token.run_until_cancelled(self.watched(&cx)).await else { return Ok(()) };
        let Err(error) = error;
        tracing::warn!(%error, "Changes of hubble-dynamic-metrics-config-path are read every 10 s only");
        loop {
            self.apply(&cx).await;
            if token.run_until_cancelled(sleep(READ_INTERVAL)).await.is_none() {
                return Ok(());
            }
        }
    }

    async fn watched(&mut self, cx: &JobCx) -> io::Result<Infallible> {
        let mut watch = FileWatch::new()?;
        loop {
            // The watch is there before the file is read, so that no change is missed.
            watch.follow(&self.path)?;
            self.apply(cx).await;
            tokio::select! {
                changed = watch.changed() => changed?,
                () = sleep(READ_INTERVAL) => {}
            }
        }
    }

    async fn apply(&mut self, cx: &JobCx) {
        let _working = cx.working();
        let path = self.path.clone();
        let content = hive::blocking(move || read(&path)).await;
        if content.as_ref().ok() == self.content.as_ref() && self.content.is_some() {
            return;
        }
        let applied =
            content.map_err(|error| BadMetrics::Unreadable(error.to_string())).and_then(|content| {
                let text = std::str::from_utf8(&content)
                    .map_err(|error| BadMetrics::Unreadable(error.to_string()))?;
                self.set.replace(of_file(text)?)?;
                self.content = Some(content);
                Ok(())
            });
        match applied {
            Ok(()) => cx.health.ok(format_args!("{} metrics", self.set.len())),
            Err(error) => {
                let message = "hubble-dynamic-metrics-config-path is refused, metrics before it stay";
                if cx.health.degraded_anew(message, &error) {
                    tracing::warn!(%error, file = %self.path.display(), "{message}");
                }
            }
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let size = std::fs::metadata(path)?.len();
    if size > MAX_FILE {
        let text = format!("the file has {size} bytes, more than {MAX_FILE}");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    std::fs::read(path)
}

/// Removes series of pods that have ended.
pub(crate) struct Sweep {
    pub(crate) set: MetricSet,
    pub(crate) db: Arc<Db>,
    pub(crate) endpoints: Table<Endpoint>,
    pub(crate) ipcache: Table<Entry>,
}

impl Sweep {
    /// Sweeps at every interval until the job ends.
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        let this = Arc::new(self);
        while cx.token().run_until_cancelled(sleep(SWEEP_INTERVAL)).await.is_some() {
            let this = this.clone();
            hive::blocking(move || this.sweep(Instant::now())).await;
        }
        Ok(())
    }

    /// Sweeps. Linear in the entries of the ipcache, if a series names a pod.
    pub(crate) fn sweep(&self, now: Instant) {
        if !self.set.names_pods() {
            return;
        }
        let snapshot = self.db.snapshot();
        let pods = self.ipcache.all(&snapshot).filter_map(|entry| entry.winner().mapping.pod());
        let mut live: HashSet<(&str, &str)> = pods.map(|pod| (&*pod.namespace, &*pod.name)).collect();
        live.extend(self.endpoints.all(&snapshot).map(|row| {
            let record = &row.record;
            (record.k8s_namespace.as_str(), record.k8s_pod_name.as_str())
        }));
        self.set.sweep(now, |namespace, name| live.contains(&(namespace, name)));
    }
}
