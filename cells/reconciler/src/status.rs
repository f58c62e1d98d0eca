//! The state of an object's reconciliation, kept in the object itself.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

#[cfg(feature = "serde")]
use jiff::Timestamp;
#[cfg(feature = "serde")]
use serde::ser::{Serialize, SerializeStruct, Serializer};

/// The state of an object's reconciliation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum StatusKind {
    /// Ignored by the reconciler.
    #[default]
    #[cfg_attr(feature = "serde", serde(rename = ""))]
    Unset,
    /// To be reconciled.
    Pending,
    /// Reconciled before, to be reconciled again.
    Refreshing,
    /// Reconciled.
    Done,
    /// Failed; retried later.
    Error,
}

impl StatusKind {
    /// Returns the name that tables print.
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

/// The reconciliation status field of an object, in 16 bytes.
///
/// Writers of an object set it to [`Status::pending`]; the reconciler sets the rest. As text `Done (1.2s ago)`
/// or `Error: no such device (200.0ms ago)`; as JSON with the keys `updated-at`, `error`, `id`, `kind`.
#[derive(Clone, PartialEq, Eq)]
pub struct Status(Form);

/// Nearly all statuses have no error and are stored inline; the few with an error need an allocation.
#[derive(Clone, PartialEq, Eq)]
enum Form {
    /// A time in microseconds since 1970, the lowest byte first, and the id.
    Plain(StatusKind, [u8; 7], u64),
    Failed(Arc<Failed>),
}

#[derive(Clone, PartialEq, Eq)]
struct Failed {
    kind: StatusKind,
    at: [u8; 7],
    id: u64,
    error: Box<str>,
}

impl Status {
    /// Returns a status of an object to be reconciled.
    pub fn pending() -> Self {
        Status::new(StatusKind::Pending, SystemTime::now())
    }

    /// Returns a status of an object to be reconciled again.
    pub fn refreshing() -> Self {
        Status::new(StatusKind::Refreshing, SystemTime::now())
    }

    /// Returns a status of an object that is known to be in the target already.
    pub fn done() -> Self {
        Status::new(StatusKind::Done, SystemTime::now())
    }

    /// Returns a status of an object whose reconciliation has failed.
    pub fn failed(error: impl fmt::Display) -> Self {
        Status::new(StatusKind::Error, SystemTime::now()).with_error(error)
    }

    /// Returns a status of an object that is not reconciled, with the reason in place of the error.
    pub fn unset(reason: impl fmt::Display) -> Self {
        Status::new(StatusKind::Unset, SystemTime::now()).with_error(reason)
    }

    pub(crate) fn new(kind: StatusKind, updated_at: SystemTime) -> Self {
        Status(Form::Plain(kind, micros(updated_at), next_id()))
    }

    pub(crate) fn with_error(self, error: impl fmt::Display) -> Self {
        let (kind, at, id) = self.parts();
        Status(Form::Failed(Arc::new(Failed { kind, at, id, error: error.to_string().into() })))
    }

    /// Returns the same status with another time.
    pub fn with_updated_at(self, time: SystemTime) -> Self {
        let (kind, _, id) = self.parts();
        let status = Status(Form::Plain(kind, micros(time), id));
        match self.error() {
            Some(error) => status.with_error(error),
            None => status,
        }
    }

    fn parts(&self) -> (StatusKind, [u8; 7], u64) {
        match &self.0 {
            Form::Plain(kind, at, id) => (*kind, *at, *id),
            Form::Failed(failed) => (failed.kind, failed.at, failed.id),
        }
    }

    /// Returns the kind.
    pub fn kind(&self) -> StatusKind {
        self.parts().0
    }

    /// Returns the time at which the status was set, to the microsecond.
    pub fn updated_at(&self) -> SystemTime {
        let [a, b, c, d, e, f, g] = self.parts().1;
        SystemTime::UNIX_EPOCH + Duration::from_micros(u64::from_le_bytes([a, b, c, d, e, f, g, 0]))
    }

    /// Returns the error, or the reason of an unset status.
    pub fn error(&self) -> Option<&str> {
        match &self.0 {
            Form::Plain(..) => None,
            Form::Failed(failed) => Some(&failed.error),
        }
    }

    /// Returns an id that is unique among the statuses of this process. By it a reconciler detects whether a concurrent
    /// write has replaced its own status or only other fields.
    pub fn id(&self) -> u64 {
        self.parts().2
    }

