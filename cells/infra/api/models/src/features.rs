//! Parts of the status that belong to one feature each.

use std::collections::BTreeMap;

use crate::{DateTime, List};

crate::models! {
    /// The functions of kube-proxy that the agent has taken over.
    KubeProxyReplacement {
        "deviceList" device_list: List<ServedDevice>,
        "devices" devices: List<String>,
        "directRoutingDevice" direct_routing_device: String,
        "features" features: Option<KubeProxyReplacementFeatures>,
        "mode" mode: String,
    }

    /// The clusters this one is connected to.
    ClusterMeshStatus {
        "clusters" clusters: List<RemoteCluster>,
    }

    /// A cluster of the mesh.
    RemoteCluster {
        "config" config: Option<RemoteClusterConfig>,
        "connected" connected: bool,
        "last-failure" last_failure: DateTime,
        "name" name: String,
        "num-endpoint-slices" num_endpoint_slices: i64,
        "num-endpoints" num_endpoints: i64,
        "num-failures" num_failures: i64,
        "num-identities" num_identities: i64,
        "num-nodes" num_nodes: i64,
        "num-service-exports" num_service_exports: i64,
        "num-shared-services" num_shared_services: i64,
        "ready" ready: bool,
        "status" status: String,
        "synced" synced: Option<RemoteClusterSynced>,
    }

    /// The resources that have been received completely from a remote cluster.
    RemoteClusterSynced {
        "endpoint-slices" endpoint_slices: Option<bool>,
        "endpoints" endpoints: bool,
        "identities" identities: bool,
        "nodes" nodes: bool,
        "service-exports" service_exports: Option<bool>,
        "services" services: bool,
    }

    /// The configuration of a remote cluster.
    RemoteClusterConfig {
        "cluster-id" cluster_id: i64,
        "endpoint-slices-export-mode" endpoint_slices_export_mode: String,
        "kvstoremesh" kvstoremesh: bool,
        "required" required: bool,
        "retrieved" retrieved: bool,
        "service-exports-enabled" service_exports_enabled: Option<bool>,
        "sync-canaries" sync_canaries: bool,
    }

    /// Encryption between nodes.
    EncryptionStatus {
        "ipsec" ipsec: Option<IpsecStatus>,
        "mode" mode: String,
        "msg" msg: String,
        "wireguard" wireguard: Option<WireguardStatus>,
    }

    /// IPsec.
    IpsecStatus {
        "decrypt-interfaces" decrypt_interfaces: List<String>,
        "error-count" error_count: i64,
        "keys-in-use" keys_in_use: i64,
        "max-seq-number" max_seq_number: String,
        "xfrm-errors" xfrm_errors: BTreeMap<String, i64>,
    }

    /// WireGuard.
    WireguardStatus {
        "interfaces" interfaces: List<WireguardInterface>,
        "node-encrypt-opt-out-labels" node_encrypt_opt_out_labels: String,
        "node-encryption" node_encryption: String,
    }

    /// A WireGuard device.
    WireguardInterface {
        "listen-port" listen_port: i64,
        "name" name: String,
        "peer-count" peer_count: i64,
        "peers" peers: List<WireguardPeer>,
        "public-key" public_key: String,
    }

    /// A WireGuard peer.
    WireguardPeer {
        "allowed-ips" allowed_ips: List<String>,
        "endpoint" endpoint: String,
        "last-handshake-time" last_handshake_time: DateTime,
        "public-key" public_key: String,
        "transfer-rx" transfer_rx: i64,
        "transfer-tx" transfer_tx: i64,
    }

    /// A device on which services are served.
    ServedDevice {
        "ip" ip: List<String>,
        "name" name: String,
    }

    /// The parts of kube-proxy that are replaced, by kind of service.
    KubeProxyReplacementFeatures {
        "annotations" annotations: List<String>,
        "bpfSocketLBHostnsOnly" bpf_socket_lb_hostns_only: bool,
        "externalIPs" external_ips: Option<Switch>,
        "gracefulTermination" graceful_termination: Option<Switch>,
        "hostPort" host_port: Option<Switch>,
        "hostReachableServices" host_reachable_services: Option<HostReachableServices>,
        "nat46X64" nat46x64: Option<Nat46X64>,
        "nodePort" node_port: Option<NodePort>,
        "sessionAffinity" session_affinity: Option<Switch>,
        "socketLB" socket_lb: Option<Switch>,
        "socketLBTracing" socket_lb_tracing: Option<Switch>,
    }

    /// Whether a feature is enabled.
    Switch {
        "enabled" enabled: bool,
    }

    /// Services reached from the host itself.
    HostReachableServices {
        "enabled" enabled: bool,
        "protocols" protocols: List<String>,
    }

    /// Translation between the IP families.
    Nat46X64 {
        "enabled" enabled: bool,
        "gateway" gateway: Option<Nat46X64Gateway>,
        "service" service: Option<Switch>,
    }

    /// NodePort services.
    NodePort {
        "acceleration" acceleration: String,
        "algorithm" algorithm: String,
        "dsrMode" dsr_mode: String,
        "enabled" enabled: bool,
        "lutSize" lut_size: i64,
        "mode" mode: String,
        "portMax" port_max: i64,
        "portMin" port_min: i64,
    }

    /// The translating gateway.
    Nat46X64Gateway {
        "enabled" enabled: bool,
        "prefixes" prefixes: List<String>,
    }
}
