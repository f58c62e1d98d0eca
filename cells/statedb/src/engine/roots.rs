//! The published roots: how readers acquire one, how writers replace it, and when nodes that only a released root
//! reaches are freed.

#![expect(unsafe_code, reason = "readers take a root without a lock")]

use std::ptr::NonNull;

use super::sync::{
    AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Guarded, MAX_OWNERS, Mutex, Ordering, too_many,
};

use crate::panics::Panics;

/// A retired allocation, freed once no root reaches it.
pub(crate) trait Garbage: Send {
    /// Returns the number of the first root that can reach it.
    fn birth(&self) -> u64;

    /// # Safety
    /// No root reaches it any more.
    unsafe fn free(self);
}

/// A root that can be published.
pub(crate) trait Root: Clone + Send + Sync {
    /// The type of the allocations that it reaches.
    type Garbage: Garbage;

    /// Empties the root; returns all allocations that it reached.
    fn end(&mut self) -> Vec<Self::Garbage>;
}

/// The owner of all published roots. Held roots stay valid after it is dropped.
pub(crate) struct Roots<R: Root>(NonNull<Shared<R>>);

/// A counted handle of a published root, which keeps all nodes reachable from it.
pub(crate) struct Held<R: Root>(NonNull<Slot<R>>);

/// A guard for the duration of a write. While one exists, a reader that is the last holder of a root hands the root
/// over to the writer: the reader neither waits for the lock nor frees what the writer has retired.
pub(crate) struct Working<'a, R: Root>(&'a Roots<R>);

/// A value on its own cache line: avoids false sharing between fields that are read often and fields that are written.
#[repr(align(64))]
struct Line<V>(V);

/// State shared by the owner and the held roots. Freed once the owner has closed it and the last root is released.
struct Shared<R: Root> {
    /// Read by each check of whether a root is still current; the fields below are written by each transaction.
    current: Line<AtomicPtr<Slot<R>>>,
    /// The number of active writers times [`WRITER`], plus the place of the first slot handed over to them (0: none).
    /// Both are in one word, so that a compare-and-swap hands a slot over only while a writer is active to release it.
    work: AtomicU64,
    state: Mutex<State<R>>,
}

const WRITER: u64 = 1 << 32;

fn first_left(work: u64) -> u32 {
    work as u32
}

struct State<R: Root> {
    /// The current root and those that are held, by number.
    live: Vec<Live<R>>,
    /// All slots, by place, which counts from 1.
    slots: Vec<NonNull<Slot<R>>>,
    /// Slots that hold no root. They are not freed, since a late reader that loaded the pointer before a publish may
    /// still increment their holder count.
    spare: Vec<NonNull<Slot<R>>>,
    closed: bool,
}

struct Live<R: Root> {
    number: u64,
    slot: NonNull<Slot<R>>,
    /// Allocations that this root reaches and the next one does not.
    garbage: Vec<R::Garbage>,
}

struct Slot<R: Root> {
    /// The number of holders of the root, plus one while it is the current root, plus late readers that are about to
    /// find that it is not. Written by each snapshot, whereas the root beside it is read by each access to a table.
    holders: Line<AtomicUsize>,
    shared: NonNull<Shared<R>>,
    place: u32,
    /// The place of the slot that was handed over before this one, if both are handed over.
    next: AtomicU32,
    /// Written under the lock while the slot is spare, read by holders and under the lock.
    root: Guarded<(u64, R)>,
}

impl<R: Root> Slot<R> {
    /// Increments the holder count. Aborts the process before leaked holders make the count wrap around.
    #[inline(always)]
    fn count(&self, order: Ordering) {
        if self.holders.0.fetch_add(1, order) > MAX_OWNERS {
            too_many();
        }
    }
}

// JUSTIFICATION: the pointers are owned or counted.
// SAFETY: slots are shared through atomics and the lock only; `Root` is `Send + Sync`, as it is read and dropped on
// several threads, and `Garbage` is `Send`, as it may be freed on any.
unsafe impl<R: Root> Send for Roots<R> {}
// SAFETY: as above.
unsafe impl<R: Root> Sync for Roots<R> {}
// SAFETY: as above.
unsafe impl<R: Root> Send for Held<R> {}
// SAFETY: as above.
unsafe impl<R: Root> Sync for Held<R> {}
// SAFETY: as above; the state is behind a lock.
unsafe impl<R: Root> Send for State<R> {}

