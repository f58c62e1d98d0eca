//! Table `k8s-services`.

use k8s_types::core::{Service, ServicePort};

use crate::pool::Pool;
use crate::row::{Row, Tabled};

impl Tabled for Service {
    const TABLE: &'static str = "k8s-services";

    fn columns() -> &'static [&'static str] {
        &["Name", "Type", "ClusterIPs", "Ports", "Age"]
    }

    fn cells(row: &Row<Self>) -> Vec<String> {
        let spec = &row.spec;
        let kind = if spec.r#type.is_empty() { "ClusterIP" } else { &spec.r#type };
        let mut ips: Vec<&str> = spec.cluster_ips.iter().map(|ip| ip.as_str()).collect();
        if ips.is_empty() && !spec.cluster_ip.is_empty() {
            ips.push(&spec.cluster_ip);
        }
        let ports: Vec<String> = spec.ports.iter().map(port).collect();
        let name = format!("{}/{}", row.metadata.namespace, row.metadata.name);
        vec![name, kind.to_owned(), ips.join(", "), ports.join(", "), row.age()]
    }

    fn share(&mut self, pool: &mut Pool) {
        pool.map(&mut self.spec.selector);
    }
}

/// Formats a port as `80/TCP (http)`, with a node port as `80:30080/TCP (http)`.
fn port(port: &ServicePort) -> String {
    let protocol = if port.protocol.is_empty() { "TCP" } else { &port.protocol };
    let node = if port.node_port == 0 { String::new() } else { format!(":{}", port.node_port) };
    let name = if port.name.is_empty() { String::new() } else { format!(" ({})", port.name) };
    format!("{}{node}/{protocol}{name}", port.port)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use statedb::TableDisplay;

    use super::*;

    #[test]
    fn a_service_prints_its_addresses_and_ports() {
        let service = json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"type": "NodePort", "clusterIP": "10.96.0.1",
                     "ports": [{"name": "http", "port": 80, "nodePort": 30080}, {"port": 53, "protocol": "UDP"}]},
        });
        let row = Row::of(k8s_types::decode::<Service>(service.to_string().as_bytes()).unwrap());
        assert_eq!(row.row()[..4], ["shop/web", "NodePort", "10.96.0.1", "80:30080/TCP (http), 53/UDP"]);
    }
}
