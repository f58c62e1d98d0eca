//! The statuses of several reconcilers in one object.

use std::fmt;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

#[cfg(feature = "serde")]
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::status::{Ago, Status, StatusKind};

/// Statuses by reconciler name, for objects whose reconcilers are not all known in advance.
///
/// A name without a status is pending. Writers of the object make all names pending: by a new set, or by
/// [`set_pending`](StatusSet::set_pending), which keeps the names. Clones share their contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusSet {
    /// The status of all names without an entry in `statuses`.
    pending: Status,
    /// Sorted by name.
    statuses: Arc<[(Arc<str>, Status)]>,
}

impl StatusSet {
    /// Returns a set in which all names are pending and none is known.
    pub fn pending() -> Self {
        StatusSet { pending: Status::pending(), statuses: Arc::new([]) }
    }

    /// Returns a set in which all names are pending and these are known: the set is not done before they are, even if
    /// their reconcilers have not set a status yet.
    pub fn requiring<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        let pending = Status::pending();
        let mut statuses: Vec<_> = names.into_iter().map(|name| (Arc::from(name), pending.clone())).collect();
        statuses.sort_unstable_by(|(a, _): &(Arc<str>, _), (b, _)| a.cmp(b));
        statuses.dedup_by(|(a, _), (b, _)| a == b);
        StatusSet { pending, statuses: statuses.into() }
    }

    /// Makes all known names pending again, keeping the names.
    pub fn set_pending(&mut self) {
        self.pending = Status::pending();
        self.statuses = self.statuses.iter().map(|(name, _)| (name.clone(), self.pending.clone())).collect();
    }

    /// Returns the status of a name.
    pub fn get(&self, name: &str) -> Status {
        match self.find(name) {
            Ok(at) => self.statuses[at].1.clone(),
            Err(_) => self.pending.clone(),
        }
    }

    /// Sets the status of a name.
    pub fn set(&mut self, name: &str, status: Status) {
        let mut statuses = self.statuses.to_vec();
        match self.find(name) {
            Ok(at) => statuses[at].1 = status,
            Err(at) => statuses.insert(at, (name.into(), status)),
        }
        self.statuses = statuses.into();
    }

    /// Removes a name whose reconciler no longer exists.
    pub fn delete(&mut self, name: &str) {
        if self.find(name).is_ok() {
            self.statuses = self.statuses.iter().filter(|(known, _)| &**known != name).cloned().collect();
        }
    }

    /// Whether all known names are done, and there are any. A name that is neither set nor [required](Self::requiring)
    /// is not known.
    pub fn is_done(&self) -> bool {
        !self.statuses.is_empty() && self.iter().all(|(_, status)| status.is_done())
    }

    /// Whether all of these names are done.
    pub fn are_done<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> bool {
        names.into_iter().all(|name| self.get(name).is_done())
    }

    /// Whether a reconciler has yet to process the object.
    pub fn is_pending(&self) -> bool {
        self.statuses.is_empty() || self.iter().any(|(_, status)| status.is_pending())
    }

    /// Returns the known names and their statuses.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Status)> {
        self.statuses.iter().map(|(name, status)| (&**name, status))
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        self.statuses.binary_search_by(|(known, _)| (**known).cmp(name))
    }
}

impl Default for StatusSet {
    fn default() -> Self {
        StatusSet::pending()
    }
}

impl fmt::Display for StatusSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.statuses.is_empty() {
            return f.write_str("Pending");
        }
        let named = |label: &str, matches: fn(&Status) -> bool| {
            let names = self.iter().filter(|(_, status)| matches(status)).map(|(name, status)| match status
                .error()
                .filter(|_| status.kind() == StatusKind::Error)
            {
                Some(error) => format!("{name} ({error})"),
                None => name.to_owned(),
            });
            let names: Vec<_> = names.collect();
            (!names.is_empty()).then(|| format!("{label}: {}", names.join(" ")))
        };
        let parts = [
            named("Errored", |status| status.kind() == StatusKind::Error),
            named("Pending", |status| !status.is_done() && status.kind() != StatusKind::Error),
            named("Done", Status::is_done),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        let latest = self.iter().map(|(_, status)| status.updated_at()).max().unwrap_or(UNIX_EPOCH);
        write!(f, "{} ({} ago)", parts.join(", "), Ago::since(latest))
    }
}

/// An object with a status for each name.
#[cfg(feature = "serde")]
impl Serialize for StatusSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.statuses.len()))?;
        for (name, status) in self.iter() {
            map.serialize_entry(name, status)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_are_pending_under_one_id() {
        let mut set = StatusSet::pending();
        assert_eq!((set.get("a"), set.to_string().as_str()), (set.get("b"), "Pending"));
        set.set("b", Status::done());
        set.set("a", Status::failed("oops"));
        set.set("c", Status::refreshing());
        assert!(set.to_string().starts_with("Errored: a (oops), Pending: c, Done: b ("), "{set}");
        assert_eq!(set.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["a", "b", "c"]);
        set.delete("a");
        assert!(set.get("a").is_pending());
        let before = set.get("b").id();
        set.set_pending();
        assert!(set.get("b").is_pending() && set.get("b").id() != before);
        assert_eq!((set.get("b").id(), set.iter().count()), (set.get("new").id(), 2));
    }

    #[test]
    fn done_when_all_known_and_required_names_are() {
        let mut set = StatusSet::pending();
        assert!(!set.is_done() && set.is_pending(), "no reconciler has set a status");
        set.set("b", Status::done());
        assert!(set.is_done() && !set.is_pending() && set.are_done(["b"]) && !set.are_done(["a", "b"]));
        let mut set = StatusSet::requiring(["b", "a", "b"]);
        set.set("b", Status::done());
        assert!(!set.is_done() && set.is_pending(), "{set}");
        set.set("a", Status::failed("oops"));
        assert!(!set.is_done() && !set.is_pending(), "{set}");
        set.delete("a");
        assert!(set.is_done(), "a reconciler that is gone is not waited for");
        let json = serde_json::to_value(&set).unwrap();
        assert_eq!(json["b"]["kind"], "Done");
    }
}
