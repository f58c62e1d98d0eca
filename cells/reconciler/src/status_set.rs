//! The statuses of several reconcilers in one object.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::status::{Ago, Status, StatusKind};

/// Statuses by the reconcilers' names, for objects whose reconcilers are not all known up front.
///
/// A name that is not there yet is pending. A new set, made by [`StatusSet::pending`] with each write of the object,
/// makes all of them pending. Persistent: copies share their contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusSet {
    /// The status of all names that have none of their own.
    pending: Status,
    /// Sorted by name.
    statuses: Arc<[(Arc<str>, Status)]>,
}

impl StatusSet {
    /// All names are to be reconciled.
    pub fn pending() -> Self {
        StatusSet { pending: Status::pending(), statuses: Arc::new([]) }
    }

    /// Makes all known names pending anew, keeping the names.
    pub fn set_pending(&mut self) {
        self.pending = Status::pending();
        self.statuses = self.statuses.iter().map(|(name, _)| (name.clone(), self.pending.clone())).collect();
    }

    /// The status of a name.
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

    /// Forgets a name, whose reconciler is gone.
    pub fn delete(&mut self, name: &str) {
        if self.find(name).is_ok() {
            self.statuses = self.statuses.iter().filter(|(known, _)| &**known != name).cloned().collect();
        }
    }

    /// Whether all of the names are done.
    pub fn is_done<'n>(&self, required: impl IntoIterator<Item = &'n str>) -> bool {
        required.into_iter().all(|name| self.get(name).is_done())
    }

    /// The known names and their statuses.
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
        let (mut errored, mut pending, mut done) = (String::new(), String::new(), String::new());
        let mut latest = SystemTime::UNIX_EPOCH;
        for (name, status) in self.iter() {
            latest = latest.max(status.updated_at);
            match (status.kind, &status.error) {
                (StatusKind::Done, _) => done += &format!(" {name}"),
                (StatusKind::Error, Some(error)) => errored += &format!(" {name} ({error})"),
                (StatusKind::Error, None) => errored += &format!(" {name}"),
                _ => pending += &format!(" {name}"),
            }
        }
        if self.statuses.is_empty() {
            return f.write_str("Pending");
        }
        for (label, names) in [("Errored:", &errored), ("Pending:", &pending), ("Done:", &done)] {
            if !names.is_empty() {
                write!(f, "{label}{names} ")?;
            }
        }
        write!(f, "({} ago)", Ago::since(latest))
    }
}

/// An object with a status for each name.
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
        assert_eq!(set.get("a"), set.get("b"));
        set.set("b", Status::done());
        set.set("a", Status::error("oops"));
        assert!(set.is_done(["b"]) && !set.is_done(["a", "b"]) && !set.is_done(["c"]));
        assert!(set.to_string().starts_with("Errored: a (oops) Done: b ("), "{set}");
        assert_eq!(set.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["a", "b"]);
        set.delete("a");
        assert!(set.get("a").is_pending());
        set.set_pending();
        assert!(set.get("b").is_pending());
    }
}
