//! The process: started when a listener needs it, started again when it ends, left to run when the agent ends.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use hive::job::Backoff;
use hive::{Health, JobCx};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::kind::Kind;
use crate::process::admin;
use crate::process::bootstrap::Bootstrap;
use crate::process::log;
use crate::resources::Resources;

/// The name of the bootstrap's file, beside the folder of the sockets.
const FILE: &str = "bootstrap.json";
/// The backoff between starts; reset once a process has run for [`STEADY`].
const RESTART: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
const STEADY: Duration = Duration::from_secs(60);
/// How often a process of the previous run is looked for: it is no child of this one.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long a process has to end when it is asked to.
const QUIT_LIMIT: Duration = Duration::from_secs(10);
const QUIT_INTERVAL: Duration = Duration::from_millis(50);

/// An Envoy as a process of this node.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) binary: PathBuf,
    pub(crate) bootstrap: Bootstrap,
    /// The folder of the sockets.
    pub(crate) sockets: PathBuf,
    pub(crate) resources: Resources,
}

impl Process {
    /// Keeps Envoy running until the job is cancelled, from the first listener on. Then it is left to run, with its
    /// listeners and policies; the next run of the agent takes it over.
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        let kept = cx.token().run_until_cancelled(self.keep(&cx.health)).await;
        kept.unwrap_or(Ok(()))
    }

    async fn keep(&self, health: &Health) -> anyhow::Result<()> {
        self.until_needed(health).await;
        let admin = self.sockets.join("admin.sock");
        let file = self.file();
        let desired = self.bootstrap.render(&self.sockets);
        let (path, wanted) = (file.clone(), desired.clone());
        let is_same = hive::blocking(move || fs::read_to_string(path).is_ok_and(|text| text == wanted)).await;
        if admin::is_alive(&admin).await {
            if is_same {
                health.ok("Envoy of the previous run serves on");
                tracing::info!("Envoy of the previous run serves on");
                while admin::is_alive(&admin).await {
                    sleep(POLL_INTERVAL).await;
                }
                tracing::warn!("Envoy of the previous run has ended, it is started");
            } else {
                self.end_other(&admin).await?;
            }
        }
        if !is_same {
            hive::blocking(move || write(&file, &desired))
                .await
                .context("state-dir: no bootstrap for Envoy")?;
        }
        let backoff = || Backoff::exponential(RESTART.0, RESTART.1);
        let (mut waits, mut starts) = (backoff(), 0_u32);
        loop {
            let started = Instant::now();
            let ended = self.serve(health, starts).await;
            starts = starts.saturating_add(1);
            if started.elapsed() >= STEADY {
                waits = backoff();
            }
            let wait = waits.next_wait().unwrap_or(RESTART.1);
            let (message, error) = match ended {
                Ok(status) => ("Envoy has ended, it is started again", status.to_string()),
                Err(error) => (
                    "Envoy cannot be started, it is tried again: envoy-binary may be wrong",
                    format!("{}: {error}", self.binary.display()),
                ),
            };
            tracing::warn!(error, ?wait, starts, "{message}");
            health.degraded(message, error);
            sleep(wait).await;
        }
    }

    /// Waits until a listener or a cluster is to be served.
    async fn until_needed(&self, health: &Health) {
        let mut changed = self.resources.subscribe();
        health.ok("Envoy is not needed");
        while [Kind::Listeners, Kind::Clusters].into_iter().all(|kind| self.resources.is_empty(kind)) {
            // The sender lives as long as the resources.
            let _ = changed.changed().await;
        }
    }

    /// Ends a process with another bootstrap: it has the sockets and the ports.
    async fn end_other(&self, admin: &Path) -> anyhow::Result<()> {
        tracing::info!("Options of Envoy have changed, the one of the previous run is ended");
        admin::quit(admin).await.context("the Envoy of the previous run does not end: end it")?;
        let limit = Instant::now() + QUIT_LIMIT;
        while admin::is_alive(admin).await {
            anyhow::ensure!(Instant::now() < limit, "the Envoy of the previous run still runs: end it");
            sleep(QUIT_INTERVAL).await;
        }
        Ok(())
    }

    /// Starts Envoy and waits for its end.
    async fn serve(&self, health: &Health, restarts: u32) -> io::Result<ExitStatus> {
        let mut child = self.spawn()?;
        self.resources.counters().started();
        let pid = child.id().unwrap_or_default();
        tracing::info!(pid, binary = %self.binary.display(), "Envoy is started");
        match restarts {
            0 => health.ok(format_args!("Envoy runs, process {pid}")),
            _ => health.ok(format_args!("Envoy runs, process {pid}, started {} times", restarts + 1)),
        }
        match child.stderr.take() {
            Some(stderr) => tokio::join!(child.wait(), log::follow(stderr)).0,
            None => child.wait().await,
        }
    }

    fn spawn(&self) -> io::Result<Child> {
        let config = &self.bootstrap.config;
        let mut command = Command::new(&self.binary);
        command.args(config.starter_arguments()).arg("-l").arg(config.envoy_default_log_level.name());
        command.arg("-c").arg(self.file()).arg("--base-id").arg(config.envoy_base_id.to_string());
        command.args(["--log-format", log::FORMAT]).stdin(Stdio::null()).stdout(Stdio::null());
        match config.envoy_log.as_str() {
            "" => command.stderr(Stdio::piped()),
            path => command.args(["--log-path", path]).stderr(Stdio::null()),
        };
        // A group of its own: keys that end the agent in a terminal leave it.
        command.process_group(0).spawn()
    }

    fn file(&self) -> PathBuf {
        self.sockets.parent().unwrap_or(&self.sockets).join(FILE)
    }
}

/// Writes the bootstrap. Blocks.
fn write(file: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let part = file.with_extension("new");
    fs::write(&part, text)?;
    fs::rename(part, file)
}
