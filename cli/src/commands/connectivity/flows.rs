//! The flows of a check: a pure function of the objects that the cluster has.

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

use super::super::probe::PORT;
use super::objects::{CLIENT, CLOSED, FRIEND, SERVER};

/// A flow, and whether it should work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flow {
    /// The pod that probes.
    pub(super) from: &'static str,
    /// The kind of the target.
    pub(super) to: String,
    /// `tcp://ADDRESS:PORT`.
    pub(super) address: String,
    pub(super) is_allowed: bool,
}

impl Flow {
    /// Returns the flow as an argument of `probe run`.
    pub(super) fn target(&self) -> String {
        format!("{}:{}", self.expectation(), self.address)
    }

    pub(super) fn expectation(&self) -> &'static str {
        if self.is_allowed { "allowed" } else { "denied" }
    }
}

/// A node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) name: String,
    addresses: Vec<IpAddr>,
}

/// Returns the nodes that are ready.
pub(super) fn nodes(objects: &[Value]) -> Vec<Node> {
    let ready = objects.iter().filter(|node| {
        let conditions = node["status"]["conditions"].as_array();
        // A node without conditions has no kubelet that could deny it.
        conditions.is_none_or(|all| all.iter().all(|c| c["type"] != "Ready" || c["status"] == "True"))
    });
    let node = |object: &Value| {
        let all = object["status"]["addresses"].as_array().into_iter().flatten();
        let internal = all.filter(|address| address["type"] == "InternalIP");
        let addresses = internal.filter_map(|address| parsed(&address["address"])).collect();
        Some(Node { name: object["metadata"]["name"].as_str()?.to_owned(), addresses })
    };
    ready.filter_map(node).collect()
}

/// Returns the flows to the pods that answer, by the service and by its port on the nodes.
pub(super) fn flows(pods: &[Value], service: &Value, nodes: &[Node]) -> Vec<Flow> {
    let mut flows = Vec::new();
    let mut add = |from, to: String, address: IpAddr, ports: [u16; 2], is_allowed| {
        for (protocol, port) in ["tcp", "udp"].into_iter().zip(ports) {
            let address = format!("{protocol}://{}", SocketAddr::new(address, port));
            flows.push(Flow { from, to: to.clone(), address, is_allowed });
        }
    };
    for pod in pods {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        for address in addresses(&pod["status"]["podIPs"], "ip") {
            match name {
                CLOSED => {
                    add(FRIEND, "pod that a policy opens to the client".to_owned(), address, [PORT; 2], true);
                    add(
                        CLIENT,
                        "pod that a policy closes to the client".to_owned(),
                        address,
                        [PORT; 2],
                        false,
                    );
                }
                SERVER => add(CLIENT, "pod on the same node".to_owned(), address, [PORT; 2], true),
                _ => add(CLIENT, "pod on another node".to_owned(), address, [PORT; 2], true),
            }
        }
    }
    let cluster_ips = service["spec"]["clusterIPs"].as_array().into_iter().flatten().filter_map(parsed);
    let cluster_ips: Vec<IpAddr> = cluster_ips.collect();
    for address in &cluster_ips {
        add(CLIENT, "ClusterIP of a service".to_owned(), *address, [PORT; 2], true);
    }
    let port = |protocol: &str| {
        let mut ports = service["spec"]["ports"].as_array().into_iter().flatten();
        let port = ports.find(|port| port["protocol"] == protocol)?["nodePort"].as_u64()?;
        u16::try_from(port).ok()
    };
    if let (Some(tcp), Some(udp)) = (port("TCP"), port("UDP")) {
        for node in nodes.iter().take(2) {
            let served = |address: &&IpAddr| cluster_ips.iter().any(|ip| ip.is_ipv6() == address.is_ipv6());
            for address in node.addresses.iter().filter(served) {
                add(CLIENT, format!("NodePort at {}", node.name), *address, [tcp, udp], true);
            }
        }
    }
    flows
}

fn addresses(list: &Value, field: &str) -> Vec<IpAddr> {
    list.as_array().into_iter().flatten().filter_map(|item| parsed(&item[field])).collect()
}

fn parsed(value: &Value) -> Option<IpAddr> {
    value.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn flows_cover_pods_services_nodes_and_policies() {
        let ready = |status| json!([{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": status}]);
        let node = |name: &str, address: &str, conditions: Value| {
            json!({"metadata": {"name": name}, "status": {"conditions": conditions, "addresses": [
                {"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}]}})
        };
        let nodes = nodes(&[
            node("a", "192.0.2.1", ready("True")),
            node("dead", "192.0.2.9", ready("False")),
            node("b", "2001:db8::2", Value::Null),
        ]);
        assert_eq!(nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let pod = |name: &str, ips: &[&str]| {
            let ips: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
            json!({"metadata": {"name": name}, "status": {"podIPs": ips}})
        };
        let pods = [
            pod("server", &["10.0.0.1", "fd00::1"]),
            pod("remote", &["10.0.1.1"]),
            pod("closed", &["10.0.0.2"]),
        ];
        let service = json!({"spec": {"clusterIPs": ["10.96.0.9"], "ports": [
            {"protocol": "TCP", "nodePort": 30001}, {"protocol": "UDP", "nodePort": 30002}]}});
        let flows = flows(&pods, &service, &nodes);
        let texts: Vec<String> =
            flows.iter().map(|flow| format!("{} -> {}: {}", flow.from, flow.to, flow.target())).collect();
        assert_eq!(
            texts,
            [
                "client -> pod on the same node: allowed:tcp://10.0.0.1:8080",
                "client -> pod on the same node: allowed:udp://10.0.0.1:8080",
                "client -> pod on the same node: allowed:tcp://[fd00::1]:8080",
                "client -> pod on the same node: allowed:udp://[fd00::1]:8080",
                "client -> pod on another node: allowed:tcp://10.0.1.1:8080",
                "client -> pod on another node: allowed:udp://10.0.1.1:8080",
                "friend -> pod that a policy opens to the client: allowed:tcp://10.0.0.2:8080",
                "friend -> pod that a policy opens to the client: allowed:udp://10.0.0.2:8080",
                "client -> pod that a policy closes to the client: denied:tcp://10.0.0.2:8080",
                "client -> pod that a policy closes to the client: denied:udp://10.0.0.2:8080",
                "client -> ClusterIP of a service: allowed:tcp://10.96.0.9:8080",
                "client -> ClusterIP of a service: allowed:udp://10.96.0.9:8080",
                "client -> NodePort at a: allowed:tcp://192.0.2.1:30001",
                "client -> NodePort at a: allowed:udp://192.0.2.1:30002",
            ]
        );
    }
}
