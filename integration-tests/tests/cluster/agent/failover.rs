//! Two API servers on one etcd.

use cluster_stage::{Gate, StageOptions};
use integration_tests::Cluster;
use k8s_types::Kind;
use k8s_types::schema::custom_resource_definitions;
use test_kit::{require_root, wait_until};

use super::LIMIT;
use super::objects::{KINDS, list, object};

/// Creates a node with two servers, not started, and the gate to the second one.
fn two_servers() -> (Cluster, Gate) {
    let options = StageOptions { second: true, ..StageOptions::default() };
    let mut cluster = Cluster::with(&options, &custom_resource_definitions());
    let second = cluster.stage.gate_to(1).unwrap();
    let urls = format!("{},{}", cluster.gate.url(), second.url());
    cluster.node.config.insert("k8s-api-server-urls".to_owned(), urls);
    (cluster, second)
}

#[test]
fn an_api_server_that_dies_is_left_for_the_other_one_and_back() {
    require_root!();
    let (mut cluster, second) = two_servers();
    cluster.start();
    let first = &cluster.gate;
    assert_eq!(second.accepted(), 0, "the first one serves");

    // Of each kind some objects are added, changed and deleted; every watch has a connection.
    let is_followed = |by: &Gate, round: usize| {
        let objects = KINDS.iter().flat_map(|kind| (round..round + 3).map(|n| object(*kind, n, round % 2)));
        cluster.stage.apply(&list(objects.collect())).unwrap();
        let gone = |kind: &Kind| object(*kind, round, 0);
        let gone = list(KINDS.iter().map(gone).collect());
        cluster.stage.kubectl_with(&["delete", "--wait=false", "-f", "-"], &gone).unwrap();
        let counts = cluster.until_equal();
        assert_eq!((counts["k8s-services"], counts["k8s-pods"]), (3, 2));
        wait_until("all is well with this server", LIMIT, || {
            by.connections() >= KINDS.len() && cluster.node.get("/v1/healthz")["kubernetes"]["state"] == "Ok"
        });
    };
    is_followed(first, 0);
    cluster.stage.kill_server(0).unwrap();
    is_followed(&second, 1);
    cluster.stage.start_server(0).unwrap();
    cluster.stage.kill_server(1).unwrap();
    is_followed(first, 2);
}

#[test]
fn an_api_server_that_falls_silent_is_left_for_the_other_one_and_back() {
    require_root!();
    let (mut cluster, second) = two_servers();
    cluster.node.config.insert("k8s-heartbeat-timeout".to_owned(), "3s".to_owned());
    cluster.start();
    let first = &cluster.gate;
    let write = |version| {
        let objects = KINDS.iter().flat_map(|kind| (0..3).map(|n| object(*kind, n, version)));
        cluster.stage.apply(&list(objects.collect())).unwrap();
    };
    write(0);
    cluster.until_equal();
    cluster.until_well();

    // The silent server accepts and keeps connections, but never answers a request.
    for (silent, serves, version) in [(first, &second, 1), (&second, first, 2)] {
        let read = cluster.node.log().len();
        silent.hold();
        write(version);
        let counts = cluster.until_equal();
        assert_eq!((counts["k8s-services"], counts["k8s-pods"]), (4, 3));
        wait_until("all is well with this server", LIMIT, || {
            serves.connections() >= KINDS.len() && cluster.unwell().is_empty()
        });
        let log = cluster.node.log()[read..].to_owned();
        let warned: Vec<&str> = log.lines().filter(|line| line.contains("level=warn")).collect();
        let reported = format!("{} has not answered for 3 s", silent.url());
        assert!(warned.len() == 1 && warned[0].contains(&reported), "{reported}\n{log}");
        silent.cut();
        silent.open();
    }
}
