//! Files that the agent keeps for its next run: whole or not at all, checked, reported in health.
//!
//! **Owns** no file: each cell owns its own and keeps it through this crate. **Provides** [`StateFile`] (one file),
//! [`Records`] (a file for each key, written by a job), [`Rewrite`] (writes again what could not be written, with a row
//! of health), [`quarantine`] (a damaged file or folder, out of the way), [`Schema`] (the version in files of our own
//! form).
//!
//! **Writing.** A file is written beside its place under the name `NAME.next` and renamed into it, so that a stop at any
//! instruction leaves the old file or the new one. The next file is always created, never opened: what a crash or
//! another process has left under that name is removed before, and nothing is written through a link.
//!
//! **The disk.** What describes pods, numbers of identities among it, is not flushed: after a power cut there are no pods
//! and no packets with these numbers. What decides about the pods that come then ([`StateFile::flushed`]) is: the last
//! good policies, and whether there was a folder of them.
//!
//! **Reading** takes a regular file of bounded size and nothing else: no link is followed, no pipe waited for.
//!
//! **What a file can be**, and what its owner does:
//! - *damaged* ([`Error::Damaged`]): renamed by [`quarantine`], reported in log and health, and the agent goes on with
//!   what kernel and other files know;
//! - *from a newer agent* ([`Error::Newer`]): the start fails and the file stays untouched. To go on would be to forget
//!   what it holds - whose identity a number is, which policy holds - while programs and pods still go by it; the
//!   datapath forwards on without an agent, so waiting for the right one costs less;
//! - *from an older agent*: brought up to date in memory ([`Schema::migrate`]), on disk with the next write;
//! - *not readable for now* ([`Error::Io`]: EMFILE, EACCES, EIO): the start fails, nothing is put aside.
//!
//! Files in Cilium's form (`ep_config.json`, `local_allocator_state.json`, `node_config.h`,
//! `agent-runtime-config.json`) carry no version, as another agent is to read them. Their rule is Cilium's: forms
//! only grow, keys that are not known are ignored, keys that are missing have their default; what cannot be read so is
//! damaged.
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use state_file::{Schema, StateFile};
//!
//! #[derive(Serialize, Deserialize, PartialEq, Debug)]
//! struct Numbers {
//!     numbers: Vec<u32>,
//! }
//!
//! impl Schema for Numbers {
//!     const VERSION: u32 = 1;
//!     const HOLDS: &'static str = "numbers in use";
//! }
//!
//! let folder = tempfile::tempdir()?;
//! let file = StateFile::new(folder.path().join("numbers.json"));
//! assert_eq!(file.load::<Numbers>()?, None);
//! file.store(&Numbers { numbers: vec![256] })?;
//! assert_eq!(std::fs::read_to_string(file.path())?, r#"{"version":1,"numbers":[256]}"#);
//! assert_eq!(file.load::<Numbers>()?.unwrap().numbers, [256]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod aside;
mod error;
mod file;
mod records;
mod rewrite;
mod schema;

pub use aside::{MAX_CORRUPT_COPIES, quarantine};
pub use error::Error;
pub use file::{LIMIT, StateFile, open_for_lock, open_to_read};
pub use records::Records;
pub use rewrite::Rewrite;
pub use schema::{Schema, Version, check_versions};
