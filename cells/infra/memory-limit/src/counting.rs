//! An allocator that knows how much it has given out.
#![expect(unsafe_code, reason = "the trait of allocators is unsafe")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

/// Counts beside each other, so that threads do not wait for one cache line. The address decides, so that what was added
/// is taken away from the same one.
const COUNTS: usize = 16;
/// Bits of an address that are the same within a page.
const PAGE: u32 = 12;

#[repr(align(64))]
struct Count(AtomicI64);

static ALLOCATED: [Count; COUNTS] = [const { Count(AtomicI64::new(0)) }; COUNTS];

/// The system's allocator, with a count of the bytes that are allocated and not freed. The C library's own count has in
/// it what its threads keep at hand, which moves by megabytes; this one tells a leak of some bytes. An addition for
/// each call: 5 ns.
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

/// Bytes that are allocated and not freed; `None` in a process whose allocator is not [`Counting`].
#[must_use]
pub fn allocated() -> Option<u64> {
    let sum: i64 = ALLOCATED.iter().map(|count| count.0.load(Ordering::Relaxed)).sum();
    u64::try_from(sum).ok().filter(|&bytes| bytes > 0)
}

fn count(piece: *mut u8, bytes: i64) {
    ALLOCATED[(piece.addr() >> PAGE) % COUNTS].0.fetch_add(bytes, Ordering::Relaxed);
}

/// No layout is larger than `isize::MAX`.
fn size(layout: Layout) -> i64 {
    layout.size() as i64
}

// JUSTIFICATION: only an allocator sees each allocation, and this one is the system's.
// SAFETY: every call goes to the system's allocator with the arguments of the caller, who keeps the contract; counting
// neither allocates nor unwinds.
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

    /// Other tests of this process allocate, too.
    const OTHERS: u64 = 1 << 20;

    #[test]
    fn what_is_allocated_is_counted_until_it_is_freed() {
        for (pieces, bytes) in [(10_000, 2000), (1, 64 << 20)] {
            let all = (pieces * bytes) as u64;
            let before = allocated().unwrap();
            let held: Vec<Vec<u8>> = (0..pieces).map(|_| black_box(vec![0; bytes])).collect();
            let with = allocated().unwrap();
            assert!(with + OTHERS > before + all && with < before + all + OTHERS, "{before} {with}");
            drop(held);
            assert!(allocated().unwrap() < before + OTHERS);
        }
        // What grows is counted once.
        let before = allocated().unwrap();
        let mut grown: Vec<u64> = Vec::new();
        for number in 0..4 << 20 {
            grown.push(black_box(number));
        }
        let kept = (grown.capacity() * 8) as u64;
        let with = allocated().unwrap();
        assert!(with + OTHERS > before + kept && with < before + kept + OTHERS, "{before} {with} {kept}");
        grown.truncate(10);
        grown.shrink_to_fit();
        assert!(allocated().unwrap() < before + OTHERS);
    }
}
