//! One version of a table: its indexes, which share unchanged nodes with earlier versions.

#![expect(unsafe_code, reason = "each tree of a version ends with it")]

use std::any::Any;
use std::sync::Arc;

use crate::engine::{Fate, Grave, Keyed, Retired, Revisioned, Revisions, Tree};
use crate::error::Conflict;
use crate::init::InitState;
use crate::key::{KeyBuf, inside};
use crate::obj::Obj;
use crate::query::{KeyRange, Prefix, Query};
use crate::root;
use crate::rows::Rows;
use crate::spec::{IndexDef, Matching, TableSpec};
use crate::watch::{Watch, WatchCell};

pub(crate) struct Version<T> {
    /// The birth of the edit that allocated it: one more than the number of the root from which it began.
    pub(crate) birth: u64,
    /// Incremented by each insert, update and delete that takes effect.
    pub(crate) revision: u64,
    pub(crate) primary: Tree<Obj<T>>,
    pub(crate) by_revision: Revisions<Obj<T>>,
    pub(crate) secondary: Box<[Secondary<T>]>,
    /// Deleted objects that not all trackers have seen, by primary key and by the revision of the delete.
    pub(crate) graves: Tree<Grave<T>>,
    pub(crate) graveyard: Revisions<Grave<T>>,
    /// Closes with the next change of any row.
    pub(crate) watch: Arc<WatchCell>,
    pub(crate) init: Arc<InitState>,
}

/// A secondary index. Its tree keys are the index key, followed by the primary key unless the index is unique.
pub(crate) struct Secondary<T> {
    pub(crate) tree: Tree<Keyed<T>>,
    /// Whether any row ever had several keys, so that a scan may visit a row twice.
    pub(crate) multi: bool,
}

/// A version without its row type, as roots hold it.
pub(crate) trait AnyVersion: Any + Send + Sync {
    fn birth(&self) -> u64;

    fn fate(&self) -> &'static Fate;

    /// Passes all nodes and leaves of the version to `each`.
    ///
    /// # Safety
    /// As for [`Tree::dismantle`], for each tree of the version.
    unsafe fn dismantle(&self, each: &mut dyn FnMut(Retired));
}

impl<T: TableSpec> Version<T> {
    const FATE: &'static Fate = &Fate { free: root::free_version::<Self>, close: root::close_nothing };

    pub(crate) fn empty(indexes: usize) -> Self {
        Version {
            birth: 0,
            revision: 0,
            primary: Tree::EMPTY,
            by_revision: Revisions::EMPTY,
            secondary: (0..indexes).map(|_| Secondary { tree: Tree::EMPTY, multi: false }).collect(),
            graves: Tree::EMPTY,
            graveyard: Revisions::EMPTY,
            watch: Arc::default(),
            init: Arc::default(),
        }
    }

    pub(crate) fn get(&self, indexes: &[IndexDef<T>], query: &Query<T>) -> Option<&Obj<T>> {
        let key = query.key.as_bytes();
        let Some(at) = position(indexes, query.index) else { return self.primary.get(key) };
        let (index, tree) = (&indexes[at], &self.secondary[at].tree);
        let found = match index.matching {
            Matching::Exact if index.unique => tree.get(key),
            Matching::Exact => tree.prefix(key).next(),
            Matching::Longest => tree.longest(key).first(),
        };
        found.map(Keyed::row)
    }