impl<R: Root> Roots<R> {
    pub(crate) fn new(root: R) -> Self {
        let state = State { live: Vec::new(), slots: Vec::new(), spare: Vec::new(), closed: false };
        let current = Line(AtomicPtr::new(std::ptr::null_mut()));
        let shared = Shared { current, work: AtomicU64::new(0), state: Mutex::new(state) };
        let roots = Roots(NonNull::from(Box::leak(Box::new(shared))));
        let mut state = roots.shared().state.lock();
        let slot = state.slot(roots.0, root);
        // JUSTIFICATION: slots outlive all holders of a pointer to them.
        // SAFETY: created above; slots are freed only after the owner is dropped.
        unsafe { slot.as_ref() }.holders.0.store(1, Ordering::SeqCst);
        state.live.push(Live { number: 0, slot, garbage: Vec::new() });
        roots.shared().current.0.store(slot.as_ptr(), Ordering::SeqCst);
        drop(state);
        roots
    }

    fn shared(&self) -> &Shared<R> {
        // JUSTIFICATION: the owner and the held roots share it, and whichever is released last frees it.
        // SAFETY: freed only after the owner, which is borrowed here, is dropped.
        unsafe { self.0.as_ref() }
    }

    /// Acquires the current root without a lock.
    #[inline]
    pub(crate) fn current(&self) -> Held<R> {
        let current = &self.shared().current.0;
        loop {
            let slot = current.load(Ordering::Acquire);
            // JUSTIFICATION: readers acquire a root without a lock or an allocation.
            // SAFETY: never null after `new`. The slot may be reused between load and increment, but not freed: slots
            // are freed only after the owner, which is borrowed here, is dropped.
            let held = unsafe {
                (*slot).count(Ordering::SeqCst);
                Held(NonNull::new_unchecked(slot))
            };
            // Still current after the increment: the increment precedes the release of the count for being current, so
            // the slot cannot be reused. Otherwise `held` is dropped, which undoes the increment, and the load retried.
            if current.load(Ordering::SeqCst) == slot {
                return held;
            }
        }
    }

    /// Returns the numbers of the previous roots that are still held, the oldest first. Waits for a publish.
    pub(crate) fn previous(&self) -> Vec<u64> {
        let state = self.shared().state.lock();
        let (_, previous) = state.live.split_last().expect("the current root is live");
        previous.iter().map(|live| live.number).collect()
    }

    /// Registers a writer until the guard is dropped.
    pub(crate) fn work(&self) -> Working<'_, R> {
        self.shared().work.fetch_add(WRITER, Ordering::SeqCst);
        Working(self)
    }

    /// Publishes a changed copy of the current root; returns it and the previous root.
    pub(crate) fn publish(&self, change: impl FnOnce(&mut R)) -> (Held<R>, Held<R>) {
        let mut state = self.shared().state.lock();
        let old = self.shared().current.0.load(Ordering::Relaxed);
        // JUSTIFICATION: slots are reused, so that a commit does not allocate one.
        // SAFETY: the current slot holds a root, which is not written to while it is current, and it stays current
        // under the lock.
        let (number, root) = unsafe { (*old).root.read(|root| ((*root).0 + 1, &(*root).1)) };
        let slot = match state.spare.pop() {
            // SAFETY: a spare slot has no holder that reads its root (late readers only touch the count), and only one
            // thread has the lock.
            Some(slot) => unsafe {
                slot.as_ref().root.write(|place| {
                    (*place).0 = number;
                    (*place).1.clone_from(root);
                });
                slot
            },
            None => state.slot(self.0, root.clone()),
        };
        // SAFETY: slots live until the owner is dropped.
        let slot_ref = unsafe { slot.as_ref() };
        // SAFETY: not published yet, so nothing else reads the root, and only one thread has the lock.
        slot_ref.root.write(|place| unsafe {
            (*place).0 = number;
            change(&mut (*place).1);
        });
        // Added, not stored: a late reader may have incremented the count. One is for being current, one for the
        // caller. Both precede the store below, so that no reader sees a current slot without holders.
        slot_ref.holders.0.fetch_add(2, Ordering::SeqCst);
        state.live.push(Live { number, slot, garbage: Vec::new() });
        self.shared().current.0.store(slot.as_ptr(), Ordering::SeqCst);
        // SAFETY: never null; takes over the count for having been current.
        (Held(slot), Held(unsafe { NonNull::new_unchecked(old) }))
    }
}

impl<R: Root> Drop for Roots<R> {
    fn drop(&mut self) {
        let mut garbage = Vec::new();
        let (last, before) = self.publish(|root| garbage = root.end());
        let mut panics = Panics::default();
        panics.run(|| drop(before.retire(garbage)));
        self.shared().state.lock().closed = true;
        // Releases the count that the last root has for being current.
        panics.run(|| drop(Held(last.0)));
        panics.resume();
    }
}

