//! Clients outside of the cluster and services with backends on another node.

use std::net::{IpAddr, SocketAddr, TcpStream};

use integration_tests::{Node, Pod};
use serde_json::{Value, json};
use test_kit::{NetNs, require_root};

use super::cluster::{Cluster, MEMBERS, Routing};
use crate::services::{ask, connect, serve_at, tcp, udp};

const NODE_PORT: u16 = 30_080;
const PORT: u16 = 80;
const BACKEND_PORT: u16 = 8080;
const CLUSTER: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
const EXTERNAL: [&str; 2] = ["203.0.113.7", "2001:db8:6::7"];

/// The service with a pod as its only backend.
fn service(backend: &Pod, on: &str) -> [Value; 3] {
    let back =
        |protocol: &str| json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": BACKEND_PORT});
    let front = |protocol: &str| {
        let name = protocol.to_lowercase();
        json!({"name": name, "protocol": protocol, "port": PORT, "nodePort": NODE_PORT, "targetPort": BACKEND_PORT})
    };
    let slice = |kind: &str, ip: IpAddr| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "namespace": "default", "name": format!("web-{}", kind.to_lowercase()),
                "labels": {"kubernetes.io/service-name": "web"},
            },
            "addressType": kind, "ports": [back("TCP"), back("UDP")],
            "endpoints": [{"addresses": [ip], "nodeName": on, "conditions": {"ready": true, "serving": true}}],
        })
    };
    let [v4, v6] = backend.addresses();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "web"},
        "spec": {
            "type": "NodePort", "clusterIP": CLUSTER[0], "clusterIPs": CLUSTER, "ipFamilies": ["IPv4", "IPv6"],
            "ports": [front("TCP"), front("UDP")], "externalIPs": EXTERNAL,
        },
    });
    [service, slice("IPv4", v4), slice("IPv6", v6)]
}

/// The frontends at the first node.
fn frontends() -> Vec<SocketAddr> {
    let own = MEMBERS[0].addresses().map(|ip| SocketAddr::new(ip, NODE_PORT));
    let external = EXTERNAL.map(|ip| SocketAddr::new(ip.parse().unwrap(), PORT));
    [own, external].concat()
}

/// A client behind the switch, which routes the external addresses to the first node.
fn client(cluster: &Cluster) -> NetNs {
    let client = cluster.nodes[0].sandbox().netns("client").unwrap();
    client.veth("eth0", &cluster.switch, "client").unwrap();
    cluster.switch.set_sysctl("net/ipv4/ip_forward", "1").unwrap();
    cluster.switch.set_sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
    cluster
        .switch
        .ip_batch("addr add 192.0.2.254/24 dev client\naddr add 2001:db8:7::254/64 dev client nodad\n")
        .unwrap();
    client
        .ip_batch(
            "addr add 192.0.2.1/24 dev eth0\naddr add 2001:db8:7::1/64 dev eth0 nodad\n\
             route add default via 192.0.2.254\nroute add default via 2001:db8:7::254\n",
        )
        .unwrap();
    for (external, own) in EXTERNAL.into_iter().zip(MEMBERS[0].addresses()) {
        cluster.switch.ip(&format!("route add {external} via {own}")).unwrap();
    }
    client
}

fn until_answered(cluster: &Cluster, client: &NetNs, name: &str) {
    for to in frontends() {
        cluster.until(&format!("{name} answers at {to}"), || {
            let answers = (udp(client, to), tcp(client, to));
            let both = (Some(name.to_owned()), Some(name.to_owned()));
            if answers == both { Ok(()) } else { Err(format!("{answers:?}")) }
        });
    }
}

/// Frontends of the first node are served by a pod of the second one, and then by one of the third.
fn backends_of_other_nodes_answer(routing: Routing) {
    let mut first = Node::with_cgroup();
    first.config.insert("kube-proxy-replacement".to_owned(), "true".to_owned());
    let mut cluster = Cluster::with_first(routing, first);
    let client = client(&cluster);
    for index in [1, 2] {
        let server = &cluster.pods[index].server;
        serve_at(&server.ns, &server.addresses(), MEMBERS[index].name);
    }
    cluster.apply("web.json", &service(&cluster.pods[1].server, MEMBERS[1].name));
    until_answered(&cluster, &client, "n2");
    assert!(!cluster.nodes[0].apiary(&["status", "--all-health"]).contains("node-ports"));

    // Connections go on while the backend moves, the agent stops, is killed, and starts.
    let mut streams: Vec<(SocketAddr, TcpStream)> =
        frontends().into_iter().map(|to| (to, connect(&client, to).unwrap())).collect();
    let mut all_answer = |cluster: &Cluster, when: &str| {
        for (to, stream) in &mut streams {
            assert_eq!(ask(stream).as_deref(), Some("n2"), "{to} {when}\n{}", cluster.logs());
        }
    };
    all_answer(&cluster, "at first");
    cluster.nodes[0].stop();
    all_answer(&cluster, "without an agent");
    cluster.start(0);
    all_answer(&cluster, "after a start");
    cluster.nodes[0].kill();
    all_answer(&cluster, "after a kill");
    cluster.start(0);
    all_answer(&cluster, "at last");
    until_answered(&cluster, &client, "n2");
    cluster.apply("web.json", &service(&cluster.pods[2].server, MEMBERS[2].name));
    until_answered(&cluster, &client, "n3");
}

#[test]
fn backends_of_other_nodes_answer_by_their_routes() {
    require_root!();
    backends_of_other_nodes_answer(Routing::Native);
}

#[test]
fn backends_of_other_nodes_answer_by_tunnel() {
    require_root!();
    backends_of_other_nodes_answer(Routing::Tunnel);
}
