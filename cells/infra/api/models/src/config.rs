//! The agent's configuration.

use std::collections::BTreeMap;

use crate::{ConfigurationMap, NodeAddressing};

crate::models! {
    /// The agent's configuration: the changeable part and the part in force.
    DaemonConfiguration {
        "spec" spec: Option<DaemonConfigurationSpec>,
        "status" status: Option<DaemonConfigurationStatus>,
    }

    /// The part of the configuration that can be changed at run time.
    DaemonConfigurationSpec {
        "options" options: ConfigurationMap,
        "policy-enforcement" policy_enforcement: String,
    }

    /// The configuration in force; the CNI plugin takes its settings from here.
    DaemonConfigurationStatus {
        "GROIPv4MaxSize" gro_ipv4_max_size: i64,
        "GROMaxSize" gro_max_size: i64,
        "GSOIPv4MaxSize" gso_ipv4_max_size: i64,
        "GSOMaxSize" gso_max_size: i64,
        "addressing" addressing: Option<NodeAddressing>,
        "configuredDatapathMode" configured_datapath_mode: String,
        "daemonConfigurationMap" daemon_configuration_map: BTreeMap<String, serde_json::Value>,
        "datapathMode" datapath_mode: String,
        "deviceHeadroom" device_headroom: i64,
        "deviceMTU" device_mtu: i64,
        "deviceTailroom" device_tailroom: i64,
        "enableBBRHostNamespaceOnly" enable_bbr_host_namespace_only: bool,
        "enableRouteMTUForCNIChaining" enable_route_mtu_for_cni_chaining: bool,
        "immutable" immutable: ConfigurationMap,
        "installUplinkRoutesForDelegatedIPAM" install_uplink_routes_for_delegated_ipam: bool,
        "ipLocalReservedPorts" ip_local_reserved_ports: String,
        "ipam-mode" ipam_mode: String,
        "k8s-configuration" k8s_configuration: String,
        "k8s-endpoint" k8s_endpoint: String,
        "kvstoreConfiguration" kvstore_configuration: Option<KvstoreConfiguration>,
        "masquerade" masquerade: bool,
        "masqueradeProtocols" masquerade_protocols: Option<MasqueradeProtocols>,
        "nodeMonitor" node_monitor: Option<MonitorStatus>,
        "packetizationLayerPMTUDMode" packetization_layer_pmtud_mode: String,
        "realized" realized: Option<DaemonConfigurationSpec>,
        "routeMTU" route_mtu: i64,
    }

    /// The key-value store that the agent uses.
    KvstoreConfiguration {
        "options" options: BTreeMap<String, String>,
        "type" kind: String,
    }

    /// The ring buffers of datapath events.
    MonitorStatus {
        "cpus" cpus: i64,
        "lost" lost: i64,
        "npages" npages: i64,
        "pagesize" pagesize: i64,
        "unknown" unknown: i64,
    }

    /// The IP families that are masqueraded.
    MasqueradeProtocols {
        "ipv4" ipv4: bool,
        "ipv6" ipv6: bool,
    }
}
