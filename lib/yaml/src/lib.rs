//! YAML documents as JSON values, for files that others wrote.
//!
//! The depth of a document and the expansion of its aliases are bounded. Keys that are given twice, keys that are no
//! strings, and unknown tags are faults; a [`Fault`] has its path and line. Merge keys (`<<`) are supported.
//!
//! ```
//! use yaml_values::{Reader, Version, value};
//!
//! assert_eq!(value("switch: on\nmode: 010")?, serde_json::json!({ "switch": "on", "mode": "010" }));
//! let (line, document) = Reader::new("# manifest\nmode: 010", Version::V1_1).document()?.unwrap();
//! assert_eq!((line, document), (2, serde_json::json!({ "mode": 8 })));
//! let fault = value("log:\n  level: debug\n  level: info").unwrap_err();
//! assert_eq!(fault.to_string(), "line 3: log.level: is given twice; remove one");
//! # Ok::<(), yaml_values::Fault>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod reader;
mod scalar;

use std::fmt::Write as _;

use serde_core::de::DeserializeOwned;
use serde_json::Value;

pub use reader::Reader;
pub use scalar::is_plain_string;

/// The maximum nesting depth of lists and objects.
pub const MAX_DEPTH: usize = 64;

/// The number of nodes and bytes that aliases may add to a text by default; to a longer text, as many as it has. A node
/// takes up to a kilobyte while it is parsed, and the size of a text is bounded by its reader.
pub const MAX_ALIASED: usize = 64 << 10;

/// The meaning of plain scalars.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// As `kubectl` reads manifests: `on` and `yes` are true, `010` is eight, `1_000` a thousand.
    V1_1,
    /// The core schema: `on` and `010` are texts.
    V1_2,
}

/// A fault of a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {}{reason}", if path.is_empty() { String::new() } else { format!("{path}: ") })]
#[non_exhaustive]
pub struct Fault {
    /// The line, from 1.
    pub line: usize,
    /// The path in the document, such as `spec.ports[0].port`; empty for the document itself.
    pub path: String,
    /// The fault, and the remedy.
    pub reason: String,
}

/// Parses a text of one document by YAML 1.2; `null` if it has none.
///
/// # Errors
/// A [`Fault`] if the text is no YAML, exceeds a bound, or has a second document.
pub fn value(text: &str) -> Result<Value, Fault> {
    Reader::new(text, Version::V1_2).only()
}

/// Parses a text of one document by YAML 1.2 as a type.
///
/// # Errors
/// As of [`value`], and if the value is none of the type.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, Fault> {
    let fault = |error: serde_json::Error| Fault { line: 1, path: String::new(), reason: error.to_string() };
    serde_json::from_value(value(text)?).map_err(fault)
}

/// Appends a member's name to a path: `.name`, or `["a.b/c"]` if it is not a simple word.
pub fn push_member(path: &mut String, name: &str) {
    let simple = |c: u8| c.is_ascii_alphanumeric() || c == b'_' || c == b'-';
    match !name.is_empty() && name.bytes().all(simple) {
        true if path.is_empty() => path.push_str(name),
        true => _ = write!(path, ".{name}"),
        false => _ = write!(path, "[{name:?}]"),
    }
}
