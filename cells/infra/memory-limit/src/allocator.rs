//! Settings of the C library's allocator for an agent: low load, short peaks, pages returned to the kernel afterwards.
#![expect(unsafe_code, reason = "the C library's allocator has no safe interface")]

/// Free bytes at the end of the heap beyond which they are returned to the kernel at once (`M_TRIM_THRESHOLD`). A
/// request for an endpoint allocates and frees about 100 kB several times: with a lower threshold each moves the end of
/// the heap nine times.
#[cfg(target_env = "gnu")]
const TRIM: libc::c_int = 512 << 10;
/// Size in bytes from which an allocation is a mapping of its own, unmapped when freed (`M_MMAP_THRESHOLD`).
#[cfg(target_env = "gnu")]
const MAPPED: libc::c_int = 64 << 10;
/// Bytes that the heap grows by beyond a request (`M_TOP_PAD`).
#[cfg(target_env = "gnu")]
const PAD: libc::c_int = 128 << 10;

/// Configures the allocator: one arena instead of eight per CPU, and little freed memory retained. To be called first
/// in `main`.
///
/// Separate arenas avoid lock contention between threads, but each retains its own peak: with them an agent takes 4 to
/// 8 MB more. Small allocations come from a cache per thread and do not contend.
pub fn tune_allocator() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [
        (libc::M_ARENA_MAX, 1),
        (libc::M_TRIM_THRESHOLD, TRIM),
        (libc::M_TOP_PAD, PAD),
        (libc::M_MMAP_THRESHOLD, MAPPED),
    ] {
        // JUSTIFICATION: the alternative is the environment (`GLIBC_TUNABLES`), which every unit and container that
        // starts the agent would have to set.
        // SAFETY: mallopt takes two integers, locks the arenas itself and has no other preconditions.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Returns free pages between allocations to the kernel, such as those left by a start or a large change. Takes about a
/// millisecond for 10 MB.
pub fn trim() {
    // JUSTIFICATION: the threshold above only covers the end of the heap; no safe call releases pages below it.
    // SAFETY: malloc_trim takes an integer, locks the arenas itself and only releases pages without allocations.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
}
