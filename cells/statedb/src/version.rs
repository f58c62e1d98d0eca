//! One version of a table: persistent maps that share all that did not change with the versions before.

use std::any::Any;
use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdMap;

use crate::error::Conflict;
use crate::init::InitState;
use crate::key::KeyBuf;
use crate::obj::Obj;
use crate::query::{Prefix, Query};
use crate::rows::Rows;
use crate::spec::{IndexDef, TableSpec};
use crate::watch::{Watch, WatchCell};

pub(crate) type KeyMap<T> = OrdMap<KeyBuf, Obj<T>>;

pub(crate) struct Version<T> {
    /// Grows by one with each insert, update and delete that takes effect.
    pub(crate) revision: u64,
    pub(crate) primary: KeyMap<T>,
    pub(crate) by_revision: OrdMap<u64, Obj<T>>,
    secondary: Vec<Secondary<T>>,
    /// Deleted objects that trackers have yet to see: by primary key the revision of the delete, and back.
    pub(crate) graves: OrdMap<KeyBuf, u64>,
    pub(crate) graveyard: OrdMap<u64, (KeyBuf, Obj<T>)>,
    /// Closes with the next change of any row.
    pub(crate) watch: Arc<WatchCell>,
    pub(crate) init: Arc<InitState>,
}

/// A secondary index: the key alone if unique, else the key and the primary key behind it.
struct Secondary<T> {
    map: KeyMap<T>,
    /// Some row has had several keys, so that scans may meet a row twice.
    multi: bool,
}

impl<T> Clone for Secondary<T> {
    fn clone(&self) -> Self {
        Secondary { map: self.map.clone(), multi: self.multi }
    }
}

impl<T> Clone for Version<T> {
    fn clone(&self) -> Self {
        Version {
            revision: self.revision,
            primary: self.primary.clone(),
            by_revision: self.by_revision.clone(),
            secondary: self.secondary.clone(),
            graves: self.graves.clone(),
            graveyard: self.graveyard.clone(),
            watch: self.watch.clone(),
            init: self.init.clone(),
        }
    }
}

/// A version without its row type, as the database's root holds it.
pub trait AnyVersion: Any + Send + Sync {
    fn as_any(&self) -> &dyn Any;
}

impl<T: TableSpec> AnyVersion for Version<T> {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl<T: TableSpec> Version<T> {
    pub(crate) fn empty(indexes: usize) -> Self {
        Version {
            revision: 0,
            primary: OrdMap::new(),
            by_revision: OrdMap::new(),
            secondary: (0..indexes).map(|_| Secondary { map: OrdMap::new(), multi: false }).collect(),
            graves: OrdMap::new(),
            graveyard: OrdMap::new(),
            watch: Arc::default(),
            init: Arc::default(),
        }
    }

    // ---- reads

    pub(crate) fn get(&self, indexes: &[IndexDef<T>], query: &Query<T>) -> Option<&Obj<T>> {
        match position(indexes, query.index) {
            None => self.primary.get(&query.key),
            Some(at) if indexes[at].unique => self.secondary[at].map.get(&query.key),
            Some(at) => scan(&self.secondary[at].map, &query.key).next().map(|(_, object)| object),
        }
    }

    /// All rows with the key.
    pub(crate) fn list(&self, indexes: &[IndexDef<T>], query: &Query<T>) -> Rows<'_, T> {
        match position(indexes, query.index) {
            Some(at) if !indexes[at].unique => Rows::keyed(scan(&self.secondary[at].map, &query.key), false),
            _ => Rows::one(self.get(indexes, query)),
        }
    }

