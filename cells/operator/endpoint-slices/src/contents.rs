//! The contents of slices.

use std::collections::BTreeSet;

use k8s_tables::Row;
use k8s_types::cilium::{CiliumEndpoint, CiliumEndpointSlice, CoreCiliumEndpoint};
use k8s_types::{Kind, SmolStr};
use serde_json::{Value, json};
use statedb::{ReadSource, Table};

/// Returns the fields of an endpoint that other nodes need; none for one without addresses or identity.
pub(crate) fn of_endpoint(endpoint: &CiliumEndpoint) -> Option<CoreCiliumEndpoint> {
    let (metadata, status) = (&endpoint.metadata, &endpoint.status);
    let pod = metadata.owner_references.iter().find(|owner| owner.kind == Kind::Pod.name());
    Some(CoreCiliumEndpoint {
        name: metadata.name.clone(),
        identity_id: status.identity.as_ref()?.id,
        pod_uid: pod.map(|pod| pod.uid.clone()).unwrap_or_default(),
        networking: Some(status.networking.clone()?),
        encryption: status.encryption.clone(),
        named_ports: status.named_ports.clone(),
        service_account: status.service_account.clone(),
    })
}

/// Returns the endpoints of a slice as they are, by name.
pub(crate) fn desired(
    namespace: &SmolStr,
    names: &BTreeSet<SmolStr>,
    endpoints: &Table<Row<CiliumEndpoint>>,
    source: &impl ReadSource,
) -> Vec<CoreCiliumEndpoint> {
    let row = |name| endpoints.get(source, Row::by_name(namespace, name));
    names.iter().filter_map(|name| of_endpoint(row(name)?)).collect()
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
