//! Values of policy without the kernel, files or jobs: rows of its tables, and rows of a policy map.
//!
//! Sibling folders that it uses: none.

pub(crate) mod computation;
pub(crate) mod decisions;
pub(crate) mod endpoint;
pub(crate) mod logs;
pub(crate) mod object;
pub(crate) mod rows;
pub(crate) mod selectors;
