//! A value that its type allows and its meaning does not.

/// An option with a value that is of the right type and still wrong: what a configuration's own `check` finds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("option {option}: '{value}' is wrong; give {expected}")]
pub struct OptionError {
    /// Name of the option.
    pub option: &'static str,
    /// Its value.
    pub value: String,
    /// A description of valid values.
    pub expected: &'static str,
}
