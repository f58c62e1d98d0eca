//! Endpoints: requests, status, labels, options.

use std::collections::BTreeMap;

use crate::{
    AddressPair, ConfigurationMap, ControllerStatus, EndpointPolicyStatus, Identity, Labels, List,
    NodeAddressing, Required,
};

crate::models! {
    /// An endpoint: its desired configuration and its status.
    Endpoint {
        "id" id: i64,
        "spec" spec: Option<EndpointConfigurationSpec>,
        "status" status: Option<EndpointStatus>,
    }

    /// A request of a client, mostly the CNI plugin, to create or change an endpoint.
    EndpointChangeRequest {
        "addressing" addressing: Option<AddressPair>,
        "container-id" container_id: String,
        "container-interface-name" container_interface_name: String,
        "container-netns-path" container_netns_path: String,
        "datapath-configuration" datapath_configuration: Option<EndpointDatapathConfiguration>,
        "datapath-map-id" datapath_map_id: i64,
        "disable-legacy-identifiers" disable_legacy_identifiers: bool,
        "host-mac" host_mac: String,
        "id" id: i64,
        "interface-index" interface_index: i64,
        "interface-name" interface_name: String,
        "k8s-namespace" k8s_namespace: String,
        "k8s-pod-name" k8s_pod_name: String,
        "k8s-uid" k8s_uid: String,
        "labels" labels: Labels,
        "mac" mac: String,
        "netns-cookie" netns_cookie: String,
        "parent-interface-index" parent_interface_index: i64,
        "pid" pid: i64,
        "policy-enabled" policy_enabled: bool,
        "properties" properties: BTreeMap<String, serde_json::Value>,
        "state" state: Required<String>,
        "sync-build-endpoint" sync_build_endpoint: bool,
    }

    /// A selection of endpoints to be deleted.
    EndpointBatchDeleteRequest {
        "container-id" container_id: String,
    }

    /// The datapath configuration of an endpoint.
    EndpointDatapathConfiguration {
        "disable-sip-verification" disable_sip_verification: bool,
        "external-ipam" external_ipam: bool,
        "install-endpoint-route" install_endpoint_route: bool,
        "require-arp-passthrough" require_arp_passthrough: bool,
        "require-egress-prog" require_egress_prog: bool,
        "require-routing" require_routing: Option<bool>,
    }

    /// The status of an endpoint: identity, addresses, policy, log.
    EndpointStatus {
        "controllers" controllers: Vec<ControllerStatus>,
        "external-identifiers" external_identifiers: Option<EndpointIdentifiers>,
        "health" health: Option<EndpointHealth>,
        "identity" identity: Option<Identity>,
        "labels" labels: Option<LabelConfigurationStatus>,
        "log" log: Vec<EndpointStatusChange>,
        "namedPorts" named_ports: Vec<Port>,
        "networking" networking: Option<EndpointNetworking>,
        "policy" policy: Option<EndpointPolicyStatus>,
        "realized" realized: Option<EndpointConfigurationSpec>,
        "state" state: Required<String>,
    }

    /// The health of an endpoint: overall, and of each of its parts.
    EndpointHealth {
        "bpf" bpf: String,
        "connected" connected: bool,
        "overallHealth" overall_health: String,
        "policy" policy: String,
    }

    /// One line of an endpoint's log.
    EndpointStatusChange {
        "code" code: String,
        "message" message: String,
        "state" state: String,
        "timestamp" timestamp: String,
    }

    /// An endpoint's interface and addresses.
    EndpointNetworking {
        "addressing" addressing: List<AddressPair>,
        "container-interface-name" container_interface_name: String,
        "host-addressing" host_addressing: Option<NodeAddressing>,
        "host-mac" host_mac: String,
        "interface-index" interface_index: i64,
        "interface-name" interface_name: String,
        "mac" mac: String,
    }

    /// The names by which container runtimes and Kubernetes know an endpoint.
    EndpointIdentifiers {
        "cni-attachment-id" cni_attachment_id: String,
        "container-id" container_id: String,
        "container-name" container_name: String,
        "docker-endpoint-id" docker_endpoint_id: String,
        "docker-network-id" docker_network_id: String,
        "k8s-namespace" k8s_namespace: String,
        "k8s-pod-name" k8s_pod_name: String,
        "pod-name" pod_name: String,
    }

    /// Options and labels that a user may set on an endpoint.
    EndpointConfigurationSpec {
        "label-configuration" label_configuration: Option<LabelConfigurationSpec>,
        "options" options: ConfigurationMap,
    }

    /// Options in force on an endpoint.
    EndpointConfigurationStatus {
        "error" error: String,
        "immutable" immutable: ConfigurationMap,
        "realized" realized: Option<EndpointConfigurationSpec>,
    }

    /// Labels a user asked for and those in force.
    LabelConfiguration {
        "spec" spec: Option<LabelConfigurationSpec>,
        "status" status: Option<LabelConfigurationStatus>,
    }

    /// Labels a user asked for.
    LabelConfigurationSpec {
        "user" user: Labels,
    }

    /// Labels in force, by purpose.
    LabelConfigurationStatus {
        "derived" derived: Labels,
        "disabled" disabled: Labels,
        "realized" realized: Option<LabelConfigurationSpec>,
        "security-relevant" security_relevant: Labels,
    }

    /// A named port.
    Port {
        "name" name: String,
        "port" port: u16,
        "protocol" protocol: String,
    }
}
