//! Which labels make up an endpoint's identity: the filter of `--labels`, and what cluster objects say of a pod.
//!
//! Sibling folders that it uses: `model`.

pub(crate) mod filter;
pub(crate) mod pod;
pub(crate) mod prefix_file;
