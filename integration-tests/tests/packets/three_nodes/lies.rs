//! Objects of nodes that contradict each other, and packets of the tunnel from an address that is no node.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use integration_tests::Node;
use integration_tests::cast::identity;
use serde_json::json;
use test_kit::{NetNs, require_root};

use super::cluster::{Cluster, LIMIT, Member, Routing, SWITCH};
use super::policy;
use crate::overlay::{PEER, PORT, SERVER, question, vxlan};

/// An identity that no node knows.
const UNKNOWN: u32 = 0xfedc;
/// How long packets that must not arrive are waited for.
const SILENCE: Duration = Duration::from_millis(100);

/// Waits until health of each node has all of these texts, or none of them.
fn until_health(cluster: &Cluster, texts: &[&str], has: bool) {
    for node in &cluster.nodes {
        cluster.until(&format!("health has {texts:?}: {has}"), || {
            let health = node.get("/statedb/dump/health").to_string();
            let wrong: Vec<_> = texts.iter().filter(|text| health.contains(**text) != has).collect();
            if wrong.is_empty() { Ok(()) } else { Err(format!("{wrong:?}: {health}")) }
        });
    }
}

/// Each claims what another one has; the contradiction is named on every node, and other nodes are not affected.
#[test]
fn nodes_that_claim_what_others_have_are_named_and_change_nothing_else() {
    require_root!();
    let cluster = Cluster::new(Routing::Tunnel);
    let flows = [cluster.flows(0, 1), cluster.flows(1, 2)];

    let overlapping = Member { name: "overlapping", host: 66, range: 242 };
    let twin = Member { name: "twin", host: 2, range: 67 };
    let mut invalid = Member { name: "invalid", host: 68, range: 68 }.object(&[]);
    invalid["spec"]["ipam"]["podCIDRs"] = json!(["10.68.0.0/33"]);
    // The name of a node that is there.
    let namesake = Member { name: "n1", host: 70, range: 70 };
    cluster.apply("z-lies.json", &[overlapping.object(&[]), twin.object(&[]), invalid]);
    let lies = [
        "overlapping: pod range 10.242.0.0/24 overlaps one of n2",
        "overlapping: pod range fd00:10:242::/112 overlaps one of n2",
        "twin: 198.51.100.2 is an address of n2",
        "twin: 2001:db8:5::2 is an address of n2",
        "items[2].spec.ipam.podCIDRs[0]: ",
    ];
    until_health(&cluster, &lies, true);
    for node in &cluster.nodes {
        let is_in_log = |lie: &&str| node.log().contains(*lie);
        cluster
            .until("the log names them", || lies.iter().all(is_in_log).then_some(()).ok_or_else(String::new));
        // The rest of such a node is as good as that of others.
        cluster.until("the twin's own range has a route", || {
            let routes = node.host().ip("route show").unwrap();
            if routes.contains("10.67.0.0/24") { Ok(()) } else { Err(routes) }
        });
    }
    cluster.apply("z-namesake.json", &[namesake.object(&[])]);
    until_health(&cluster, &["z-namesake.json"], true);
    assert_eq!(own_addresses(&cluster.nodes[0]), ["198.51.100.1", "2001:db8:5::1"]);
    let (first, third) = (&cluster.pods[0], &cluster.pods[2]);
    cluster.until_reached(&third.client.ns, &first.server.ns, &first.server.addresses());

    ["z-namesake.json", "z-lies.json"].into_iter().for_each(|file| cluster.withdraw(file));
    until_health(&cluster, &["overlapping: ", "twin: ", "z-lies.json", "z-namesake.json"], false);
    for flow in flows {
        cluster.assert_perfect(flow, "nodes claim what others have");
    }
}

/// The InternalIPs by which a node knows itself.
fn own_addresses(node: &Node) -> Vec<String> {
    let nodes = node.get("/statedb/dump/nodes")["nodes"].clone();
    let is_own = |row: &&serde_json::Value| row.to_string().contains("\"local\"");
    let own = nodes.as_array().unwrap().iter().find(is_own).unwrap_or_else(|| panic!("{nodes}")).to_string();
    ["198.51.100.1", "198.51.100.70", "2001:db8:5::1", "2001:db8:5::46"]
        .into_iter()
        .filter(|ip| own.contains(&format!("\"{ip}\"")))
        .map(str::to_owned)
        .collect()
}

fn socket(ns: &NetNs, ip: IpAddr, port: u16, timeout: Duration) -> UdpSocket {
    let socket = ns.run(|| UdpSocket::bind(SocketAddr::new(ip, port))).unwrap();
    socket.set_read_timeout(Some(timeout)).unwrap();
    socket
}

fn received(socket: &UdpSocket) -> Option<Vec<u8>> {
    let mut buffer = [0; 2048];
    socket.recv(&mut buffer).ok().map(|length| buffer[..length].to_vec())
}

/// As in Cilium, the identity in a packet of the tunnel is trusted from any sender: policy is about it, whatever the
/// addresses are; "host" is refused, as it would be this one. Answers go to the node that has the address.
#[test]
fn packets_of_the_tunnel_from_no_node_are_judged_by_their_identity() {
    require_root!();
    let cluster = Cluster::new(Routing::Tunnel);
    let (victim, other) = (&cluster.pods[0].server, &cluster.pods[1]);
    cluster.until_reached(&other.client.ns, &victim.ns, &victim.addresses());
    cluster.apply("policy.json", &[policy("clients", "client")]);
    for node in &cluster.nodes {
        node.wait_policies(&["clients"]);
    }
    let [client, server] = [&other.client, &other.server].map(|pod| identity(&cluster.nodes[1], pod) as u32);
    let spoofer = socket(&cluster.switch, SWITCH[0].parse().unwrap(), PORT, SILENCE);
    let node: SocketAddr = "198.51.100.1:8472".parse().unwrap();
    for (index, local) in victim.addresses().into_iter().enumerate() {
        let (pod, peer) = (socket(&victim.ns, local, SERVER, LIMIT), other.client.addresses()[index]);
        let peer_socket = socket(&other.client.ns, peer, PEER, LIMIT);
        let send = |id: u32, source: IpAddr, payload: &[u8]| {
            spoofer.send_to(&vxlan(id, &question(payload, source, local)), node).unwrap();
        };
        let unknown = ["10.9.9.9", "fd09::9"][index].parse().unwrap();
        send(1, peer, b"of the host");
        send(server, peer, b"of an identity that is refused");
        send(UNKNOWN, peer, b"of an unknown identity");
        send(2, unknown, b"of the world");
        send(client, unknown, b"of a client with another address");
        send(client, peer, b"of a client");
        for wanted in [&b"of a client with another address"[..], b"of a client"] {
            assert_eq!(received(&pod).as_deref(), Some(wanted), "{}", cluster.logs());
        }
        pod.send_to(b"answer", (peer, PEER)).unwrap();
        assert_eq!(received(&peer_socket).as_deref(), Some(&b"answer"[..]), "{}", cluster.logs());
        pod.set_read_timeout(Some(SILENCE)).unwrap();
        assert_eq!((received(&pod), received(&spoofer)), (None, None));
    }
    let metrics = cluster.maps(0, "metrics");
    assert!(metrics.contains("Invalid identity") && metrics.contains("Policy denied"), "{metrics}");
}
