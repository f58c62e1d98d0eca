//! The clock that programs read, with which expiry times in maps are compared.

use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_getres, clock_gettime};

use crate::error::Result;
use crate::prog::Program;

/// A clock of the datapath.
#[derive(Clone, Debug)]
pub enum Clock {
    /// Seconds since the machine started (`CLOCK_MONOTONIC`).
    Seconds,
    /// Jiffies / 256.
    Jiffies {
        /// Jiffies in a second.
        hz: u32,
        /// A program that returns the time: the kernel exposes jiffies to programs only.
        reader: Arc<Program>,
    },
}

/// Returns the time since the machine started, without suspend, as `bpf_ktime_get_ns` returns it to programs.
pub fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.max(0) as u64, now.tv_nsec.clamp(0, 999_999_999) as u32)
}

/// The bits by which jiffies are shifted, so that 32 bits hold them for long.
const SHIFT: u32 = 8;

impl Clock {
    /// Returns the clock of jiffies if this kernel has it for programs, else seconds.
    pub fn probe() -> Clock {
        let Some(hz) = hz() else { return Clock::Seconds };
        match Program::from_instructions("clock", &jiffies()) {
            Ok(reader) => Clock::Jiffies { hz, reader: Arc::new(reader) },
            Err(error) => {
                tracing::debug!(%error, "The kernel shows no jiffies to programs");
                Clock::Seconds
            }
        }
    }

    /// Whether the clock counts jiffies.
    pub fn is_jiffies(&self) -> bool {
        matches!(self, Clock::Jiffies { .. })
    }

    /// Returns the time as programs read it.
    pub fn now(&self) -> Result<u32> {
        match self {
            Clock::Seconds => Ok(monotonic().as_secs() as u32),
            Clock::Jiffies { reader, .. } => Ok(reader.test_run(&[0; 14], &[], 1)?.verdict as u32),
        }
    }

    /// Converts a span of time to units of the clock, whole seconds as programs count them.
    pub fn ticks(&self, span: Duration) -> u32 {
        let seconds = span.as_secs();
        let ticks = match self {
            Clock::Seconds => seconds,
            Clock::Jiffies { hz, .. } => seconds.saturating_mul(u64::from(*hz)) >> SHIFT,
        };
        u32::try_from(ticks).unwrap_or(u32::MAX / 2)
    }
}

/// Returns the number of jiffies in a second: the coarse clock advances once per jiffy, so its resolution is a jiffy.
/// `None` if the resolution is a microsecond or less, which is that of another clock.
fn hz() -> Option<u32> {
    let resolution = clock_getres(ClockId::MonotonicCoarse);
    let nanoseconds = u32::try_from(resolution.tv_nsec).ok().filter(|ns| *ns > 1000)?;
    // The kernel rounds a jiffy to whole nanoseconds.
    Some((1_000_000_000 + nanoseconds / 2) / nanoseconds)
}

/// `return bpf_jiffies64() >> 8;`
fn jiffies() -> [u64; 3] {
    const CALL: u64 = 0x85;
    const SHIFT_RIGHT: u64 = 0x77;
    const EXIT: u64 = 0x95;
    const JIFFIES64: u64 = 118;
    [CALL | JIFFIES64 << 32, SHIFT_RIGHT | (SHIFT as u64) << 32, EXIT]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_counted_as_programs_count_them() {
        assert_eq!(Clock::Seconds.ticks(Duration::from_secs(8000)), 8000);
        assert_eq!(Clock::Seconds.ticks(Duration::from_millis(1999)), 1);
        assert_eq!(Clock::Seconds.ticks(Duration::MAX), u32::MAX / 2);
        let before = monotonic().as_secs();
        let now = u64::from(Clock::Seconds.now().unwrap());
        assert!((before..=before + 1).contains(&now));
        assert!([100, 250, 300, 1000].contains(&hz().unwrap()), "{:?}", hz());
    }
}
