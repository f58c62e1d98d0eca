//! Nodes of the cluster and cgroups of pods.

use crate::{List, Required};

crate::models! {
    /// A node of the cluster.
    NodeElement {
        "health-endpoint-address" health_endpoint_address: Option<NodeAddressing>,
        "ingress-address" ingress_address: Option<NodeAddressing>,
        "name" name: String,
        "primary-address" primary_address: Option<NodeAddressing>,
        "secondary-addresses" secondary_addresses: List<NodeAddressingElement>,
        "source" source: String,
    }

    /// A node's addressing by family.
    NodeAddressing {
        "ipv4" ipv4: Option<NodeAddressingElement>,
        "ipv6" ipv6: Option<NodeAddressingElement>,
    }

    /// A node's addressing in one family.
    NodeAddressingElement {
        "address-type" address_type: String,
        "alloc-range" alloc_range: String,
        "enabled" enabled: bool,
        "ip" ip: String,
    }

    /// Nodes added and removed since the client's last request.
    ClusterNodeStatus {
        "client-id" client_id: i64,
        "nodes-added" nodes_added: List<NodeElement>,
        "nodes-removed" nodes_removed: List<NodeElement>,
        "self" self_name: String,
    }

    /// A node's id in the datapath and its addresses.
    NodeId {
        "id" id: Required<i64>,
        "ips" ips: List<String>,
    }

    /// Pods and their cgroups.
    CgroupDumpMetadata {
        "pod-metadatas" pod_metadatas: List<CgroupPodMetadata>,
    }

    /// A pod's cgroups.
    CgroupPodMetadata {
        "containers" containers: List<CgroupContainerMetadata>,
        "ips" ips: List<String>,
        "name" name: String,
        "namespace" namespace: String,
    }

    /// A container's cgroup.
    CgroupContainerMetadata {
        "cgroup-id" cgroup_id: u64,
        "cgroup-path" cgroup_path: String,
    }
}
