//! Transactions of all sources: services with their frontends, backends, and the selection of backends.
//!
//! Sibling folders that it uses: `model`.

pub(crate) mod freed;
pub(crate) mod mesh;
pub(crate) mod select;
pub(crate) mod services_writer;
pub(crate) mod txn;
