//! Errors of policies.

/// The error of an invalid policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Malformed {
    /// The path of the field.
    pub field: String,
    /// The fault, and the remedy.
    pub problem: String,
}

impl Malformed {
    pub(crate) fn new(field: impl Into<String>, problem: impl Into<String>) -> Malformed {
        Malformed { field: field.into(), problem: problem.into() }
    }
}
