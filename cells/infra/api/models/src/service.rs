//! Services: frontends with their backends.

use crate::{List, Required};

crate::models! {
    /// A frontend of a service.
    Service {
        "spec" spec: Option<ServiceSpec>,
        "status" status: Option<ServiceStatus>,
    }

    /// A frontend as realized in the datapath.
    ServiceStatus {
        "realized" realized: Option<ServiceSpec>,
    }

    /// A frontend and its backends.
    ServiceSpec {
        "backend-addresses" backend_addresses: List<BackendAddress>,
        "flags" flags: Option<ServiceFlags>,
        "frontend-address" frontend_address: FrontendAddress,
        "id" id: i64,
        "updateServices" update_services: bool,
    }

    /// Type, traffic policies and name of the service of a frontend.
    ServiceFlags {
        "cluster" cluster: String,
        "extTrafficPolicy" ext_traffic_policy: String,
        "healthCheckNodePort" health_check_node_port: i64,
        "intTrafficPolicy" int_traffic_policy: String,
        "name" name: String,
        "namespace" namespace: String,
        "natPolicy" nat_policy: String,
        "trafficPolicy" traffic_policy: String,
        "type" kind: String,
    }

    /// The address of a frontend.
    FrontendAddress {
        "ip" ip: String,
        "port" port: i64,
        "protocol" protocol: String,
        "scope" scope: String,
    }

    /// The address of a backend, and its state and weight.
    BackendAddress {
        "ip" ip: Required<String>,
        "nodeName" node_name: String,
        "port" port: i64,
        "preferred" preferred: bool,
        "protocol" protocol: String,
        "state" state: String,
        "weight" weight: Option<i64>,
        "zone" zone: String,
    }

    /// A local redirect policy.
    LRPSpec {
        "frontend-mappings" frontend_mappings: List<FrontendMapping>,
        "frontend-type" frontend_type: String,
        "lrp-type" lrp_type: String,
        "name" name: String,
        "namespace" namespace: String,
        "service-id" service_id: String,
        "uid" uid: String,
    }

    /// The source and the target of a local redirect policy.
    FrontendMapping {
        "backends" backends: List<LRPBackend>,
        "frontend-address" frontend_address: Option<FrontendAddress>,
    }

    /// The target of a local redirect policy.
    LRPBackend {
        "backend-address" backend_address: Option<BackendAddress>,
        "pod-id" pod_id: String,
    }
}
