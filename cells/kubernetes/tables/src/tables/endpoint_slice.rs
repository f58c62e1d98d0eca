//! Table `k8s-endpointslices`.

use k8s_types::core::{EndpointPort, EndpointSlice};

use crate::pool::Pool;
use crate::row::{Row, Tabled};

/// The label of a slice that names its service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

impl Tabled for EndpointSlice {
    const TABLE: &'static str = "k8s-endpointslices";

    fn columns() -> &'static [&'static str] {
        &["Name", "Service", "AddressType", "Ports", "Endpoints", "Age"]
    }

    fn cells(row: &Row<Self>) -> Vec<String> {
        let ports: Vec<String> = row.ports.iter().map(port).collect();
        vec![
            format!("{}/{}", row.metadata.namespace, row.metadata.name),
            row.metadata.labels.get(SERVICE_NAME).map(ToString::to_string).unwrap_or_default(),
            row.address_type.to_string(),
            ports.join(", "),
            row.endpoints.len().to_string(),
            row.age(),
        ]
    }

    fn share(&mut self, pool: &mut Pool) {
        for endpoint in &mut self.endpoints {
            pool.option(&mut endpoint.zone);
            if let Some(node) = &mut endpoint.node_name {
                pool.node(node);
            }
            if let Some(topology) = endpoint.deprecated_topology.get_mut() {
                pool.map(topology);
            }
        }
    }
}

/// Formats a port as `8080/TCP (http)`.
fn port(port: &EndpointPort) -> String {
    let number = port.port.map_or("*".to_owned(), |port| port.to_string());
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    match port.name.as_deref() {
        None | Some("") => format!("{number}/{protocol}"),
        Some(name) => format!("{number}/{protocol} ({name})"),
    }
}
