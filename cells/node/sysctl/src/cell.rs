//! The wiring: the table, its reconciler, the handle.

use std::sync::Arc;

use hive::prelude::*;
use reconciler::Reconciler;
use statedb::RwTable;

use crate::files::Files;
use crate::{Setting, Sysctl, health};

/// Location of the kernel's settings.
#[derive(Clone, Debug, hive::Config)]
#[config(group = "Files")]
pub struct SysctlConfig {
    /// Mount point of procfs; takes effect at the next start
    #[flag(default = "/proc")]
    pub procfs: String,
}

/// Provides table `sysctl` and the [`Sysctl`] handle.
pub fn cell() -> Cell {
    module(
        "sysctl",
        "Kernel settings",
        [config::<SysctlConfig>(), statedb::table::<Setting>(), provide(new_sysctl)],
    )
}

fn new_sysctl(
    config: Config<SysctlConfig>,
    table: Arc<RwTable<Setting>>,
    jobs: JobGroup,
    health: Health,
) -> Arc<Sysctl> {
    let files = Files::new(&config.procfs);
    let (rows, report) = (table.reader(), health.child("settings"));
    let (handle, reconciler) = Reconciler::builder(RwTable::clone(&table))
        .status(|s: &Setting| &s.status, |s, status| s.status = status)
        .ops(files.clone())
        // Some settings take the network's lock (`rtnl`), which other processes hold for seconds.
        .blocking()
        .report(move |_| {
            let snapshot = rows.snapshot();
            match health::state(rows.all(&snapshot).map(|row| &**row)) {
                Ok(message) => report.ok(message),
                Err(errors) => report.degraded("Kernel settings not written", errors),
            }
        })
        .build();
    jobs.one_shot("reconcile", move |cx| async move {
        reconciler.run_job(&cx).await;
        Ok(())
    })
    .add();
    Arc::new(Sysctl::new(table, handle, files))
}
