//! The wiring: the limit, the row of health that says how much of it is in use, giving memory back.

use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;

use crate::allocator::trim;
use crate::limit::MemoryLimit;

/// How often the row of health is renewed.
const TELL: Duration = Duration::from_secs(15);
/// How often freed memory is given back; the first time when a start has settled.
const TRIM: Duration = Duration::from_secs(20);

/// Looks the limit up; provides `Arc<MemoryLimit>`. Gives freed memory back from time to time.
pub fn cell() -> Cell {
    let parts = [provide(found), invoke(watch), invoke(give_back)];
    module("memory", "Memory that the agent may use", parts)
}

fn found() -> Arc<MemoryLimit> {
    Arc::new(MemoryLimit::detect())
}

fn give_back(jobs: JobGroup) {
    jobs.timer("give-back", TRIM, |_| async {
        trim();
        Ok(())
    });
}

fn watch(limit: Arc<MemoryLimit>, jobs: JobGroup, health: Health) {
    let (Some(bytes), Some(group)) = (limit.bytes(), limit.group()) else { return };
    tracing::info!(
        limit = bytes,
        cgroup = %group.display(),
        "Memory is limited: maps are sized by it, and what is read"
    );
    let health = health.scope("limit");
    jobs.timer("usage", TELL, move |_| {
        tell(&limit, &health);
        async { Ok(()) }
    })
    .immediate();
}

fn tell(limit: &MemoryLimit, health: &Health) {
    let (Some(used), Some(bytes)) = (limit.used(), limit.bytes()) else { return };
    match limit.room() {
        Ok(()) => health.ok(format_args!("{} of {} MiB are in use", used >> 20, bytes >> 20)),
        Err(full) => health.degraded("Nothing is taken that makes the agent larger", full),
    }
}