impl<R: Root> Working<'_, R> {
    /// Releases the slots that readers have handed over, a list that starts at this place.
    fn let_go(&self, mut place: u32, panics: &mut Panics) {
        let mut garbage = Vec::new();
        let mut state = self.0.shared().state.lock();
        while place != 0 {
            let slot = state.slots[place as usize - 1];
            // JUSTIFICATION: a slot is handed over as its place in `slots`.
            // SAFETY: slots are freed only after the owner, which is borrowed, is dropped.
            let slot_ref = unsafe { slot.as_ref() };
            place = slot_ref.next.load(Ordering::Relaxed);
            if slot_ref.holders.0.fetch_sub(1, Ordering::SeqCst) == 1 {
                append(&mut garbage, state.end(slot));
            }
        }
        drop(state);
        // JUSTIFICATION: garbage is freed outside of the lock.
        // SAFETY: `State::end` returns only garbage that no live root reaches.
        panics.each(garbage, |garbage| unsafe { garbage.free() });
    }
}

impl<R: Root> Drop for Working<'_, R> {
    /// Unregisters the writer once no slot is handed over, or once it has released some and other writers remain to
    /// release the rest.
    #[inline]
    fn drop(&mut self) {
        let work = &self.0.shared().work;
        let mut now = work.load(Ordering::Relaxed);
        let mut helped = false;
        let mut panics = Panics::default();
        loop {
            let left = first_left(now);
            let ends = left == 0 || helped && now >= 2 * WRITER;
            let next = now - if ends { WRITER } else { u64::from(left) };
            match work.compare_exchange(now, next, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) if ends => return panics.resume(),
                Ok(_) => {
                    self.let_go(left, &mut panics);
                    helped = true;
                    now = next;
                }
                Err(other) => now = other,
            }
        }
    }
}

impl<R: Root> Held<R> {
    fn slot(&self) -> &Slot<R> {
        // JUSTIFICATION: the slot is shared by a count, not by a borrow.
        // SAFETY: `self` is one of the slot's holders, and slots are freed only when no root is held.
        unsafe { self.0.as_ref() }
    }

    /// Returns whether this is still the current root.
    #[inline(always)]
    pub(crate) fn is_current(&self) -> bool {
        // JUSTIFICATION: one load replaces an increment and a decrement of the holder count.
        // SAFETY: the shared state is freed only when no root is held, and `self` holds one.
        let current = unsafe { &self.slot().shared.as_ref().current.0 };
        // A slot is not reused while its root is held: the same slot is the same root (no ABA).
        current.load(Ordering::Acquire) == self.0.as_ptr()
    }

    /// Returns the number of the root.
    pub(crate) fn number(&self) -> u64 {
        // JUSTIFICATION: see `root`.
        // SAFETY: the root of a slot is not written to while it is held.
        self.slot().root.read(|root| unsafe { (*root).0 })
    }

    /// Returns the root.
    #[inline(always)]
    pub(crate) fn root(&self) -> &R {
        // JUSTIFICATION: readers share it without a lock.
        // SAFETY: the root of a slot is not written to while it is held.
        self.slot().root.read(|root| unsafe { &(*root).1 })
    }

    /// Releases the root and attaches the garbage that it reaches and no later root does. Returns the emptied list if
    /// there was no other holder to wait for.
    pub(crate) fn retire(self, garbage: Vec<R::Garbage>) -> Vec<R::Garbage> {
        let held = std::mem::ManuallyDrop::new(self);
        held.let_go(garbage)
    }

