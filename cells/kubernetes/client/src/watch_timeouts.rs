//! Times that a watch keeps to.

use std::time::Duration;

use hive::Backoff;

/// Times that a watch keeps to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchTimeouts {
    /// Between attempts, from and to.
    pub(crate) retry: (Duration, Duration),
    /// Interval of attempts that are forbidden or whose kind does not exist.
    pub(crate) refused: Duration,
    /// How long the server keeps a watch, with a third of jitter.
    pub(crate) watch: Duration,
    /// A watch that has stood for so long has recovered.
    pub(crate) recovery: Duration,
    /// Silence of a list that is over.
    pub(crate) list_silence: Duration,
    /// Silence of a watch whose server has sent bookmarks, which come every minute.
    pub(crate) watch_silence: Duration,
    /// A watch that was interrupted for so long lists again.
    pub(crate) gap: Duration,
    /// Interval of full lists, with a third of jitter: they repair changes that a server has failed to send.
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
