//! Services of a state file on a whole node: tables, maps, REST, over restarts and bad input. Packets are in
//! `packets/services.rs`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use integration_tests::{Node, ServiceFixture as Fixture, state_file as file};
use serde_json::{Value, json};
use test_kit::{require_root, try_wait_until};

/// Creates a node with this state file.
fn node_with(file: &str, text: &str) -> Node {
    let mut node = Node::new();
    node.follow_services(file);
    node.write_services(text);
    node
}

/// TCP frontends with their numbers and backends, by address, as the REST API shows them.
fn shown(node: &Node) -> BTreeMap<String, (u64, Vec<String>)> {
    let list = node.get("/v1/service");
    let realized = list.as_array().unwrap().iter().map(|service| &service["status"]["realized"]);
    let one = |spec: &Value| {
        let backends = spec["backend-addresses"].as_array().unwrap();
        let ips = backends.iter().map(|backend| backend["ip"].as_str().unwrap().to_owned()).collect();
        let ip = spec["frontend-address"]["ip"].as_str().unwrap().to_owned();
        (ip, (spec["id"].as_u64().unwrap_or(0), ips))
    };
    realized.filter(|spec| spec["frontend-address"]["protocol"] == "TCP").map(one).collect()
}

/// The rows of the service and backend maps, as the operator's tool prints them.
fn rows(node: &Node) -> Value {
    serde_json::from_str(&node.apiary(&["bpf", "lb", "list", "-o", "json"])).unwrap()
}

fn until(node: &Node, what: &str, ready: impl Fn() -> bool) {
    let probe = || if ready() { Ok(()) } else { Err(String::new()) };
    if try_wait_until(Duration::from_secs(10), probe).is_err() {
        panic!("{what}: {:#?}\n{:#}\n{}", shown(node), rows(node), node.log());
    }
}

#[test]
fn a_file_becomes_rows_and_stays_over_restarts() {
    require_root!();
    let web = Fixture::new("web", &["10.96.0.1", "fd00:96::1"], &["10.1.0.1", "10.1.0.2", "fd00:1::1"]);
    let api = Fixture::new("api", &["10.96.0.2"], &[]);
    let mut node = node_with("lb.yaml", &file(&[web.clone(), api.clone()]));
    node.start();
    until(&node, "the services have numbers", || {
        shown(&node).len() == 3 && shown(&node).values().all(|(id, _)| *id > 0)
    });
    let before = shown(&node);
    assert_eq!(before["10.96.0.1"].1, ["10.1.0.1", "10.1.0.2"]);
    assert_eq!(before["fd00:96::1"].1, ["fd00:1::1"]);
    assert_eq!(before["10.96.0.2"].1, [] as [&str; 0]);
    let in_kernel = rows(&node);
    let id = before["10.96.0.1"].0;
    assert_eq!(
        in_kernel["10.96.0.1:80/TCP (0)"],
        json!([format!("0.0.0.0:0 ({id}) (0) [ClusterIP, non-routable] ")])
    );
    assert_eq!(in_kernel["10.96.0.1:80/TCP (2)"], json!([format!("10.1.0.2:8080/TCP ({id}) (2)")]));
    assert!(in_kernel.get("[fd00:96::1]:80/TCP (1)").is_some(), "{in_kernel}");
    let listed = node.apiary(&["service", "list"]);
    assert!(
        listed.contains("10.96.0.1:80/TCP") && listed.contains("2 => 10.1.0.2:8080/TCP (active)"),
        "{listed}"
    );

    for kill in [false, true] {
        if kill {
            node.kill();
        } else {
            node.stop();
        }
        assert_eq!(rows(&node), in_kernel, "nothing goes with the agent");
        node.spawn();
        // No entry is missing at any time during the next start.
        until(&node, "the next agent has its services", || {
            assert_eq!(rows(&node), in_kernel);
            let answer = node.request("GET", "/v1/service", None);
            answer.is_ok_and(|answer| answer.status == 200 && answer.json().as_array().unwrap().len() == 6)
                && shown(&node) == before
        });
        node.wait_ready();
        assert_eq!(rows(&node), in_kernel);
    }

    // Changes while no agent ran: remaining services keep their ids, removed ones go, no id is used twice.
    node.kill();
    let web = Fixture::new("web", &["10.96.0.1"], &["10.1.0.2"]);
    let new = Fixture::new("new", &["10.96.0.3"], &["10.1.0.9"]);
    node.write_services(&file(&[web, new]));
    node.start();
    until(&node, "the maps follow", || rows(&node).as_object().unwrap().len() == 10);
    let after = shown(&node);
    assert_eq!(after["10.96.0.1"], (id, vec!["10.1.0.2".to_owned()]));
    let used: Vec<u64> = before.values().map(|(id, _)| *id).collect();
    assert!(!used.contains(&after["10.96.0.3"].0), "{before:?} {after:?}");
    let backends: Value =
        serde_json::from_str(&node.apiary(&["bpf", "lb", "list", "--backends", "-o", "json"])).unwrap();
    assert_eq!(backends.as_object().unwrap().len(), 4, "{backends}");
}

