//! The REST API of a whole agent, with responses composed of the state of several cells.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use integration_tests::Node;
use serde_json::{Value, json};
use test_kit::require_root;

/// Parses rows and errors, one JSON value per line.
fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn debug_information_says_what_the_operations_say() {
    require_root!();
    let mut node = Node::started();
    let pod = node.add_pod("a");
    let info = node.get("/v1/debuginfo");
    assert_eq!(info["endpoint-list"], node.get("/v1/endpoint"));
    assert_eq!(info["policy"], node.get("/v1/policy"));
    assert_eq!(info["cilium-status"]["cilium"], node.get("/v1/healthz")["cilium"]);
    let owners = info["subsystem"]["ipam"].as_str().unwrap();
    assert!(owners.contains(&format!("{}: default/a, endpoint ", pod.ipv4)), "{owners}");
    assert_eq!(info["subsystem"]["ongoing-endpoint-creations"], "");
    assert!(info["cilium-memory-map"].as_str().unwrap().contains("/agent\n"));
    let version = info["cilium-version"].as_str().unwrap();
    assert_eq!(version.split(' ').count(), 7, "{version}");
    let options = info["environment-variables"].as_array().unwrap();
    for key in node.config.keys() {
        let shown = |option: &Value| option.as_str().unwrap().starts_with(&format!("{key}:"));
        assert!(options.iter().any(shown), "{key} in {options:?}");
    }
    let version = node.apiary(&["version", "-o", "json"]);
    let version: Value = serde_json::from_str(&version).unwrap();
    assert_eq!(
        version["Daemon"]["Version"],
        info["cilium-version"].as_str().unwrap().split(' ').next().unwrap()
    );
}

#[test]
fn tables_are_asked_by_the_keys_that_clients_write() {
    require_root!();
    let mut node = Node::started();
    let ask = |question: Value| {
        let answer = node.request("GET", "/statedb/query", Some(&question.to_string())).unwrap();
        (answer.status, lines(&answer.body))
    };
    // "lo" by its name and by its index, which is 1 in every namespace.
    let (status, by_name) = ask(json!({"table": "devices", "index": "name", "key": "bG8="}));
    assert_eq!((status, &by_name[0]["obj"]["Name"]), (200, &json!("lo")), "{by_name:?}");
    let (status, by_id) = ask(json!({"table": "devices", "index": "id", "key": "AAAAAQ=="}));
    assert_eq!((status, by_id), (200, by_name));
    let (_, all) = ask(json!({"table": "devices", "index": "id", "lowerbound": true}));
    assert!(all.len() > 2, "{all:?}");
    assert_eq!(ask(json!({"table": "nosuch"})).0, 404);
    assert_eq!(ask(json!({"table": "devices", "index": "nosuch"})).0, 400);

    let mut stream = UnixStream::connect(node.socket()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(b"GET /statedb/changes/endpoints HTTP/1.0\r\n\r\n").unwrap();
    let changes = BufReader::new(stream).lines().map(Result::unwrap).filter(|line| line.starts_with('{'));
    let mut changes = changes.map(|line| serde_json::from_str::<Value>(&line).unwrap());
    let host = changes.next().unwrap();
    assert_eq!((host["rev"].is_u64(), host.get("deleted")), (true, None), "{host}");
    let pod = node.add_pod("a");
    let added = changes.find(|change| change["obj"].to_string().contains(&pod.ipv4.to_string())).unwrap();
    assert_eq!(added.get("deleted"), None, "{added}");
    node.delete_pod(pod);
    let deleted = changes.find(|change| change["deleted"] == true).unwrap();
    assert!(deleted["rev"].as_u64() > added["rev"].as_u64(), "{added} {deleted}");
    // A streaming client does not delay the stop.
    let begin = std::time::Instant::now();
    node.stop();
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    assert_eq!(changes.next(), None);
}

#[test]
fn the_configuration_has_every_member_of_the_original() {
    require_root!();
    let node = Node::started();
    let members = |configuration: &Value| {
        let map = configuration["status"]["daemonConfigurationMap"].as_object().unwrap();
        map.iter().map(|(name, value)| (name.clone(), std::mem::discriminant(value))).collect::<Vec<_>>()
    };
    let sample = include_str!("../../../cells/infra/api/models/tests/samples/GET_config.json");
    let ours = node.get("/v1/config");
    assert_eq!(members(&ours), members(&serde_json::from_str(sample).unwrap()));
    let map = &ours["status"]["daemonConfigurationMap"];
    // Of an option that a cell declares, of one that is only accepted, and of one in an object.
    assert_eq!(map["IPAM"], "cluster-pool");
    assert_eq!(map["ToFQDNsMaxDeferredConnectionDeletes"], 10_000);
    assert_eq!(map["HiveConfig"]["StartTimeout"], 300_000_000_000_u64);
}
