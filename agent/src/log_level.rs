//! The level and the form of the log, which can be changed while the agent runs.

use std::sync::Arc;

use hive::prelude::*;
use runtime_options::{DEBUG, Follower, RuntimeOption, follower};
use statedb::Table;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::{Registry, reload};

use crate::logging::{LogConfig, LogOptions, SharedFormat};

/// Which of the process's events are logged: the first layer of the subscriber.
pub(crate) type LogFilter = reload::Layer<LevelFilter, Registry>;

/// The level and form of the log, to be changed while the agent runs.
#[derive(Clone, Debug)]
pub(crate) struct LogLevel {
    filter: reload::Handle<LevelFilter, Registry>,
    format: SharedFormat,
}

/// A filter to install, and its handle.
pub(crate) fn filter() -> (LogFilter, LogLevel) {
    let (layer, filter) = reload::Layer::new(LevelFilter::INFO);
    (layer, LogLevel { filter, format: SharedFormat::default() })
}

impl LogLevel {
    /// The form of lines, for the subscriber.
    pub(crate) fn format(&self) -> SharedFormat {
        self.format.clone()
    }

    /// The form and level of these options, with debug lines or without.
    pub(crate) fn set(&self, options: LogOptions, debug: bool) {
        let level = if debug { options.level.max(LevelFilter::DEBUG) } else { options.level };
        self.format.set(options.format);
        // Fails without the subscriber, when nothing is logged anyway.
        let _ = self.filter.modify(|filter| *filter = level);
    }
}

/// Form and level follow `log-opt`, debug lines also come and go with the option `Debug` of `PATCH /config`.
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
    });
    Member(follower)
}