    /// Hands the caller's count over to the active writers; returns false if there are none.
    fn leave(&self) -> bool {
        // JUSTIFICATION: a reader neither waits for the lock nor frees memory while a writer can.
        // SAFETY: the count of `self` keeps the slot and the shared state, with `work`, allocated until the
        // compare-and-swap hands the count over; nothing is accessed after that.
        let work = unsafe { &(*self.slot().shared.as_ptr()).work };
        let mut now = work.load(Ordering::Relaxed);
        while now >= WRITER {
            // Nothing else writes to `next`: only the last holder hands a slot over, and the count that it hands over
            // keeps any other holder from being the last until the slot is released.
            self.slot().next.store(first_left(now), Ordering::Relaxed);
            let left = now - u64::from(first_left(now)) + u64::from(self.slot().place);
            match work.compare_exchange_weak(now, left, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Releases a count under the lock; the last holder removes the root and returns the emptied list of its garbage.
    fn let_go(&self, more: Vec<R::Garbage>) -> Vec<R::Garbage> {
        let slot = self.0;
        // JUSTIFICATION: the last holder frees slot and shared state, so neither can be borrowed from `self`.
        // SAFETY: the count of `self` keeps both allocated until `fetch_sub` below.
        let (holders, shared) = unsafe { (&(*slot.as_ptr()).holders.0, self.slot().shared) };
        // SAFETY: as above.
        let mut state = unsafe { &(*shared.as_ptr()).state }.lock();
        if !more.is_empty() {
            let at = state.position(self.number()).expect("a held root is live");
            append(&mut state.live[at].garbage, more);
        }
        if holders.fetch_sub(1, Ordering::SeqCst) != 1 {
            return Vec::new();
        }
        let mut garbage = state.end(slot);
        let end = state.closed && state.live.is_empty();
        // Another thread may free the mutex as soon as it is unlocked: sound because `parking_lot` does not access a
        // mutex after its unlocking store.
        drop(state);
        let mut panics = Panics::default();
        // SAFETY: `State::end` returns only garbage that no live root reaches.
        panics.each(garbage.drain(..), |garbage| unsafe { garbage.free() });
        if end {
            // SAFETY: closed, so the owner is gone and no reader can arrive; no root is held, so no pointer to the
            // shared state remains.
            unsafe { free(shared) }
        }
        panics.resume();
        garbage
    }
}

/// Appends to a list; an empty one is replaced, to reuse the allocation.
fn append<G>(list: &mut Vec<G>, more: Vec<G>) {
    match list.is_empty() {
        true => *list = more,
        false => list.extend(more),
    }
}

impl<R: Root> State<R> {
    fn position(&self, number: u64) -> Option<usize> {
        self.live.binary_search_by_key(&number, |live| live.number).ok()
    }

    /// Allocates a slot.
    fn slot(&mut self, shared: NonNull<Shared<R>>, root: R) -> NonNull<Slot<R>> {
        let (holders, next) = (Line(AtomicUsize::new(0)), AtomicU32::new(0));
        let place = u32::try_from(self.slots.len() + 1).expect("fewer roots than memory has room for");
        let slot = Slot { holders, shared, place, next, root: Guarded::new((0, root)) };
        let slot = NonNull::from(Box::leak(Box::new(slot)));
        self.slots.push(slot);
        slot
    }

    /// Removes the root of a slot without holders from the live ones; returns its garbage that no live root reaches: it
    /// was born after the preceding root was published, and no later root reaches it.
    fn end(&mut self, slot: NonNull<Slot<R>>) -> Vec<R::Garbage> {
        // JUSTIFICATION: the entry in `live` is found by the root's number, which is in the slot.
        // SAFETY: roots are written only under the lock, which the caller holds: `self` is the locked state.
        let number = unsafe { slot.as_ref().root.read(|root| (*root).0) };
        // Otherwise the root was removed earlier, and the released count was that of a late reader, which found the
        // root not current.
        let Some(at) = self.position(number).filter(|at| self.live[*at].slot == slot) else {
            return Vec::new();
        };
        let Live { mut garbage, .. } = self.live.remove(at);
        if let Some(before) = at.checked_sub(1).map(|at| &mut self.live[at]) {
            let number = before.number;
            before.garbage.extend(garbage.extract_if(.., |garbage| garbage.birth() <= number));
        }
        self.spare.push(slot);
        garbage
    }
}

/// # Safety
/// The owner is closed and no root is held, so that nothing else accesses the shared state or its slots.
unsafe fn free<R: Root>(shared: NonNull<Shared<R>>) {
    // JUSTIFICATION: frees the boxes that `Roots::new` and `State::slot` leaked.
    // SAFETY: by the contract this is the only access; `slots` lists each slot once.
    unsafe {
        let shared = Box::from_raw(shared.as_ptr());
        for slot in &shared.state.lock().slots {
            drop(Box::from_raw(slot.as_ptr()));
        }
    }
}

impl<R: Root> Clone for Held<R> {
    fn clone(&self) -> Self {
        self.slot().count(Ordering::Relaxed);
        Held(self.0)
    }
}

impl<R: Root> Drop for Held<R> {
    #[inline]
    fn drop(&mut self) {
        let holders = &self.slot().holders.0;
        // Acquire pairs with the decrements of other holders: when the last holder hands the slot over or releases it,
        // all accesses of the others have happened before.
        let mut count = holders.load(Ordering::Acquire);
        // A holder that is not the last one takes no lock, and does not access the slot after the decrement.
        while count > 1 {
            match holders.compare_exchange_weak(count, count - 1, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => count = now,
            }
        }
        if !self.leave() {
            self.let_go(Vec::new());
        }
    }
}
