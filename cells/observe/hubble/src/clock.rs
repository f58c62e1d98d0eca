//! The time of events: that of their arrival, as the kernel's events have none.

use std::time::SystemTime;

use prost_types::Timestamp;

/// Returns the current time.
pub(crate) fn now() -> Timestamp {
    SystemTime::now().into()
}
