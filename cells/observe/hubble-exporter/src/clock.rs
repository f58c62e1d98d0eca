//! The time of day: the end of exporters, and the names of rotated files.

use std::time::SystemTime;

use jiff::Timestamp;

/// Returns the current time.
pub(crate) fn now() -> Timestamp {
    Timestamp::try_from(SystemTime::now()).unwrap_or_default()
}
