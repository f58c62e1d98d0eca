//! The leaves of trees.

#![expect(unsafe_code, reason = "leaves are handles of one pointer, and some are borrowed from another tree")]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::key::KeyBuf;
use crate::obj::Obj;
use crate::spec::TableSpec;

/// An owned handle to a leaf.
///
/// # Safety
/// The type is one pointer that is never null and always even, and `birth` never changes. (A key that changes makes
/// leaves hard to find, and nothing worse.)
pub(crate) unsafe trait Leaf: Send + Sync + Sized {
    /// Returns the birth of the edit that allocated it.
    fn birth(&self) -> u64;

    /// Calls `f` with its key.
    fn with_key<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R;

    /// Closes its watch if it has one.
    fn close(&self) {}
}

/// A leaf with a revision.
pub(crate) trait Revisioned {
    fn revision(&self) -> u64;
}

// JUSTIFICATION: lets the primary index hold the rows themselves.
// SAFETY: an `Obj` is one pointer to an allocation with a counter in it, neither null nor odd.
unsafe impl<T: TableSpec> Leaf for Obj<T> {
    fn birth(&self) -> u64 {
        Obj::birth(self)
    }

    #[inline(always)]
    fn with_key<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(KeyBuf::of(&self.key()).as_bytes())
    }

    fn close(&self) {
        self.close_watch();
    }
}

impl<T> Revisioned for Obj<T> {
    fn revision(&self) -> u64 {
        Obj::revision(self)
    }
}

/// An uncounted second handle, in the revision index, to a leaf that another tree of the same table owns.
pub(crate) struct Alias<L>(ManuallyDrop<L>);

impl<L> Alias<L> {
    /// # Safety
    /// The alias is in no version in which the leaf itself is not in the owning tree.
    pub(crate) unsafe fn new(leaf: &L) -> Self {
        // JUSTIFICATION: counting the alias would cost two atomic operations a write.
        // SAFETY: never dropped, and used only while the original is there, as the caller promises.
        Alias(ManuallyDrop::new(unsafe { std::ptr::read(leaf) }))
    }

    pub(crate) fn get(&self) -> &L {
        &self.0
    }
}

/// A deleted row that a change tracker has yet to observe.
pub(crate) struct Grave<T> {
    /// Not a `Box`: an [`Alias`] has the same pointer, and moving a box claims that there is no other owner.
    buried: NonNull<Buried<T>>,
    marker: PhantomData<Buried<T>>,
}

struct Buried<T> {
    birth: u64,
    /// Of the delete.
    revision: u64,
    object: Obj<T>,
}

impl<T> Grave<T> {
    pub(crate) fn new(birth: u64, revision: u64, object: Obj<T>) -> Self {
        let buried = NonNull::from(Box::leak(Box::new(Buried { birth, revision, object })));
        Grave { buried, marker: PhantomData }
    }

    pub(crate) fn object(&self) -> &Obj<T> {
        &self.buried().object
    }

    fn buried(&self) -> &Buried<T> {
        // JUSTIFICATION: the handle is a bare pointer.
        // SAFETY: it owns what it points at.
        unsafe { self.buried.as_ref() }
    }
}

impl<T> Drop for Grave<T> {
    fn drop(&mut self) {
        // JUSTIFICATION: the end of what `new` has made.
        // SAFETY: the handle owns it.
        drop(unsafe { Box::from_raw(self.buried.as_ptr()) });
    }
}

// JUSTIFICATION: the pointer stands for an owned row and two numbers.
// SAFETY: these can go wherever rows can.
unsafe impl<T: Send + Sync> Send for Grave<T> {}
// SAFETY: as above; nothing in it changes.
unsafe impl<T: Send + Sync> Sync for Grave<T> {}

// JUSTIFICATION: finds the grave of a key that is inserted again.
// SAFETY: the pointer is `NonNull`, and what it points at has the alignment of a number.
unsafe impl<T: TableSpec> Leaf for Grave<T> {
    fn birth(&self) -> u64 {
        self.buried().birth
    }

    #[inline(always)]
    fn with_key<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(KeyBuf::of(&self.object().key()).as_bytes())
    }
}

impl<T> Revisioned for Grave<T> {
    fn revision(&self) -> u64 {
        self.buried().revision
    }
}

/// A leaf of a secondary index: a key and the row that has it, in one allocation of their exact size.
pub(crate) struct Keyed<T> {
    head: NonNull<KeyedHead<T>>,
    marker: PhantomData<Obj<T>>,
}

/// The key follows.
#[repr(C)]
struct KeyedHead<T> {
    birth: u64,
    row: Obj<T>,
    len: usize,
}

impl<T> Keyed<T> {
    /// Counts the row: the keys that an index function gives for it are not trusted to be the same when it goes.
    pub(crate) fn new(birth: u64, row: Obj<T>, key: &[u8]) -> Self {
        let layout = Self::layout(key.len());
        // JUSTIFICATION: a key beside its row costs no second allocation and no second cache miss.
        // SAFETY: the layout has a size and room for both, and the memory is written before it is read.
        unsafe {
            let Some(head) = NonNull::new(alloc(layout).cast::<KeyedHead<T>>()) else {
                handle_alloc_error(layout)
            };
            head.write(KeyedHead { birth, row, len: key.len() });
            head.add(1).cast::<u8>().copy_from_nonoverlapping(NonNull::from(key).cast(), key.len());
            Keyed { head, marker: PhantomData }
        }
    }

    pub(crate) fn row(&self) -> &Obj<T> {
        &self.head().row
    }

    fn head(&self) -> &KeyedHead<T> {
        // JUSTIFICATION: the handle is a bare pointer.
        // SAFETY: it owns what it points at.
        unsafe { self.head.as_ref() }
    }

    fn layout(len: usize) -> Layout {
        let head = Layout::new::<KeyedHead<T>>();
        let key = Layout::array::<u8>(len).expect("a key that is in memory");
        head.extend(key).expect("a key that is in memory").0
    }
}

impl<T> Drop for Keyed<T> {
    fn drop(&mut self) {
        let layout = Self::layout(self.head().len);
        // JUSTIFICATION: made by `alloc`, since the length of the key is part of the size.
        // SAFETY: the same layout as in `new`; the handle owns the row and the memory.
        unsafe {
            self.head.drop_in_place();
            dealloc(self.head.as_ptr().cast(), layout);
        }
    }
}

// JUSTIFICATION: the pointer stands for an owned head.
// SAFETY: a number, a key and a row, which can go wherever rows can.
unsafe impl<T: Send + Sync> Send for Keyed<T> {}
// SAFETY: as above; nothing in it changes.
unsafe impl<T: Send + Sync> Sync for Keyed<T> {}

// JUSTIFICATION: see `Leaf`.
// SAFETY: the head has the alignment of a number, the pointer is `NonNull`, the key never changes.
unsafe impl<T: TableSpec> Leaf for Keyed<T> {
    fn birth(&self) -> u64 {
        self.head().birth
    }

    #[inline(always)]
    fn with_key<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        // JUSTIFICATION: the key is behind the head.
        // SAFETY: `new` has written `len` bytes there, in the same allocation.
        let key =
            unsafe { std::slice::from_raw_parts(self.head.add(1).cast::<u8>().as_ptr(), self.head().len) };
        f(key)
    }
}