    /// Returns all rows with the key.
    pub(crate) fn list(&self, indexes: &[IndexDef<T>], query: &Query<T>) -> Rows<'_, T> {
        let key = query.key.as_bytes();
        match position(indexes, query.index) {
            Some(at) if !indexes[at].unique => {
                let tree = &self.secondary[at].tree;
                let keyed = match indexes[at].matching {
                    Matching::Exact => tree.prefix(key),
                    Matching::Longest => tree.longest(key).leaves(),
                };
                Rows::keyed(keyed, false)
            }
            _ => Rows::one(self.get(indexes, query)),
        }
    }

    pub(crate) fn prefix(&self, indexes: &[IndexDef<T>], prefix: &Prefix<T>) -> Rows<'_, T> {
        let key = prefix.key.as_bytes();
        let Some(at) = position(indexes, prefix.index) else {
            return Rows::primary(self.primary.prefix(key));
        };
        let Secondary { tree, multi } = &self.secondary[at];
        let keyed = match indexes[at].matching {
            Matching::Exact => tree.prefix(key),
            Matching::Longest => match inside(key) {
                (start, None) => tree.prefix(start),
                (_, Some(end)) => tree.between(key, end.as_bytes()),
            },
        };
        Rows::keyed(keyed, *multi)
    }

    pub(crate) fn lower_bound(&self, indexes: &[IndexDef<T>], query: &Query<T>) -> Rows<'_, T> {
        let key = query.key.as_bytes();
        match position(indexes, query.index).map(|at| &self.secondary[at]) {
            None => Rows::primary(self.primary.from(key)),
            Some(index) => Rows::keyed(index.tree.from(key), index.multi),
        }
    }

    pub(crate) fn range(&self, indexes: &[IndexDef<T>], range: &KeyRange<T>) -> Rows<'_, T> {
        let start = range.start.as_bytes();
        match (position(indexes, range.index).map(|at| &self.secondary[at]), &range.end) {
            (None, None) => Rows::primary(self.primary.from(start)),
            (None, Some(end)) => Rows::primary(self.primary.between(start, end.as_bytes())),
            (Some(index), None) => Rows::keyed(index.tree.from(start), index.multi),
            (Some(index), Some(end)) => Rows::keyed(index.tree.between(start, end.as_bytes()), index.multi),
        }
    }

    pub(crate) fn all(&self) -> Rows<'_, T> {
        Rows::primary(self.primary.all())
    }

    pub(crate) fn by_revision(&self, from: u64) -> Rows<'_, T> {
        Rows::by_revision(self.by_revision.from(from))
    }

    /// Returns the deletes at this revision or later.
    pub(crate) fn deletes(&self, from: u64) -> impl Iterator<Item = (u64, &Obj<T>)> {
        let graves = self.graveyard.from(from);
        graves.map(|grave| (grave.get().revision(), grave.get().object()))
    }

    /// Returns the watch for the rows of a query: for the primary and unique indexes the found row's own, otherwise
    /// that of the part of the index in which the rows are or would be inserted.
    pub(crate) fn key_watch(
        &self,
        indexes: &[IndexDef<T>],
        query: &Query<T>,
        found: Option<&Obj<T>>,
    ) -> Watch {
        let key = query.key.as_bytes();
        let at = position(indexes, query.index);
        let longest = at.filter(|at| indexes[*at].matching == Matching::Longest);
        if let Some(at) = longest {
            return self.secondary[at].tree.longest(key).watch().unwrap_or(&self.watch).watch();
        }
        match found {
            Some(object) if at.is_none_or(|at| indexes[at].unique) => object.watch(),
            _ => self.part_watch(at, key),
        }
    }

    /// Returns the watch for the rows of a prefix query.
    pub(crate) fn prefix_watch(&self, indexes: &[IndexDef<T>], prefix: &Prefix<T>) -> Watch {
        let key = prefix.key.as_bytes();
        let at = position(indexes, prefix.index);
        match at.map(|at| indexes[at].matching) {
            Some(Matching::Longest) => self.part_watch(at, inside(key).0),
            _ => self.part_watch(at, key),
        }
    }

    /// Returns the watch for the rows of a range.
    pub(crate) fn range_watch(&self, indexes: &[IndexDef<T>], range: &KeyRange<T>) -> Watch {
        self.part_watch(position(indexes, range.index), range.common().as_bytes())
    }

    /// Returns the watch for the rows whose key in an index starts with these bytes.
    fn part_watch(&self, index: Option<usize>, start: &[u8]) -> Watch {
        let part = match index {
            None => self.primary.prefix_watch(start),
            Some(at) => self.secondary[at].tree.prefix_watch(start),
        };
        part.unwrap_or(&self.watch).watch()
    }

    /// Returns the conflict with another row that has a unique key of `object`, if any. `keys` is a reused buffer.
    pub(crate) fn conflict(
        &self,
        indexes: &[IndexDef<T>],
        key: &KeyBuf,
        object: &T,
        keys: &mut Vec<KeyBuf>,
    ) -> Option<Conflict<T>> {
        if !T::UNIQUE_SECONDARY {
            return None;
        }
        let own = self.primary.get(key.as_bytes());
        for (index, secondary) in indexes.iter().zip(&self.secondary).filter(|(index, _)| index.unique) {
            index.keys_into(Some(object), keys);
            for key in &*keys {
                let existing = secondary.tree.get(key.as_bytes()).map(Keyed::row);
                if let Some(existing) = existing
                    && !own.is_some_and(|own| own.same(existing))
                {
                    return Some(Conflict { table: T::NAME, index: index.name, existing: existing.clone() });
                }
            }
        }
        None
    }
}

impl<T: TableSpec> AnyVersion for Version<T> {
    fn birth(&self) -> u64 {
        self.birth
    }

    fn fate(&self) -> &'static Fate {
        Self::FATE
    }

    unsafe fn dismantle(&self, each: &mut dyn FnMut(Retired)) {
        // JUSTIFICATION: the last root of a database retires everything it reaches.
        // SAFETY: the caller upholds the contract of `dismantle` for all trees of the version, and each tree is
        // passed once.
        unsafe {
            self.by_revision.dismantle(each);
            self.graveyard.dismantle(each);
            self.secondary.iter().for_each(|index| index.tree.dismantle(each));
            self.graves.dismantle(each);
            self.primary.dismantle(each);
        }
    }
}

/// Returns the position of an index among the secondary ones; none for the primary.
fn position<T: TableSpec>(indexes: &[IndexDef<T>], name: Option<&'static str>) -> Option<usize> {
    let name = name?;
    let at = indexes.iter().position(|index| std::ptr::eq(index.name, name) || index.name == name);
    Some(at.unwrap_or_else(|| panic!("index `{name}` is not among the indexes of table `{}`", T::NAME)))
}
