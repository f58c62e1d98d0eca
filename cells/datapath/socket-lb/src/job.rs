//! The job that loads and attaches the programs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use datapath_api::{SocketCoverage, SocketLb};
use hive::prelude::*;
use maps::Maps;
use runtime_options::Progress;

use crate::cgroup::Cgroup;
use crate::error::Error;
use crate::links::{Attached, Links};
use crate::live::{Live, LiveValues};
use crate::programs::{Options, load};

/// The first and the longest wait after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(60);

const FAILED: &str = "Services are not translated at sockets";

/// Loads and attaches the programs, and again when an option or, at the watchdog's next round, another process has changed
/// them.
pub(crate) struct Job {
    pub(crate) options: Options,
    pub(crate) live: Live,
    /// The interval of the watchdog.
    pub(crate) watchdog: ConfigWatch<loader::LoaderConfig>,
    pub(crate) maps: Arc<Maps>,
    pub(crate) coverage: SocketCoverage,
    pub(crate) root: PathBuf,
    pub(crate) socket_lb: Arc<SocketLb>,
    /// Reports which runtime options are in force.
    pub(crate) progress: Progress,
}

impl Job {
    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        let mut backoff = Backoff::exponential(RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        let mut repairs = 0_u64;
        loop {
            let working = cx.working();
            let (maps, root, options) = (self.maps.clone(), self.root.clone(), self.options.clone());
            let (values, revision) = self.live.values();
            let attach = move || {
                let attached = attach(&maps, &root, &options, &values);
                let covers = attached.is_ok() || are_attached(&maps, &root, &options);
                (attached, covers)
            };
            let (attached, covers) = hive::blocking(attach).await;
            drop(working);
            // Without programs packets of pods are translated at their interfaces.
            self.socket_lb.set(if covers { self.coverage } else { SocketCoverage::None });
            let (mut wait, is_in_force) = (None, attached.is_ok() || !covers);
            let attached = match attached {
                Ok(attached) => {
                    backoff.reset();
                    let (count, root) = (attached.len(), self.root.display());
                    match repairs {
                        0 => cx.health.ok(format_args!("{count} programs on {root}")),
                        _ => cx.health.ok(format_args!(
                            "{count} programs on {root}, attached again after {repairs} changes by other processes"
                        )),
                    }
                    Some(attached)
                }
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    if covers {
                        self.progress.failed(format_args!("{error:#}"));
                    }
                    if cx.health.degraded_anew(FAILED, format_args!("{error:#}")) {
                        tracing::error!(error = format!("{error:#}"), "{FAILED}, trying again");
                    }
                    wait = Some(backoff.next_wait().unwrap_or(MAX_RETRY_INTERVAL));
                    None
                }
            };
            // Without programs there is nothing that an option would have to reach.
            let in_force = |revision| {
                if is_in_force {
                    self.progress.applied(revision);
                }
            };
            in_force(revision);
            let retry = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            let watched = Watched { maps: &self.maps, root: &self.root, attached };
            tokio::select! {
                () = retry => {}
                drift = watched.drift(&mut self.watchdog) => {
                    repairs += 1;
                    let changes = drift.join(", ");
                    tracing::warn!(changes, "Programs of sockets were changed by another process, attaching them again");
                }
                () = self.live.changed(&values, in_force) => {}
                () = cx.cancelled() => return Ok(()),
            }
        }
    }
}

/// Programs that the watchdog compares.
struct Watched<'a> {
    maps: &'a Arc<Maps>,
    root: &'a Path,
    /// None if they could not be attached.
    attached: Option<Attached>,
}

impl Watched<'_> {
    /// Waits until other processes have changed the links. Returns the changes.
    async fn drift(self, config: &mut ConfigWatch<loader::LoaderConfig>) -> Vec<String> {
        let Some(attached) = self.attached else { return std::future::pending().await };
        loop {
            let interval = config.get().endpoint_bpf_prog_watchdog_interval;
            let round = async {
                match interval.is_zero() {
                    true => std::future::pending().await,
                    false => tokio::time::sleep(interval).await,
                }
            };
            tokio::select! {
                () = round => {}
                () = config.changed() => continue,
            }
            let (maps, root, attached) = (self.maps.clone(), self.root.to_owned(), attached.clone());
            let drift = hive::blocking(move || Links::new(maps.fs()).drift(&root, &attached)).await;
            if !drift.is_empty() {
                return drift;
            }
        }
    }
}

/// Whether the kernel has IPv6, without which it has no hooks for sockets of IPv6.
pub(crate) fn has_ipv6() -> bool {
    Path::new("/proc/net/if_inet6").exists()
}

/// Whether all programs are attached to the cgroup at this path.
pub(crate) fn are_attached(maps: &Maps, root: &Path, options: &Options) -> bool {
    let names = options.names(has_ipv6());
    Cgroup::open(root).is_ok_and(|cgroup| Links::new(maps.fs()).are_attached(&cgroup, &names))
}

/// Loads the programs and attaches them.
fn attach(maps: &Maps, root: &Path, options: &Options, live: &LiveValues) -> Result<Attached, Error> {
    let cgroup = Cgroup::open(root)?;
    let names = options.names(has_ipv6());
    let loaded = load(maps, options.constants(live), &names)?;
    let links = Links::new(maps.fs());
    let mut attached = Attached::new(&cgroup);
    for name in &names {
        links.attach_to(&cgroup, name, loaded.program(name)?, &mut attached)?;
    }
    let removed = links.retain(&names)?;
    if !removed.is_empty() {
        tracing::info!(programs = removed.join(","), "Detached programs of sockets that are not needed");
    }
    Ok(attached)
}

/// Detaches the programs of a previous run, now that the option is off.
pub(crate) async fn remove(maps: Arc<Maps>, cx: JobCx) -> anyhow::Result<()> {
    let removed = hive::blocking(move || Links::new(maps.fs()).retain(&[])).await?;
    if !removed.is_empty() {
        tracing::info!(programs = removed.join(","), "Services are not translated at sockets any more");
    }
    cx.health.ok("off");
    Ok(())
}
