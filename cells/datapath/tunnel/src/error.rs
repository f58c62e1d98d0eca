//! Errors of the options.

use crate::Family;

/// Options that cannot be in force together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The nodes' family is disabled.
    #[error(
        "option underlay-protocol: {underlay} needs enable-{underlay}=true; set it, or give underlay-protocol=auto"
    )]
    DisabledFamily {
        /// The requested family.
        underlay: Family,
    },
}
