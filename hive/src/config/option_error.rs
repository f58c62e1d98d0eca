//! The error of a value that its type allows and its option does not.

/// An option whose value has the right type and is still invalid, as found by a configuration's own `check`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("option {option}: '{value}' is wrong; give {expected}")]
#[non_exhaustive]
pub struct OptionError {
    /// Name of the option.
    pub option: &'static str,
    /// Its value.
    pub value: String,
    /// A description of valid values.
    pub expected: &'static str,
}

impl OptionError {
    /// Returns the error of an option with this value; `expected` describes valid ones.
    pub fn new(option: &'static str, value: impl Into<String>, expected: &'static str) -> Self {
        OptionError { option, value: value.into(), expected }
    }
}
