//! The agent, its clients and the stage with a real API server.

mod agent;
mod api;
mod api_server;
mod bad_input;
mod build_config;
mod chart;
mod connectivity_check;
mod crd;
mod definitions;
mod endpoint_objects;
mod get;
mod idle;
mod join;
mod kube_proxy;
mod kubelet;
mod multi_pool;
mod operator;
mod operator_suspended;
mod playground;
mod stage;
mod tls;
mod writer;

use std::sync::Once;

use cluster_stage::Stage;
use k8s_types::schema::custom_resource_definitions;

/// The shared stage, with all kinds defined. Its tests make namespaced objects in namespaces of their own, and read no list of
/// the whole cluster but the one of definitions.
fn stage_with_definitions() -> &'static Stage {
    static DEFINED: Once = Once::new();
    let stage = Stage::shared();
    DEFINED.call_once(|| stage.define(&custom_resource_definitions()).unwrap());
    stage
}
