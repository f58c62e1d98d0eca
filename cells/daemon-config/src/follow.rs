//! Follows the configuration file or folder while the agent runs.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use file_watch::FileWatch;
use hive::config::{Change, Reloaded};
use hive::prelude::*;
use hive::{ConfigError, LiveConfig};
use metrics::Metrics;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::{Instant, sleep, timeout};

/// How long nothing changes before what has changed is read: whoever writes several files has done so.
const QUIET: Duration = Duration::from_millis(200);

/// Read at the latest so long after the first change.
const LATEST: Duration = Duration::from_secs(2);

/// How often to look when the kernel does not tell.
const UNWATCHED: Duration = Duration::from_secs(5);

/// Whether the configuration is followed, and what is told of it.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Configuration")]
pub struct FollowConfig {
    /// Follow the configuration file or folder while the agent runs
    #[flag(default = true)]
    pub enable_dynamic_config: bool,
    /// Tell where the running agent differs from its configuration
    #[flag(default = true)]
    pub enable_drift_checker: bool,
    /// Options that may differ
    pub ignore_flags_drift_checker: Vec<String>,
}

/// What the job needs.
#[derive(Params)]
pub(crate) struct Parts {
    config: Config<FollowConfig>,
    live: Arc<LiveConfig>,
    metrics: Arc<Metrics>,
    health: Health,
    jobs: JobGroup,
}

pub(crate) fn start(parts: Parts) {
    let Parts { config, live, metrics, health, jobs } = parts;
    let delta = Gauge::default();
    if config.enable_drift_checker {
        let help = "Number of options whose running value is not the configured one";
        metrics.register("drift_checker_config_delta", help, delta.clone());
    }
    if !config.enable_dynamic_config {
        return;
    }
    let Some(path) = live.place() else { return };
    let teller = Teller { config, delta, health: health.scope("configuration"), refused: vec![] };
    jobs.one_shot("configuration", move |cx: JobCx| async move {
        tokio::select! {
            ended = run(&path, live, teller) => ended,
            () = cx.cancelled() => Ok(()),
        }
    });
}

async fn run(path: &Path, live: Arc<LiveConfig>, mut teller: Teller) -> anyhow::Result<()> {
    let mut watch = FileWatch::new();
    loop {
        let watched = match &mut watch {
            Ok(watch) => watch.follow(path),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        let live = live.clone();
        let read = hive::blocking(move || live.reload()).await;
        teller.tell(read, watched.as_ref().err());
        match (&mut watch, watched) {
            (Ok(watching), Ok(())) => {
                watching.changed().await?;
                settle(watching).await?;
            }
            _ => {
                sleep(UNWATCHED).await;
                watch = FileWatch::new();
            }
        }
    }
}

/// Waits until it is quiet.
async fn settle(watch: &mut FileWatch) -> io::Result<()> {
    let latest = Instant::now() + LATEST;
    while Instant::now() < latest {
        match timeout(QUIET, watch.changed()).await {
            Ok(changed) => changed?,
            Err(_) => break,
        }
    }
    Ok(())
}

/// Log, health and metric.
struct Teller {
    config: Config<FollowConfig>,
    delta: Gauge,
    health: Health,
    /// What the log has said already.
    refused: Vec<Change>,
}

impl Teller {
    fn tell(&mut self, read: Result<Reloaded, Vec<ConfigError>>, unwatched: Option<&io::Error>) {
        let Reloaded { changed, mut refused } = match read {
            Ok(reloaded) => reloaded,
            Err(errors) => {
                let errors = joined(&errors);
                let message = "The configuration is refused, the one of before stays in force";
                if self.health.degraded_anew(message, &errors) {
                    tracing::error!(errors, "{message}");
                }
                return;
            }
        };
        for Change { key, running, wanted, source } in changed {
            tracing::info!(option = key, before = running, value = wanted, %source, "An option has changed");
        }
        refused.retain(|change| !self.config.ignore_flags_drift_checker.contains(&change.key));
        for change in refused.iter().filter(|change| !self.refused.contains(change)) {
            let Change { key, running, wanted, source } = change;
            tracing::warn!(
                option = key, running, configured = wanted, %source,
                "An option takes effect when the agent is started again"
            );
        }
        if self.config.enable_drift_checker {
            self.delta.set(i64::try_from(refused.len()).unwrap_or(i64::MAX));
        }
        match unwatched {
            _ if !refused.is_empty() && self.config.enable_drift_checker => {
                let message =
                    format!("{} options take effect when the agent is started again", refused.len());
                self.health.degraded(message, joined(&refused));
            }
            Some(error) => self.health.degraded(
                format!("Changes of the configuration are noticed after {UNWATCHED:?} only"),
                format!("{error}; see fs.inotify in sysctl"),
            ),
            None => self.health.ok("The configuration is in force"),
        }
        self.refused = refused;
    }
}

fn joined(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
