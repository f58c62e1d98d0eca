//! Finds and removes all leftovers of an agent on a node: of this agent, or of a previous Cilium.
//!
//! **Owns** nothing and is no cell: it is used by the agent's verb `cleanup`. **Needs** root, the node's network
//! namespace, and that no agent runs. **Provides** [`find()`], which changes nothing, and [`Leftover::remove`]; each
//! line that a dry run prints is one [`Leftover`].
//!
//! The order is that of [`find()`]: first interfaces of pods, so that no pod stays connected without policy, then
//! programs and the host's devices, at last pins and files. Removed objects are not found again, so an interrupted
//! cleanup is completed by the next.
//!
//! **Cilium** leaves objects that its own cleanup does not remove: chains in the tables of iptables with the rules that
//! jump to them, sets of nodes' addresses, policy routing rules by its marks, the two routing tables of its proxies, and
//! the rule for local addresses, which it moves from priority 0 to 100. Its own `post-uninstall-cleanup` keeps all of these; here they are removed.
//! Chains need the system's iptables; without it a warning is logged. Tables and their built-in chains are kept.
//!
//! **Kept** are kernel settings, as their previous values are unknown; the mount of the bpf file system, which other
//! processes may use; files in the run folder under names that no agent uses; sets of ipset that rules of others use;
//! and the configuration of the CNI plugin, which its installer removes.
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
