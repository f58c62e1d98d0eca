//! The status of features without a cell: that of Cilium with the feature disabled.

use api_models::{
    BandwidthManager, ClockSource, ClusterStatus, CniChainingStatus, EncryptionStatus, HostFirewall,
    HubbleMetricsStatus, HubbleStatus, IdentityRange, Ipv4BigTcp, Ipv6BigTcp, K8sStatus,
    KubeProxyReplacement, Masquerading, MasqueradingProtocols, Routing, Srv6, Status, StatusResponse,
};

const DISABLED: &str = "Disabled";

/// Bytes of a segment without BIG TCP: Linux' `GSO_LEGACY_MAX_SIZE` and `GRO_LEGACY_MAX_SIZE`.
const MAX_SEGMENTS: i64 = 65_536;

/// Returns the status with all features disabled; sources overwrite their parts.
pub(crate) fn off() -> StatusResponse {
    let disabled = || Status { state: DISABLED.to_owned(), ..Default::default() };
    StatusResponse {
        attach_mode: "tcx".to_owned(),
        auth_certificate_provider: Some(disabled()),
        bandwidth_manager: Some(BandwidthManager::default()),
        clock_source: Some(ClockSource { mode: "ktime".to_owned(), ..Default::default() }),
        cluster: Some(ClusterStatus { cilium_health: Some(disabled()), ..Default::default() }),
        cni_chaining: Some(CniChainingStatus { mode: "none".to_owned() }),
        cni_file: Some(Status {
            state: DISABLED.to_owned(),
            msg: "CNI configuration management disabled".to_owned(),
        }),
        configured_datapath_mode: "veth".to_owned(),
        datapath_mode: "veth".to_owned(),
        encryption: Some(EncryptionStatus { mode: DISABLED.to_owned(), ..Default::default() }),
        host_firewall: Some(HostFirewall { mode: DISABLED.to_owned(), ..Default::default() }),
        hubble: Some(HubbleStatus { state: DISABLED.to_owned(), ..Default::default() }),
        hubble_metrics: Some(HubbleMetricsStatus { state: DISABLED.to_owned(), ..Default::default() }),
        identity_range: Some(IdentityRange { min_identity: 256, max_identity: 65535 }),
        ipv4_big_tcp: Some(Ipv4BigTcp { max_gro: MAX_SEGMENTS, max_gso: MAX_SEGMENTS, enabled: false }),
        ipv6_big_tcp: Some(Ipv6BigTcp { max_gro: MAX_SEGMENTS, max_gso: MAX_SEGMENTS, enabled: false }),
        kube_proxy_replacement: Some(KubeProxyReplacement { mode: "False".to_owned(), ..Default::default() }),
        kubernetes: Some(K8sStatus { state: DISABLED.to_owned(), ..Default::default() }),
        kvstore: Some(disabled()),
        masquerading: Some(Masquerading {
            enabled_protocols: Some(MasqueradingProtocols::default()),
            ..Default::default()
        }),
        routing: Some(Routing {
            inter_host_routing_mode: "Native".to_owned(),
            intra_host_routing_mode: "Legacy".to_owned(),
            ..Default::default()
        }),
        srv6: Some(Srv6 { srv6_encap_mode: "reduced".to_owned(), enabled: false }),
        ..Default::default()
    }
}
