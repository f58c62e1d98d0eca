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
    /// The MTU is too small.
    #[error(
        "option mtu: {mtu} is less than {bound}, {reason}; set {bound} or more, or 0 for that of the node's devices"
    )]
    SmallMtu {
        /// The option.
        mtu: u32,
        /// The least possible MTU.
        bound: u32,
        /// The reason for the bound.
        reason: &'static str,
    },
    /// The MTU is too large.
    #[error(
        "option mtu: {mtu} is more than {bound}, the most that the kernel's virtual devices have, with the headers of a \
         tunnel; set {bound} or less, or 0 for that of the node's devices"
    )]
    LargeMtu {
        /// The option.
        mtu: u32,
        /// The largest possible MTU.
        bound: u32,
    },
}
