//! Errors of the options.

use crate::Family;

/// Options that cannot be in force together, or not in this agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The mode is Cilium's, but not supported.
    #[error("option routing-mode: hybrid is not supported by this agent; give tunnel or native")]
    Hybrid,
    /// The nodes' family is disabled.
    #[error(
        "option underlay-protocol: {underlay} needs enable-{underlay}=true; set it, or give underlay-protocol=auto"
    )]
    DisabledFamily {
        /// The requested family.
        underlay: Family,
    },
}
