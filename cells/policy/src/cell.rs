//! The wiring.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use hive::prelude::*;
use statedb::RwTable;

use crate::endpoint::EndpointPolicy;
use crate::handle::Policies;

/// Gives `Arc<Policies>` and the table `endpoint-policies`.
pub fn cell() -> Cell {
    module("policy", "Network policy", [statedb::table::<EndpointPolicy>(), provide(policies)])
}

/// The repository begins at revision 1, as the original's.
fn policies(table: Arc<RwTable<EndpointPolicy>>) -> Arc<Policies> {
    Arc::new(Policies::new((*table).clone(), Arc::new(AtomicU64::new(1))))
}
