//! The agent in a real cluster: after any fault of API server or connection, its tables equal the output of kubectl.

mod failover;
mod many;
mod objects;
mod options;
mod roles;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use cluster_stage::User;
use integration_tests::Cluster;
use k8s_types::Kind;
use k8s_types::schema::{custom_resource_definition, custom_resource_definitions};
use serde_json::Value;
use test_kit::{require_root, wait_until};

use objects::{KINDS, list, object};

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn what_kubectl_does_appears_in_order() {
    require_root!();
    let mut cluster = Cluster::new(&custom_resource_definitions());
    cluster.start();
    let changes = cluster.table("k8s-services").changes().unwrap();
    let (report, reported) = mpsc::channel();
    let follow = thread::Builder::new().spawn(move || {
        for change in changes {
            let Ok(change) = change else { return };
            let port = &change.object["spec"]["ports"][0]["port"];
            let what = if change.deleted { "gone" } else { "is" };
            let name = change.object["metadata"]["name"].as_str().unwrap().to_owned();
            if report.send(format!("{name} {what} {port}")).is_err() {
                return;
            }
        }
    });
    let next = || loop {
        let line = reported.recv_timeout(LIMIT).unwrap();
        if line.starts_with("o-") {
            return line;
        }
    };
    for number in 0..10 {
        // No event is repeated, none is missing, and none comes too early.
        let service = |version| object(Kind::Service, number, version).to_string();
        cluster.stage.apply(&service(0)).unwrap();
        assert_eq!(next(), format!("o-{number} is 1000"));
        cluster.stage.apply(&service(1)).unwrap();
        assert_eq!(next(), format!("o-{number} is 1001"));
        if number % 2 == 0 {
            cluster.stage.kubectl(&["delete", "service", &format!("o-{number}")]).unwrap();
            assert_eq!(next(), format!("o-{number} gone 1001"));
        }
    }
    let many: Vec<Value> = (100..200).map(|number| object(Kind::Service, number, 0)).collect();
    cluster.stage.kubectl_with(&["create", "-f", "-"], &list(many)).unwrap();
    for number in 100..200 {
        assert_eq!(next(), format!("o-{number} is 1000"));
    }
    let counts = cluster.until_equal();
    assert!(
        counts["k8s-services"] == 106 && counts["k8s-namespaces"] >= 4 && counts["k8s-nodes"] == 1,
        "{counts:?}"
    );
    drop((cluster, reported));
    follow.unwrap().join().unwrap();
}

#[test]
fn servers_are_killed_history_is_compacted_tokens_are_replaced() {
    require_root!();
    let mut cluster = Cluster::new(&custom_resource_definitions());
    let write = |cluster: &Cluster, numbers: std::ops::Range<usize>, version| {
        let objects = |kind: &Kind| {
            let kind = *kind;
            numbers.clone().map(move |number| object(kind, number, version))
        };
        cluster.stage.apply(&list(KINDS.iter().flat_map(objects).collect())).unwrap();
    };
    let services = |cluster: &Cluster| cluster.until_equal()["k8s-services"];
    write(&cluster, 0..3, 0);
    cluster.start();
    assert_eq!(services(&cluster), 4);

    // The API server is killed and started again.
    cluster.stage.kill_api_server().unwrap();
    thread::sleep(Duration::from_secs(2));
    cluster.stage.start_api_server().unwrap();
    write(&cluster, 1..5, 1);
    assert_eq!(services(&cluster), 6);

    // etcd as well.
    cluster.stage.kill_etcd().unwrap();
    thread::sleep(Duration::from_secs(2));
    cluster.stage.start_etcd().unwrap();
    wait_until("the API server has etcd again", LIMIT, || {
        cluster.stage.kubectl(&["get", "--raw", "/readyz"]).is_ok()
    });
    write(&cluster, 4..7, 0);
    assert_eq!(services(&cluster), 8);

    // Changes while the agent is cut off, which etcd and the server have compacted: 410.
    cluster.gate.hold();
    write(&cluster, 7..9, 0);
    cluster.stage.kubectl(&["delete", "service", "o-0", "o-8"]).unwrap();
    cluster.stage.compact().unwrap();
    cluster.stage.kill_api_server().unwrap();
    cluster.stage.start_api_server().unwrap();
    cluster.gate.cut();
    cluster.gate.open();
    assert_eq!(services(&cluster), 8);

    // A new token, the old one is refused; the file has it.
    cluster.stage.replace_token(User::Agent).unwrap();
    write(&cluster, 9..10, 0);
    assert_eq!(services(&cluster), 9);

    // The node's agent starts with other objects than it stopped with.
    cluster.node.stop();
    cluster.stage.kubectl(&["delete", "service", "o-9"]).unwrap();
    cluster.start();
    assert_eq!(services(&cluster), 8);
}

#[test]
fn a_kind_that_is_defined_later_is_read_then() {
    require_root!();
    let late = Kind::CiliumCIDRGroup;
    let others: Vec<Value> = Kind::ALL
        .iter()
        .filter(|kind| kind.group() == "cilium.io" && **kind != late)
        .map(|kind| custom_resource_definition(*kind))
        .collect();
    let mut cluster = Cluster::new(&others);
    cluster.start();
    cluster.stage.apply(&object(Kind::Service, 1, 0).to_string()).unwrap();
    let has = |table: &str, name: &str| {
        let rows = cluster.table(table).all("name").unwrap();
        rows.map(|row| row.unwrap().object).any(|row| row["metadata"]["name"] == name)
    };
    wait_until("the other kinds are read", LIMIT, || has("k8s-services", "o-1"));
    cluster.stage.define(&[custom_resource_definition(late)]).unwrap();
    cluster.stage.apply(&object(late, 1, 0).to_string()).unwrap();
    wait_until("the new kind is read", LIMIT, || has("k8s-ciliumcidrgroups", "o-1"));
    cluster.until_equal();
}
