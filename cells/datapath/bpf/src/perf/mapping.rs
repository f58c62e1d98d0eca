//! The memory of a ring, shared with the kernel: `struct perf_event_mmap_page`, then the data.
#![expect(unsafe_code, reason = "memory that the kernel writes, too")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use super::page_size;
use super::record::Span;

/// Offsets of `data_head` and `data_tail` in the control page.
const HEAD_OFFSET: usize = 1024;
const TAIL_OFFSET: usize = 1032;

/// A mapped ring. Positions are numbers of bytes since its begin and do not wrap.
#[derive(Debug)]
pub(super) struct Mapping {
    control: NonNull<u8>,
    /// The length of the data, a power of two.
    len: usize,
    /// The position up to which the reader has read.
    tail: u64,
}

// JUSTIFICATION: a pointer is not Send by itself.
// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// JUSTIFICATION: as above.
// SAFETY: a shared reference gives nothing but reads of positions by atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the ring of a perf event with so many pages of data, a power of two.
    pub(super) fn new(event: BorrowedFd<'_>, pages: usize) -> io::Result<Self> {
        if !pages.is_power_of_two() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the pages of a ring are no power of two",
            ));
        }
        let len = pages * page_size();
        // JUSTIFICATION: the only way to the ring.
        // SAFETY: a new mapping at an address that the kernel chooses.
        let address = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let total = page_size() + len;
            libc::mmap(std::ptr::null_mut(), total, protection, libc::MAP_SHARED, event.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let control = NonNull::new(address.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { control, len, tail: 0 })
    }

    /// Returns the length of the data in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of bytes that the kernel has written and the reader has not released. An impossible position
    /// of the kernel is taken as the new begin.
    pub(super) fn available(&mut self) -> usize {
        let available = self.head().wrapping_sub(self.tail);
        if available > self.len as u64 {
            self.tail = self.head();
            return 0;
        }
        available as usize
    }

    /// Returns the first bytes of those that are available, so many at most.
    pub(super) fn filled(&self, limit: usize) -> Span<'_> {
        let available = self.head().wrapping_sub(self.tail);
        let filled = usize::try_from(available).unwrap_or(usize::MAX).min(self.len).min(limit);
        let begin = self.tail as usize & (self.len - 1);
        let until_end = filled.min(self.len - begin);
        // JUSTIFICATION: records are read where they are: a copy would cost each event.
        // SAFETY: both parts are inside of the mapping, and the kernel does not write between the tail and its head
        // until the tail moves, which needs `&mut self`.
        unsafe {
            let data = self.control.as_ptr().add(page_size());
            let first = slice::from_raw_parts(data.add(begin), until_end);
            Span::new(first, slice::from_raw_parts(data, filled - until_end))
        }
    }

    /// Gives the first bytes of what is filled back to the kernel.
    pub(super) fn release(&mut self, bytes: usize) {
        self.tail = self.tail.wrapping_add(bytes as u64);
        // Release: the kernel writes there only after the reads before.
        self.position(TAIL_OFFSET).store(self.tail, Ordering::Release);
    }

    fn head(&self) -> u64 {
        // Acquire: the records before this position are visible.
        self.position(HEAD_OFFSET).load(Ordering::Acquire)
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // JUSTIFICATION: both sides access positions concurrently.
        // SAFETY: aligned words inside of the control page, which lives as long as `self`; the kernel accesses them by
        // atomic instructions of their width.
        unsafe { AtomicU64::from_ptr(self.control.as_ptr().add(offset).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // JUSTIFICATION: as with mmap.
        // SAFETY: the mapping is this one's, and no slice of it is left.
        unsafe { libc::munmap(self.control.as_ptr().cast(), page_size() + self.len) };
    }
}
