//! The device between a node and the network vanishes and comes back.

use std::collections::BTreeSet;

use integration_tests::Node;
use integration_tests::cast::flows;
use test_kit::require_root;

use super::cluster::{Cluster, Routing, is_refused};

/// The index of the node that loses its device.
const LOST: usize = 1;

/// The identifiers of degraded components.
fn degraded(node: &Node) -> BTreeSet<String> {
    let table = node.get("/statedb/dump/health")["health"].clone();
    let rows = table.as_array().unwrap_or_else(|| panic!("{table}"));
    let degraded = rows.iter().filter(|row| row["Level"] == "Degraded");
    degraded.map(|row| row["ID"].to_string()).collect()
}

/// Flows of other nodes and those within the node lose nothing; the node names its loss and repairs everything after it,
/// also if its agent is killed and starts without the device.
fn a_device_vanishes_and_comes_back(routing: Routing, is_killed: bool) {
    let mut cluster = Cluster::new(routing);
    let reach_both_ways = |cluster: &Cluster| {
        for (from, to) in [(0, LOST), (LOST, 0), (2, LOST), (LOST, 2)] {
            let (from_pods, to_pods) = (&cluster.pods[from], &cluster.pods[to]);
            cluster.until_reached(&from_pods.client.ns, &to_pods.server.ns, &to_pods.server.addresses());
            let from_host = cluster.nodes[from].host();
            cluster.until_reached(from_host, &to_pods.server.ns, &to_pods.server.addresses());
        }
    };
    reach_both_ways(&cluster);
    let before: Vec<_> = cluster.nodes.iter().map(degraded).collect();
    let (own, other) = (&cluster.pods[LOST], &cluster.pods[0]);
    let within = flows(&own.client.ns, &own.server.ns, &own.server.addresses());
    let others = [cluster.flows(0, 2), cluster.flows(2, 0)];

    cluster.unplug(LOST);
    cluster.until("health names the device", || {
        let health = cluster.nodes[LOST].get("/statedb/dump/health").to_string();
        let words = ["No device faces the network any more", "eth0: the device is gone"];
        if words.iter().all(|word| health.contains(word)) { Ok(()) } else { Err(health) }
    });
    for ip in own.server.addresses() {
        assert!(is_refused(&other.client.ns, &own.server.ns, ip), "a control: nothing passes to {ip}");
    }
    for index in [0, 2] {
        assert_eq!(degraded(&cluster.nodes[index]), before[index], "others are not affected");
    }
    if is_killed {
        cluster.nodes[LOST].kill();
        cluster.start(LOST);
    }

    cluster.plug(LOST);
    reach_both_ways(&cluster);
    cluster.until("health is as before", || {
        let now = degraded(&cluster.nodes[LOST]);
        if now == before[LOST] { Ok(()) } else { Err(format!("{now:?}, before {:?}", before[LOST])) }
    });
    let again = [cluster.flows(0, LOST), cluster.flows(LOST, 2)];
    std::thread::sleep(super::WHILE);
    for flow in again.into_iter().chain(others).chain([within]) {
        cluster.assert_perfect(flow, "the device of another node vanishes and comes back");
    }
}

#[test]
fn the_device_under_a_tunnel_vanishes_and_comes_back() {
    require_root!();
    a_device_vanishes_and_comes_back(Routing::Tunnel, false);
}

#[test]
fn the_device_under_direct_routes_vanishes_and_comes_back() {
    require_root!();
    a_device_vanishes_and_comes_back(Routing::Native, false);
}

#[test]
fn an_agent_that_starts_without_the_device_uses_it_when_it_is_back() {
    require_root!();
    a_device_vanishes_and_comes_back(Routing::Native, true);
}
