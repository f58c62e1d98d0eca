//! The REST API byte for byte; a refused request changes nothing.

use api::{Operation, Request, Response};
use bytes::Bytes;
use serde_json::{Value, json};
use std::time::SystemTime;

use super::*;
use crate::api::model;
use crate::api::policy_model::PolicyView;
use crate::api::rest;
use crate::model::state::State;
use crate::{Code, Component, Record};
use labels::Label;
use policy::{Action, Filter, FilterPeer, Filters, PeerEffect, Tier};

const RECORD: &str = include_str!("../../tests/samples/ep_config.json");
const ORIGINAL: &str = include_str!("../../tests/samples/GET_endpoint_ID.json");
const HOST: &str = include_str!("../../tests/samples/GET_endpoint_host.json");

fn request(operation: Operation, id: &str, body: &str) -> Request {
    let mut request = Request::new(operation, &[("id", id)]);
    request.body = Bytes::copy_from_slice(body.as_bytes());
    request
}

async fn call(agent: &Agent, operation: Operation, id: &str, body: &str) -> (u16, String) {
    use Operation::*;
    let (endpoints, request) = (agent.endpoints.clone(), request(operation, id, body));
    let response: Response = match operation {
        GetEndpoint => rest::list(&endpoints, &request),
        GetEndpointID => rest::get(&endpoints, &request),
        GetEndpointIDConfig => rest::get_config(&endpoints, &request),
        GetEndpointIDLabels => rest::get_labels(&endpoints, &request),
        GetEndpointIDLog => rest::get_log(&endpoints, &request),
        GetEndpointIDHealthz => rest::get_healthz(&endpoints, &request),
        GetIdentityEndpoints => rest::identities(&endpoints, &request),
        PutEndpointID => rest::put(endpoints, request).await,
        PatchEndpointID => rest::patch(endpoints, request).await,
        DeleteEndpointID => rest::delete(endpoints, request).await,
        DeleteEndpoint => rest::delete_batch(endpoints, request).await,
        PatchEndpointIDConfig => rest::patch_config(endpoints, request).await,
        PatchEndpointIDLabels => rest::patch_labels(endpoints, request).await,
        other => panic!("{other:?}"),
    };
    let status = response.status().as_u16();
    (status, String::from_utf8(response.body().await.to_vec()).unwrap())
}

/// Times, controllers and policy revisions are those of the recorded run.
fn normal(text: &str) -> Value {
    let mut value: Value = serde_json::from_str(text).unwrap();
    let status = value["status"].as_object_mut().unwrap();
    status.remove("controllers");
    status.remove("log");
    for part in ["spec", "realized"] {
        for field in ["build", "policy-revision"] {
            status["policy"][part][field] = json!(1);
        }
    }
    value
}

