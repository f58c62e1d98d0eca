//! Commands of scripts and of the shell, as cells contribute them, without the engine that runs them.
//!
//! A [`Command`] is a name, a declaration of its arguments, and an asynchronous function of a [`Call`] that returns an
//! [`Output`]. A cell contributes it as a group member, `Member<Command>`, and depends on this crate only: whether a
//! script engine, a shell or nothing collects the commands is up to the program. `hive-script` has such an engine.
//!
//! A command knows the program that runs it as an [`Environment`]: files that it may read and write, variables, and a log.
//! An engine implements it:
//!
//! ```
//! use std::sync::Arc;
//!
//! use hive_command::{Call, Command, Environment, Flag, Output, Pending, Request};
//!
//! /// Commands have no files here, and log to standard error.
//! struct Plain;
//!
//! impl Environment for Plain {
//!     fn read(&self, name: &str) -> anyhow::Result<Vec<u8>> {
//!         anyhow::bail!("open {name}: there are no files")
//!     }
//!
//!     fn write(&self, name: &str, _: &[u8]) -> anyhow::Result<()> {
//!         anyhow::bail!("write {name}: there are no files")
//!     }
//!
//!     fn is_confined(&self) -> bool {
//!         true
//!     }
//!
//!     fn expand(&self, text: &str) -> String {
//!         text.to_owned()
//!     }
//!
//!     fn log(&self, text: &str) {
//!         eprint!("{text}");
//!     }
//!
//!     fn drained(&self) -> Pending<'_, ()> {
//!         Box::pin(std::future::ready(()))
//!     }
//! }
//!
//! # futures::executor::block_on(async {
//! let greet = |call: Call| async move {
//!     let [name] = call.exactly()?;
//!     Ok(Output::text(format!("{}, {name}!\n", call.flags.text("greeting"))))
//! };
//! let hello = Command::new("hello", "greet by name", greet).takes("name").flag(Flag::text("greeting", "how"));
//!
//! let words = ["--greeting=Good morning".to_owned(), "Ada".to_owned()];
//! let Request::Run(flags, args) = hello.request(&words)? else { anyhow::bail!("neither help nor completion") };
//! let output = (hello.run())(Call::new(Arc::new(Plain), flags, args)).await?;
//! assert_eq!(output.buffers().unwrap().stdout, b"Good morning, Ada!\n");
//! # anyhow::Ok(()) }).unwrap();
//! ```
//!
//! - `render`: tables, JSON and YAML in the formats of Go's tools.
//! - `regexp`: regular expressions in Go's syntax.

#![forbid(unsafe_code)]

mod call;
mod command;
mod complete;
mod flags;
#[cfg(feature = "regexp")]
mod regexp;
#[cfg(feature = "render")]
pub mod render;

pub use call::{Buffers, Call, Environment, Output, Pending};
pub use command::{Command, Completing, Function, Request};
pub use flags::{Flag, FlagError, FlagKind, Flags};
#[cfg(feature = "regexp")]
pub use regexp::{multi_line, whole_text};
