//! Compares the kernel with what should be there, and repairs what others have removed or changed.
//!
//! Sibling folders that it uses: `endpoints`, `guard`, `interfaces`, `programs`.

pub(crate) mod alarms;
pub(crate) mod job;
pub(crate) mod repairs;
