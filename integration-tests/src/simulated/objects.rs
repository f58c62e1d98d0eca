//! The objects of a simulated cluster, each a function of its number.

use std::net::Ipv4Addr;

use k8s_types::{Key, Kind};
use serde_json::{Value, json};

use crate::{Cluster, Node};

const NAMESPACES: usize = 50;
/// The most endpoints of a CiliumEndpointSlice, as operators make them.
const SLICE: usize = 100;
/// The backends of a service.
const BACKENDS: usize = 10;
/// The id of the first identity.
const FIRST_IDENTITY: usize = 5000;

/// The number of objects of a cluster. Pods are spread over nodes, namespaces and identities.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Nodes, each with a Node and a CiliumNode.
    pub nodes: usize,
    /// Pods, each an endpoint of a CiliumEndpointSlice.
    pub pods: usize,
    /// Services with ten backends each.
    pub services: usize,
    /// Identities: a multiple of the 50 namespaces.
    pub identities: usize,
    /// Policies, each of one application that accepts another one.
    pub policies: usize,
}

impl Size {
    /// The large cluster of the benchmarks.
    pub const LARGE: Size =
        Size { nodes: 5000, pods: 50_000, services: 10_000, identities: 6000, policies: 2500 };

    /// Only nodes.
    #[must_use]
    pub const fn nodes(nodes: usize) -> Size {
        Size { nodes, pods: 0, services: 0, identities: NAMESPACES, policies: 0 }
    }

    /// Returns the objects of a kind; none of a kind that the cluster does not have.
    pub(super) fn objects(self, kind: Kind) -> Box<dyn Iterator<Item = Value>> {
        match kind {
            Kind::Namespace => Box::new(self.namespaces()),
            Kind::Node => Box::new((0..self.nodes).map(kubernetes_node).chain([own_node()])),
            Kind::CiliumNode => Box::new((0..self.nodes).map(cilium_node)),
            Kind::CiliumEndpointSlice => {
                let slices = self.pods.div_ceil(NAMESPACES).div_ceil(SLICE) * NAMESPACES;
                Box::new((0..slices).map(move |slice| self.endpoint_slice(slice)))
            }
            Kind::Pod => Box::new((0..self.pods).map(move |pod| self.pod(pod))),
            Kind::CiliumEndpoint => Box::new((0..self.pods).map(move |pod| self.endpoint(pod))),
            Kind::CiliumIdentity => Box::new((0..self.identities).map(identity)),
            Kind::Service => Box::new((0..self.services).map(service)),
            Kind::EndpointSlice => Box::new((0..self.services).map(move |service| self.backends(service))),
            Kind::CiliumNetworkPolicy => Box::new((0..self.policies).map(move |policy| self.policy(policy))),
            _ => Box::new(std::iter::empty()),
        }
    }

    fn namespaces(self) -> impl Iterator<Item = Value> {
        let names = (0..NAMESPACES).map(namespace).chain(["default".to_owned(), "kube-system".to_owned()]);
        names.map(|name| {
            let labels = json!({"kubernetes.io/metadata.name": name});
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        })
    }

    /// Returns the address of a pod.
    #[must_use]
    pub fn pod_address(self, pod: usize) -> Ipv4Addr {
        let (node, at) = (pod % self.nodes, pod / self.nodes);
        in_pod_range(node, u8::try_from(3 + at).unwrap_or(u8::MAX))
    }

    /// Returns the id of a pod's identity.
    #[must_use]
    pub fn pod_identity(self, pod: usize) -> u32 {
        u32::try_from(FIRST_IDENTITY + pod % self.identities).unwrap_or_default()
    }

    /// Returns the CiliumEndpointSlice that has a pod, and the index there.
    #[must_use]
    pub fn slice_of(self, pod: usize) -> (Key, usize) {
        let (namespace, at) = (pod % NAMESPACES, pod / NAMESPACES);
        (Key::new("", format!("ces-{}", at / SLICE * NAMESPACES + namespace)), at % SLICE)
    }

