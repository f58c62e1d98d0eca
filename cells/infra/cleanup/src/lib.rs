//! Finds and removes all that an agent has left on a node: ours, or one of Cilium before us.
//!
//! **Owns** nothing and is no cell: the agent's verb `cleanup` is its user. **Needs** root, the node's network namespace,
//! and that no agent runs. **Provides** [`find()`], which changes nothing, and [`Leftover::remove`]; each line that a dry run
//! prints is one [`Leftover`].
//!
//! The order is that of [`find()`]: first pods' interfaces, so that none is left that no policy watches over, then programs
//! and the host's devices, at last pins and files. What has been removed is not found again: a removal that was killed
//! is finished by the next.
//!
//! **Of Cilium** there may be more than an agent of ours makes: chains in the tables of iptables with the rules that
//! lead to them, rules of policy routing by its marks, the two routing tables of its proxies, and the rule for local
//! addresses, which it moves from place 0 to 100. Its own `post-uninstall-cleanup` leaves all of these; here they go. Chains
//! need the system's iptables; without it the log says that they were not looked for. Tables and their own chains stay.
//!
//! **What stays.** Kernel settings: what they were before is not known. The bpf file system's mount: others may use it.
//! Files in the run folder under names that no agent gives. Sets of ipset. Configuration of the CNI plugin: whoever
//! installed it removes it.
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
mod iptables;
mod leftover;

pub use error::Error;
pub use find::{Places, find};
pub use iptables::Chains;
pub use leftover::Leftover;
