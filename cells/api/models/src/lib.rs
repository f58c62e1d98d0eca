//! The models of the REST API under /v1, with field names and order as Cilium's clients expect them.
