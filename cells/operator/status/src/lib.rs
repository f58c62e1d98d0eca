//! Statuses of cluster objects, written by the leader at the version that they were computed from.
//!
//! **Owns** nothing. **Needs** the writer of cluster objects and the [`Leadership`](operator_election::Leadership).
//! **Provides** [`StatusWriter`].

#![forbid(unsafe_code)]

mod writer;

pub use writer::StatusWriter;
