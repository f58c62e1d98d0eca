//! The private copy of a version that a transaction writes to.

#![expect(unsafe_code, reason = "versions share trees, and revisions borrow the rows of the primary index")]

use std::ops::Deref;
use std::sync::Arc;

use crate::db::Snapshot;
use crate::engine::{Alias, Edit, Grave, Keyed, Revisioned};
use crate::error::Conflict;
use crate::init::InitState;
use crate::key::KeyBuf;
use crate::obj::Obj;
use crate::panics::Panics;
use crate::root::{AnyVersionRef, Sealed};
use crate::spec::{IndexDef, TableSpec};
use crate::version::{Secondary, Version};

/// The next version of a table. Dropping it before it is sealed frees everything that it allocated.
pub(crate) struct Work<T: TableSpec> {
    /// None once it is sealed.
    version: Option<Box<Version<T>>>,
    edit: Edit,
    /// Keeps the nodes allocated that the version shares with the previous one.
    base: Snapshot,
    position: usize,
    /// Set during a write. It stays set if code of the row's type panicked in the middle: the row may then be in some
    /// indexes and not in others.
    torn: bool,
    /// Reused buffers for the new and old keys of a row in an index.
    keys: [Vec<KeyBuf>; 2],
}

const SEALED: &str = "work that is not sealed";

impl<T: TableSpec> Work<T> {
    /// Begins from the version that the table at a position has in `base`.
    pub(crate) fn begin(base: Snapshot, position: usize) -> Self {
        let before = before::<T>(&base, position);
        let birth = base.number() + 1;
        // JUSTIFICATION: a transaction begins without copying anything.
        // SAFETY: `base` is held as long as the work; only one version that begins from `before` is published
        // (`Versions::replace` checks that), with this edit; others are abandoned by `drop`.
        let version = unsafe {
            Version {
                birth,
                revision: before.revision,
                primary: before.primary.fork(),
                by_revision: before.by_revision.fork(),
                secondary: (before.secondary.iter())
                    .map(|index| Secondary { tree: index.tree.fork(), multi: index.multi })
                    .collect(),
                graves: before.graves.fork(),
                graveyard: before.graveyard.fork(),
                watch: before.watch.clone(),
                init: before.init.clone(),
            }
        };
        let version = Some(Box::new(version));
        Work { version, edit: Edit::new(birth), base, position, torn: false, keys: Default::default() }
    }

    /// Returns whether a write panicked before it was complete.
    pub(crate) fn is_torn(&self) -> bool {
        self.torn
    }

    /// Returns all tables as they were at the beginning.
    pub(crate) fn base(&self) -> &Snapshot {
        &self.base
    }

    /// Returns the version from which the work began.
    pub(crate) fn before(&self) -> &Version<T> {
        before(&self.base, self.position)
    }

    fn version_mut(&mut self) -> &mut Version<T> {
        self.version.as_deref_mut().expect(SEALED)
    }

    /// Replaces the watch of the whole table by a new one; the commit closes the old one.
    pub(crate) fn renew_watch(&mut self) {
        self.version_mut().watch = Arc::default();
    }

    pub(crate) fn set_init(&mut self, init: InitState) {
        self.version_mut().init = Arc::new(init);
    }

    /// Ends the work with the version to publish.
    pub(crate) fn seal(&mut self) -> Sealed {
        Sealed {
            position: self.position,
            began: std::ptr::from_ref(self.before()).cast(),
            version: self.version.take().expect(SEALED),
            edit: std::mem::replace(&mut self.edit, Edit::new(self.base.number() + 1)),
        }
    }

    /// Stores `object` under its primary key; returns the replaced one.
    pub(crate) fn put(&mut self, indexes: &[IndexDef<T>], key: &KeyBuf, object: T) -> Option<Obj<T>> {
        let Work { version, edit, keys, torn, .. } = self;
        let version = version.as_deref_mut().expect(SEALED);
        let torn_before = std::mem::replace(torn, true);
        version.revision += 1;
        let new = Obj::new(edit.birth(), version.revision, object);
        // JUSTIFICATION: one count for a row in two indexes.
        // SAFETY: the row is in the primary tree from the next line on. `put` and `remove`, which alone change that
        // tree, remove a row that they take out of it from the revision index as well; if code of the row's type
        // panics in between, the work is torn and is never published.
        let alias = unsafe { Alias::new(&new) };
        let old = version.primary.insert(edit, key.as_bytes(), new);
        if let Some(old) = &old {
            version.by_revision.remove(edit, old.revision());
        }
        reindex(version.secondary.iter_mut(), edit, keys, indexes, key, old.as_deref(), Some(alias.get()));
        version.by_revision.insert(edit, version.revision, alias);
        unbury(version, edit, key);
        let handle = old.as_deref().cloned();
        if let Some(old) = old {
            old.retire(edit);
        }
        *torn = torn_before;
        handle
    }

    /// Returns the conflict with another row that has a unique key of `object`, if any.
    pub(crate) fn conflict(
        &mut self,
        indexes: &[IndexDef<T>],
        key: &KeyBuf,
        object: &T,
    ) -> Option<Conflict<T>> {
        let Work { version, keys: [keys, _], .. } = self;
        version.as_ref().expect(SEALED).conflict(indexes, key, object, keys)
    }

