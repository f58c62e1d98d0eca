//! Three nodes with an agent each on one network: connections, identities and policy while nodes come and go.

mod changes;
mod cluster;
mod lies;
mod node_ports;
mod rollout;
mod underlay;

use std::net::IpAddr;
use std::thread::sleep;
use std::time::Duration;

use cluster::{Cluster, MEMBERS, Pods, Routing, is_refused};
use integration_tests::cast::{assert_nothing, identity};
use serde_json::{Value, json};
use test_kit::{NetNs, UdpFlow, require_root};

const WHILE: Duration = Duration::from_millis(100);

/// The ends of connections: pods with their addresses, nodes with theirs.
fn ends(cluster: &Cluster) -> Vec<(String, NetNs, [IpAddr; 2])> {
    let pods = cluster.pods.iter().flat_map(|Pods { client, server }| [client, server]);
    let pods = pods.map(|pod| (pod.name.clone(), pod.ns.clone(), pod.addresses()));
    let nodes = cluster.nodes.iter().zip(MEMBERS);
    let nodes = nodes.map(|(node, member)| (member.name.to_owned(), node.host().clone(), member.addresses()));
    pods.chain(nodes).collect()
}

/// Lets pods with a label send to servers.
fn policy(name: &str, app: &str) -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"namespace": "default", "name": name},
        "spec": {
            "endpointSelector": {"matchLabels": {"app": "server"}},
            "ingress": [{"fromEndpoints": [{"matchLabels": {"app": app}}]}],
        },
    })
}

/// Pods of another node are selected by the labels of their CiliumIdentity, also where no pod of the own node has these labels.
fn a_visitor_is_known_by_its_identity(cluster: &mut Cluster) {
    let visitor = cluster.add_pod(0, "visitor");
    let endpoint = cluster.endpoint(0, MEMBERS[0], &visitor);
    cluster.apply("visitors.json", &[policy("visitors", "visitor"), endpoint]);
    let server = &cluster.pods[1].server;
    cluster.nodes[1].wait_policies(&["clients", "visitors"]);
    for ip in server.addresses() {
        assert!(is_refused(&visitor.ns, &server.ns, ip), "{ip}");
    }
    let labels = json!({
        "k8s:app": "visitor", "k8s:io.kubernetes.pod.namespace": "default",
        "k8s:io.cilium.k8s.policy.cluster": "default",
    });
    let object = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumIdentity",
        "metadata": {"name": identity(&cluster.nodes[0], &visitor).to_string()},
        "security-labels": labels,
    });
    cluster.apply("identity.json", &[object]);
    cluster.until_reached(&visitor.ns, &server.ns, &server.addresses());
    cluster.nodes[1].stop();
    cluster.start(1);
    for ip in cluster.pods[1].server.addresses() {
        assert!(!is_refused(&visitor.ns, &cluster.pods[1].server.ns, ip), "{ip} after a restart");
    }
}

/// Packets of a server to a server of another node, which the policy refuses.
fn refused_flows(cluster: &Cluster, from: usize, to: usize) -> Vec<UdpFlow> {
    let (from, to) = (&cluster.pods[from].server, &cluster.pods[to].server);
    to.addresses().map(|ip| UdpFlow::start(&from.ns, &to.ns, ip).unwrap()).into()
}

