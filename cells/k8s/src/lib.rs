//! Cluster objects as tables, from a folder of manifests.
