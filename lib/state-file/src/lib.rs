//! Files that the agent keeps for its next run: replaced atomically, validated, reported in health.
//!
//! **Owns** no file: each cell owns its own and keeps it through this crate. **Provides** [`StateFile`] (one file),
//! [`Records`] (a file for each key, written by a job), [`Rewrite`] (retries failed writes and reports them in a row of
//! health), [`quarantine`] (renames a damaged file or folder), [`Wal`] (a write-ahead log of keys), [`Schema`] (the version in files of our own form).
//!
//! **Writing.** A file is written in the same folder under the name `NAME.next` and renamed to its own name, so that a
//! crash at any instruction leaves the old file or the new one. `NAME.next` is always created, never opened: a leftover
//! of a crash or another process under that name is removed first, and nothing is written through a link.
//!
//! **Durability.** State that describes pods, such as ids of identities, is not flushed to the disk: after a power
//! failure there are no pods and no packets with these ids. State that decides about pods created after it is flushed
//! ([`StateFile::flushed`]): the last valid policies, and whether there was a folder of them.
//!
//! **Reading** accepts only regular files of bounded size: no link is followed, no pipe blocks the reader.
//!
//! **States of a file**, and the reaction of its owner:
//! - *damaged* ([`Error::Damaged`]): renamed by [`quarantine`], reported in log and health; the agent continues with
//!   the state of the kernel and of other files;
//! - *from a newer agent* ([`Error::Newer`]): the start fails and the file stays untouched. Continuing would lose its
//!   content - the labels behind an identity, the policies in force - while programs and pods still depend on it; the
//!   datapath keeps forwarding without an agent, so waiting for the right one costs less;
//! - *from an older agent*: migrated in memory ([`Schema::migrate`]), on disk with the next write;
//! - *temporarily unreadable* ([`Error::Io`]: EMFILE, EACCES, EIO): the start fails, nothing is quarantined.
//!
//! Files in Cilium's form (`ep_config.json`, `local_allocator_state.json`, `node_config.h`,
//! `agent-runtime-config.json`) carry no version, as Cilium's agent must be able to read them. Cilium's rule applies:
//! fields are only added, unknown keys are ignored, missing keys have their default; a file that cannot be read this
//! way is damaged.
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

mod damaged;
mod error;
mod file;
mod records;
mod rewrite;
mod schema;
mod wal;

pub use damaged::{MAX_CORRUPT_COPIES, quarantine};
pub use error::Error;
pub use file::{LIMIT, StateFile, open_for_lock, open_to_read};
pub use records::Records;
pub use rewrite::Rewrite;
pub use schema::{Schema, Version, check_versions};
pub use wal::{LogKey, Wal};
