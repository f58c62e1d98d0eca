//! Level and format of the log, both changeable at run time.

use std::sync::Arc;

use hive::prelude::*;
use runtime_options::{DEBUG, Follower, RuntimeOption, follower};
use statedb::Table;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::{Registry, reload};

use crate::logging::{LogConfig, LogOptions, SharedFormat};

/// The first layer of the subscriber, which filters the process's events by level.
pub(crate) type LogFilter = reload::Layer<LevelFilter, Registry>;

/// A handle that changes level and format of the log at run time.
#[derive(Clone, Debug)]
pub(crate) struct LogLevel {
    filter: reload::Handle<LevelFilter, Registry>,
    format: SharedFormat,
}

/// Returns a filter to install, and its handle.
pub(crate) fn filter() -> (LogFilter, LogLevel) {
    let (layer, filter) = reload::Layer::new(LevelFilter::INFO);
    (layer, LogLevel { filter, format: SharedFormat::default() })
}

impl LogLevel {
    /// Returns the shared line format, for the subscriber.
    pub(crate) fn format(&self) -> SharedFormat {
        self.format.clone()
    }

    /// Applies format and level of `options`; with `debug` the level is at least debug.
    pub(crate) fn set(&self, options: LogOptions, debug: bool) {
        let level = if debug { options.level.max(LevelFilter::DEBUG) } else { options.level };
        self.format.set(options.format);
        // Fails only if no subscriber holds the filter, in which case nothing is logged.
        let _ = self.filter.modify(|filter| *filter = level);
    }
}

/// Declares `log-opt` and the job that applies it; the option `Debug` of `PATCH /config` switches debug lines, too.
pub(crate) fn cell(level: LogLevel) -> Cell {
    let cells = [
        config::<LogConfig>(),
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
