//! The wiring: the check of the range, the job that reserves it.

use std::ops::RangeInclusive;
use std::time::Duration;

use hive::prelude::*;
use loadbalancer::ServicesConfig;
use local_node::StateConfig;
use sysctl::SysctlConfig;

use crate::config::PortRangeConfig;
use crate::error::Error;
use crate::files::Files;
use crate::plan::{check, plan};
use crate::ports::Ports;
use crate::record::Record;

/// How often the kernel's list is compared, as all settings are.
const COMPARE_INTERVAL: Duration = Duration::from_secs(30 * 60);
/// The first and the longest wait after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(60);

const FAILED: &str = "The ports of NodePort services are not reserved";

/// Reserves the ports of NodePort services.
pub fn cell() -> Cell {
    let cells = [config::<PortRangeConfig>(), invoke(start)];
    module("node-port-range", "Ports of NodePort services, which are no source ports", cells)
}

#[derive(Params)]
struct Needs {
    config: Config<PortRangeConfig>,
    services: Config<ServicesConfig>,
    sysctl: Config<SysctlConfig>,
    state: Config<StateConfig>,
    jobs: JobGroup,
}

fn start(p: Needs) -> Result<(), Error> {
    let files = Files::new(&p.sysctl.procfs);
    let range = p.services.kube_proxy_replacement.then(|| p.services.node_port_range.ports());
    let auto_protect = p.config.enable_auto_protect_node_port_range;
    if let Some(range) = &range {
        check(range, &files.read()?, auto_protect)?;
        if !auto_protect {
            return Ok(());
        }
    }
    let keeper = Keeper { range, files, record: Record::new(&p.state.state()) };
    p.jobs.one_shot("reserve", move |cx: JobCx| keeper.run(cx)).add();
    Ok(())
}

/// Keeps the range reserved, or releases it.
#[derive(Clone, Debug)]
struct Keeper {
    /// The ports to reserve; none without NodePort services.
    range: Option<RangeInclusive<u16>>,
    files: Files,
    record: Record,
}

impl Keeper {
    async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        let mut backoff = Backoff::exponential(RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        loop {
            let working = cx.working();
            let keeper = self.clone();
            let applied = hive::blocking(move || keeper.apply()).await;
            drop(working);
            let wait = match applied {
                Ok(own) => {
                    backoff.reset();
                    match (&self.range, own.is_empty()) {
                        (None, _) => {
                            cx.health.ok("off");
                            return Ok(());
                        }
                        (Some(_), true) => cx.health.ok("the kernel picks no source ports of the range"),
                        (Some(_), false) => cx.health.ok(format_args!("{own} are reserved")),
                    }
                    COMPARE_INTERVAL
                }
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    if cx.health.degraded_anew(FAILED, format_args!("{error:#}")) {
                        tracing::warn!(error = format!("{error:#}"), "{FAILED}, trying again");
                    }
                    backoff.next_wait().unwrap_or(MAX_RETRY_INTERVAL)
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = cx.cancelled() => return Ok(()),
            }
        }
    }

    /// Brings the kernel's list to the desired state. Returns the ports that the agent has added.
    fn apply(&self) -> Result<Ports, Error> {
        let boot = self.files.boot();
        let own = self.record.read(&boot)?;
        if self.range.is_none() && own.is_empty() {
            return Ok(own);
        }
        let plan = plan(self.range.as_ref(), &self.files.read()?, &own);
        if !plan.add.is_empty() {
            // Before the kernel's list: a crash in between leaves a record of ports that are not reserved, not reservations
            // that nothing releases.
            self.record.write(&boot, &own.with(&plan.own))?;
            self.files.add(&plan.add)?;
            tracing::info!(ports = %plan.add, "Ports of NodePort services are reserved: the kernel picked source ports of them");
        }
        if !plan.remove.is_empty() {
            self.files.replace(&self.files.read()?.reserved.without(&plan.remove))?;
            tracing::info!(ports = %plan.remove, "Ports that are not of NodePort services any more are released");
        }
        if plan.own != own || !plan.add.is_empty() {
            self.record.write(&boot, &plan.own)?;
        }
        Ok(plan.own)
    }
}
