//! The wiring: a reconciler as a job of a module.

use hive::prelude::*;
use statedb::TableSpec;

use crate::builder::{Builder, Operations, StatusField};
use crate::progress::Handle;
use crate::reconciler::Report;

impl<T: TableSpec + Clone> Builder<T, StatusField<T>, Operations<T>> {
    /// Runs the reconciler as job `reconcile-<name>` of a module from the start of the hive to its stop, with its
    /// state as the job's health.
    pub fn spawn(self, jobs: &JobGroup) -> Handle {
        let (handle, mut reconciler) = self.build();
        jobs.one_shot(format!("reconcile-{}", handle.name()), move |cx: JobCx| async move {
            let health = cx.health.clone();
            let mut report = reconciler.report;
            reconciler.report = Box::new(move |state| {
                match &state {
                    Report::Ok(message) => health.ok(message),
                    Report::Degraded(errors) => health.degraded("Reconciliation failed", errors),
                }
                report(state);
            });
            reconciler.run_job(&cx).await;
            Ok(())
        });
        handle
    }
}
