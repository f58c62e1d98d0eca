//! Wiring: a reconciler as jobs of a module.

use hive::prelude::*;
use statedb::TableSpec;

use crate::builder::{Builder, Operations, StatusField};
use crate::progress::Handle;
use crate::run::Reconciler;

impl<T: TableSpec + Clone> Builder<T, StatusField<T>, Operations<T>> {
    /// Runs the reconciler as jobs `reconcile` and `refresh` of a module, `reconcile-<name>` and `refresh-<name>` if it
    /// has a name, from the start of the hive to its stop. Its state is the health of the first job.
    pub fn spawn(self, jobs: &JobGroup) -> Handle {
        let (handle, reconciler) = self.build();
        let reconciler = reconciler.refreshing_in(jobs);
        let Reconciler { mut rounds, .. } = reconciler;
        let blocks = rounds.options.blocking;
        let job = jobs.one_shot(named("reconcile", handle.name()), move |cx: JobCx| async move {
            let health = cx.health.clone();
            let mut report = rounds.report;
            rounds.report = Box::new(move |state| {
                state.report_to(&health);
                report(state);
            });
            rounds.run_job(&cx).await;
            Ok(())
        });
        let job = if blocks { job.on_own_thread() } else { job };
        job.add();
        handle
    }
}

impl<T: TableSpec + Clone> Reconciler<T> {
    /// Moves the periodic refresh to a separate job `refresh`, whose health reports when the next refresh is due.
    pub fn refreshing_in(mut self, jobs: &JobGroup) -> Self {
        if let Some(refresher) = self.refresher.take() {
            let name = named("refresh", &self.rounds.name);
            jobs.one_shot(name, move |cx: JobCx| async move {
                let report = |until| cx.health.ok(format_args!("Next refresh in {until}"));
                cx.token().run_until_cancelled(refresher.run(report)).await;
                Ok(())
            })
            .add();
        }
        self
    }
}

fn named(job: &str, name: &str) -> String {
    match name {
        "" => job.to_owned(),
        name => format!("{job}-{name}"),
    }
}
