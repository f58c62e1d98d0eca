//! Values that the agent writes for programs while it runs: `cilium_runtime_config`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use datapath_abi::runtime_config::{AGENT_LIVENESS, UTIME_OFFSET, UTIME_SHIFT};
use hive::prelude::*;

use crate::config::LivenessConfig;
use crate::maps::Maps;

/// The interval between writes of the offset: the wall clock may be adjusted at any time.
const UTIME_INTERVAL: Duration = Duration::from_secs(60);

/// Adds the jobs that write both entries.
pub(crate) fn start(maps: Arc<Maps>, config: Config<LivenessConfig>, jobs: JobGroup) {
    let offset = maps.clone();
    jobs.timer("utime", UTIME_INTERVAL, move |_| {
        let offset = offset.clone();
        async move { write(&offset, UTIME_OFFSET, utime_offset(SystemTime::now(), bpf::monotonic())) }
    })
    .immediate()
    .add();
    jobs.timer("agent-liveness", config.agent_liveness_update_interval, move |_| {
        let maps = maps.clone();
        async move {
            let now = u64::try_from(bpf::monotonic().as_nanos()).unwrap_or(u64::MAX);
            write(&maps, AGENT_LIVENESS, now)
        }
    })
    .immediate()
    .add();
}

fn write(maps: &Maps, row: u32, value: u64) -> anyhow::Result<()> {
    // Jobs may run before the start hook has opened the maps.
    if maps.is_open() {
        maps.runtime_config().update(&row, &value)?;
    }
    Ok(())
}

/// Returns UTC minus the monotonic clock, in units of 512 ns; zero for a clock that is before 1970.
fn utime_offset(now: SystemTime, monotonic: Duration) -> u64 {
    let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let offset = since_1970.saturating_sub(monotonic).as_nanos() >> UTIME_SHIFT;
    u64::try_from(offset).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sample is from a machine that was started at a whole second.
    #[test]
    fn the_offset_is_the_start_of_the_machine_in_units_of_512_ns() {
        let started = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_260_547);
        let up = Duration::from_millis(2_509_101);
        assert_eq!(utime_offset(started + up, up), 3_506_368_255_859_375);
        assert_eq!(utime_offset(SystemTime::UNIX_EPOCH, up), 0);
    }
}