    pub(crate) fn prefix(&self, indexes: &[IndexDef<T>], prefix: &Prefix<T>) -> Rows<'_, T> {
        let (map, multi) = self.map(position(indexes, prefix.index));
        Rows::keyed(scan(map, &prefix.key), multi)
    }

    pub(crate) fn lower_bound(&self, indexes: &[IndexDef<T>], query: &Query<T>) -> Rows<'_, T> {
        let (map, multi) = self.map(position(indexes, query.index));
        Rows::keyed(map.range::<_, KeyBuf>(&query.key..), multi)
    }

    pub(crate) fn all(&self) -> Rows<'_, T> {
        Rows::keyed(self.primary.range::<_, KeyBuf>(..), false)
    }

    pub(crate) fn by_revision(&self, from: u64) -> Rows<'_, T> {
        Rows::by_revision(self.by_revision.range(from..))
    }

    /// The watch for the answer of `get`: the row's own on an index with one row a key, else the table's.
    pub(crate) fn get_watch(
        &self,
        indexes: &[IndexDef<T>],
        query: &Query<T>,
        found: Option<&Obj<T>>,
    ) -> Watch {
        let exact = position(indexes, query.index).is_none_or(|at| indexes[at].unique);
        match found {
            Some(object) if exact => object.watch(),
            _ => self.watch.watch(),
        }
    }

    fn map(&self, position: Option<usize>) -> (&KeyMap<T>, bool) {
        match position {
            None => (&self.primary, false),
            Some(at) => (&self.secondary[at].map, self.secondary[at].multi),
        }
    }

    // ---- writes

    /// The other row that has a unique key of `object`, if there is one.
    pub(crate) fn conflict(&self, indexes: &[IndexDef<T>], key: &KeyBuf, object: &T) -> Option<Conflict<T>> {
        let own = self.primary.get(key);
        for (index, secondary) in indexes.iter().zip(&self.secondary).filter(|(index, _)| index.unique) {
            for key in index.keys(object) {
                let existing = secondary.map.get(&key);
                if let Some(existing) = existing
                    && !own.is_some_and(|own| own.same(existing))
                {
                    return Some(Conflict { table: T::NAME, index: index.name, existing: existing.clone() });
                }
            }
        }
        None
    }

    /// Stores `object` under its primary key; gives the new handle and the replaced one.
    pub(crate) fn put(
        &mut self,
        indexes: &[IndexDef<T>],
        key: KeyBuf,
        object: T,
    ) -> (Obj<T>, Option<Obj<T>>) {
        self.revision += 1;
        let new = Obj::new(self.revision, object);
        let old = self.primary.insert(key.clone(), new.clone());
        if let Some(old) = &old {
            self.by_revision.remove(&old.revision());
        }
        self.by_revision.insert(self.revision, new.clone());
        self.reindex(indexes, &key, old.as_ref(), Some(&new));
        self.unbury(&key);
        (new, old)
    }

    pub(crate) fn remove(&mut self, indexes: &[IndexDef<T>], key: &KeyBuf) -> Option<Obj<T>> {
        let old = self.primary.remove(key)?;
        self.revision += 1;
        self.by_revision.remove(&old.revision());
        self.reindex(indexes, key, Some(&old), None);
        Some(old)
    }

    fn reindex(
        &mut self,
        indexes: &[IndexDef<T>],
        primary: &KeyBuf,
        old: Option<&Obj<T>>,
        new: Option<&Obj<T>>,
    ) {
        for (index, secondary) in indexes.iter().zip(&mut self.secondary) {
            let full = |mut key: KeyBuf| {
                if !index.unique {
                    key.push(primary.as_bytes());
                }
                key
            };
            let new_keys = new.map(|new| index.keys(new)).unwrap_or_default();
            for key in old.map(|old| index.keys(old)).unwrap_or_default() {
                if !new_keys.contains(&key) {
                    secondary.map.remove(&full(key));
                }
            }
            secondary.multi |= new_keys.len() > 1;
            if let Some(new) = new {
                for key in new_keys {
                    secondary.map.insert(full(key), new.clone());
                }
            }
        }
    }

    // ---- graveyard

    pub(crate) fn bury(&mut self, key: KeyBuf, object: Obj<T>, revision: u64) {
        self.unbury(&key);
        self.graves.insert(key.clone(), revision);
        self.graveyard.insert(revision, (key, object));
    }

    fn unbury(&mut self, key: &KeyBuf) {
        if !self.graves.is_empty()
            && let Some(revision) = self.graves.remove(key)
        {
            self.graveyard.remove(&revision);
        }
    }

    /// Forgets deletes up to the revision; tells whether there were any.
    pub(crate) fn forget_deletes(&mut self, upto: u64) -> bool {
        let mut any = false;
        while let Some((revision, (key, _))) = self.graveyard.get_min()
            && *revision <= upto
        {
            let (revision, key) = (*revision, key.clone());
            self.graves.remove(&key);
            self.graveyard.remove(&revision);
            any = true;
        }
        any
    }
}

/// Where an index is among the secondary ones; none is the primary.
fn position<T: TableSpec>(indexes: &[IndexDef<T>], name: Option<&'static str>) -> Option<usize> {
    let name = name?;
    let at = indexes.iter().position(|index| std::ptr::eq(index.name, name) || index.name == name);
    Some(at.unwrap_or_else(|| panic!("index `{name}` is not among the indexes of table `{}`", T::NAME)))
}

fn scan<'s, T>(map: &'s KeyMap<T>, start: &KeyBuf) -> crate::rows::KeyRange<'s, T> {
    let end = match start.successor() {
        Some(end) => Bound::Excluded(end),
        None => Bound::Unbounded,
    };
    map.range::<_, KeyBuf>((Bound::Included(start.clone()), end))
}
