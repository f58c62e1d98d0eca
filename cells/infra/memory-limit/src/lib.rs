//! The agent's memory limit, and the sizes derived from it.
//!
//! A container's limit covers all memory charged to the agent: its own pages, and kernel memory, most of it in maps. A
//! process that exceeds the limit is OOM-killed, and again after each restart, so cells ask here first: maps are sized
//! to fit ([`MemoryLimit::for_maps`]), programs are loaded one at a time ([`MemoryLimit::load_threads`]), external input is read up to a maximum size ([`MemoryLimit::largest_input`]),
//! and requests that would make the agent larger are refused while there is [no capacity](MemoryLimit::room).
//!
//! **Owns** a row of health with the memory in use, the metric `process_allocated_bytes`, and the job that returns free
//! memory to the kernel, and once after the start the pages of the binary that are mapped. **Needs** the registry of metrics. **Provides** `Arc<MemoryLimit>`, and [`tune_allocator()`]
//! and [`Counting`] for `main`. [`trimming()`] is the job and the metric alone, for the operator. Without a limit no map is resized and no request refused.
//!
//! **Life.** The limit is detected when the agent is built: the smallest of its cgroup and that cgroup's ancestors, in
//! both versions of cgroups. A changed limit takes effect at the next start.
//!
//! ```
//! let limit = memory_limit::MemoryLimit::of(64 << 20);
//! assert_eq!(limit.for_maps(), Some(24 << 20));
//! assert_eq!(limit.largest_input(16 << 20), 1 << 20);
//! assert_eq!(limit.load_threads(2), 1);
//! assert_eq!(memory_limit::MemoryLimit::none().largest_input(16 << 20), 16 << 20);
//! ```
//!
//! **Differences from Cilium.** Cilium sizes maps by the machine's memory and does not consider its own limit.

mod allocator;
mod binary;
mod cell;
mod counting;
mod limit;

pub use allocator::{trim, tune_allocator};
pub use binary::unmap_binary;
pub use cell::{cell, trimming};
pub use counting::{Counting, allocated};
pub use limit::{Full, MemoryLimit};
