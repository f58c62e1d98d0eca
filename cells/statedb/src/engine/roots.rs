//! The published roots: how readers take one, how writers replace it, when what it alone reaches is freed.

#![expect(unsafe_code, reason = "readers take a root without a lock")]

use std::ptr::NonNull;

use super::sync::{
    AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Guarded, MAX_OWNERS, Mutex, Ordering, too_many,
};

use crate::panics::Panics;

/// Something that was put out of use.
pub(crate) trait Garbage: Send {
    /// No root of a smaller number reaches it.
    fn birth(&self) -> u64;

    /// # Safety
    /// It is unreachable by now.
    unsafe fn free(self);
}

/// A root that is published.
pub(crate) trait Root: Clone + Send + Sync {
    /// What it reaches.
    type Garbage: Garbage;

    /// Makes it reach nothing; gives all that it reached.
    fn end(&mut self) -> Vec<Self::Garbage>;
}

/// The owner of all published roots. Without it, those that are held stay as they are.
pub(crate) struct Roots<R: Root>(NonNull<Shared<R>>);

/// A published root that is kept, with all that is reachable from it.
pub(crate) struct Held<R: Root>(NonNull<Slot<R>>);

/// A writer, from the beginning to the end of its work. While there is one, readers leave roots to it that they are the
/// last to hold: they neither wait for its lock nor free what it has put out of use.
pub(crate) struct Working<'a, R: Root>(&'a Roots<R>);

/// A cache line of its own: what many threads read must not share one with what others write.
#[repr(align(64))]
struct Line<V>(V);

/// Lives until the owner has closed it and the last root is let go.
struct Shared<R: Root> {
    /// Read at each look whether a root is still the current one; the fields below are written by each transaction.
    current: Line<AtomicPtr<Slot<R>>>,
    /// How many writers are at work, times [`WRITER`], and the place of the first slot that is left to them, if not 0: one
    /// number, so that what is left is left to somebody.
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
    /// Slots that hold no root. They are not freed, since a reader may be about to count itself on one that it takes
    /// for the current one.
    spare: Vec<NonNull<Slot<R>>>,
    closed: bool,
}

struct Live<R: Root> {
    number: u64,
    slot: NonNull<Slot<R>>,
    /// What this root reaches and the next one does not.
    garbage: Vec<R::Garbage>,
}

struct Slot<R: Root> {
    /// Holders of the root, one of them for being the current one, and readers that are about to find that it is not.
    /// Written by each snapshot; the root beside it is read by each look at a table.
    holders: Line<AtomicUsize>,
    shared: NonNull<Shared<R>>,
    place: u32,
    /// The place of the slot that was left before this one, if both are left.
    next: AtomicU32,
    /// Written under the lock while the slot is spare, read by holders and under the lock.
    root: Guarded<(u64, R)>,
}

impl<R: Root> Slot<R> {
    /// Counts one more holder. Ends the process before leaked holders make the count wrap around.
    #[inline(always)]
    fn count(&self, order: Ordering) {
        if self.holders.0.fetch_add(1, order) > MAX_OWNERS {
            too_many();
        }
    }
}

// JUSTIFICATION: the pointers are owned or counted.
// SAFETY: the protocol of this module is made for any thread; roots are read and dropped on several, garbage is freed
// on any.
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
        // JUSTIFICATION: slots outlive those who reach them by the pointer.
        // SAFETY: just made.
        unsafe { slot.as_ref() }.holders.0.store(1, Ordering::SeqCst);
        state.live.push(Live { number: 0, slot, garbage: Vec::new() });
        roots.shared().current.0.store(slot.as_ptr(), Ordering::SeqCst);
        drop(state);
        roots
    }

    fn shared(&self) -> &Shared<R> {
        // JUSTIFICATION: shared with those who hold roots.
        // SAFETY: freed after the owner is gone.
        unsafe { self.0.as_ref() }
    }

    /// The current root.
    #[inline]
    pub(crate) fn current(&self) -> Held<R> {
        let current = &self.shared().current.0;
        loop {
            let slot = current.load(Ordering::Acquire);
            // JUSTIFICATION: a reader neither waits nor allocates.
            // SAFETY: never null; slots are freed after the owner.
            let held = unsafe {
                (*slot).count(Ordering::SeqCst);
                Held(NonNull::new_unchecked(slot))
            };
            // Still current after the counting: the count came before the one for being current went away.
            if current.load(Ordering::SeqCst) == slot {
                return held;
            }
        }
    }

    /// Begins a writer's work.
    pub(crate) fn work(&self) -> Working<'_, R> {
        self.shared().work.fetch_add(WRITER, Ordering::SeqCst);
        Working(self)
    }

    /// Makes a changed copy of the current root the current one; gives it and the one before.
    pub(crate) fn publish(&self, change: impl FnOnce(&mut R)) -> (Held<R>, Held<R>) {
        let mut state = self.shared().state.lock();
        let old = self.shared().current.0.load(Ordering::Relaxed);
        // JUSTIFICATION: slots are used again, so that a commit need not allocate one.
        // SAFETY: the current slot has a root; its number and value are not written to.
        let (number, root) = unsafe { (*old).root.read(|root| ((*root).0 + 1, &(*root).1)) };
        let slot = match state.spare.pop() {
            // SAFETY: spare, so nothing reads its root, and under the lock.
            Some(slot) => unsafe {
                slot.as_ref().root.write(|place| {
                    (*place).0 = number;
                    (*place).1.clone_from(root);
                });
                slot
            },
            None => state.slot(self.0, root.clone()),
        };
        // SAFETY: not published yet, and under the lock.
        let slot_ref = unsafe { slot.as_ref() };
        // SAFETY: as above.
        slot_ref.root.write(|place| unsafe {
            (*place).0 = number;
            change(&mut (*place).1);
        });
        // Added, not stored: a late reader may have counted itself. One is for being current, one for the caller.
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
        // The count for being current.
        panics.run(|| drop(Held(last.0)));
        panics.resume();
    }
}