    /// Whether the reconciler has yet to process the object.
    pub fn is_pending(&self) -> bool {
        matches!(self.kind(), StatusKind::Pending | StatusKind::Refreshing)
    }

    /// Whether the target has the object.
    pub fn is_done(&self) -> bool {
        self.kind() == StatusKind::Done
    }
}

fn micros(time: SystemTime) -> [u8; 7] {
    let micros = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
    let [a, b, c, d, e, f, g, _] = micros.to_le_bytes();
    [a, b, c, d, e, f, g]
}

/// Returns the next id. Each thread takes ids in blocks, so that threads do not contend for the global counter.
fn next_id() -> u64 {
    const BLOCK: u64 = 256;
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static OWN: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    }
    OWN.with(|own| {
        let (mut next, mut end) = own.get();
        if next == end {
            next = NEXT.fetch_add(BLOCK, Ordering::Relaxed);
            end = next + BLOCK;
        }
        own.set((next + 1, end));
        next
    })
}

#[cfg(feature = "serde")]
impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let error = self.error();
        let mut fields = serializer.serialize_struct("Status", 3 + usize::from(error.is_some()))?;
        fields.serialize_field("updated-at", &Rfc3339(self.updated_at()))?;
        match error {
            Some(error) => fields.serialize_field("error", error)?,
            None => fields.skip_field("error")?,
        }
        fields.serialize_field("id", &self.id())?;
        fields.serialize_field("kind", &self.kind())?;
        fields.end()
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}#{}", self.kind(), self.id())?;
        self.error().map_or(Ok(()), |error| write!(f, "({error})"))
    }
}

/// Pending: an object without a status has yet to be reconciled.
impl Default for Status {
    fn default() -> Self {
        Status::pending()
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, ago) = (self.kind(), Ago::since(self.updated_at()));
        match self.error() {
            Some(error) => write!(f, "{kind}: {error} ({ago} ago)"),
            None => write!(f, "{kind} ({ago} ago)"),
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

/// A time in UTC without trailing zeros.
#[cfg(feature = "serde")]
struct Rfc3339(SystemTime);

#[cfg(feature = "serde")]
impl Serialize for Rfc3339 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let since = self.0.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let nanos = i128::try_from(since.as_nanos()).ok();
        let time = nanos.and_then(|nanos| Timestamp::from_nanosecond(nanos).ok()).unwrap_or_default();
        serializer.collect_str(&time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_in_tables_and_as_json() {
        let at = SystemTime::UNIX_EPOCH + Duration::new(1_709_210_096, 250_000_000);
        let status = Status(Form::Plain(StatusKind::Error, micros(at), 7)).with_error("no such device");
        assert_eq!(
            serde_json::to_string(&status).unwrap(),
            r#"{"updated-at":"2024-02-29T12:34:56.25Z","error":"no such device","id":7,"kind":"Error"}"#
        );
        let status = Status(Form::Plain(StatusKind::Error, micros(at), 7));
        assert!(serde_json::to_string(&status).unwrap().ends_with(r#"Z","id":7,"kind":"Error"}"#));
        assert!(Status::failed("no such device").to_string().starts_with("Error: no such device ("));
        assert_eq!(Status::unset("off").to_string().split_once(' ').unwrap().0, ":");
        assert!(Status::pending().to_string().starts_with("Pending ("));
    }

    #[test]
    fn small_with_a_unique_id() {
        assert_eq!(size_of::<Status>(), 16);
        let ids = || (0..1000).map(|_| Status::pending().id()).collect::<Vec<_>>();
        let mut all = ids();
        all.extend(std::thread::scope(|scope| scope.spawn(ids).join().unwrap()));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 2000);
        let later = SystemTime::UNIX_EPOCH + Duration::from_secs(7_000_000_000);
        let status = Status::failed("oops");
        let moved = status.clone().with_updated_at(later);
        assert_eq!((moved.updated_at(), moved.id(), moved.error()), (later, status.id(), Some("oops")));
        assert_eq!((moved.kind(), moved.is_pending()), (StatusKind::Error, false));
    }

    #[test]
    fn durations_in_their_largest_unit() {
        let shown = |d: Duration| Ago(d).to_string();
        assert_eq!(shown(Duration::from_micros(12)), "12.0us");
        assert_eq!(shown(Duration::from_millis(1200)), "1.2s");
        assert_eq!(shown(Duration::from_secs(90)), "1.5m");
        assert_eq!(shown(Duration::from_secs(36 * 3600)), "1.5d");
    }
}
