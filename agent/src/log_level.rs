//! The level of the log, which can be changed while the agent runs.

use std::sync::Arc;

use hive::Settings;
use hive::prelude::*;
use runtime_options::{DEBUG, Follower, RuntimeOption, follower};
use statedb::Table;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::{Registry, reload};

use crate::logging::{LogConfig, LogOptions};

/// Which of the process's events are logged: the first layer of the subscriber.
pub(crate) type LogFilter = reload::Layer<LevelFilter, Registry>;

/// The level of the log, to be changed while the agent runs.
#[derive(Clone, Debug)]
pub(crate) struct LogLevel(reload::Handle<LevelFilter, Registry>);

/// A filter to install, and its handle.
pub(crate) fn filter() -> (LogFilter, LogLevel) {
    let (filter, handle) = reload::Layer::new(LevelFilter::INFO);
    (filter, LogLevel(handle))
}

impl LogLevel {
    /// The level of these options, with debug lines or without.
    pub(crate) fn set(&self, options: LogOptions, debug: bool) {
        let level = if debug { options.level.max(LevelFilter::DEBUG) } else { options.level };
        // Fails without the subscriber, when nothing is logged anyway.
        let _ = self.0.modify(|filter| *filter = level);
    }
}

/// Debug lines come and go with the option `Debug` of `PATCH /config`.
pub(crate) fn cell(level: LogLevel) -> Cell {
    let cells = [
        config::<LogConfig>(),
        provide(move |settings: Arc<Settings>, options: Arc<Table<RuntimeOption>>, jobs: JobGroup| {
            follow(level.clone(), LogConfig::options(&settings).0, options, &jobs)
        }),
    ];
    module("logging", "The level of the log", cells)
}

fn follow(
    level: LogLevel,
    log: LogOptions,
    options: Arc<Table<RuntimeOption>>,
    jobs: &JobGroup,
) -> Member<Follower> {
    let (progress, follower) = follower("log");
    jobs.one_shot("log-level", move |cx: JobCx| async move {
        loop {
            let snapshot = options.snapshot();
            let (mut rows, watch) = options.all_watch(&snapshot);
            if let Some(debug) = rows.find(|option| option.name == DEBUG) {
                level.set(log, debug.enabled());
            }
            progress.applied(options.revision(&snapshot));
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = watch.changed() => {}
            }
        }
    });
    Member(follower)
}