impl<R: Root> Working<'_, R> {
    /// Lets go the slots that were left, from this place on.
    fn let_go(&self, mut place: u32, panics: &mut Panics) {
        let mut garbage = Vec::new();
        let mut state = self.0.shared().state.lock();
        while place != 0 {
            let slot = state.slots[place as usize - 1];
            // JUSTIFICATION: a slot is left by its place.
            // SAFETY: slots are freed after the owner, which is borrowed.
            let slot_ref = unsafe { slot.as_ref() };
            place = slot_ref.next.load(Ordering::Relaxed);
            if slot_ref.holders.0.fetch_sub(1, Ordering::SeqCst) == 1 {
                append(&mut garbage, state.end(slot));
            }
        }
        drop(state);
        // JUSTIFICATION: outside of the lock.
        // SAFETY: as `State::end` says.
        panics.each(garbage, |garbage| unsafe { garbage.free() });
    }
}

impl<R: Root> Drop for Working<'_, R> {
    /// Ends when nothing is left, or when it has helped and others are at work.
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
        // JUSTIFICATION: counted, as an `Arc` is.
        // SAFETY: slots are freed when no root is held.
        unsafe { self.0.as_ref() }
    }

    /// Whether no other root has been published since.
    #[inline(always)]
    pub(crate) fn is_current(&self) -> bool {
        // JUSTIFICATION: one look in place of two counts.
        // SAFETY: a held root keeps the owner's part that is shared.
        let current = unsafe { &self.slot().shared.as_ref().current.0 };
        // A slot is not used again while its root is held: the same slot is the same root.
        current.load(Ordering::Acquire) == self.0.as_ptr()
    }

    /// The number of the root.
    pub(crate) fn number(&self) -> u64 {
        // JUSTIFICATION: see `root`.
        // SAFETY: the root of a slot is not written to while it is held.
        self.slot().root.read(|root| unsafe { (*root).0 })
    }

    /// The root.
    #[inline(always)]
    pub(crate) fn root(&self) -> &R {
        // JUSTIFICATION: readers share it without a lock.
        // SAFETY: the root of a slot is not written to while it is held.
        self.slot().root.read(|root| unsafe { &(*root).1 })
    }

    /// Lets it go and hands over what it, and no root published after it, reaches. Gives an empty list back if there was
    /// nobody else to wait for.
    pub(crate) fn retire(self, garbage: Vec<R::Garbage>) -> Vec<R::Garbage> {
        let held = std::mem::ManuallyDrop::new(self);
        held.let_go(garbage)
    }

    /// Leaves the count to those who write, if there are any.
    fn leave(&self) -> bool {
        // JUSTIFICATION: a reader neither waits nor frees what a writer can.
        // SAFETY: counted until the count is left, after which nothing is looked at.
        let work = unsafe { &(*self.slot().shared.as_ptr()).work };
        let mut now = work.load(Ordering::Relaxed);
        while now >= WRITER {
            // Nothing else writes to it: the last one to hold a slot leaves it, and while it is left nobody is the
            // last.
            self.slot().next.store(first_left(now), Ordering::Relaxed);
            let left = now - u64::from(first_left(now)) + u64::from(self.slot().place);
            match work.compare_exchange_weak(now, left, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Takes back a count under the lock; the last one ends the root, and gives the list of what was freed.
    fn let_go(&self, more: Vec<R::Garbage>) -> Vec<R::Garbage> {
        let slot = self.0;
        // JUSTIFICATION: the last one frees.
        // SAFETY: counted until the line below that takes the count back, which keeps slot and owner.
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
        // Another thread may free the lock as soon as it is unlocked: `parking_lot` does not touch it after that.
        drop(state);
        let mut panics = Panics::default();
        // SAFETY: as `State::end` says.
        panics.each(garbage.drain(..), |garbage| unsafe { garbage.free() });
        if end {
            // SAFETY: closed, so no reader comes, and no root is held, so nobody is left.
            unsafe { free(shared) }
        }
        panics.resume();
        garbage
    }
}

/// Adds to a list.
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

    /// A new slot.
    fn slot(&mut self, shared: NonNull<Shared<R>>, root: R) -> NonNull<Slot<R>> {
        let (holders, next) = (Line(AtomicUsize::new(0)), AtomicU32::new(0));
        let place = u32::try_from(self.slots.len() + 1).expect("fewer roots than memory has room for");
        let slot = Slot { holders, shared, place, next, root: Guarded::new((0, root)) };
        let slot = NonNull::from(Box::leak(Box::new(slot)));
        self.slots.push(slot);
        slot
    }

    /// Ends the root of a slot that nobody holds; gives what nobody can reach any more: it was born after the root before
    /// was published, and no root after this one reaches it.
    fn end(&mut self, slot: NonNull<Slot<R>>) -> Vec<R::Garbage> {
        // JUSTIFICATION: slots are found by what is in them.
        // SAFETY: roots are written under the lock, which the caller has.
        let number = unsafe { slot.as_ref().root.read(|root| (*root).0) };
        // Else it ended before: this was a reader who found that it is not the current one.
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
/// It is unused by now.
unsafe fn free<R: Root>(shared: NonNull<Shared<R>>) {
    // JUSTIFICATION: made by `Box`.
    // SAFETY: all slots are spare, and each was made by `State::slot`.
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
        // Acquire: what the last one writes to the slot, when it leaves it, comes after all that others did to it.
        let mut count = holders.load(Ordering::Acquire);
        // Not the last one goes without the lock, and does not look at anything afterwards.
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
