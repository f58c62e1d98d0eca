//! Times of the API relative to now.

use std::time::{Duration, SystemTime};

/// Formats `1m4s ago`, or `never` for Go's zero time and invalid times.
pub(crate) fn since(timestamp: &str, now: SystemTime) -> String {
    match api_models::from_rfc3339(timestamp) {
        Some(then) => {
            let seconds = now.duration_since(then).unwrap_or_default().as_secs();
            format!("{} ago", api_models::GoDuration(Duration::from_secs(seconds)))
        }
        None => "never".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn ages() {
        let now = UNIX_EPOCH + Duration::from_secs(1_795_263_094);
        assert_eq!(since("2026-11-21T12:10:29.950Z", now), "1m4s ago");
        assert_eq!(since("0001-01-01T00:00:00.000Z", now), "never");
        assert_eq!(since("yesterday", now), "never");
    }
}
