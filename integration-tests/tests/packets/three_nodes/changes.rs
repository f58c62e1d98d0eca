//! A node that joins, changes its addresses and ranges, and leaves, while others talk.

use std::collections::BTreeMap;
use std::net::IpAddr;

use test_kit::require_root;

use super::cluster::{Cluster, MEMBERS, Member, Routing};

/// The index of the node that changes.
const CHANGED: usize = 2;

/// Whether a node has a route, a node id, an entry of the ipcache for what belongs to another one.
fn facts(cluster: &Cluster, index: usize, member: &Member, pods: &[IpAddr]) -> BTreeMap<String, bool> {
    let (node, host) = (&cluster.nodes[index], cluster.nodes[index].host());
    let routes = format!("{}{}", host.ip("-4 route show").unwrap(), host.ip("-6 route show").unwrap());
    let ids = node.get("/v1/node/ids").to_string();
    let ipcache = cluster.maps(index, "ipcache");
    let has_line = |text: &str, first: &str| text.lines().any(|l| l.split_whitespace().next() == Some(first));
    let single = |ip: &IpAddr| format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 });
    let mut facts = BTreeMap::new();
    for range in member.ranges() {
        facts.insert(format!("route to {range}"), has_line(&routes, &range));
        facts.insert(format!("ipcache of {range}"), has_line(&ipcache, &range));
    }
    for ip in member.addresses() {
        facts.insert(format!("node id of {ip}"), ids.contains(&format!("\"{ip}\"")));
        facts.insert(format!("ipcache of {ip}"), has_line(&ipcache, &single(&ip)));
    }
    for ip in pods {
        facts.insert(format!("ipcache of {ip}"), has_line(&ipcache, &single(ip)));
    }
    facts
}

/// The endpoint of the tunnel that an IPv4 range of a node has in the ipcache of another one.
fn is_tunnel_of(cluster: &Cluster, index: usize, member: &Member) -> Result<(), String> {
    let ([range, _], [ip, _]) = (member.ranges(), member.addresses());
    let ipcache = cluster.maps(index, "ipcache");
    let line = ipcache.lines().find(|line| line.starts_with(&range)).unwrap_or_default();
    let has = line.split([' ', '=']).any(|word| word == ip.to_string());
    if has { Ok(()) } else { Err(format!("{ip}: {line:?}")) }
}

/// Waits until the other nodes know all of this, or nothing of it.
fn until_known(cluster: &Cluster, member: &Member, pods: &[IpAddr], is_known: bool) {
    for (index, other) in MEMBERS.iter().enumerate().filter(|(_, other)| other.name != member.name) {
        cluster.until(&format!("{} is known to {}: {is_known}", member.name, other.name), || {
            let wrong: Vec<String> = facts(cluster, index, member, pods)
                .into_iter()
                .filter(|(_, found)| *found != is_known)
                .map(|(fact, _)| fact)
                .collect();
            if wrong.is_empty() { Ok(()) } else { Err(format!("{wrong:?}")) }
        });
    }
}

/// Waits until pods and hosts of the changed node and of the first one reach each other.
fn until_reached(cluster: &Cluster) {
    let (own, other) = (&cluster.pods[0], &cluster.pods[CHANGED]);
    cluster.until_reached(&own.client.ns, &other.server.ns, &other.server.addresses());
    cluster.until_reached(&other.client.ns, &own.server.ns, &own.server.addresses());
    cluster.until_reached(cluster.nodes[0].host(), &other.server.ns, &other.server.addresses());
    cluster.until_reached(cluster.nodes[CHANGED].host(), &own.server.ns, &own.server.addresses());
}

fn a_node_joins_changes_and_leaves(routing: Routing) {
    let cluster = Cluster::without_objects(routing);
    let third = MEMBERS[CHANGED];
    (0..CHANGED).for_each(|index| cluster.announce(index));
    until_known(&cluster, &third, &[], false);
    let flows = [cluster.flows(0, 1), cluster.flows(1, 0)];

    let pods: Vec<IpAddr> = cluster.pods[CHANGED].server.addresses().into();
    cluster.announce(CHANGED);
    until_known(&cluster, &third, &pods, true);
    until_reached(&cluster);

    // Other addresses, which the node has beside its first ones.
    let moved = Member { host: 33, ..third };
    let [ipv4, ipv6] = moved.addresses();
    let host = cluster.nodes[CHANGED].host();
    host.ip_batch(&format!("addr add {ipv4}/24 dev eth0\naddr add {ipv6}/64 dev eth0 nodad\n")).unwrap();
    cluster.announce_as(CHANGED, moved);
    until_known(&cluster, &moved, &pods, true);
    let old = third.addresses().map(|ip| format!("node id of {ip}"));
    for index in 0..CHANGED {
        let is_gone = || {
            let facts = facts(&cluster, index, &third, &[]);
            if old.iter().any(|fact| facts[fact]) { Err(format!("{facts:?}")) } else { Ok(()) }
        };
        cluster.until("the old addresses are gone", is_gone);
        if routing == Routing::Tunnel {
            cluster.until("the tunnel's end is the new address", || is_tunnel_of(&cluster, index, &moved));
        }
    }
    until_reached(&cluster);

    // Other ranges: what belongs to the old ones goes.
    let renumbered = Member { range: 249, ..moved };
    cluster.announce_as(CHANGED, renumbered);
    until_known(&cluster, &renumbered, &pods, true);
    let ranges = third.ranges();
    for index in 0..CHANGED {
        cluster.until("the old ranges are gone", || {
            let facts = facts(&cluster, index, &third, &[]);
            let kept = |range: &String| facts.iter().any(|(fact, found)| *found && fact.ends_with(range));
            if ranges.iter().any(kept) { Err(format!("{facts:?}")) } else { Ok(()) }
        });
    }

    cluster.withdraw("node-n3.json");
    until_known(&cluster, &renumbered, &pods, false);
    until_known(&cluster, &third, &pods, false);
    cluster.announce(CHANGED);
    until_known(&cluster, &third, &pods, true);
    until_reached(&cluster);
    for flow in flows {
        cluster.assert_perfect(flow, "another node joins, changes and leaves");
    }
}

#[test]
fn a_third_node_joins_changes_and_leaves_by_tunnel() {
    require_root!();
    a_node_joins_changes_and_leaves(Routing::Tunnel);
}

#[test]
fn a_third_node_joins_changes_and_leaves_by_routes() {
    require_root!();
    a_node_joins_changes_and_leaves(Routing::Native);
}
