//! The clock that programs read: what a lifetime in a map is compared with.
#![expect(unsafe_code, reason = "the monotonic clock of the kernel is asked for by number")]

use std::sync::Arc;
use std::time::Duration;

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
        /// Gives the time: the kernel shows its jiffies to programs only.
        reader: Arc<Program>,
    },
}

/// The time since the machine started, without the time that it slept: what `bpf_ktime_get_ns` gives to programs.
pub fn monotonic() -> Duration {
    time(libc::CLOCK_MONOTONIC)
}

/// How far jiffies are shifted, so that 32 bits hold them for long.
const SHIFT: u32 = 8;

impl Clock {
    /// The clock of jiffies if this kernel has it for programs, seconds if not.
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

    /// Whether it counts jiffies.
    pub fn is_jiffies(&self) -> bool {
        matches!(self, Clock::Jiffies { .. })
    }

    /// The time now, as programs see it.
    pub fn now(&self) -> Result<u32> {
        match self {
            Clock::Seconds => Ok(time(libc::CLOCK_MONOTONIC).as_secs() as u32),
            Clock::Jiffies { reader, .. } => Ok(reader.test_run(&[0; 14], &[], 1)?.verdict as u32),
        }
    }

    /// A span of time in units of the clock, whole seconds as programs count them.
    pub fn ticks(&self, span: Duration) -> u32 {
        let seconds = span.as_secs();
        let ticks = match self {
            Clock::Seconds => seconds,
            Clock::Jiffies { hz, .. } => seconds.saturating_mul(u64::from(*hz)) >> SHIFT,
        };
        u32::try_from(ticks).unwrap_or(u32::MAX / 2)
    }
}

/// Jiffies in a second: the coarse clock moves once a jiffy.
fn hz() -> Option<u32> {
    let mut resolution = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // JUSTIFICATION: no safe wrapper among the dependencies.
    // SAFETY: the kernel writes one timespec.
    let answer = unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &mut resolution) };
    let nanoseconds = u32::try_from(resolution.tv_nsec).ok().filter(|ns| answer == 0 && *ns > 1000)?;
    // Jiffies are rounded to whole nanoseconds.
    Some((1_000_000_000 + nanoseconds / 2) / nanoseconds)
}

fn time(clock: libc::clockid_t) -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // JUSTIFICATION: `std` does not give the number behind an `Instant`.
    // SAFETY: the kernel writes one timespec.
    unsafe { libc::clock_gettime(clock, &mut now) };
    Duration::new(now.tv_sec.max(0) as u64, now.tv_nsec.clamp(0, 999_999_999) as u32)
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
        let before = time(libc::CLOCK_MONOTONIC).as_secs();
        let now = u64::from(Clock::Seconds.now().unwrap());
        assert!((before..=before + 1).contains(&now));
        assert!([100, 250, 300, 1000].contains(&hz().unwrap()), "{:?}", hz());
    }
}
