//! The tables of the largest kinds, with a part of each object.

use hive::prelude::*;
use operator_endpoint_slices::EndpointSlicesConfig;

/// Provides the tables of pods and CiliumEndpoints. CiliumIdentities are whole, since they are written back.
#[must_use]
pub fn large_tables() -> Cell {
    let are_sliced = |slices: Config<EndpointSlicesConfig>| slices.enable_cilium_endpoint_slice;
    bundle([operator_objects::pods(), operator_objects::endpoints(are_sliced)])
}
