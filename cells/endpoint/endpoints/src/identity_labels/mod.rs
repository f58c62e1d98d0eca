//! The labels that make up an endpoint's identity: files of the filter's prefixes, and the pod's metadata in cluster objects.
//!
//! Sibling folders that it uses: `model`.

pub(crate) mod pod;
pub(crate) mod prefix_file;
