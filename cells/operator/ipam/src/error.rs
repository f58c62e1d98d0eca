//! Errors.

use ipnetwork::IpNetwork;

/// Why a pool cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A CIDR cannot be read.
    #[error("{option}: {value:?} is wrong: give a CIDR of {family}, as {example}")]
    Cidr {
        /// The option or object.
        option: String,
        /// The value.
        value: String,
        /// The family.
        family: &'static str,
        /// A CIDR of that family.
        example: &'static str,
    },
    /// No CIDR for an enabled family.
    #[error(
        "{option} is empty, but {switch}=true: give the CIDR that nodes get theirs of, or {switch}=false"
    )]
    Empty {
        /// The option.
        option: &'static str,
        /// The family's switch.
        switch: &'static str,
    },
    /// A CIDR for a disabled family.
    #[error("{option} is {value}, but {switch}=false: remove it, or set {switch}=true")]
    Disabled {
        /// The option.
        option: &'static str,
        /// The value.
        value: String,
        /// The family's switch.
        switch: &'static str,
    },
    /// Two CIDRs overlap.
    #[error("{option}: {first} and {second} overlap: addresses would be given twice; remove one")]
    Overlap {
        /// The option or object.
        option: String,
        /// One.
        first: IpNetwork,
        /// The other.
        second: IpNetwork,
    },
    /// The size of nodes' CIDRs does not fit.
    #[error("{option}: mask size {mask} is wrong for {cidr}: give {least} to {most}")]
    MaskSize {
        /// The option or object.
        option: String,
        /// The size.
        mask: u8,
        /// The CIDR.
        cidr: IpNetwork,
        /// The least size.
        least: u8,
        /// The largest size.
        most: u8,
    },
    /// A pool to create is wrong.
    #[error(
        "auto-create-cilium-pod-ip-pools: {pool}: {value:?} is wrong: give {expected}, as \
         ipv4-cidrs:10.0.0.0/16;ipv4-mask-size:24"
    )]
    AutoCreate {
        /// The pool.
        pool: String,
        /// The member that is wrong.
        value: String,
        /// What is right.
        expected: &'static str,
    },
}
