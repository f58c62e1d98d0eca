//! The cell in a hive, on the kernel of a namespace, with nodes that the test gives.

use std::sync::Arc;

use hive::prelude::*;
use neighbors::{DesiredNeighbor, ForwardableIp};
use node_manager::Node;
use node_manager::testing::{Nodes, given, node};
use statedb::{Table, TableDisplay};
use test_kit::{Sandbox, require, require_root};

struct Tables {
    nodes: Arc<Nodes>,
    ips: Arc<Table<ForwardableIp>>,
    desired: Arc<Table<DesiredNeighbor>>,
}

fn in_sandbox(work: impl AsyncFnOnce(&Sandbox)) {
    let sandbox = Sandbox::new().unwrap();
    sandbox
        .host()
        .ip_batch(
            "link add eth0 type veth peer name peth0\nlink set eth0 up\nlink set peth0 up\n\
             addr add 192.0.2.1/24 dev eth0\nroute add 198.51.100.0/24 via 192.0.2.254\n",
        )
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work(&sandbox));
}

async fn started(nodes: Vec<Node>, is_on: bool) -> (TestHive, Arc<Tables>) {
    let tables = |nodes: Arc<Nodes>, ips: Arc<Table<ForwardableIp>>, desired: Arc<Table<DesiredNeighbor>>| {
        Arc::new(Tables { nodes, ips, desired })
    };
    let cells = vec![
        statedb::cell(),
        devices::cell(),
        given(nodes),
        neighbors::cell(),
        module("test", "The tables", [provide(tables)]),
        invoke(|_: Arc<Tables>| ()),
    ];
    let mut hive = TestHive::new(cells).set("devices", "eth0").set("enable-l2-neigh-discovery", is_on);
    hive.start().await;
    let tables = hive.get::<Tables>();
    (hive, tables)
}

fn rows<T: statedb::TableSpec + TableDisplay>(table: &Table<T>) -> Vec<String> {
    let snapshot = table.snapshot();
    table.all(&snapshot).map(|row| row.row().join(" ")).collect()
}

fn kernel(sandbox: &Sandbox) -> Vec<String> {
    let text = sandbox.host().ip("-4 neigh show dev eth0").unwrap_or_default();
    let mut lines: Vec<String> = text
        .lines()
        .filter(|line| line.contains("managed"))
        .map(|line| line.split_whitespace().next().unwrap_or_default().to_owned())
        .collect();
    lines.sort();
    lines
}

#[test]
fn nodes_are_kept_resolved_and_leave_with_their_entries() {
    require_root!();
    require!(neighbors::kernel_can_manage(), "needs Linux 5.16 for managed neighbour entries");
    in_sandbox(async |sandbox| {
        let nodes = vec![
            node("b", &["192.0.2.2"], &[]),
            node("c", &["192.0.2.3"], &[]),
            // Behind a gateway, and one that no route leads to.
            node("d", &["198.51.100.7"], &[]),
            node("e", &["203.0.113.7"], &[]),
        ];
        let (mut hive, tables) = started(nodes, true).await;
        hive.until("the entries", || kernel(sandbox) == ["192.0.2.2", "192.0.2.254", "192.0.2.3"]).await;
        assert_eq!(rows(&tables.ips).len(), 4);
        hive.until("the rows", || {
            rows(&tables.desired).iter().filter(|row| row.ends_with(" Done")).count() == 3
        })
        .await;

        tables.nodes.0.transact(|txn| {
            txn.delete(Node::by_name("default", "c"));
            txn.insert(node("b", &["192.0.2.22"], &[]));
        });
        hive.until("the new address", || kernel(sandbox) == ["192.0.2.22", "192.0.2.254"]).await;
        assert_eq!(rows(&tables.ips).len(), 3);

        // Routes of the host decide about next hops.
        sandbox.host().ip("route replace 198.51.100.0/24 via 192.0.2.253").unwrap();
        hive.until("the new gateway", || kernel(sandbox) == ["192.0.2.22", "192.0.2.253"]).await;
        sandbox.host().ip("route add 203.0.113.0/24 dev eth0").unwrap();
        hive.until("the new route", || kernel(sandbox) == ["192.0.2.22", "192.0.2.253", "203.0.113.7"]).await;
        sandbox.host().ip("neigh flush dev eth0").unwrap();
        hive.until("lost entries", || kernel(sandbox) == ["192.0.2.22", "192.0.2.253", "203.0.113.7"]).await;
        hive.stop().await;
        assert_eq!(kernel(sandbox).len(), 3, "entries stay at the stop");

        let (mut hive, _) = started(vec![node("b", &["192.0.2.22"], &[])], true).await;
        hive.until("the prune", || kernel(sandbox) == ["192.0.2.22"]).await;
        hive.stop().await;
    });
}

#[test]
fn without_the_option_nothing_is_touched() {
    require_root!();
    require!(neighbors::kernel_can_manage(), "needs Linux 5.16 for managed neighbour entries");
    in_sandbox(async |sandbox| {
        sandbox.host().ip("neigh add 192.0.2.9 dev eth0 managed extern_learn").unwrap();
        let (mut hive, tables) = started(vec![node("b", &["192.0.2.2"], &[])], false).await;
        hive.stop().await;
        assert_eq!(kernel(sandbox), ["192.0.2.9"]);
        assert!(rows(&tables.ips).is_empty() && rows(&tables.desired).is_empty());
    });
}
