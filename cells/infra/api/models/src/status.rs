//! The agent's status.

use std::collections::BTreeMap;

use crate::{
    BpfMapStatus, ClusterMeshStatus, DateTime, EncryptionStatus, GoDuration, KubeProxyReplacement, List,
    MonitorStatus, NodeElement,
};

crate::models! {
    /// The status of the agent and its parts.
    StatusResponse {
        "attach-mode" attach_mode: String,
        "auth-certificate-provider" auth_certificate_provider: Option<Status>,
        "bandwidth-manager" bandwidth_manager: Option<BandwidthManager>,
        "bpf-maps" bpf_maps: Option<BpfMapStatus>,
        "cilium" cilium: Option<Status>,
        "client-id" client_id: i64,
        "clock-source" clock_source: Option<ClockSource>,
        "cluster" cluster: Option<ClusterStatus>,
        "cluster-mesh" cluster_mesh: Option<ClusterMeshStatus>,
        "cni-chaining" cni_chaining: Option<CniChainingStatus>,
        "cni-file" cni_file: Option<Status>,
        "configured-datapath-mode" configured_datapath_mode: String,
        "controllers" controllers: Vec<ControllerStatus>,
        "datapath-mode" datapath_mode: String,
        "encryption" encryption: Option<EncryptionStatus>,
        "host-firewall" host_firewall: Option<HostFirewall>,
        "hubble" hubble: Option<HubbleStatus>,
        "hubble-metrics" hubble_metrics: Option<HubbleMetricsStatus>,
        "identity-range" identity_range: Option<IdentityRange>,
        "ipam" ipam: Option<IpamStatus>,
        "ipv4-big-tcp" ipv4_big_tcp: Option<Ipv4BigTcp>,
        "ipv6-big-tcp" ipv6_big_tcp: Option<Ipv6BigTcp>,
        "kube-proxy-replacement" kube_proxy_replacement: Option<KubeProxyReplacement>,
        "kubernetes" kubernetes: Option<K8sStatus>,
        "kvstore" kvstore: Option<Status>,
        "masquerading" masquerading: Option<Masquerading>,
        "nodeMonitor" node_monitor: Option<MonitorStatus>,
        "proxy" proxy: Option<ProxyStatus>,
        "routing" routing: Option<Routing>,
        "srv6" srv6: Option<Srv6>,
        "stale" stale: BTreeMap<String, DateTime>,
    }

    /// The state of a part, `Ok`, `Warning`, `Failure` or `Disabled`, with the reason.
    Status {
        "msg" msg: String,
        "state" state: String,
    }

    /// The host firewall.
    HostFirewall {
        "devices" devices: List<String>,
        "mode" mode: String,
    }

    /// The flow observer.
    HubbleStatus {
        "msg" msg: String,
        "observer" observer: Option<HubbleObserver>,
        "state" state: String,
    }

    /// The flow observer's metrics server.
    HubbleMetricsStatus {
        "msg" msg: String,
        "state" state: String,
    }

    /// The connection to Kubernetes.
    K8sStatus {
        "k8s-api-versions" k8s_api_versions: List<String>,
        "msg" msg: String,
        "state" state: String,
    }

    /// Addresses in use.
    IpamStatus {
        "allocations" allocations: BTreeMap<String, String>,
        "ipv4" ipv4: List<String>,
        "ipv6" ipv6: List<String>,
        "status" status: String,
    }

    /// This node in the cluster.
    ClusterStatus {
        "ciliumHealth" cilium_health: Option<Status>,
        "nodes" nodes: List<NodeElement>,
        "self" self_name: String,
    }

    /// The layer 7 proxy.
    ProxyStatus {
        "envoy-deployment-mode" envoy_deployment_mode: String,
        "ip" ip: String,
        "port-range" port_range: String,
        "redirects" redirects: List<ProxyRedirect>,
        "total-ports" total_ports: i64,
        "total-redirects" total_redirects: i64,
    }

    /// A redirection to the proxy.
    ProxyRedirect {
        "name" name: String,
        "proxy" proxy: String,
        "proxy-port" proxy_port: i64,
    }

    /// The range of identities of this cluster.
    IdentityRange {
        "max-identity" max_identity: i64,
        "min-identity" min_identity: i64,
    }

    /// Large segments over IPv6.
    Ipv6BigTcp {
        "enabled" enabled: bool,
        "maxGRO" max_gro: i64,
        "maxGSO" max_gso: i64,
    }

    /// Large segments over IPv4.
    Ipv4BigTcp {
        "enabled" enabled: bool,
        "maxGRO" max_gro: i64,
        "maxGSO" max_gso: i64,
    }

    /// The bandwidth manager.
    BandwidthManager {
        "congestionControl" congestion_control: String,
        "devices" devices: List<String>,
        "enabled" enabled: bool,
    }

    /// Whether and how pod traffic is masqueraded.
    Masquerading {
        "enabled" enabled: bool,
        "enabledProtocols" enabled_protocols: Option<MasqueradingProtocols>,
        "ip-masq-agent" ip_masq_agent: bool,
        "mode" mode: String,
        "snat-exclusion-cidr" snat_exclusion_cidr: String,
        "snat-exclusion-cidr-v4" snat_exclusion_cidr_v4: String,
        "snat-exclusion-cidr-v6" snat_exclusion_cidr_v6: String,
    }

    /// The clock that the datapath reads.
    ClockSource {
        "hertz" hertz: i64,
        "mode" mode: String,
    }

    /// How packets travel between and within hosts.
    Routing {
        "inter-host-routing-mode" inter_host_routing_mode: String,
        "intra-host-routing-mode" intra_host_routing_mode: String,
        "tunnel-protocol" tunnel_protocol: String,
    }

    /// Segment routing.
    Srv6 {
        "enabled" enabled: bool,
        "srv6EncapMode" srv6_encap_mode: String,
    }

    /// The CNI plugin that ours is chained to.
    CniChainingStatus {
        "mode" mode: String,
    }

    /// A background task that is repeated or retried.
    ControllerStatus {
        "configuration" configuration: Option<ControllerConfiguration>,
        "name" name: String,
        "status" status: Option<ControllerRuns>,
        "uuid" uuid: String,
    }

    /// The flow observer's ring of flows.
    HubbleObserver {
        "current-flows" current_flows: i64,
        "max-flows" max_flows: i64,
        "seen-flows" seen_flows: i64,
        "uptime" uptime: GoDuration,
    }

    /// The IP families that are masqueraded.
    MasqueradingProtocols {
        "ipv4" ipv4: bool,
        "ipv6" ipv6: bool,
    }

    /// The schedule of a controller.
    ControllerConfiguration {
        "error-retry" error_retry: bool,
        "error-retry-base" error_retry_base: GoDuration,
        "interval" interval: GoDuration,
    }

    /// The results of a controller's runs.
    ControllerRuns {
        "consecutive-failure-count" consecutive_failure_count: i64,
        "failure-count" failure_count: i64,
        "last-failure-msg" last_failure_msg: String,
        "last-failure-timestamp" last_failure_timestamp: DateTime,
        "last-success-timestamp" last_success_timestamp: DateTime,
        "success-count" success_count: i64,
    }
}
