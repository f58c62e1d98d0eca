//! Timeouts and intervals of watches.

use std::time::Duration;

use hive::Backoff;

/// Timeouts and intervals of a watch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchTimeouts {
    /// The minimum and maximum backoff between attempts.
    pub(crate) retry: (Duration, Duration),
    /// The retry interval if the request is forbidden or the kind does not exist.
    pub(crate) refused: Duration,
    /// The lifetime of a watch, passed to the server, with a third of jitter.
    pub(crate) watch: Duration,
    /// The time after which an open watch counts as recovered.
    pub(crate) recovery: Duration,
    /// The timeout for data of a list.
    pub(crate) list_silence: Duration,
    /// The timeout for data of a watch with bookmarks, which are sent every minute.
    pub(crate) watch_silence: Duration,
    /// The interruption after which a watch lists again.
    pub(crate) gap: Duration,
    /// The interval of full lists, with a third of jitter: they repair missed changes.
    pub(crate) relist: Duration,
}

impl Default for WatchTimeouts {
    fn default() -> WatchTimeouts {
        WatchTimeouts {
            retry: (Duration::from_millis(500), Duration::from_secs(30)),
            refused: Duration::from_secs(90),
            watch: Duration::from_secs(450),
            recovery: Duration::from_secs(2),
            list_silence: Duration::from_secs(15),
            watch_silence: Duration::from_secs(150),
            gap: Duration::from_secs(300),
            relist: Duration::from_secs(9 * 3600),
        }
    }
}

/// Returns a time with a third of jitter.
pub(crate) fn spread(time: Duration) -> Duration {
    Backoff::constant(time).jitter(1.0 / 3.0).next_wait().unwrap_or(time)
}
