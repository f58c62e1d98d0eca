//! Rings of a perf event array, which programs write and one reader reads: one for each CPU.
//!
//! [`Rings`] opens them, [`Records`] are their contents, `Pacing` chooses how the kernel wakes the reader. With
//! [`Wakeups::Paced`] this is NAPI for events: the first ones of a CPU wake the reader each, and while more come than a
//! few in [`POLL_INTERVAL`], the reader polls that ring by time and the kernel wakes it only when half of it is full. A
//! wake-up is an interrupt of the CPU to itself, inside the packet's path: 6 us in a virtual machine, where the packet
//! and its event take less than one.
//!
//! Both kinds of wake-up are one ring: it has two perf events, one of which wakes its reader at each record, the other
//! at a watermark. The second one owns the memory, the first one's output is redirected into it
//! (`PERF_EVENT_IOC_SET_OUTPUT`). The map holds one of the two, so that a change of the kind is one map update, which
//! loses and reorders nothing.

mod event;
mod mapping;
mod pacing;
#[cfg(feature = "tokio")]
mod reader;
mod record;
mod rings;

pub use pacing::POLL_INTERVAL;
#[cfg(feature = "tokio")]
pub use reader::Reader;
pub use record::{Record, Records, Span};
pub use rings::{Rings, Wakeups};

/// Returns the size of a page of memory in bytes, the unit of a ring's size.
#[must_use]
pub fn page_size() -> usize {
    rustix::param::page_size()
}
