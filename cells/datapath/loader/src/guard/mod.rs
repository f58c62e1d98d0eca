//! Drops packets of pods that have no endpoint, and marks packets of the host.
//!
//! Sibling folders that it uses: `endpoints`.

pub(crate) mod host_mark;
pub(crate) mod nftables;
pub(crate) mod unknown;
