//! Services.

use smol_str::SmolStr;

use crate::resource::resource;
use crate::slim::{SmallList, slim};
use crate::{IntOrString, ObjectMeta, StringMap};

slim! {
    /// A service.
    pub struct Service {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// The desired state.
        always pub spec: ServiceSpec,
        /// The observed state.
        always pub status: ServiceStatus,
    }

    /// The desired state of a service.
    pub struct ServiceSpec {
        /// Its ports.
        pub ports: SmallList<ServicePort>,
        /// The labels that select its pods.
        pub selector: StringMap,
        /// Its cluster IP, `None` for a headless service.
        #[serde(rename = "clusterIP")]
        pub cluster_ip: SmolStr,
        /// Its cluster IPs, at most one per family.
        #[serde(rename = "clusterIPs")]
        pub cluster_ips: SmallList<SmolStr>,
        /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`; empty means `ClusterIP`.
        pub r#type: SmolStr,
        /// External addresses that are routed to nodes.
        #[serde(rename = "externalIPs")]
        pub external_ips: SmallList<SmolStr>,
        /// `ClientIP` or `None`.
        pub session_affinity: SmolStr,
        /// The requested address of its load balancer.
        #[serde(rename = "loadBalancerIP")]
        pub load_balancer_ip: SmolStr,
        /// Clients that may reach its load balancer; empty for all.
        pub load_balancer_source_ranges: Vec<SmolStr>,
        /// `Local` or `Cluster`, for external traffic.
        pub external_traffic_policy: SmolStr,
        /// The node's port for health checks of local backends; 0 for none.
        pub health_check_node_port: u16,
        /// The timeout of session affinity.
        pub session_affinity_config: Option<SessionAffinityConfig>,
        /// `IPv4`, `IPv6`, in order of its addresses.
        pub ip_families: SmallList<SmolStr>,
        /// The class of the load balancer that serves it.
        pub load_balancer_class: Option<SmolStr>,
        /// `Local` or `Cluster`, for internal traffic.
        pub internal_traffic_policy: Option<SmolStr>,
        /// `PreferClose`, `PreferSameZone` or `PreferSameNode`.
        pub traffic_distribution: Option<SmolStr>,
    }

    /// A port of a service.
    pub struct ServicePort {
        /// Its name, which matches the ports of endpoint slices.
        pub name: SmolStr,
        /// `TCP`, `UDP` or `SCTP`; empty means `TCP`.
        pub protocol: SmolStr,
        /// Its number.
        always pub port: u16,
        /// The pods' port.
        always pub target_port: IntOrString,
        /// The port of nodes; 0 for none.
        pub node_port: u16,
    }

    /// The timeout of session affinity.
    pub struct SessionAffinityConfig {
        /// Affinity by the client's address.
        #[serde(rename = "clientIP")]
        pub client_ip: Option<ClientIpConfig>,
    }

    /// The timeout of session affinity by the client's address.
    pub struct ClientIpConfig {
        /// The timeout in seconds.
        pub timeout_seconds: Option<i32>,
    }

    /// The observed state of a service.
    pub struct ServiceStatus {
        /// Its load balancer.
        always pub load_balancer: LoadBalancerStatus,
    }

    /// The load balancer of a service.
    pub struct LoadBalancerStatus {
        /// Its addresses.
        pub ingress: Vec<LoadBalancerIngress>,
    }

    /// An address of a load balancer.
    pub struct LoadBalancerIngress {
        /// The address, or empty.
        pub ip: SmolStr,
        /// The name, or empty.
        pub hostname: SmolStr,
        /// `VIP` or `Proxy`.
        pub ip_mode: Option<SmolStr>,
        /// The status of its ports.
        pub ports: Vec<PortStatus>,
    }

    /// The status of a port of a load balancer.
    pub struct PortStatus {
        /// Its number.
        always pub port: u16,
        /// Its protocol.
        always pub protocol: SmolStr,
        /// The error.
        pub error: Option<SmolStr>,
    }
}

resource!(Service);
