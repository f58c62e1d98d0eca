//! Errors of the node's maps.

/// The result of this crate's fallible calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the node's maps.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel returned an error, or a pin has another layout.
    #[error(transparent)]
    Bpf(#[from] bpf::Error),
    /// The maps are those of a newer agent. Nothing has been changed.
    #[error(
        "the pinned maps are of version {found}, this agent knows {known} at most, and nothing was changed: \
         start an agent that is as new as the one that made them, or remove them, which interrupts the pods: \
         agent cleanup --dry-run lists what, agent cleanup removes it"
    )]
    Newer {
        /// Their version.
        found: u32,
        /// The newest version that this agent supports.
        known: u32,
    },
    /// Pins of another agent or version that cannot be migrated. Nothing has been changed.
    #[error(
        "what is pinned cannot be taken over, and nothing was changed: {}. \
         Go back to the agent or the options that made it, or remove it, which interrupts the pods: \
         agent cleanup --dry-run lists what, agent cleanup removes it",
        .differences.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    Differ {
        /// The differences, one per map.
        differences: Vec<bpf::Error>,
    },
    /// A size is out of range.
    #[error(transparent)]
    OutOfRange(#[from] crate::config::OutOfRange),
    /// An unknown map name.
    #[error("there is no map {name}")]
    Unknown {
        /// The name.
        name: String,
    },
}