    fn pod(self, pod: usize) -> Value {
        let mut metadata = metadata(&pod_name(pod), 1, pod);
        metadata["namespace"] = namespace(pod % NAMESPACES).into();
        metadata["labels"] = json!({"app": format!("web-{}", pod % self.identities)});
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {"nodeName": node_name(pod % self.nodes), "serviceAccountName": "web", "containers": [{"name": "web", "image": "web"}]},
            "status": {"phase": "Running", "podIPs": [{"ip": self.pod_address(pod).to_string()}]},
        })
    }

    fn endpoint(self, pod: usize) -> Value {
        let mut metadata = metadata(&pod_name(pod), 10, pod);
        metadata["namespace"] = namespace(pod % NAMESPACES).into();
        metadata["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Pod", "name": pod_name(pod), "uid": uid(1, pod)}]);
        json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint", "metadata": metadata,
            "status": {
                "id": 1 + pod % 4096, "state": "ready", "encryption": {},
                "identity": {"id": self.pod_identity(pod), "labels": [format!("k8s:app=web-{}", pod % self.identities)]},
                "networking": {
                    "addressing": [{"ipv4": self.pod_address(pod).to_string()}],
                    "node": node_address(pod % self.nodes).to_string(),
                },
            },
        })
    }

    fn endpoint_slice(self, slice: usize) -> Value {
        let (of, first) = (slice % NAMESPACES, slice / NAMESPACES * SLICE);
        let pods = (first..first + SLICE).map(|at| of + NAMESPACES * at).filter(|pod| *pod < self.pods);
        let endpoint = |pod: usize| {
            json!({
                "name": pod_name(pod), "id": self.pod_identity(pod), "pod-uid": uid(1, pod), "encryption": {},
                "networking": {
                    "addressing": [{"ipv4": self.pod_address(pod).to_string()}],
                    "node": node_address(pod % self.nodes).to_string(),
                },
            })
        };
        let endpoints: Vec<Value> = pods.map(endpoint).collect();
        json!({
            "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumEndpointSlice",
            "metadata": metadata(&format!("ces-{slice}"), 2, slice), "namespace": namespace(of), "endpoints": endpoints,
        })
    }

    fn backends(self, service: usize) -> Value {
        let name = service_name(service);
        let backend = |at| {
            let pod = (service * BACKENDS + at) % self.pods.max(1);
            json!({
                "addresses": [self.pod_address(pod).to_string()],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "nodeName": node_name(pod % self.nodes), "zone": format!("zone-{}", pod % 3),
                "targetRef": {"kind": "Pod", "namespace": namespace(pod % NAMESPACES), "name": pod_name(pod), "uid": uid(1, pod)},
            })
        };
        let mut metadata = metadata(&format!("{name}-x7k2p"), 3, service);
        metadata["namespace"] = namespace(service % NAMESPACES).into();
        metadata["labels"] = json!({
            "kubernetes.io/service-name": name,
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        });
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4",
            "endpoints": (0..BACKENDS).map(backend).collect::<Vec<_>>(),
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        })
    }

    fn policy(self, policy: usize) -> Value {
        let of = policy % NAMESPACES;
        let peer = (policy + NAMESPACES) % self.identities;
        let mut metadata = metadata(&format!("web-{policy}"), 4, policy);
        metadata["namespace"] = namespace(of).into();
        json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": metadata,
            "spec": {
                "endpointSelector": {"matchLabels": {"app": format!("web-{policy}")}},
                "ingress": [{
                    "fromEndpoints": [{"matchLabels": {"app": format!("web-{peer}")}}],
                    "toPorts": [{"ports": [{"port": "8080", "protocol": "TCP"}]}],
                }],
            },
        })
    }
}

fn node_name(node: usize) -> String {
    format!("worker-{node:04}.compute.example")
}

/// Returns the address of a node.
#[must_use]
pub fn node_address(node: usize) -> Ipv4Addr {
    let [high, low] = u16::try_from(node + 1).unwrap_or_default().to_be_bytes();
    Ipv4Addr::new(172, 16, high, low)
}

