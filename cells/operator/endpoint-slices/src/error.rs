//! Errors.

/// The reason why there are no slices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The rates of writes cannot be read.
    #[error(
        "ces-rate-limits: {value:?} is wrong: {reason}; give a list as [{{\"nodes\":0,\"limit\":10,\"burst\":20}}]"
    )]
    RateLimits {
        /// The value.
        value: String,
        /// The reason.
        reason: String,
    },
}
