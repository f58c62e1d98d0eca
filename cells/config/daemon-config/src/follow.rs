//! Follows the configuration file or folder, and the cluster objects, while the agent runs.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use config_sources::SourcesConfig;
use file_watch::FileWatch;
use hive::config::{Change, Reloaded};
use hive::prelude::*;
use hive::{ConfigError, LiveConfig};
use metrics::Metrics;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::{Cluster, ClusterDrift};

/// The quiet time before changed files are read, so that a writer of several files has finished.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// The maximum delay from the first change to the read.
const MAX_DELAY: Duration = Duration::from_secs(2);

/// Interval of reads when the kernel reports no changes.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Options of reports on a configuration that is not in force. Whether it is followed at all is an option of
/// [`SourcesConfig`].
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Configuration")]
pub struct FollowConfig {
    /// Tell where the running agent differs from its configuration
    #[flag(default = true)]
    pub enable_drift_checker: bool,
    /// Options that may differ
    pub ignore_flags_drift_checker: Vec<String>,
}

/// Dependencies of the job.
#[derive(Params)]
pub(crate) struct Parts {
    config: Config<FollowConfig>,
    sources: Config<SourcesConfig>,
    cluster: Arc<Cluster>,
    live: Arc<LiveConfig>,
    metrics: Arc<Metrics>,
    health: Health,
    jobs: JobGroup,
}

pub(crate) fn start(parts: Parts) {
    let Parts { config, sources, cluster, live, metrics, health, jobs } = parts;
    let delta = Gauge::default();
    if config.enable_drift_checker {
        let help = "Number of options whose running value is not the configured one";
        metrics.register("drift_checker_config_delta", help, delta.clone());
    }
    let place = live.place();
    if !sources.enable_dynamic_config || (place.is_none() && cluster.is_nothing()) {
        return;
    }
    let health = health.child("configuration");
    let reporter = Reporter { config, delta, health, refused: vec![], drifts: vec![] };
    jobs.one_shot("configuration", move |cx: JobCx| async move {
        tokio::select! {
            ended = run(Files::new(place), &cluster, live, reporter) => ended,
            () = cx.cancelled() => Ok(()),
        }
    })
    .add();
}

async fn run(
    mut files: Files,
    cluster: &Cluster,
    live: Arc<LiveConfig>,
    mut reporter: Reporter,
) -> anyhow::Result<()> {
    loop {
        let unwatched = files.follow().err();
        let (values, objects) = cluster.values();
        if cluster.is_followed() {
            live.supply(values.clone());
        }
        let reader = live.clone();
        let read = hive::blocking(move || reader.reload()).await;
        reporter.report(read, unwatched.as_ref(), ClusterDrift::of(&values, &live));
        tokio::select! {
            () = files.changed(unwatched.is_none()) => {}
            () = objects.changed() => {}
        }
    }
}

/// The configuration file or folder, if there is one, and its watch.
struct Files {
    place: Option<PathBuf>,
    watch: io::Result<FileWatch>,
}

impl Files {
    fn new(place: Option<PathBuf>) -> Files {
        Files { place, watch: FileWatch::new() }
    }

    /// Updates the watch, so that [`changed`](Files::changed) reports changes from now on. After an error it has to
    /// poll.
    fn follow(&mut self) -> io::Result<()> {
        let Some(place) = &self.place else { return Ok(()) };
        match &mut self.watch {
            Ok(watch) => watch.follow(place),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        }
    }

    /// Waits until files may have changed and no more changes follow. Falls back to polling while there is no working
    /// watch, and then tries to create one.
    async fn changed(&mut self, followed: bool) {
        match (&self.place, &mut self.watch) {
            (None, _) => std::future::pending().await,
            (Some(_), Ok(watch)) if followed => {
                if let Err(error) = quiet_after_change(watch).await {
                    self.watch = Err(error);
                }
            }
            (Some(_), watch) => {
                sleep(POLL_INTERVAL).await;
                *watch = FileWatch::new();
            }
        }
    }
}

