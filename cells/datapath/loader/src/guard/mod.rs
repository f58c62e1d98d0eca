//! What keeps packets of pods without an endpoint away, and marks those of the host.
//!
//! Sibling folders that it uses: `endpoints`.

pub(crate) mod nftables;
pub(crate) mod unknown;
