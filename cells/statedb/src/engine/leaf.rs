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
/// The type is one pointer that is never null and always even, and `birth` never changes. (A key that changes only
/// makes lookups miss; it is not a memory safety problem.)
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

// JUSTIFICATION: the primary index holds the rows themselves, without an allocation per leaf.
// SAFETY: an `Obj` is one pointer to an allocation that contains an atomic counter: never null, and even by alignment.
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
    /// In each version that contains the alias, the owning tree contains the leaf.
    pub(crate) unsafe fn new(leaf: &L) -> Self {
        // JUSTIFICATION: a counted alias would cost two atomic operations per write.
        // SAFETY: never dropped (`ManuallyDrop`), and by the caller's contract used only while the original lives.
        Alias(ManuallyDrop::new(unsafe { std::ptr::read(leaf) }))
    }

    pub(crate) fn get(&self) -> &L {
        &self.0
    }
}

/// A deleted row that a change tracker has yet to observe.
pub(crate) struct Grave<T> {
    /// Not a `Box`: an [`Alias`] copies this pointer, and moving a `Box` asserts that the pointer is unique.
    buried: NonNull<Buried<T>>,
    marker: PhantomData<Buried<T>>,
}

struct Buried<T> {
    birth: u64,
    /// The revision of the delete.
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
        // JUSTIFICATION: the handle is a raw pointer.
        // SAFETY: the handle owns the allocation, which nothing changes after `new`.
        unsafe { self.buried.as_ref() }
    }
}

impl<T> Drop for Grave<T> {
    fn drop(&mut self) {
        // JUSTIFICATION: frees the box that `new` leaked.
        // SAFETY: the handle owns it, and aliases are in no version that outlives it.
        drop(unsafe { Box::from_raw(self.buried.as_ptr()) });
    }
}

// JUSTIFICATION: raw pointers are neither `Send` nor `Sync`; this one owns a row and two integers.
// SAFETY: an `Obj<T>` is `Send` and `Sync` if `T` is both.
unsafe impl<T: Send + Sync> Send for Grave<T> {}
// SAFETY: as above; it is immutable after `new`.
unsafe impl<T: Send + Sync> Sync for Grave<T> {}

// JUSTIFICATION: an insert of the same key has to find and remove the grave.
// SAFETY: the pointer is `NonNull`, and `Buried` contains a `u64`, so the pointer is even. `birth` is set once.
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

/// A leaf of a secondary index: a key and its row, in one allocation of their exact size.
pub(crate) struct Keyed<T> {
    head: NonNull<KeyedHead<T>>,
    marker: PhantomData<Obj<T>>,
}

/// The fixed part of a [`Keyed`]; the bytes of the key follow it in memory.
#[repr(C)]
struct KeyedHead<T> {
    birth: u64,
    row: Obj<T>,
    len: usize,
}

impl<T> Keyed<T> {
    /// Holds a reference count of the row: an index function is not trusted to return the same keys when the row is
    /// deleted, so this leaf may outlive the row in the primary index.
    pub(crate) fn new(birth: u64, row: Obj<T>, key: &[u8]) -> Self {
        let layout = Self::layout(key.len());
        // JUSTIFICATION: a key in the same allocation as its row's pointer saves an allocation and a cache miss.
        // SAFETY: the layout is not zero-sized and fits both, and the memory is written before it is read.
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
        // JUSTIFICATION: the handle is a raw pointer.
        // SAFETY: the handle owns the allocation, which nothing changes after `new`.
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
        // JUSTIFICATION: allocated by `alloc`, since the length of the key is part of the size.
        // SAFETY: the layout is the one of `new`, as `len` never changes; the handle owns the row and the memory.
        unsafe {
            self.head.drop_in_place();
            dealloc(self.head.as_ptr().cast(), layout);
        }
    }
}

// JUSTIFICATION: raw pointers are neither `Send` nor `Sync`; this one owns its head and key.
// SAFETY: these are two integers, bytes and an `Obj<T>`, which is `Send` and `Sync` if `T` is both.
unsafe impl<T: Send + Sync> Send for Keyed<T> {}
// SAFETY: as above; it is immutable after `new`.
unsafe impl<T: Send + Sync> Sync for Keyed<T> {}

// JUSTIFICATION: see `Leaf`.
// SAFETY: the head contains a `u64`, so the pointer is even; it is `NonNull`, and `birth` is set once.
unsafe impl<T: TableSpec> Leaf for Keyed<T> {
    fn birth(&self) -> u64 {
        self.head().birth
    }

    #[inline(always)]
    fn with_key<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        // JUSTIFICATION: the key follows the head, in memory that no field describes.
        // SAFETY: `new` wrote `len` bytes there, in the same allocation.
        let key =
            unsafe { std::slice::from_raw_parts(self.head.add(1).cast::<u8>().as_ptr(), self.head().len) };
        f(key)
    }
}
