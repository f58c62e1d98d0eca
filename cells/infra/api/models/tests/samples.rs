//! Bodies of a Cilium 1.20 agent (`samples/`) are unchanged after decoding and encoding.

use api_models::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Decodes the sample as `M`, encodes it again and compares byte for byte.
#[track_caller]
fn round_trip<M: DeserializeOwned + Serialize>(sample: &str) {
    let body = sample.trim_end_matches('\n');
    let model: M = serde_json::from_str(body).expect("the sample is readable");
    let written = serde_json::to_string(&model).expect("the model is writable");
    let differs = body.bytes().zip(written.bytes()).take_while(|(a, b)| a == b).count();
    let at = differs.saturating_sub(60);
    assert!(
        body == written,
        "differs at byte {differs}:\nsample  ..{:.200}\nwritten ..{:.200}",
        &body[at..],
        &written[at..]
    );
}

macro_rules! samples {
    ($($name:ident: $model:ty = $file:literal,)*) => {$(
        #[test]
        fn $name() {
            round_trip::<$model>(include_str!(concat!("samples/", $file, ".json")));
        }
    )*};
}

samples! {
    healthz: StatusResponse = "GET_healthz",
    healthz_brief: StatusResponse = "GET_healthz_brief",
    cluster_nodes: ClusterNodeStatus = "GET_cluster_nodes",
    node_ids: Vec<NodeId> = "GET_node_ids",
    ip: Vec<IpListEntry> = "GET_ip",
    fqdn_names: NameManager = "GET_fqdn_names",
    endpoint: Endpoint = "GET_endpoint_ID",
    endpoint_with_policy: Endpoint = "GET_endpoint_ID_with_policy",
    endpoint_config: EndpointConfigurationStatus = "GET_endpoint_ID_config",
    endpoint_labels: LabelConfiguration = "GET_endpoint_ID_labels",
    endpoint_healthz: EndpointHealth = "GET_endpoint_ID_healthz",
    endpoint_log: Vec<EndpointStatusChange> = "GET_endpoint_ID_log",
    identity: Vec<Identity> = "GET_identity",
    identity_by_id: Identity = "GET_identity_ID",
    identity_endpoints: Vec<IdentityEndpoints> = "GET_identity_endpoints",
    map: BpfMapList = "GET_map",
    map_by_name: BpfMap = "GET_map_NAME",
    policy: Policy = "GET_policy",
    policy_selectors: Vec<SelectorIdentityMapping> = "GET_policy_selectors",
    policy_subject_selectors: Vec<SelectorIdentityMapping> = "GET_policy_subject-selectors",
    cgroups: CgroupDumpMetadata = "GET_cgroup-dump-metadata",
    health: HealthResponse = "health_healthz",
    health_status: HealthStatusResponse = "health_status",
}

/// Values inside `daemonConfigurationMap` are free JSON: their members are compared, not their order.
#[test]
fn config() {
    let sample = include_str!("samples/GET_config.json");
    let mut expected: serde_json::Value = serde_json::from_str(sample).unwrap();
    let mut model: DaemonConfiguration = serde_json::from_str(sample).unwrap();
    assert_eq!(serde_json::to_value(&model).unwrap(), expected);

    // Without the free values the bytes are the same.
    let status = model.status.as_mut().unwrap();
    status.daemon_configuration_map.clear();
    expected["status"].as_object_mut().unwrap().remove("daemonConfigurationMap");
    assert_eq!(serde_json::to_string(&model).unwrap(), expected.to_string());
}

#[test]
fn a_missing_or_null_value_is_empty_and_an_unknown_one_ignored() {
    let request: EndpointChangeRequest = serde_json::from_str(
        r#"{"state":"ready","labels":null,"mac":null,"addressing":null,"id":null,"new-in-1.99":[1]}"#,
    )
    .unwrap();
    assert_eq!(request, EndpointChangeRequest { state: "ready".into(), ..Default::default() });
}

#[test]
fn a_value_of_another_type_is_refused() {
    for body in [r#"{"state":5}"#, r#"{"id":"5"}"#, r#"{"addressing":[]}"#, "[]", r#""x""#] {
        assert!(serde_json::from_str::<EndpointChangeRequest>(body).is_err(), "{body}");
    }
}