#[test]
fn an_endpoint_reads_as_the_originals() {
    let record: Record = serde_json::from_str(RECORD).unwrap();
    let endpoint = ready(record);
    let uuids = api::ControllerUuids::default();
    let ours = serde_json::to_string(&model::endpoint(&endpoint, &PolicyView::open(1), &uuids)).unwrap();
    assert_eq!(normal(&ours), normal(ORIGINAL));
    let keys = |text: &str| {
        let value: Value = serde_json::from_str(text).unwrap();
        value["status"].as_object().unwrap().keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(keys(&ours), keys(ORIGINAL));
}

#[test]
fn an_endpoint_has_a_controller_that_counts_builds_and_failures() {
    let uuids = api::ControllerUuids::default();
    let controller = |endpoint: &Endpoint| {
        let model = model::endpoint(endpoint, &PolicyView::open(1), &uuids);
        let [controller] = &model.status.unwrap().controllers[..] else { panic!("one controller") };
        (controller.name.clone(), controller.status.clone().unwrap())
    };
    let good = ready(serde_json::from_str(RECORD).unwrap());
    let (name, runs) = controller(&good);
    assert_eq!(name, format!("endpoint-{}-regeneration-recovery", good.record.id));
    assert_eq!((runs.failure_count, runs.success_count), (0, i64::try_from(good.builds).unwrap()));
    let bad = good.note(Component::Bpf, Code::Failure, "no room", good.log.last().unwrap().at);
    let bad = bad.note(Component::Bpf, Code::Failure, "no room", good.log.last().unwrap().at);
    let (_, runs) = controller(&bad);
    assert_eq!((runs.consecutive_failure_count, runs.last_failure_msg.as_str()), (2, "no room"));
    let (_, runs) = controller(&bad.note(Component::Bpf, Code::Ok, "made", good.log.last().unwrap().at));
    assert_eq!((runs.consecutive_failure_count, runs.failure_count), (0, 2));
}

fn ready(record: Record) -> Endpoint {
    let now = SystemTime::UNIX_EPOCH;
    Endpoint::created(record, now)
        .enter(State::Ready, "Set identity for this endpoint", now)
        .triggered("LabelsUpdate", "LabelsUpdate: updated security labels", now)
        .regenerated(now)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hosts_endpoint_reads_as_the_originals() {
    let world = World::new();
    let agent = Agent::start(&world).await;
    let (status, body) = call(&agent, Operation::GetEndpoint, "", "").await;
    assert_eq!(status, 200);
    let list: Value = serde_json::from_str(&body).unwrap();
    let mut expected = normal(HOST);
    let mut ours = normal(&list[0].to_string());
    for endpoint in [&mut expected, &mut ours] {
        endpoint["id"] = json!(0);
        for field in ["mac", "host-mac", "interface-index"] {
            endpoint["status"]["networking"][field] = json!(0);
        }
    }
    assert_eq!(ours, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn made_shown_and_removed_over_the_wire() {
    let world = World::new();
    let agent = Agent::start(&world).await;
    let body = serde_json::to_string(&agent.request(1)).unwrap();
    let path = "cni-attachment-id:cid-p1:eth0";
    let (status, made) = call(&agent, Operation::PutEndpointID, path, &body).await;
    assert_eq!(status, 201, "{made}");
    assert!(made.ends_with("}\n"));
    let id = serde_json::from_str::<Value>(&made).unwrap()["id"].to_string();
    let ipv4 = agent.endpoints.find(&path.parse().unwrap()).unwrap().record.ipv4.unwrap();
    let names = [
        id.clone(),
        format!("cilium-local:{id}"),
        path.to_owned(),
        "container-id:cid-p1".to_owned(),
        "pod-name:default/p1".to_owned(),
        "cep-name:default/p1".to_owned(),
        format!("ipv4:{ipv4}"),
    ];
    for name in &names {
        assert_eq!(call(&agent, Operation::GetEndpointID, name, "").await, (200, made.clone()), "{name}");
    }
    let (_, health) = call(&agent, Operation::GetEndpointIDHealthz, &id, "").await;
    assert_eq!(health, "{\"bpf\":\"OK\",\"connected\":true,\"overallHealth\":\"OK\",\"policy\":\"OK\"}\n");
    let (_, labels) = call(&agent, Operation::GetEndpointIDLabels, &id, "").await;
    let expected = r#"{"spec":{},"status":{"realized":{},"security-relevant":["reserved:init"]}}"#;
    assert_eq!(labels.trim_end(), expected);
    let (status, list) = call(&agent, Operation::GetEndpoint, "", r#"["reserved:init"]"#).await;
    assert_eq!((status, list), (200, format!("[{}]\n", made.trim_end())));
    assert_eq!(call(&agent, Operation::GetEndpoint, "", r#"["k8s:app=x"]"#).await, (404, String::new()));
    assert_eq!(call(&agent, Operation::DeleteEndpointID, path, "").await, (200, String::new()));
    assert_eq!(call(&agent, Operation::GetEndpointID, &id, "").await, (404, String::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_that_are_wanted_and_rules_that_are_in_force_are_shown() {
    let world = World::new();
    let agent = Agent::start(&world).await;
    let endpoint = agent.endpoints.create(&agent.request(1)).await.unwrap();
    let effect = PeerEffect {
        action: Action::Allow,
        priority: 0,
        proxy: None,
        authentication: None,
        rules: [["k8s:a=b".to_owned()].into()].into(),
    };
    let peer = FilterPeer { selector: "cidr:192.0.2.0/24".into(), effect: effect.into() };
    let filter = Filter { tier: Tier::Normal, ports: None, peers: vec![peer] };
    agent.policies.compute(endpoint.record.id, Filters { ingress: vec![filter], egress: Vec::new() });
    let (_, body) = call(&agent, Operation::GetEndpointID, "pod-name:default/p1", "").await;
    let body: Value = serde_json::from_str(&body).unwrap();
    let policy = &body["status"]["policy"];
    let rule = json!({
        "derived-from-rules": [["k8s:a=b"]],
        "rule": r#"{"tier":200,"port":0,"protocol":"ANY","l7-rules":[{"cidr:192.0.2.0/24":null}]}"#,
        "rules-by-selector": {"cidr:192.0.2.0/24": [["k8s:a=b"]]},
    });
    assert_eq!(policy["spec"]["l4"], json!({"egress": [], "ingress": [rule]}));
    assert_eq!(policy["realized"]["l4"], json!({"egress": [], "ingress": []}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identities_of_endpoints_are_counted() {
    let world = World::new();
    let agent = Agent::start(&world).await;
    for n in 1..=2 {
        agent.endpoints.create(&agent.request(n)).await.unwrap();
    }
    let (status, body) = call(&agent, Operation::GetIdentityEndpoints, "", "").await;
    let host = r#"{"identity":{"id":1,"labels":["reserved:host"]},"refCount":1}"#;
    let init = r#"{"identity":{"id":5,"labels":["reserved:init"]},"refCount":2}"#;
    assert_eq!((status, body), (200, format!("[{host},{init}]\n")));
    call(&agent, Operation::DeleteEndpointID, "pod-name:default/p1", "").await;
    let (_, body) = call(&agent, Operation::GetIdentityEndpoints, "", "").await;
    assert!(body.contains(r#"["reserved:init"]},"refCount":1}"#), "{body}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_and_labels_change_over_the_wire() {
    let world = World::new();
    let agent = Agent::start(&world).await;
    agent.endpoints.create(&agent.request(1)).await.unwrap();
    let id = "pod-name:default/p1";
    let set = r#"{"options":{"SourceIPVerification":"Enabled"}}"#;
    assert_eq!(call(&agent, Operation::PatchEndpointIDConfig, id, set).await, (200, String::new()));
    let (_, config) = call(&agent, Operation::GetEndpointIDConfig, id, "").await;
    assert!(config.contains(r#""SourceIPVerification":"Enabled""#), "{config}");
    let endpoint = agent.endpoints.find(&id.parse().unwrap()).unwrap();
    let flags = world.datapath.endpoint(endpoint.record.id).unwrap().flags;
    assert_eq!(flags, datapath_abi::ep_flag::SOURCE_CHECK, "the datapath does it, too");

    let user = r#"{"user":["k8s:app=p1"]}"#;
    assert_eq!(call(&agent, Operation::PatchEndpointIDLabels, id, user).await, (200, String::new()));
    let (_, labels) = call(&agent, Operation::GetEndpointIDLabels, id, "").await;
    let expected = concat!(
        r#"{"spec":{"user":["k8s:app=p1"]},"#,
        r#""status":{"realized":{"user":["k8s:app=p1"]},"security-relevant":["k8s:app=p1"]}}"#
    );
    assert_eq!(labels.trim_end(), expected);
    assert!(world.files().into_values().next().unwrap().contains(r#""Custom":{"app""#));

    let moved = r#"{"state":"ready","interface-name":"lxc2","interface-index":102}"#;
    assert_eq!(call(&agent, Operation::PatchEndpointID, id, moved).await, (200, String::new()));
    assert_eq!(world.datapath.endpoint(endpoint.record.id).unwrap().ifindex, 102);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_say_what_the_original_says_and_change_nothing() {
    use Operation::*;
    let world = World::new();
    let agent = Agent::start(&world).await;
    let mut first = agent.request(1);
    first.id = 7;
    agent.endpoints.create(&first).await.unwrap();
    let ipv4 = first.addressing.as_ref().unwrap().ipv4.clone();
    let (rows, files, addresses) = (agent.rows(), world.files(), agent.ipam.status(true));
    let put = |change: Value| {
        let mut body = json!({"state": "waiting-for-identity", "interface-name": "lxc9"});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        body.to_string()
    };
    let host = agent.endpoints.table();
    let host = host.all(&host.snapshot()).find(|e| e.record.is_host()).unwrap().record.id.to_string();
    let text = |status: u16, text: &str| (status, serde_json::to_string(text).unwrap() + "\n");
    for (operation, id, body, expected) in [
        (GetEndpointID, "abc:def", String::new(), text(400, "unknown endpoint ID prefix \"abc\"")),
        (GetEndpointID, "9999999", String::new(), text(400, "endpoint id too large: 9999999")),
        (GetEndpointID, "4711", String::new(), (404, String::new())),
        (GetEndpointIDLog, "4711", String::new(), (404, String::new())),
        (GetEndpointIDHealthz, "x:1", String::new(), text(400, "unknown endpoint ID prefix \"x\"")),
        (PutEndpointID, "1", put(json!({"id": 7})), text(400, "endpoint ID 7 already exists")),
        (
            PutEndpointID,
            "1",
            put(json!({"container-id": "cid-p1", "container-interface-name": "eth0"})),
            text(400, "endpoint for CNI attachment ID cid-p1:eth0 already exists"),
        ),
        (
            PutEndpointID,
            "1",
            put(json!({"addressing": {"ipv4": ipv4}})),
            text(400, &format!("IP ipv4:{ipv4} is already in use")),
        ),
        // The router's address.
        (
            PutEndpointID,
            "1",
            put(json!({"addressing": {"ipv4": "192.0.2.200"}})),
            text(400, "IP ipv4:192.0.2.200 is already in use"),
        ),
        (
            PutEndpointID,
            "1",
            put(json!({"labels": ["reserved:host"]})),
            text(400, "not allowed to add reserved labels: reserved:host"),
        ),
        (
            PutEndpointID,
            "1",
            put(json!({"labels": ["cilium-generated:x=y"]})),
            text(400, "not allowed to add generated labels: cilium-generated:x=y"),
        ),
        (
            PutEndpointID,
            "1",
            put(json!({"labels": ["k8s:pod-template-hash=1"]})),
            text(400, "no valid labels provided"),
        ),
        (
            PutEndpointID,
            "1",
            put(json!({"mac": "nonsense"})),
            text(400, "unable to parse endpoint parameters: address nonsense: invalid MAC address"),
        ),
        (
            PutEndpointID,
            "1",
            put(json!({"addressing": {"ipv4": "10.0.0.300"}})),
            text(400, "unable to parse endpoint parameters: ParseAddr(\"10.0.0.300\"): unable to parse IP"),
        ),
        (
            PutEndpointID,
            "1",
            put(json!({"addressing": {"ipv6": "10.0.0.3"}})),
            text(400, "unable to parse endpoint parameters: invalid IPv6 address \"10.0.0.3\""),
        ),
        (
            PutEndpointID,
            "1",
            put(json!({"id": 70000})),
            text(400, "unable to parse endpoint parameters: id is out of range: 70000"),
        ),
        (PatchEndpointID, "4711", put(json!({})), (404, String::new())),
        (
            PatchEndpointID,
            "7",
            put(json!({"mac": "x"})),
            text(400, "unable to parse endpoint parameters: address x: invalid MAC address"),
        ),
        (DeleteEndpointID, "4711", String::new(), text(404, "endpoint not found")),
        (DeleteEndpointID, &host, String::new(), text(400, "endpoint may not be associated reserved labels")),
        (DeleteEndpoint, "", r#"{"container-id":"nobody"}"#.into(), text(404, "endpoints not found")),
        (DeleteEndpoint, "", "{}".into(), text(400, "invalid container id")),
        (PatchEndpointIDConfig, "7", r#"{"options":{"X":"1"}}"#.into(), text(400, "unknown option \"X\"")),
        (
            PatchEndpointIDLabels,
            "7",
            r#"{"user":["reserved:host"]}"#.into(),
            text(500, "Not allowed to add reserved labels: reserved:host"),
        ),
        (PatchEndpointIDLabels, "4711", r#"{"user":[]}"#.into(), (404, String::new())),
    ] {
        let answer = call(&agent, operation, id, &body).await;
        assert_eq!(answer, expected, "{operation:?} {id} {body}");
        assert_eq!(agent.rows(), rows, "{operation:?} {id} {body}");
        assert_eq!(world.files(), files, "{operation:?} {id} {body}");
        assert_eq!(agent.ipam.status(true), addresses, "{operation:?} {id} {body}");
    }
    let label = Label::reserved("init");
    assert_eq!(label.to_string(), "reserved:init");
}
