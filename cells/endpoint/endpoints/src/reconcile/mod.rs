//! Reconciles rows of the table `endpoints` with the state folder, the datapath, the ipcache and the allocator, of which
//! it is the only writer for endpoints: the reconciler's operations with the steps of a regeneration, changes of
//! identities, and the writes themselves.
//!
//! Sibling folders that it uses: `model`, `restore`.

pub(crate) mod identity_change;
pub(crate) mod regeneration;
pub(crate) mod targets;
