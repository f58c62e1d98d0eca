//! How far an object has come on its way to the target, kept in the object itself.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};

/// What is to be done, or has been done, with an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub enum StatusKind {
    /// Not of interest to the reconciler.
    #[default]
    #[serde(rename = "")]
    Unset,
    /// To be reconciled.
    Pending,
    /// Reconciled before, to be reconciled again.
    Refreshing,
    /// Reconciled.
    Done,
    /// Failed; tried again later.
    Error,
}

impl StatusKind {
    /// As shown in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            StatusKind::Unset => "",
            StatusKind::Pending => "Pending",
            StatusKind::Refreshing => "Refreshing",
            StatusKind::Done => "Done",
            StatusKind::Error => "Error",
        }
    }
}

impl fmt::Display for StatusKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The reconciliation status field of an object.
///
/// Whoever writes an object sets it to [`Status::pending`]; the reconciler sets the rest. As text `Done (1.2s ago)`
/// or `Error: no such device (200.0ms ago)`; as JSON with the keys `kind`, `updated-at`, `error`, `id`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// What is to be done or was done.
    pub kind: StatusKind,
    /// When this was set.
    #[serde(rename = "updated-at", serialize_with = "rfc3339")]
    pub updated_at: SystemTime,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Arc<str>>,
    /// Tells this status from all others made in this process: a reconciler that finds the object changed still
    /// knows by it whether the change was about its own status.
    pub id: u64,
}

impl Status {
    /// To be reconciled.
    pub fn pending() -> Self {
        Status::new(StatusKind::Pending, SystemTime::now(), None)
    }

    /// To be reconciled again.
    pub fn refreshing() -> Self {
        Status::new(StatusKind::Refreshing, SystemTime::now(), None)
    }

    /// Reconciled, for objects that are known to be in the target already.
    pub fn done() -> Self {
        Status::new(StatusKind::Done, SystemTime::now(), None)
    }

    /// Failed.
    pub fn error(error: impl fmt::Display) -> Self {
        Status::new(StatusKind::Error, SystemTime::now(), Some(error.to_string().into()))
    }

    pub(crate) fn new(kind: StatusKind, updated_at: SystemTime, error: Option<Arc<str>>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Status { kind, updated_at, error, id: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// Whether the reconciler has yet to look at the object.
    pub fn is_pending(&self) -> bool {
        matches!(self.kind, StatusKind::Pending | StatusKind::Refreshing)
    }

    /// Whether the target has the object.
    pub fn is_done(&self) -> bool {
        self.kind == StatusKind::Done
    }
}

/// Pending: an object without a status of its own wants to be reconciled.
impl Default for Status {
    fn default() -> Self {
        Status::pending()
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ago = Ago::since(self.updated_at);
        match &self.error {
            Some(error) => write!(f, "{}: {error} ({ago} ago)", self.kind),
            None => write!(f, "{} ({ago} ago)", self.kind),
        }
    }
}

/// A duration in its largest fitting unit with one decimal: `12.0us`, `3.2s`, `1.5h`.
pub(crate) struct Ago(Duration);

impl Ago {
    pub(crate) fn since(then: SystemTime) -> Self {
        Ago(SystemTime::now().duration_since(then).unwrap_or_default())
    }
}

impl fmt::Display for Ago {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0.as_secs_f64() * 1e6;
        for (unit, size) in [("us", 1000.0), ("ms", 1000.0), ("s", 60.0), ("m", 60.0), ("h", 24.0)] {
            if value < size {
                return write!(f, "{value:.1}{unit}");
            }
            value /= size;
        }
        write!(f, "{value:.1}d")
    }
}

/// RFC 3339 in UTC with nanoseconds, trailing zeros cut.
pub(crate) fn rfc3339<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let fraction = format!("{:09}", since.subsec_nanos());
    let fraction = fraction.trim_end_matches('0');
    let dot = if fraction.is_empty() { "" } else { "." };
    serializer.collect_str(&format_args!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}{dot}{fraction}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    ))
}

/// Year, month and day of a day since 1970, by counting days in eras of 400 years that begin in March.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_as_in_tables_and_json() {
        let at = SystemTime::UNIX_EPOCH + Duration::new(1_709_210_096, 250_000_000);
        let mut status = Status::new(StatusKind::Error, at, Some("no such device".into()));
        status.id = 7;
        assert_eq!(
            serde_json::to_string(&status).unwrap(),
            r#"{"kind":"Error","updated-at":"2024-02-29T12:34:56.25Z","error":"no such device","id":7}"#
        );
        assert!(status.to_string().starts_with("Error: no such device ("));
        assert!(Status::pending().to_string().starts_with("Pending ("));
        assert_ne!(Status::pending().id, Status::pending().id);
    }

    #[test]
    fn durations_in_their_largest_unit() {
        let shown = |d: Duration| Ago(d).to_string();
        assert_eq!(shown(Duration::from_micros(12)), "12.0us");
        assert_eq!(shown(Duration::from_millis(1200)), "1.2s");
        assert_eq!(shown(Duration::from_secs(90)), "1.5m");
        assert_eq!(shown(Duration::from_secs(36 * 3600)), "1.5d");
    }

    #[test]
    fn days_become_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_818), (2026, 12, 31));
    }
}
