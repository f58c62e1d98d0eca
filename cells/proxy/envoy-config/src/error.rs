//! Errors of objects.

/// A fault of an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct Invalid {
    /// The path of the field.
    pub path: String,
    /// The fault, and the remedy.
    pub problem: String,
}

impl Invalid {
    pub(crate) fn new(path: impl Into<String>, problem: impl Into<String>) -> Invalid {
        Invalid { path: path.into(), problem: problem.into() }
    }
}
