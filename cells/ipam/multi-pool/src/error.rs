//! Errors of the options.

/// An invalid option.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number of addresses is none.
    #[error(
        "option ipam-multi-pool-pre-allocation: {pool}={value} is wrong: give a number of addresses, as {pool}=8"
    )]
    PreAllocation {
        /// The pool.
        pool: String,
        /// The value.
        value: String,
    },
}
