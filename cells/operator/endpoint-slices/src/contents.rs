//! The contents of slices.

use std::collections::BTreeSet;

use k8s_types::SmolStr;
use k8s_types::cilium::{CiliumEndpointSlice, CoreCiliumEndpoint};
use operator_objects::EndpointRow;
use serde_json::{Value, json};
use statedb::{ReadSource, Table};

/// Returns the endpoints of a slice as they are, by name.
pub(crate) fn desired(
    namespace: &SmolStr,
    names: &BTreeSet<SmolStr>,
    endpoints: &Table<EndpointRow>,
    source: &impl ReadSource,
) -> Vec<CoreCiliumEndpoint> {
    let row = |name| endpoints.get(source, EndpointRow::by_name(namespace, name));
    names.iter().filter_map(|name| row(name)?.core.as_deref().cloned()).collect()
}

/// Whether a slice has exactly these endpoints, in any order.
pub(crate) fn is_equal(
    slice: &CiliumEndpointSlice,
    namespace: &SmolStr,
    desired: &[CoreCiliumEndpoint],
) -> bool {
    let mut found: Vec<&CoreCiliumEndpoint> = slice.endpoints.iter().collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    slice.namespace == *namespace && found.into_iter().eq(desired)
}

/// Returns the object of a slice: a new one, or the one that there is with other endpoints.
pub(crate) fn object(
    present: Option<&CiliumEndpointSlice>,
    namespace: &SmolStr,
    endpoints: &[CoreCiliumEndpoint],
) -> Value {
    let mut object = present.map_or_else(|| json!({"metadata": {}}), |slice| json!(slice));
    object["namespace"] = namespace.as_str().into();
    object["endpoints"] = json!(endpoints);
    object
}
