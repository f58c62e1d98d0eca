//! Reporters that do everything that a reporter can, with a clock that stands at one second after the epoch.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hive::HealthTree;
use hive::prelude::*;

pub(super) fn cells() -> Vec<Cell> {
    let quiet = |id, report: fn(Health)| {
        module(
            id,
            "Reports health",
            invoke(move |tree: Arc<HealthTree>, health: Health| {
                tree.set_clock(|| SystemTime::UNIX_EPOCH + Duration::from_secs(1));
                report(health);
            }),
        )
    };
    let reporters = [
        quiet("m0", |health| health.child("c0").ok("ok")),
        quiet("m2", |health| {
            let closed = health.child("degraded-closed");
            closed.degraded("broken", "err2");
            closed.close();
            health.child("degraded").degraded("broken", "err2");
        }),
        quiet("m3", |health| {
            let done = health.child("done");
            done.ok("finished");
            done.close();
        }),
        quiet("m4", |health| {
            let stopped = health.child("stopped");
            stopped.ok("ok");
            stopped.stopped("now stopped");
        }),
    ];
    vec![module("agent", "Reporters", reporters), module("test", "The table", [status::table()])]
}