    /// Removes and returns the row with a primary key.
    pub(crate) fn remove(&mut self, indexes: &[IndexDef<T>], key: &KeyBuf) -> Option<Obj<T>> {
        let Work { version, edit, keys, torn, .. } = self;
        let version = version.as_deref_mut().expect(SEALED);
        let torn_before = std::mem::replace(torn, true);
        let Some(old) = version.primary.remove(edit, key.as_bytes()) else {
            *torn = torn_before;
            return None;
        };
        version.revision += 1;
        version.by_revision.remove(edit, old.revision());
        reindex(version.secondary.iter_mut(), edit, keys, indexes, key, Some(&old), None);
        let handle = Obj::clone(&old);
        old.retire(edit);
        *torn = torn_before;
        Some(handle)
    }

    /// Adds a deleted row to the graveyard, where it stays until all trackers have seen the delete. Does nothing if its
    /// key was inserted again.
    pub(crate) fn bury(&mut self, object: Obj<T>, revision: u64) {
        let Work { version, edit, .. } = self;
        let version = version.as_deref_mut().expect(SEALED);
        let key = KeyBuf::of(&object.key());
        if version.primary.get(key.as_bytes()).is_some() {
            return;
        }
        unbury(version, edit, &key);
        let grave = Grave::new(edit.birth(), revision, object);
        // JUSTIFICATION: one allocation for a grave in two trees, as for rows.
        // SAFETY: the grave itself is inserted into `graves` below, and `unbury`, which alone takes graves out, removes
        // them from both trees.
        let alias = unsafe { Alias::new(&grave) };
        version.graveyard.insert(edit, revision, alias);
        version.graves.insert(edit, key.as_bytes(), grave);
    }

    /// Removes deletes up to a revision from the graveyard; returns the revision of the newest of them.
    pub(crate) fn forget_deletes(&mut self, upto: u64) -> Option<u64> {
        let mut forgotten = None;
        let Work { version, edit, .. } = self;
        let version = version.as_deref_mut().expect(SEALED);
        while !version.graveyard.is_empty()
            && let Some(grave) = version.graveyard.from(0).next()
            && grave.get().revision() <= upto
        {
            forgotten = Some(grave.get().revision());
            let key = KeyBuf::of(&grave.get().object().key());
            unbury(version, edit, &key);
        }
        forgotten
    }
}

/// Returns the version of a table in a snapshot of its own database.
fn before<T: TableSpec>(base: &Snapshot, position: usize) -> &Version<T> {
    let before = base.versions().get(position).and_then(AnyVersionRef::downcast);
    before.expect("a table's own database holds it")
}

/// Removes a key's grave, if there is one, from both trees.
fn unbury<T: TableSpec>(version: &mut Version<T>, edit: &mut Edit, key: &KeyBuf) {
    if !version.graves.is_empty()
        && let Some(grave) = version.graves.remove(edit, key.as_bytes())
    {
        version.graveyard.remove(edit, grave.revision());
        grave.retire(edit);
    }
}

/// Moves a row from its old keys to its new ones in all secondary indexes.
fn reindex<'v, T: TableSpec>(
    secondary: impl Iterator<Item = &'v mut Secondary<T>>,
    edit: &mut Edit,
    keys: &mut [Vec<KeyBuf>; 2],
    indexes: &[IndexDef<T>],
    primary: &KeyBuf,
    old: Option<&Obj<T>>,
    new: Option<&Obj<T>>,
) {
    let [old_keys, new_keys] = keys;
    for (index, Secondary { tree, multi }) in indexes.iter().zip(secondary) {
        index.full_keys_into(new.map(|new| &**new), primary, new_keys);
        *multi |= new_keys.len() > 1;
        let mut replaced = false;
        if let Some(new) = new {
            for key in &*new_keys {
                let leaf = Keyed::new(edit.birth(), new.clone(), key.as_bytes());
                if let Some(there) = tree.insert(edit, key.as_bytes(), leaf) {
                    replaced |= old.is_some_and(|old| old.same(there.row()));
                    there.retire(edit);
                }
            }
        }
        // If no row ever had several keys, a row whose key was replaced in place has no other key to remove.
        if replaced && !*multi {
            continue;
        }
        index.full_keys_into(old.map(|old| &**old), primary, old_keys);
        // Both lists are sorted: one pass finds the old keys that are not among the new ones.
        let mut kept = new_keys.iter().peekable();
        for key in &*old_keys {
            while kept.next_if(|new| *new < key).is_some() {}
            if kept.peek() != Some(&key)
                && let Some(there) = tree.remove(edit, key.as_bytes())
            {
                there.retire(edit);
            }
        }
    }
}

impl<T: TableSpec> Deref for Work<T> {
    type Target = Version<T>;

    fn deref(&self) -> &Version<T> {
        self.version.as_deref().expect(SEALED)
    }
}

impl<T: TableSpec> Drop for Work<T> {
    fn drop(&mut self) {
        let Work { version: Some(version), edit, .. } = self else { return };
        let birth = edit.birth();
        version.by_revision.abandon(birth);
        version.graveyard.abandon(birth);
        // Dropping rows runs code of their type, which may panic: each remaining step is executed even so.
        let mut panics = Panics::default();
        panics.each(&mut version.secondary, |index| index.tree.abandon(birth));
        panics.run(|| version.graves.abandon(birth));
        panics.run(|| version.primary.abandon(birth));
        panics.run(|| edit.abandon());
        panics.resume();
    }
}
