//! The published root of a database: a version of each table.

#![expect(unsafe_code, reason = "versions are freed with the last root that reaches them")]

use std::any::TypeId;
use std::marker::PhantomData;

use crate::engine::{Edit, Retired, Root, Roots};
use crate::txn::Few;
use crate::version::AnyVersion;

/// All published states of a database.
pub(crate) type States = Roots<Versions>;

/// Versions by table position, which is the order of registration.
pub(crate) struct Versions {
    /// The id of the database.
    db: u64,
    tables: Vec<VersionRef>,
}

impl Clone for Versions {
    fn clone(&self) -> Self {
        Versions { db: self.db, tables: self.tables.clone() }
    }

    /// Copies into the existing allocation of `self`: a commit does this under the lock that all commits share, so it
    /// should not allocate.
    fn clone_from(&mut self, source: &Self) {
        self.db = source.db;
        self.tables.clone_from(&source.tables);
    }
}

/// A version that is owned by the roots that contain it: it is retired like a node when a later root replaces it.
#[derive(Clone, Copy)]
struct VersionRef(*const dyn AnyVersion, TypeId);

/// A version with its type id, so that a downcast needs no virtual call.
#[derive(Clone, Copy, Debug)]
pub struct AnyVersionRef<'s> {
    version: *const (),
    type_id: TypeId,
    marker: PhantomData<&'s ()>,
}

impl<'s> AnyVersionRef<'s> {
    pub(crate) fn new<V: AnyVersion>(version: &'s V) -> Self {
        AnyVersionRef {
            version: (&raw const *version).cast(),
            type_id: TypeId::of::<V>(),
            marker: PhantomData,
        }
    }

    /// Returns the version, if its type is `V`.
    #[inline]
    pub(crate) fn downcast<V: AnyVersion>(self) -> Option<&'s V> {
        // JUSTIFICATION: every read of a table downcasts; this costs one comparison.
        // SAFETY: the pointer is valid for `'s`, as both constructors (`new` and `Versions::get`) borrow the version
        // for `'s`, and it points at a `V`, as both store the id of the version's concrete type.
        (self.type_id == TypeId::of::<V>()).then(|| unsafe { &*self.version.cast::<V>() })
    }
}

// JUSTIFICATION: a raw pointer that several roots share, see `Versions::get`.
// SAFETY: the version behind it is only read until it is freed, on any thread, and `AnyVersion` requires `Send` and
// `Sync`.
unsafe impl Send for VersionRef {}
// SAFETY: as above.
unsafe impl Sync for VersionRef {}

impl VersionRef {
    fn of(version: Box<dyn AnyVersion>) -> Self {
        let type_id = (*version).type_id();
        VersionRef(Box::into_raw(version), type_id)
    }
}

/// The result of a writer's work on a table.
#[expect(missing_debug_implementations, reason = "callers outside of the crate cannot name it")]
pub struct Sealed {
    pub(crate) position: usize,
    /// The version from which the work began. The work holds it, so no other version can have this address meanwhile.
    pub(crate) began: *const (),
    pub(crate) version: Box<dyn AnyVersion>,
    pub(crate) edit: Edit,
}

impl Versions {
    pub(crate) fn new(db: u64) -> Self {
        Versions { db, tables: Vec::new() }
    }

    #[inline]
    pub(crate) fn db(&self) -> u64 {
        self.db
    }

    pub(crate) fn len(&self) -> usize {
        self.tables.len()
    }

    /// Returns the version at a position. The borrow is sound because a borrowed root is held or being published, and
    /// its versions are freed only after no root reaches them.
    #[inline]
    pub(crate) fn get(&self, position: usize) -> Option<AnyVersionRef<'_>> {
        let VersionRef(version, type_id) = *self.tables.get(position)?;
        Some(AnyVersionRef { version: version.cast(), type_id, marker: PhantomData })
    }

    /// Adds the first version of a table.
    pub(crate) fn push(&mut self, version: Box<dyn AnyVersion>) {
        self.tables.push(VersionRef::of(version));
    }

    /// Replaces the versions from which writers began with the results of their work; returns the edits, to which the
    /// replaced versions are added as retired.
    ///
    /// # Panics
    /// If a version of one of the tables was published meanwhile.
    pub(crate) fn replace(&mut self, sealed: &mut Few<Sealed>) -> Few<Edit> {
        for Sealed { position, began, .. } in &*sealed {
            assert!(std::ptr::addr_eq(self.tables[*position].0, *began), "a table has one writer at a time");
        }
        let put = |Sealed { position, version, mut edit, .. }: Sealed| {
            let old = std::mem::replace(&mut self.tables[position], VersionRef::of(version)).0;
            // JUSTIFICATION: the replaced version is retired with its nodes.
            // SAFETY: the pointer is from `Box::into_raw` in `VersionRef::of`, and `fate` is that of the boxed type. It
            // was taken out of the root by the line above, so it is retired once.
            edit.retire(unsafe { Retired::new(old.cast_mut().cast(), (*old).birth(), (*old).fate()) });
            edit
        };
        sealed.drain(..).map(put).collect()
    }
}

impl Root for Versions {
    type Garbage = Retired;

    fn end(&mut self) -> Vec<Retired> {
        let mut garbage = Vec::new();
        for VersionRef(version, _) in self.tables.drain(..) {
            // JUSTIFICATION: the end of a database retires all that its last root reaches.
            // SAFETY: `end` is called by the drop of the owner of all roots, so no version is made from these any more;
            // `drain` yields each version once, so it and its nodes are retired once.
            unsafe {
                (*version).dismantle(&mut |retired| garbage.push(retired));
                let (birth, fate) = ((*version).birth(), (*version).fate());
                garbage.push(Retired::new(version.cast_mut().cast(), birth, fate));
            }
        }
        garbage
    }
}

/// Frees a version, for [`Fate`](crate::engine::Fate).
///
/// # Safety
/// `ptr` is from `Box::<V>::into_raw`, and no root reaches it any more.
pub(crate) unsafe fn free_version<V>(ptr: *mut ()) {
    // JUSTIFICATION: the inverse of `VersionRef::of`.
    // SAFETY: the caller guarantees that the pointer is from a `Box<V>` and that nothing else uses it.
    drop(unsafe { Box::from_raw(ptr.cast::<V>()) });
}

/// Does nothing, for [`Fate`](crate::engine::Fate): the watches of a version are closed by the commit, separately.
///
/// # Safety
/// No requirement; the signature is that of [`Fate`](crate::engine::Fate).
pub(crate) unsafe fn close_nothing(_: *mut ()) {}
