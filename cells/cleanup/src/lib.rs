//! Finds and removes all that an agent has left on a node: ours, or one of the original before us.
//!
//! **Owns** nothing and is no cell: the agent's verb `cleanup` is its user. **Needs** root, the node's network namespace,
//! and that no agent runs. **Gives** [`find()`], which changes nothing, and [`Leftover::remove`]; each line that a dry run
//! prints is one [`Leftover`].
//!
//! The order is that of [`find()`]: first pods' interfaces, so that none is left that no policy watches over, then programs
//! and the host's devices, at last pins and files. What has been removed is not found again: a removal that was killed
//! is finished by the next.
//!
//! **What stays.** Kernel settings: what they were before is not known. The bpf file system's mount: others may use it.
//! Files in the run folder under names that no agent gives. Configuration of the CNI plugin: whoever installed it removes it.
//!
//! ```no_run
//! let places = cleanup::Places {
//!     bpf_root: "/sys/fs/bpf".into(),
//!     run: "/var/run/cilium".into(),
//!     socket: "/var/run/cilium/cilium.sock".into(),
//! };
//! for leftover in cleanup::find(&places)? {
//!     println!("{leftover}");
//!     leftover.remove()?;
//! }
//! # Ok::<(), cleanup::Error>(())
//! ```

mod error;
mod find;
mod leftover;

pub use error::Error;
pub use find::{Places, find};
pub use leftover::Leftover;
