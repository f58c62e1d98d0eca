//! Rules of policy routing that cells desire: the table, its reconciler, the handle.
//!
//! Uses nothing of the routes beside it. `desired.rs` has the row, `handle.rs` what owners call, `kernel.rs` the
//! operations of the reconciler, `refresh.rs` the job that finds lost rules.

mod desired;
mod handle;
mod kernel;
mod refresh;

use std::sync::Arc;
use std::time::Duration;

pub use desired::DesiredRule;
pub use handle::Rules;
use hive::prelude::*;
use kernel::KernelRules;
use reconciler::Reconciler;
use refresh::Refresher;
use statedb::RwTable;

/// Interval of prunes after the first one.
const PRUNE_INTERVAL: Duration = Duration::from_secs(30 * 60);

/// Provides table `desired-rules` and the [`Rules`] handle.
pub(crate) fn cell() -> Cell {
    module(
        "rule-reconciler",
        "Desired rules of policy routing in the kernel",
        [statedb::table::<DesiredRule>(), provide(new_rules)],
    )
}

fn new_rules(table: Arc<RwTable<DesiredRule>>, jobs: JobGroup) -> Arc<Rules> {
    let claims = Arc::default();
    let handle = Reconciler::builder(RwTable::clone(&table))
        .status(|row: &DesiredRule| &row.status, |row, status| row.status = status)
        .ops(KernelRules::new(table.reader(), Arc::clone(&claims)))
        .blocking()
        .prune(PRUNE_INTERVAL)
        .spawn(&jobs);
    let refresher = Refresher { desired: Arc::clone(&table) };
    jobs.one_shot("desired-rule-refresher", move |cx| async move {
        refresher.run(cx).await;
        Ok(())
    })
    .add();
    Arc::new(Rules::new(table, handle, claims))
}
