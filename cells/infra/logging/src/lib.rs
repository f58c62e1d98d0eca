//! The log of a program: lines as Cilium writes them, level and format by the option `log-opt`.
//!
//! **Owns** the process's tracing subscriber, once [`LogLevel::install`] was called. **Needs** nothing. **Provides** the options
//! [`LogConfig`], and [`cell()`] for programs that have no cell of their own for `debug`.
//!
//! ```
//! let (filter, level) = logging::filter();
//! let options: logging::LogOptions = "format=text,level=warn".parse()?;
//! level.install(filter, options, false);
//! tracing::warn!(address = "10.0.0.1", "Address is taken"); // level=warn msg="Address is taken" subsys=.. address=10.0.0.1
//! # Ok::<(), String>(())
//! ```
//!
//! Lines carry the module of the hive in which the event happened; events with a target that ends with `::fatal` have the
//! level `fatal`, which tracing lacks. Logged warnings and errors are counted by crate: [`LogLevel::line_counts`].

#![forbid(unsafe_code)]

mod cell;
mod counts;
mod level;
mod line;
mod options;
mod sink;

pub use cell::cell;
pub use counts::{LineCounts, LineLabels};
pub use level::{LogFilter, LogLevel, filter};
pub use line::SharedFormat;
pub use options::{DebugConfig, LogConfig, LogFormat, LogOptions};
