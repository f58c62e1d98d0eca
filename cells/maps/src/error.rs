//! What can go wrong with the node's maps.

/// The result of this crate's fallible calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the node's maps.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel or the pin's layout is against it.
    #[error(transparent)]
    Bpf(#[from] bpf::Error),
    /// A size is out of range.
    #[error(transparent)]
    OutOfRange(#[from] crate::config::OutOfRange),
    /// A name that is in no list.
    #[error("there is no map {name}")]
    Unknown {
        /// The name.
        name: String,
    },
}
