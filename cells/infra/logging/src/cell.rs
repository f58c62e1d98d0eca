//! The wiring, for programs whose option `debug` has no other owner.

use hive::prelude::*;

use crate::level::LogLevel;
use crate::options::{DebugConfig, LogConfig};

/// Declares `log-opt` and `debug`, and applies their changes.
pub fn cell(level: LogLevel) -> Cell {
    let follow = move |log: ConfigWatch<LogConfig>, debug: ConfigWatch<DebugConfig>, jobs: JobGroup| {
        follow(level.clone(), log, debug, &jobs);
    };
    let cells = [config::<LogConfig>(), config::<DebugConfig>(), invoke(follow)];
    module("logging", "Level and form of the log", cells)
}

fn follow(
    level: LogLevel,
    mut log: ConfigWatch<LogConfig>,
    mut debug: ConfigWatch<DebugConfig>,
    jobs: &JobGroup,
) {
    jobs.one_shot("log-level", move |cx: JobCx| async move {
        loop {
            level.set(log.get().log_opt, debug.get().debug);
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = log.changed() => {}
                () = debug.changed() => {}
            }
        }
    })
    .add();
}
