//! Level and format of the log, both changeable at run time.

use std::sync::Arc;

use hive::prelude::*;
use metrics::Metrics;
use runtime_options::{DEBUG, Follower, RuntimeOption, follower};
use statedb::Table;

use logging::{LogConfig, LogLevel};

/// Declares `log-opt` and the job that applies it; the option `Debug` of `PATCH /config` switches debug lines, too.
pub(crate) fn cell(level: LogLevel) -> Cell {
    let counts = level.line_counts();
    let cells = [
        config::<LogConfig>(),
        invoke(move |metrics: Arc<Metrics>| {
            let help = "Number of total errors in cilium-agent instances";
            metrics.register("errors_warnings_total", help, counts.clone());
        }),
        provide(move |log: ConfigWatch<LogConfig>, options: Arc<Table<RuntimeOption>>, jobs: JobGroup| {
            follow(level.clone(), log, options, &jobs)
        }),
    ];
    module("logging", "Level and form of the log", cells)
}

fn follow(
    level: LogLevel,
    mut log: ConfigWatch<LogConfig>,
    options: Arc<Table<RuntimeOption>>,
    jobs: &JobGroup,
) -> Member<Follower> {
    let (progress, follower) = follower("log");
    jobs.one_shot("log-level", move |cx: JobCx| async move {
        loop {
            let snapshot = options.snapshot();
            let (mut rows, watch) = options.all_watch(&snapshot);
            if let Some(debug) = rows.find(|option| option.name == DEBUG) {
                level.set(log.get().log_opt, debug.enabled());
            }
            progress.applied(options.revision(&snapshot));
            drop(snapshot);
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = watch.changed() => {}
                () = log.changed() => {}
            }
        }
    })
    .add();
    Member(follower)
}