/// Connections between all ends, a policy about identities of other nodes, restarts of the agents of both ends of flows;
/// killed are the agents of these nodes.
fn all_reach_each_other(routing: Routing, is_killed: [bool; 2]) {
    let mut cluster = Cluster::new(routing);
    if routing == Routing::Routed {
        for (node, other) in cluster.nodes.iter().zip(cluster.pods.iter().rev()).step_by(2) {
            let [ip, _] = other.server.addresses();
            let way = node.host().ip(&format!("route get {ip}")).unwrap();
            assert!(way.contains(&format!("via {}", cluster::SWITCH[0])), "by the router: {way}");
        }
    }
    let ends = ends(&cluster);
    for (from_name, from, _) in &ends {
        for (_, to, ips) in ends.iter().filter(|(name, ..)| name != from_name) {
            cluster.until_reached(from, to, ips);
        }
    }

    // The receiver's policy is about the sender's identity.
    cluster.apply("policy.json", &[policy("clients", "client")]);
    for node in &cluster.nodes {
        node.wait_policies(&["clients"]);
    }
    let pairs = || (0..3).flat_map(|from| (0..3).map(move |to| (from, to))).filter(|(from, to)| from != to);
    for (from, to) in pairs() {
        let (sender, receiver) = (&cluster.pods[from], &cluster.pods[to].server);
        assert_eq!(
            identity(&cluster.nodes[from], &sender.server),
            identity(&cluster.nodes[to], receiver),
            "equal labels"
        );
        cluster.until_reached(&sender.client.ns, &receiver.ns, &receiver.addresses());
        for ip in receiver.addresses() {
            assert!(is_refused(&sender.server.ns, &receiver.ns, ip), "{from} {to} {ip}\n{}", cluster.logs());
            assert!(is_refused(cluster.nodes[from].host(), &receiver.ns, ip), "host {from} {to} {ip}");
        }
    }

    // The agents of both ends end and start.
    for (victim, is_killed) in is_killed.into_iter().enumerate() {
        let (allowed, refused) = (cluster.flows(0, 1), refused_flows(&cluster, 0, 1));
        sleep(WHILE);
        match is_killed {
            true => drop(cluster.nodes[victim].kill()),
            false => cluster.nodes[victim].stop(),
        }
        sleep(WHILE);
        cluster.start(victim);
        sleep(WHILE);
        let situation = format!("{}, killed: {is_killed}", MEMBERS[victim].name);
        cluster.assert_perfect(allowed, &situation);
        assert_nothing(refused, &situation, &cluster.nodes[victim]);
    }
    a_visitor_is_known_by_its_identity(&mut cluster);
}

#[test]
fn three_nodes_reach_each_other_by_tunnel() {
    require_root!();
    all_reach_each_other(Routing::Tunnel, [false, true]);
}

#[test]
fn three_nodes_reach_each_other_by_their_routes() {
    require_root!();
    all_reach_each_other(Routing::Native, [true, false]);
}

#[test]
fn three_nodes_reach_each_other_through_a_router_that_has_the_routes() {
    require_root!();
    all_reach_each_other(Routing::Routed, [false, true]);
}

/// Packets that a node has sent by its tunnel device.
fn sent_by_tunnel(cluster: &Cluster, index: usize) -> u64 {
    let text = cluster.nodes[index].host().ip("-json -stats link show dev cilium_vxlan").unwrap();
    let links: Value = serde_json::from_str(&text).unwrap();
    links[0]["stats64"]["tx"]["packets"].as_u64().unwrap()
}

/// The first two nodes are in one group of subnets, the third is in another.
#[test]
fn with_hybrid_routing_only_other_subnets_are_behind_the_tunnel() {
    require_root!();
    let cluster = Cluster::new(Routing::Hybrid);
    cluster.apply("policy.json", &[policy("clients", "client")]);
    for node in &cluster.nodes {
        node.wait_policies(&["clients"]);
    }
    for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0)] {
        let (sender, receiver) = (&cluster.pods[from], &cluster.pods[to].server);
        let is_near = from + to == 1;
        cluster.until_reached(&sender.client.ns, &receiver.ns, &receiver.addresses());
        for ip in receiver.addresses() {
            // Other packets of the node may use the tunnel at the same time, but not again and again.
            cluster.until("the way", || {
                let before = sent_by_tunnel(&cluster, from);
                cluster::reach_udp(&sender.client.ns, &receiver.ns, ip)?;
                let sent = sent_by_tunnel(&cluster, from) - before;
                if (sent == 0) == is_near { Ok(()) } else { Err(format!("{from} to {ip}: {sent} by tunnel")) }
            });
            assert!(
                is_refused(&sender.server.ns, &receiver.ns, ip),
                "the sender's identity: {from} {to} {ip}"
            );
        }
        let routes = cluster.nodes[from].host().ip("-4 route show").unwrap();
        let [range, _] = MEMBERS[to].ranges();
        let way = if is_near {
            format!("{range} via {}", MEMBERS[to].addresses()[0])
        } else {
            format!("{range} via 10.")
        };
        assert!(routes.contains(&way), "{way} in {routes}");
    }
    cluster.withdraw("policy.json");
    let server = &cluster.pods[1].server;
    cluster.until_reached(cluster.nodes[0].host(), &server.ns, &server.addresses());
}
