//! An allocator that counts the allocated bytes.
#![expect(unsafe_code, reason = "the trait of allocators is unsafe")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

/// Number of counters: several, each in a cache line of its own, so that threads rarely contend for one. The address of
/// an allocation selects its counter, so that freeing subtracts from the counter that was added to.
const COUNTS: usize = 16;
/// Bits of the offset within a page, which do not take part in the selection.
const PAGE: u32 = 12;

#[repr(align(64))]
struct Count(AtomicI64);

static ALLOCATED: [Count; COUNTS] = [const { Count(AtomicI64::new(0)) }; COUNTS];

/// The system's allocator with a count of the bytes that are allocated and not freed. The C library's own count
/// includes the caches of its threads, which vary by megabytes; this one shows a leak of a few bytes. Costs one atomic
/// addition per call: 5 ns.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: memory_limit::Counting = memory_limit::Counting;
///
/// let before = memory_limit::allocated().unwrap();
/// let held = vec![1u8; 1 << 20];
/// assert!(memory_limit::allocated().unwrap() >= before + (1 << 20));
/// drop(held);
/// assert!(memory_limit::allocated().unwrap() < before + (1 << 20));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

/// Returns the bytes that are allocated and not freed; `None` in a process whose allocator is not [`Counting`].
#[must_use]
pub fn allocated() -> Option<u64> {
    // The counters are read one after the other: with concurrent changes the sum is approximate and may even be
    // negative.
    let sum: i64 = ALLOCATED.iter().map(|count| count.0.load(Ordering::Relaxed)).sum();
    u64::try_from(sum).ok().filter(|&bytes| bytes > 0)
}

fn count(piece: *mut u8, bytes: i64) {
    ALLOCATED[(piece.addr() >> PAGE) % COUNTS].0.fetch_add(bytes, Ordering::Relaxed);
}

/// Returns the size of a layout; the cast is lossless, as no layout is larger than `isize::MAX`.
fn size(layout: Layout) -> i64 {
    layout.size() as i64
}

// JUSTIFICATION: only the global allocator sees each allocation; this one adds a counter to the system's.
// SAFETY: every call goes to the system's allocator with the caller's unchanged arguments, and its result is returned
// unchanged; the caller upholds the contract of `GlobalAlloc`, which is that of `System`. Counting is one atomic
// addition into a static: it neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // JUSTIFICATION: as above. SAFETY: as above.
        let piece = unsafe { System.alloc(layout) };
        if !piece.is_null() {
            count(piece, size(layout));
        }
        piece
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // JUSTIFICATION: as above. SAFETY: as above.
        let piece = unsafe { System.alloc_zeroed(layout) };
        if !piece.is_null() {
            count(piece, size(layout));
        }
        piece
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        // Count first: once freed, another thread may get the same address.
        count(piece, -size(layout));
        // JUSTIFICATION: as above. SAFETY: as above.
        unsafe { System.dealloc(piece, layout) }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // JUSTIFICATION: as above. SAFETY: as above.
        let moved = unsafe { System.realloc(piece, layout, bytes) };
        if !moved.is_null() {
            count(piece, -size(layout));
            count(moved, bytes as i64);
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    /// Tolerance in bytes: other tests of this process allocate concurrently.
    const TOLERANCE: u64 = 1 << 20;

    #[test]
    fn allocations_are_counted_until_they_are_freed() {
        for (pieces, bytes) in [(10_000, 2000), (1, 64 << 20)] {
            let all = (pieces * bytes) as u64;
            let before = allocated().unwrap();
            let held: Vec<Vec<u8>> = (0..pieces).map(|_| black_box(vec![0; bytes])).collect();
            let with = allocated().unwrap();
            assert!(with + TOLERANCE > before + all && with < before + all + TOLERANCE, "{before} {with}");
            drop(held);
            assert!(allocated().unwrap() < before + TOLERANCE);
        }
        // A reallocation replaces the old size by the new one.
        let before = allocated().unwrap();
        let mut grown: Vec<u64> = Vec::new();
        for number in 0..4 << 20 {
            grown.push(black_box(number));
        }
        let kept = (grown.capacity() * 8) as u64;
        let with = allocated().unwrap();
        assert!(
            with + TOLERANCE > before + kept && with < before + kept + TOLERANCE,
            "{before} {with} {kept}"
        );
        grown.truncate(10);
        grown.shrink_to_fit();
        assert!(allocated().unwrap() < before + TOLERANCE);
    }
}
