//! Times that a watch keeps to.

use std::time::Duration;

use hive::Backoff;

/// Times that a watch keeps to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchTimeouts {
    /// Between attempts, from and to.
    pub(crate) retry: (Duration, Duration),
    /// Between attempts at what is not allowed or not there.
    pub(crate) refused: Duration,
    /// How long the server keeps a watch, give or take a third.
    pub(crate) watch: Duration,
    /// A watch that has stood for so long has no trouble any more.
    pub(crate) settle: Duration,
    /// Silence of a list that is over.
    pub(crate) list_silence: Duration,
    /// Silence of a watch whose server has sent bookmarks, which come every minute.
    pub(crate) watch_silence: Duration,
    /// A watch that was away for so long lists again.
    pub(crate) gap: Duration,
    /// How often a watch lists again anyway, give or take a third: what a server has failed to tell heals.
    pub(crate) relist: Duration,
}

impl Default for WatchTimeouts {
    fn default() -> WatchTimeouts {
        WatchTimeouts {
            retry: (Duration::from_millis(500), Duration::from_secs(30)),
            refused: Duration::from_secs(90),
            watch: Duration::from_secs(450),
            settle: Duration::from_secs(2),
            list_silence: Duration::from_secs(15),
            watch_silence: Duration::from_secs(150),
            gap: Duration::from_secs(300),
            relist: Duration::from_secs(9 * 3600),
        }
    }
}

/// A time, give or take a third.
pub(crate) fn spread(time: Duration) -> Duration {
    Backoff::constant(time).jitter(1.0 / 3.0).next_wait().unwrap_or(time)
}
