//! The labels that make up an endpoint's identity: the filter of `--labels`, and the pod's metadata in cluster objects.
//!
//! Sibling folders that it uses: `model`.

pub(crate) mod filter;
pub(crate) mod pod;
pub(crate) mod prefix_file;
