//! One load of the shared programs, and the options that are compiled into them.
//!
//! Sibling folders that it uses: none.

pub(crate) mod balancing;
pub(crate) mod direct_return;
pub(crate) mod egress;
pub(crate) mod host_routing;
pub(crate) mod ipip;
mod kept;
pub(crate) mod live;
pub(crate) mod nat46x64;
pub(crate) mod set;
pub(crate) mod vlans;
pub(crate) mod xdp;
