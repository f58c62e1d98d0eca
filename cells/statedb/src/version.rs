//! One version of a table: an index for each way to find a row, which share all that did not change with the versions
//! before.

#![expect(unsafe_code, reason = "each tree of a version ends with it")]

use std::any::Any;
use std::sync::Arc;

use crate::engine::{Fate, Grave, Keyed, Retired, Revisioned, Revisions, Tree};
use crate::error::Conflict;
use crate::init::InitState;
use crate::key::KeyBuf;
use crate::obj::Obj;
use crate::query::{Prefix, Query};
use crate::root;
use crate::rows::Rows;
use crate::spec::{IndexDef, TableSpec};
use crate::watch::{Watch, WatchCell};

pub(crate) struct Version<T> {
    /// Of the transaction that made it.
    pub(crate) birth: u64,
    /// Grows by one with each insert, update and delete that takes effect.
    pub(crate) revision: u64,
    pub(crate) primary: Tree<Obj<T>>,
    pub(crate) by_revision: Revisions<Obj<T>>,
    pub(crate) secondary: Box<[Secondary<T>]>,
    /// Deleted objects that trackers have yet to see, by primary key and by the revision of the delete.
    pub(crate) graves: Tree<Grave<T>>,
    pub(crate) graveyard: Revisions<Grave<T>>,
    /// Closes with the next change of any row.
    pub(crate) watch: Arc<WatchCell>,
    pub(crate) init: Arc<InitState>,
}

/// A secondary index: the key alone if unique, else the key and the primary key behind it.
pub(crate) struct Secondary<T> {
    pub(crate) tree: Tree<Keyed<T>>,
    /// Some row has had several keys, so that scans may meet a row twice.
    pub(crate) multi: bool,
}

/// A version without its row type, as the database's root holds it.
pub(crate) trait AnyVersion: Any + Send + Sync {
    fn birth(&self) -> u64;

    fn fate(&self) -> &'static Fate;

    /// Puts everything in the version out of use.
    ///
    /// # Safety
    /// As of [`Tree::dismantle`].
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
        match position(indexes, query.index) {
            None => self.primary.get(key),
            Some(at) if indexes[at].unique => self.secondary[at].tree.get(key).map(Keyed::row),
            Some(at) => self.secondary[at].tree.prefix(key).next().map(Keyed::row),
        }
    }

    /// All rows with the key.
    pub(crate) fn list(&self, indexes: &[IndexDef<T>], query: &Query<T>) -> Rows<'_, T> {
        match position(indexes, query.index) {
            Some(at) if !indexes[at].unique => {
                Rows::keyed(self.secondary[at].tree.prefix(query.key.as_bytes()), false)
            }
            _ => Rows::one(self.get(indexes, query)),
        }
    }

    pub(crate) fn prefix(&self, indexes: &[IndexDef<T>], prefix: &Prefix<T>) -> Rows<'_, T> {
        let key = prefix.key.as_bytes();
        match position(indexes, prefix.index).map(|at| &self.secondary[at]) {
            None => Rows::primary(self.primary.prefix(key)),
            Some(index) => Rows::keyed(index.tree.prefix(key), index.multi),
        }
    }

    pub(crate) fn lower_bound(&self, indexes: &[IndexDef<T>], query: &Query<T>) -> Rows<'_, T> {
        let key = query.key.as_bytes();
        match position(indexes, query.index).map(|at| &self.secondary[at]) {
            None => Rows::primary(self.primary.from(key)),
            Some(index) => Rows::keyed(index.tree.from(key), index.multi),
        }
    }

    pub(crate) fn all(&self) -> Rows<'_, T> {
        Rows::primary(self.primary.all())
    }

    pub(crate) fn by_revision(&self, from: u64) -> Rows<'_, T> {
        Rows::by_revision(self.by_revision.from(from))
    }

    /// Deletes at this revision or later.
    pub(crate) fn deletes(&self, from: u64) -> impl Iterator<Item = (u64, &Obj<T>)> {
        let graves = self.graveyard.from(from);
        graves.map(|grave| (grave.get().revision(), grave.get().object()))
    }

    /// The watch for the rows with a key: on an index with one row a key the row's own, if there is one, else that of
    /// the part of the index where they would be.
    pub(crate) fn key_watch(
        &self,
        indexes: &[IndexDef<T>],
        query: &Query<T>,
        found: Option<&Obj<T>>,
    ) -> Watch {
        let exact = position(indexes, query.index).is_none_or(|at| indexes[at].unique);
        match found {
            Some(object) if exact => object.watch(),
            _ => self.part_watch(indexes, query.index, &query.key),
        }
    }

    /// The watch for the rows whose key of an index starts with this.
    pub(crate) fn part_watch(
        &self,
        indexes: &[IndexDef<T>],
        index: Option<&'static str>,
        start: &KeyBuf,
    ) -> Watch {
        let part = match position(indexes, index) {
            None => self.primary.prefix_watch(start.as_bytes()),
            Some(at) => self.secondary[at].tree.prefix_watch(start.as_bytes()),
        };
        part.unwrap_or(&self.watch).watch()
    }

    /// The other row that has a unique key of `object`, if there is one.
    pub(crate) fn conflict(&self, indexes: &[IndexDef<T>], key: &KeyBuf, object: &T) -> Option<Conflict<T>> {
        let own = self.primary.get(key.as_bytes());
        for (index, secondary) in indexes.iter().zip(&self.secondary).filter(|(index, _)| index.unique) {
            for key in index.keys(object) {
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
        // JUSTIFICATION: the end of a database.
        // SAFETY: promised by the caller.
        unsafe {
            self.by_revision.dismantle(each);
            self.graveyard.dismantle(each);
            self.secondary.iter().for_each(|index| index.tree.dismantle(each));
            self.graves.dismantle(each);
            self.primary.dismantle(each);
        }
    }
}

/// Where an index is among the secondary ones; none is the primary.
fn position<T: TableSpec>(indexes: &[IndexDef<T>], name: Option<&'static str>) -> Option<usize> {
    let name = name?;
    let at = indexes.iter().position(|index| std::ptr::eq(index.name, name) || index.name == name);
    Some(at.unwrap_or_else(|| panic!("index `{name}` is not among the indexes of table `{}`", T::NAME)))
}
