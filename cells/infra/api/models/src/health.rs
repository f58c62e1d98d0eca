//! The health API, served on `health.sock` below `/v1beta`.

use crate::{List, StatusResponse};

crate::models! {
    /// The status of the agent and its machine.
    HealthResponse {
        "cilium" cilium: StatusResponse,
        "system-load" system_load: Option<LoadResponse>,
        "uptime" uptime: String,
    }

    /// The machine's load averages.
    LoadResponse {
        "last15min" last_15_min: String,
        "last1min" last_1_min: String,
        "last5min" last_5_min: String,
    }

    /// The connectivity to all nodes.
    HealthStatusResponse {
        "local" local: Option<SelfStatus>,
        "nodes" nodes: List<NodeStatus>,
        "probeInterval" probe_interval: String,
        "timestamp" timestamp: String,
    }

    /// This node.
    SelfStatus {
        "name" name: String,
    }

    /// The connectivity to a node.
    NodeStatus {
        "endpoint" endpoint: Option<PathStatus>,
        "health-endpoint" health_endpoint: Option<HealthEndpointStatus>,
        "host" host: Option<HostStatus>,
        "name" name: String,
    }

    /// The connectivity to a node's own addresses.
    HostStatus {
        "primary-address" primary_address: Option<PathStatus>,
        "secondary-addresses" secondary_addresses: List<PathStatus>,
    }

    /// The connectivity to a node's health endpoint.
    HealthEndpointStatus {
        "primary-address" primary_address: Option<PathStatus>,
        "secondary-addresses" secondary_addresses: List<PathStatus>,
    }

    /// The connectivity to an address.
    PathStatus {
        "http" http: Option<ConnectivityStatus>,
        "icmp" icmp: Option<ConnectivityStatus>,
        "ip" ip: String,
    }

    /// The result of a check: nanoseconds until the answer, or the error.
    ConnectivityStatus {
        "lastProbed" last_probed: String,
        "latency" latency: i64,
        "status" status: String,
    }
}
