//! How much memory the agent may use, and what follows from it.
//!
//! A container's limit counts all that the agent causes: its own pages, and what the kernel keeps for it, of which the
//! maps are most. Whoever would exceed the limit is killed, in a loop, so others ask here first: maps are sized to fit
//! ([`MemoryLimit::for_maps`]), what comes from outside is read up to a size ([`MemoryLimit::largest_input`]), and what
//! would make the agent larger is refused while there is [no room](MemoryLimit::room).
//!
//! **Owns** nothing but a row of health, which says how much is in use, the metric `process_allocated_bytes`, and the job
//! that gives memory back which is not used any more. **Needs** the registry of metrics. **Provides** `Arc<MemoryLimit>`, and
//! [`tune_allocator()`] and [`Counting`] for `main`. Without a limit nothing is sized or refused.
//!
//! **Life.** The limit is looked up when the agent is built: the smallest of its cgroup and those above, of both
//! versions of cgroups. A limit that changes counts at the next start.
//!
//! ```
//! let limit = memory_limit::MemoryLimit::of(64 << 20);
//! assert_eq!(limit.for_maps(), Some(24 << 20));
//! assert_eq!(limit.largest_input(16 << 20), 1 << 20);
//! assert_eq!(memory_limit::MemoryLimit::none().largest_input(16 << 20), 16 << 20);
//! ```
//!
//! **Differences from Cilium.** Cilium sizes maps by the machine's memory and does not look at its own limit.

mod allocator;
mod cell;
mod counting;
mod limit;

pub use allocator::{trim, tune_allocator};
pub use cell::cell;
pub use counting::{Counting, allocated};
pub use limit::{Full, MemoryLimit};