/// Waits for a change, and then until there are no more for [`DEBOUNCE`].
async fn quiet_after_change(watch: &mut FileWatch) -> io::Result<()> {
    watch.changed().await?;
    let latest = Instant::now() + MAX_DELAY;
    while Instant::now() < latest {
        match timeout(DEBOUNCE, watch.changed()).await {
            Ok(changed) => changed?,
            Err(_) => break,
        }
    }
    Ok(())
}

/// Reports to log, health and metric.
struct Reporter {
    config: Config<FollowConfig>,
    delta: Gauge,
    health: Health,
    /// The refused changes that are logged already.
    refused: Vec<Change>,
    drifts: Vec<ClusterDrift>,
}

impl Reporter {
    fn report(
        &mut self,
        read: Result<Reloaded, Vec<ConfigError>>,
        unwatched: Option<&io::Error>,
        drifts: Vec<ClusterDrift>,
    ) {
        match read {
            Ok(Reloaded { changed, refused, .. }) => {
                for Change { key, running, wanted, source, .. } in changed {
                    tracing::info!(option = key, before = running, value = wanted, %source, "An option has changed");
                }
                self.report_refused(refused, unwatched);
            }
            Err(errors) => {
                let errors = joined(&errors);
                let message = "The configuration is refused, the one of before stays in force";
                if self.health.degraded_anew(message, &errors) {
                    tracing::error!(errors, "{message}");
                }
            }
        }
        self.report_drifts(drifts);
    }

    /// Reports options that take effect at the next start.
    fn report_refused(&mut self, mut refused: Vec<Change>, unwatched: Option<&io::Error>) {
        refused.retain(|change| !self.is_ignored(&change.key));
        for change in refused.iter().filter(|change| !self.refused.contains(change)) {
            let Change { key, running, wanted, source, .. } = change;
            tracing::warn!(
                option = key, running, configured = wanted, %source,
                "An option takes effect when the agent is started again"
            );
        }
        match unwatched {
            _ if !refused.is_empty() && self.config.enable_drift_checker => {
                let message =
                    format!("{} options take effect when the agent is started again", refused.len());
                self.health.degraded(message, joined(&refused));
            }
            Some(error) => self.health.degraded(
                format!("Changes of the configuration are noticed after {POLL_INTERVAL:?} only"),
                format!("{error}; see fs.inotify in sysctl"),
            ),
            None => self.health.ok("The configuration is in force"),
        }
        self.refused = refused;
    }

    /// Reports options whose running value is not the cluster's, also if a flag overrides it.
    fn report_drifts(&mut self, mut drifts: Vec<ClusterDrift>) {
        if !self.config.enable_drift_checker {
            return;
        }
        drifts.retain(|ClusterDrift { drift, .. }| {
            !self.is_ignored(&drift.key) && self.refused.iter().all(|change| change.key != drift.key)
        });
        for reported in drifts.iter().filter(|drift| !self.drifts.contains(drift)) {
            let ClusterDrift { drift, object } = reported;
            let running = drift.running.as_deref().unwrap_or("-");
            tracing::warn!(
                option = drift.key,
                running,
                configured = drift.wanted,
                source = object,
                "The agent does not run as the cluster's configuration says"
            );
        }
        let count = self.refused.len() + drifts.len();
        self.delta.set(i64::try_from(count).unwrap_or(i64::MAX));
        self.drifts = drifts;
    }

    fn is_ignored(&self, key: &str) -> bool {
        self.config.ignore_flags_drift_checker.iter().any(|ignored| ignored == key)
    }
}

fn joined(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: an error of the watch ended the job.
    #[tokio::test(start_paused = true)]
    async fn a_watch_that_failed_is_reported_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Files::new(Some(folder.path().to_owned()));
        files.watch = Err(io::Error::other("the queue cannot be read"));
        let unwatched = files.follow().unwrap_err();
        assert_eq!(unwatched.to_string(), "the queue cannot be read");
        files.changed(false).await;
        files.follow().unwrap();
    }
}
