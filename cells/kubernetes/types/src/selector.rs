//! Selectors of labels and fields, parsed and matched as by apimachinery (`pkg/labels`, `pkg/fields`).
//!
//! Labels are selected by the string of a request or an annotation (`-l`) and by [`LabelSelector`](crate::LabelSelector)
//! objects; both become [`LabelRequirements`]. Fields are selected by the string of a request alone.
//!
//! ```
//! use k8s_types::selector::LabelRequirements;
//!
//! let selector: LabelRequirements = "rack in (r6, r7),!retired".parse()?;
//! assert!(selector.matches(|key| (key == "rack").then_some("r7")));
//! assert!("rack of (r7)".parse::<LabelRequirements>().is_err());
//! # Ok::<(), k8s_types::selector::SelectorError>(())
//! ```

mod fields;
mod labels;
mod parser;

pub use fields::FieldSelector;
pub use labels::{LabelRequirements, OperatorError, Test};

/// The error of an invalid selector; the text names the invalid part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(String);
