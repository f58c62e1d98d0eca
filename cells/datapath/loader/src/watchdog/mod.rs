//! Compares the kernel with the desired state, and repairs what another process has removed or changed.
//!
//! Sibling folders that it uses: `endpoints`, `guard`, `interfaces`.

pub(crate) mod alarms;
pub(crate) mod compare;
pub(crate) mod repairs;
pub(crate) mod reports;
pub(crate) mod schedule;