/// Returns the address of a service.
#[must_use]
pub fn service_address(service: usize) -> Ipv4Addr {
    let [high, low] = u16::try_from(service + 1).unwrap_or_default().to_be_bytes();
    Ipv4Addr::new(172, 30, high, low)
}

/// Returns the CiliumNode of a node.
#[must_use]
pub fn cilium_node(node: usize) -> Value {
    let mut metadata = metadata(&node_name(node), 5, node);
    metadata["labels"] = node_labels(node);
    metadata["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": node_name(node), "uid": uid(6, node)}]);
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": metadata,
        "spec": {
            "addresses": [
                {"type": "InternalIP", "ip": node_address(node).to_string()},
                {"type": "CiliumInternalIP", "ip": in_pod_range(node, 1).to_string()},
            ],
            "bootid": uid(7, node), "encryption": {}, "health": {"ipv4": in_pod_range(node, 2).to_string()},
            "ingress": {}, "ipam": {"podCIDRs": [format!("{}/24", in_pod_range(node, 0))], "pools": {}},
        },
        "status": {"ipam": {"operator-status": {}}},
    })
}

fn identity(identity: usize) -> Value {
    let of = namespace(identity % NAMESPACES);
    let mut metadata = metadata(&(FIRST_IDENTITY + identity).to_string(), 8, identity);
    metadata["labels"] = json!({"io.kubernetes.pod.namespace": of});
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumIdentity", "metadata": metadata,
        "security-labels": {
            "k8s:app": format!("web-{identity}"),
            "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name": of,
            "k8s:io.cilium.k8s.policy.cluster": "default", "k8s:io.cilium.k8s.policy.serviceaccount": "web",
            "k8s:io.kubernetes.pod.namespace": of,
        },
    })
}

fn kubernetes_node(node: usize) -> Value {
    let mut metadata = metadata(&node_name(node), 6, node);
    metadata["labels"] = node_labels(node);
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": metadata,
        "spec": {"podCIDR": format!("{}/24", in_pod_range(node, 0))},
        "status": {"addresses": [{"type": "InternalIP", "address": node_address(node).to_string()}]},
    })
}

/// The node of the agent under test.
fn own_node() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": Cluster::NODE},
        "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24", "fd00:10:244::/112"]},
        "status": {"addresses": [
            {"type": "InternalIP", "address": Node::IPV4}, {"type": "InternalIP", "address": Node::IPV6},
        ]},
    })
}

fn service(service: usize) -> Value {
    let mut metadata = metadata(&service_name(service), 9, service);
    metadata["namespace"] = namespace(service % NAMESPACES).into();
    let address = service_address(service).to_string();
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": {
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": "http"}], "clusterIP": address,
            "selector": {"app": service_name(service)}, "clusterIPs": [address], "type": "ClusterIP",
            "sessionAffinity": "None", "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
        },
        "status": {"loadBalancer": {}},
    })
}

fn node_labels(node: usize) -> Value {
    json!({
        "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": node_name(node), "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": format!("zone-{}", node % 3),
    })
}

fn metadata(name: &str, kind: usize, number: usize) -> Value {
    // Servers send this for each object; it is a third of a small one.
    let managed = json!([{
        "manager": "controller", "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:spec": {"f:ports": {}}},
    }]);
    json!({
        "name": name, "uid": uid(kind, number), "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": managed,
    })
}

fn uid(kind: usize, number: usize) -> String {
    format!("{kind:08x}-0000-4000-8000-{number:012x}")
}

fn namespace(number: usize) -> String {
    format!("team-{number}")
}

fn pod_name(pod: usize) -> String {
    format!("web-{pod:05}-7d9c5b6f4-x2x4z")
}

fn service_name(service: usize) -> String {
    format!("svc-{service}")
}

fn in_pod_range(node: usize, host: u8) -> Ipv4Addr {
    let [high, low] = u16::try_from(node).unwrap_or_default().to_be_bytes();
    Ipv4Addr::new(10, high, low, host)
}
