//! The answer to "what happens if this node runs Apiary with this configuration", without a change of anything.
//!
//! **Owns** nothing. **Needs** a configuration as chart values or as the data of a ConfigMap, a builder of the agent's hive, and,
//! for the state of a node, root. **Provides** a [`Report`]: for each key whether it is effective, ignored, refused or
//! unknown; for each pinned map whether it is kept, copied or replaced; for each endpoint whether it is restored.
//!
//! Options are judged by the hive itself: it reads them from a folder as the agent does, so that the declarations and checks of
//! the cells are the only source. Values are judged by the chart's own files: `values.schema.json` (names and types),
//! `not-built.tsv` (features without an implementation), `removed.tsv` (values of previous versions of Cilium) and `options.tsv`
//! (values that are copied to options).
//!
//! ```
//! use hive::Hive;
//! use hive::prelude::*;
//! use preflight::Outcome;
//! use preflight::options::{Program, Scope, judge};
//!
//! #[derive(hive::Config)]
//! struct Mtu {
//!     /// Largest packet
//!     #[flag(default = 1500, unit = "bytes")]
//!     mtu: u16,
//! }
//! let builder = || Hive::builder(module("x", "x", [config::<Mtu>()])).foreign(known_options::known_options());
//! let data = [("mtu", "9000"), ("enable-hubble", "true"), ("mtuu", "1")];
//! let data = data.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
//! let program = Program { builder: &builder, construct: &|_| Ok(()) };
//! let judged = judge(&data, Scope::Complete, program)?;
//! let outcomes: Vec<Outcome> = judged.findings.iter().map(|finding| finding.outcome).collect();
//! assert_eq!(outcomes, [Outcome::Ignored, Outcome::Effective, Outcome::Unknown]);
//! # Ok::<(), preflight::Error>(())
//! ```
//!
//! **Limits**: checks that need the node (devices, kernel features) are those of the start. Sizes of maps are computed for the
//! memory of the machine, not for the limit of the agent's container. Combinations of values are checked by the templates of the
//! chart: the rendered ConfigMap has all of them.

#![forbid(unsafe_code)]

mod document;
mod error;
pub mod node;
pub mod options;
mod report;
mod schema;
pub mod values;

pub use document::{ConfigMapSource, read_values};
pub use error::Error;
pub use report::{EndpointFinding, EndpointOutcome, Finding, MapFinding, MapOutcome, Outcome, Report};
