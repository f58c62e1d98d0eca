//! What is published at once: a version of each table.

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
    /// Of the database.
    db: u64,
    tables: Vec<VersionRef>,
}

impl Clone for Versions {
    fn clone(&self) -> Self {
        Versions { db: self.db, tables: self.tables.clone() }
    }

    /// Copies into the memory that `self` has: a commit does this under the lock of all commits.
    fn clone_from(&mut self, source: &Self) {
        self.db = source.db;
        self.tables.clone_from(&source.tables);
    }
}

/// Owned by the roots that it is in.
#[derive(Clone, Copy)]
struct VersionRef(*const dyn AnyVersion, TypeId);

/// A version whose type is asked for without a virtual call.
#[derive(Clone, Copy)]
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

    /// The version, if it is one of `V`.
    #[inline]
    pub(crate) fn downcast<V: AnyVersion>(self) -> Option<&'s V> {
        // JUSTIFICATION: each read of a table goes this way.
        // SAFETY: borrowed for `'s`, and of the type that the id is that of.
        (self.type_id == TypeId::of::<V>()).then(|| unsafe { &*self.version.cast::<V>() })
    }
}

// JUSTIFICATION: a pointer that is shared by roots, see `Versions::get`.
// SAFETY: `AnyVersion` is `Send` and `Sync`.
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
pub struct Sealed {
    pub(crate) position: usize,
    /// The version from which the work began, which the work keeps: no other has this address meanwhile.
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

    /// The version at a position. A root that is borrowed as a value is held or being published, and its versions are
    /// freed after its end.
    #[inline]
    pub(crate) fn get(&self, position: usize) -> Option<AnyVersionRef<'_>> {
        let VersionRef(version, type_id) = *self.tables.get(position)?;
        Some(AnyVersionRef { version: version.cast(), type_id, marker: PhantomData })
    }

    /// Adds the first version of a table.
    pub(crate) fn push(&mut self, version: Box<dyn AnyVersion>) {
        self.tables.push(VersionRef::of(version));
    }

    /// Puts the result of a writer's work in the place of what it began from.
    ///
    /// # Panics
    /// If another program has published a version of the table meanwhile.
    pub(crate) fn replace(&mut self, sealed: &mut Few<Sealed>) -> Few<Edit> {
        for Sealed { position, began, .. } in &*sealed {
            assert!(std::ptr::addr_eq(self.tables[*position].0, *began), "a table has one writer at a time");
        }
        let put = |Sealed { position, version, mut edit, .. }: Sealed| {
            let old = std::mem::replace(&mut self.tables[position], VersionRef::of(version)).0;
            // JUSTIFICATION: the version before goes the way of its nodes.
            // SAFETY: made by `Box::into_raw` of the type that tells its fate, out of the root with this, hence once.
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
            // JUSTIFICATION: the end of a database.
            // SAFETY: no version is made from these any more, and each is retired once.
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
/// `what` was a `Box<V>`, and is unreachable by now.
pub(crate) unsafe fn free_version<V>(what: *mut ()) {
    // JUSTIFICATION: the inverse of `Versions::push` and `replace`.
    // SAFETY: promised by the caller.
    drop(unsafe { Box::from_raw(what.cast::<V>()) });
}

/// What a version has for a watch closes apart from it.
///
/// # Safety
/// None needed; the type is that of [`Fate`](crate::engine::Fate).
pub(crate) unsafe fn close_nothing(_: *mut ()) {}