#[test]
fn a_wrong_file_changes_nothing_and_is_told_of() {
    require_root!();
    let web = Fixture::new("web", &["10.96.0.1"], &["10.1.0.1"]);
    let mut node = node_with("lb.json", &file(std::slice::from_ref(&web)));
    node.start();
    until(&node, "the service is there", || shown(&node).values().any(|(id, _)| *id > 0));
    let before = rows(&node);
    for (text, message) in [
        ("{\"services\": [", "line 1"),
        (
            "{\"services\": [{\"metadata\": {\"name\": \"web\"}, \"spec\": {\"clusterIP\": \"10.96\"}}]}",
            "services[0].spec.clusterIP",
        ),
    ] {
        node.write_services(text);
        until(&node, message, || node.log().contains(message));
        assert_eq!(rows(&node), before);
    }
    // An agent that starts on a wrong one keeps what the kernel has.
    node.kill();
    node.start();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(rows(&node), before);
    assert_eq!(shown(&node).len(), 0);
    let other = Fixture::new("web", &["10.96.0.1"], &["10.1.0.7"]);
    node.write_services(&file(&[other]));
    until(&node, "the good file is used", || {
        shown(&node).get("10.96.0.1").is_some_and(|(_, ips)| *ips == ["10.1.0.7"])
    });
    // As in Cilium, an unknown key is ignored, and reported: a file without `services` has none.
    node.write_services("{\"service\": []}");
    until(&node, "the unknown key is reported", || {
        node.log().contains("service: is no field of a state file")
    });
    until(&node, "all is gone", || rows(&node).as_object().unwrap().is_empty());
    node.write_services(&file(&[web]));
    until(&node, "the service is back", || shown(&node).contains_key("10.96.0.1"));
    node.write_services("");
    until(&node, "all is gone", || rows(&node).as_object().unwrap().is_empty());
}

#[test]
fn files_of_other_kinds_are_refused_at_the_start() {
    require_root!();
    let node = node_with("lb.toml", "");
    let status = node.agent_command().status().unwrap();
    assert!(!status.success());
    let log = node.log();
    assert!(log.contains("option lb-state-file") && log.contains(".yaml, .yml or .json"), "{log}");
}

#[test]
fn a_full_map_shows_in_the_status_and_heals() {
    require_root!();
    let services: Vec<Fixture> = (1..=3)
        .map(|n| Fixture::new(&format!("s{n}"), &[&format!("10.96.0.{n}")], &[&format!("10.1.0.{n}")]))
        .collect();
    let mut node = node_with("lb.yaml", &file(&services));
    // A service has a row for its address, and two for each of its ports: those of two fit.
    node.config.insert("bpf-lb-service-map-max".into(), "12".into());
    node.start();
    let errors = || -> Vec<String> {
        let error = |row: &Value| row["Status"]["error"].as_str().map(str::to_owned);
        node.frontends().iter().filter_map(error).collect()
    };
    // A status is none while its frontend is tried again.
    let seen = RefCell::new(Vec::new());
    until(&node, "one service does not fit", || {
        seen.replace(errors());
        seen.borrow().len() == 2
    });
    let error = seen.take().remove(0);
    assert!(
        error.contains("cilium_lb4_services_v2 is full") && error.contains("bpf-lb-service-map-max"),
        "{error}"
    );
    assert_eq!(rows(&node).as_object().unwrap().len(), 10, "there is no half a service");
    node.write_services(&file(&services[1..]));
    until(&node, "the others fit", || {
        node.frontends().iter().all(|row| row["Status"]["kind"] == "Done") && shown(&node).len() == 2
    });
    assert_eq!(rows(&node).as_object().unwrap().len(), 10);
}
