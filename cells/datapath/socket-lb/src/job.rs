//! The job that loads and attaches the programs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use datapath_api::{SocketCoverage, SocketLb};
use hive::prelude::*;
use maps::Maps;

use crate::cgroup::Cgroup;
use crate::error::Error;
use crate::links::Links;
use crate::programs::{Options, load};

/// The first and the longest wait after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(60);

const FAILED: &str = "Services are not translated at sockets";

/// Loads and attaches the programs, and again when an option has changed.
pub(crate) struct Job {
    pub(crate) options: Options,
    pub(crate) empty_services: ConfigWatch<loader::ServicesConfig>,
    pub(crate) maps: Arc<Maps>,
    pub(crate) coverage: SocketCoverage,
    pub(crate) root: PathBuf,
    pub(crate) socket_lb: Arc<SocketLb>,
}

impl Job {
    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        let mut backoff = Backoff::exponential(RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        loop {
            let working = cx.working();
            let (maps, root, options) = (self.maps.clone(), self.root.clone(), self.options.clone());
            let refuses_empty = self.empty_services.get().enable_no_service_endpoints_routable;
            let attached = hive::blocking(move || attach(&maps, &root, &options, refuses_empty)).await;
            drop(working);
            let wait = match attached {
                Ok(count) => {
                    backoff.reset();
                    self.socket_lb.set(self.coverage);
                    cx.health.ok(format_args!("{count} programs on {}", self.root.display()));
                    None
                }
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    if cx.health.degraded_anew(FAILED, format_args!("{error:#}")) {
                        tracing::error!(error = format!("{error:#}"), "{FAILED}, trying again");
                    }
                    Some(backoff.next_wait().unwrap_or(MAX_RETRY_INTERVAL))
                }
            };
            let retry = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = retry => {}
                () = self.empty_services.changed() => {}
                () = cx.cancelled() => return Ok(()),
            }
        }
    }
}

/// Whether the kernel has IPv6, without which it has no hooks for sockets of IPv6.
pub(crate) fn has_ipv6() -> bool {
    Path::new("/proc/net/if_inet6").exists()
}

/// Loads the programs and attaches them. Returns their number.
fn attach(maps: &Maps, root: &Path, options: &Options, refuses_empty: bool) -> Result<usize, Error> {
    let cgroup = Cgroup::open(root)?;
    let names = options.names(has_ipv6());
    let loaded = load(maps, options.constants(refuses_empty), &names)?;
    let links = Links::new(maps.fs());
    for name in &names {
        links.attach(&cgroup, loaded.program(name)?)?;
    }
    let removed = links.retain(&names)?;
    if !removed.is_empty() {
        tracing::info!(programs = removed.join(","), "Detached programs of sockets that are not needed");
    }
    Ok(names.len())
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
