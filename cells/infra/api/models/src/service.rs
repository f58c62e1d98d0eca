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

    /// A frontend and where its connections go.
    ServiceSpec {
        "backend-addresses" backend_addresses: List<BackendAddress>,
        "flags" flags: Option<ServiceFlags>,
        "frontend-address" frontend_address: FrontendAddress,
        "id" id: i64,
        "updateServices" update_services: bool,
    }

    /// What a frontend is.
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

    /// Where a frontend is.
    FrontendAddress {
        "ip" ip: String,
        "port" port: i64,
        "protocol" protocol: String,
        "scope" scope: String,
    }

    /// Where a backend is, and what it may be used for.
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

    /// Where a local redirect policy leads to.
    LRPBackend {
        "backend-address" backend_address: Option<BackendAddress>,
        "pod-id" pod_id: String,
    }
}
