//! The C library's allocator, set to what an agent needs: little to do, a lot at times, and pages that go back.
#![expect(unsafe_code, reason = "the C library's allocator has no safe interface")]

/// Free memory at the heap's end beyond which it goes back to the kernel at once. A request for an endpoint takes and
/// frees about 100 kB several times: with less than that kept, the heap's end moves nine times for each.
#[cfg(target_env = "gnu")]
const TRIM: libc::c_int = 512 << 10;
/// Allocations of this size are mappings of their own, which go back when they are freed.
#[cfg(target_env = "gnu")]
const MAPPED: libc::c_int = 64 << 10;
/// The increment of the heap.
#[cfg(target_env = "gnu")]
const PAD: libc::c_int = 128 << 10;

/// Sets the allocator up: one arena instead of eight a CPU, and no freed memory kept. To be called first in `main`.
///
/// Arenas keep threads from waiting for each other, and each keeps the peak of whatever ran on it: with them an agent
/// takes 4 to 8 MB more. Small allocations have a cache a thread and do not meet.
pub fn tune_allocator() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [
        (libc::M_ARENA_MAX, 1),
        (libc::M_TRIM_THRESHOLD, TRIM),
        (libc::M_TOP_PAD, PAD),
        (libc::M_MMAP_THRESHOLD, MAPPED),
    ] {
        // JUSTIFICATION: the alternative is an environment variable, which whoever starts the agent had to set.
        // SAFETY: mallopt takes two integers, locks the arenas itself and has no other preconditions.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Gives pages between allocations back that hold none any more: what a start and large changes leave. Takes about a
/// millisecond for 10 MB.
pub fn trim() {
    // JUSTIFICATION: nothing else makes the allocator look between allocations.
    // SAFETY: malloc_trim takes an integer, locks the arenas itself and only releases pages without allocations.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
}
