//! A perf event that programs write to: `perf_event_open(2)` with `PERF_COUNT_SW_BPF_OUTPUT`.
#![expect(unsafe_code, reason = "perf_event_open(2) and ioctl(2) take pointers and raw descriptors")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const SOFTWARE: u32 = 1;
const BPF_OUTPUT: u64 = 10;
const SAMPLE_RAW: u64 = 1 << 10;
const CLOSE_ON_EXEC: u64 = 1 << 3;
/// The flag of `struct perf_event_attr` by which `wakeup` is a number of bytes instead of records.
const WATERMARK: u64 = 1 << 14;
/// `PERF_EVENT_IOC_SET_OUTPUT`: `_IO('$', 5)`.
const SET_OUTPUT: u64 = 0x2405;

/// `struct perf_event_attr` in its first version.
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

const _: () = assert!(size_of::<Attr>() == 64, "PERF_ATTR_SIZE_VER0");

/// An event of a CPU.
#[derive(Debug)]
pub(super) struct PerfEvent(OwnedFd);

impl PerfEvent {
    /// Opens an event whose reader is woken by each record.
    pub(super) fn waking_by_record(cpu: u32) -> io::Result<Self> {
        Self::open(cpu, Attr { wakeup: 1, ..Attr::default() })
    }

    /// Opens an event whose reader is woken each time when so many bytes have been written.
    pub(super) fn waking_by_watermark(cpu: u32, bytes: u32) -> io::Result<Self> {
        Self::open(cpu, Attr { wakeup: bytes, flags: WATERMARK, ..Attr::default() })
    }

    fn open(cpu: u32, attr: Attr) -> io::Result<Self> {
        let mut attr = Attr {
            kind: SOFTWARE,
            size: size_of::<Attr>() as u32,
            config: BPF_OUTPUT,
            sample_period: 1,
            sample_type: SAMPLE_RAW,
            ..attr
        };
        const ANY_PROCESS: i32 = -1;
        const NO_GROUP: i32 = -1;
        // JUSTIFICATION: perf_event_open(2) has no wrapper in libc.
        // SAFETY: `attr` is a live struct of the size that it contains, without further pointers.
        let fd = unsafe {
            let attr = &raw mut attr;
            libc::syscall(libc::SYS_perf_event_open, attr, ANY_PROCESS, cpu, NO_GROUP, CLOSE_ON_EXEC)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // JUSTIFICATION: the system call returns a raw descriptor.
        // SAFETY: the descriptor is new, and nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// Redirects what programs write to this event into the ring of another one of the same CPU.
    pub(super) fn redirect(&self, ring: &PerfEvent) -> io::Result<()> {
        // JUSTIFICATION: the request has no wrapper in rustix.
        // SAFETY: the request takes a descriptor by value; both are open.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), SET_OUTPUT as _, ring.0.as_raw_fd()) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsFd for PerfEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
