//! Script tests of cells: text archives, commands that cells contribute, retries until a state is reached.
//!
//! A script is a text of lines; each is a command, most of them contributed by the cells under test. The language is that of
//! cilium/hive, so that scripts written for it run unchanged.
//!
//! ```text
//! # the first section
//! hive start
//! db/insert nodes node.yaml
//! * db/show nodes
//! ! stdout 'unready'
//!
//! -- node.yaml --
//! name: a
//! ```
//!
//! - A line is `[condition] prefix command words... &`. Words are split at blanks, `'..'` quotes, `$NAME` is replaced outside
//!   of quotes, `#` begins a comment, in column 0 a section.
//! - Without a prefix the command must succeed; with `!` it must fail; with `?` it may do either; `*` and `!*` retry
//!   the section from its first command until the command succeeds or fails. A command that its condition has skipped
//!   stays skipped in retries (cilium/hive runs it).
//! - Errors name file and line. A syntax error, an unknown command, condition or flag fails with any prefix.
//!
//! ```
//! use std::sync::Arc;
//!
//! use hive_script::{Archive, Engine, State, default_commands};
//!
//! # fn main() -> anyhow::Result<()> {
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let archive = Archive::parse(b"cat greeting.txt\nstdout '^hello$'\n-- greeting.txt --\nhello\n");
//! # let folder = tempfile::tempdir()?;
//! let state = State::new(folder.path());
//! archive.extract(folder.path(), |name| state.expand(name))?;
//! let engine = Arc::new(Engine::new(default_commands(), [])?);
//! engine.run(state, "greeting.txtar", &archive.script_text()).await?;
//! # anyhow::Ok(()) })
//! # }
//! ```
//!
//! In a hive, cells contribute [`Command`](hive_command::Command)s and [`Condition`]s as group members, and [`cell()`] collects them in an
//! [`Engine`]; [`hive_commands()`] start and stop the hive from within a script, [`replaceable()`] builds another one. Two commands of one name are an error
//! of the hive's build.

#![forbid(unsafe_code)]

mod archive;
mod cell;
mod command;
mod commands;
mod engine;
mod error;
mod expand;
mod hive_commands;
mod line;
mod log;
mod replaced;
mod session;
mod state;

pub use archive::{Archive, File};
pub use cell::cell;
pub use command::{Condition, ScriptCommand};
pub use commands::{default_commands, help_command};
pub use engine::{Engine, Retry};
pub use error::{Duplicate, Fault, Interrupt, ScriptError};
pub use expand::expand;
pub use hive_commands::{hive_commands, stop_hive};
pub use line::{Expect, Guard, Line, LineError, Piece, Word};
pub use log::Log;
pub use replaced::replaceable;
pub use session::Session;
pub use state::State;
