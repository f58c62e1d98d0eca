//! Nodes for the tests of readers.

use std::net::IpAddr;
use std::sync::Arc;

use hive::prelude::*;
use ipnetwork::IpNetwork;
use local_node::{AddressType, DEFAULT_CLUSTER};
use statedb::RwTable;

use crate::node::{Node, NodeAddress};
use crate::source::NodeSource;

/// Returns a node of another agent in the default cluster.
///
/// # Panics
/// If an address or a range is invalid.
pub fn node(name: &str, addresses: &[&str], pod_cidrs: &[&str]) -> Node {
    let address = |text: &&str| {
        let ip: IpAddr = text.parse().expect("an address");
        NodeAddress { kind: AddressType::InternalIP, ip }
    };
    let range = |text: &&str| text.parse::<IpNetwork>().expect("a CIDR");
    Node {
        cluster: DEFAULT_CLUSTER.into(),
        name: name.into(),
        source: NodeSource::CustomResource,
        addresses: addresses.iter().map(address).collect(),
        pod_cidrs: pod_cidrs.iter().map(range).collect(),
        ..Node::default()
    }
}

/// Provides the table with these nodes in the place of [`cell()`](crate::cell()), and `Arc<Nodes>` to change it.
pub fn given(nodes: Vec<Node>) -> Cell {
    let writer = move |table: Arc<RwTable<Node>>| {
        table.transact(|txn| nodes.iter().for_each(|node| drop(txn.insert(node.clone()))));
        Arc::new(Nodes(table))
    };
    module("node-manager", "Fixed nodes", [statedb::table::<Node>(), provide(writer)])
}

/// The writer's half of the table in tests.
#[derive(Debug)]
pub struct Nodes(pub Arc<RwTable<Node>>);
