//! Drives the maps from the table of frontends: desired entries, a copy of the maps' entries, the differences in a safe
//! order.
//!
//! Sibling folders that it uses: `lbmap`, `model`.

pub(crate) mod backends;
pub(crate) mod balancer;
pub(crate) mod capacity;
pub(crate) mod control;
pub(crate) mod desired;
pub(crate) mod id_file;
pub(crate) mod ids;
pub(crate) mod mirror;
pub(crate) mod operations;
pub(crate) mod record;
pub(crate) mod restore;
pub(crate) mod reverse;
pub(crate) mod store;
pub(crate) mod translation;
pub(crate) mod wildcards;
