//! Errors of expressions and of their evaluation.

/// The place of a token in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) usize);

/// An expression that cannot be evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {problem}")]
#[non_exhaustive]
pub struct CompileError {
    /// The line, from 1.
    pub line: usize,
    /// The character in the line, from 1.
    pub column: usize,
    /// Why it is invalid.
    pub problem: String,
}

impl CompileError {
    pub(crate) fn new(text: &str, Place(at): Place, problem: impl Into<String>) -> Self {
        let before = text.get(..at).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        Self {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            problem: problem.into(),
        }
    }
}

/// An evaluation without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// A sum, a difference, a product or a conversion exceeds the range of its type.
    #[error("a number exceeds its range")]
    Overflow,
    /// A division by zero.
    #[error("a number is divided by zero")]
    DivisionByZero,
    /// A list has no such index, or a map no such key.
    #[error("there is no such key")]
    NoSuchKey,
    /// A function or operator does not take these values, of which the types were unknown before.
    #[error("there is no function of this name for these values")]
    NoOverload,
    /// A text is none of the type that it is converted to.
    #[error("a text cannot be converted")]
    Conversion,
    /// The bytes are no message of the type.
    #[error("the message is malformed")]
    Malformed,
    /// The limit of work.
    #[error("the evaluation exceeds its limit")]
    TooExpensive,
}
