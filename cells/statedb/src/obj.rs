//! Stored objects and the handles that readers get.

use std::fmt;
use std::ops::Deref;

use crate::engine::Counted;
use crate::watch::{Watch, WatchCell};

/// A counted handle to one immutable version of a stored object.
///
/// It outlives snapshots and transactions, and dereferences to the object; a clone increments one reference count. To
/// change an object, insert a new one: `let mut d = (**obj).clone(); d.mtu = 9000; w.insert(d);` or `w.update(..)`.
pub struct Obj<T>(Counted<Entry<T>>);

struct Entry<T> {
    /// The birth of the edit that allocated it, for the storage engine.
    birth: u64,
    revision: u64,
    watch: WatchCell,
    value: T,
}

impl<T> Obj<T> {
    pub(crate) fn new(birth: u64, revision: u64, value: T) -> Self {
        Obj(Counted::new(Entry { birth, revision, watch: WatchCell::default(), value }))
    }

    pub(crate) fn birth(&self) -> u64 {
        self.0.birth
    }

    /// Returns the table's revision of the write of this version.
    pub fn revision(&self) -> u64 {
        self.0.revision
    }

    /// Whether both handles point at the same version of the same object.
    pub fn same(&self, other: &Self) -> bool {
        self.0.addr() == other.0.addr()
    }

    pub(crate) fn id(&self) -> usize {
        self.0.addr()
    }

    /// Returns a watch that closes when this version is replaced or deleted.
    pub(crate) fn watch(&self) -> Watch {
        self.0.watch.watch()
    }

    pub(crate) fn close_watch(&self) {
        self.0.watch.close();
    }
}

impl<T> Clone for Obj<T> {
    fn clone(&self) -> Self {
        Obj(self.0.clone())
    }
}

impl<T> Deref for Obj<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> AsRef<T> for Obj<T> {
    fn as_ref(&self) -> &T {
        &self.0.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Obj<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}@{}", self.0.value, self.0.revision)
    }
}

/// Equal when the objects are equal, whatever their revisions.
impl<T: PartialEq> PartialEq for Obj<T> {
    fn eq(&self, other: &Self) -> bool {
        self.same(other) || self.0.value == other.0.value
    }
}

#[cfg(feature = "untyped")]
impl<T: serde::Serialize> serde::Serialize for Obj<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.value.serialize(serializer)
    }
}
