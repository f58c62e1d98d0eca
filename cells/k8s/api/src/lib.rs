//! Cluster objects from an API server, and requests to it.
