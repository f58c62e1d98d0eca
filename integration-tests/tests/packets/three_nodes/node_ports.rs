//! Clients outside of the cluster and services with backends on another node.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use integration_tests::{Node, Pod};
use serde_json::{Value, json};
use test_kit::{NetNs, require_root};

use super::cluster::{Cluster, MEMBERS, Routing};
use crate::services::{ask, connect, explained, serve_at, tcp, thread, udp};
use crate::xdp::by_xdp;

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
    let server = &cluster.pods[1].server;
    for (to, stream) in &mut streams {
        assert_eq!(ask(stream).as_deref(), Some("n2"));
        let from = stream.local_addr().unwrap();
        let (named, text) =
            explained(|arguments| cluster.apiary(0, arguments), from.ip(), *to, Some(from.port()));
        let backend = server.addresses().into_iter().find(|ip| ip.is_ipv4() == to.is_ipv4()).unwrap();
        assert!(named.into_iter().eq([SocketAddr::new(backend, BACKEND_PORT)]), "{to}\n{text}");
        // The translation is that of the entry, not of the rules for new connections.
        assert!(
            text.contains(&format!("source {from} becomes ")) && text.contains("by NAT "),
            "{to}\n{text}"
        );
        assert!(text.contains(&format!(" becomes {from} again")), "{to}\n{text}");
        let is_tunnelled = text.contains("encapsulated for the destination's node");
        assert_eq!(is_tunnelled, matches!(routing, Routing::Tunnel), "{to}\n{text}");
    }
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

/// The node with the frontends has a host firewall: requests to pods of other nodes are not its packets, neither as they
/// arrive nor as they leave with its address. Its own to the same backend are.
fn node_ports_are_not_subject_to_the_host_firewall(routing: Routing) {
    let mut first = Node::with_cgroup();
    for option in ["kube-proxy-replacement", "enable-host-firewall"] {
        first.config.insert(option.to_owned(), "true".to_owned());
    }
    let cluster = Cluster::with_first(routing, first);
    let client = client(&cluster);
    let server = &cluster.pods[1].server;
    serve_at(&server.ns, &server.addresses(), "n2");
    // The first node itself, as a server and as a client of the backend.
    let host = cluster.nodes[0].host().clone();
    serve_at(&host, &MEMBERS[0].addresses(), "host");
    let backends = server.addresses().map(|ip| SocketAddr::new(ip, BACKEND_PORT));
    let own = MEMBERS[0].addresses().map(|ip| SocketAddr::new(ip, BACKEND_PORT));
    let answers = |from: &NetNs, to: SocketAddr| [udp(from, to), tcp(from, to)];
    let all = |name: &str| [Some(name.to_owned()), Some(name.to_owned())];
    cluster.apply("web.json", &service(server, MEMBERS[1].name));
    until_answered(&cluster, &client, "n2");
    for (from, to, name) in [(&client, own, "host"), (&host, backends, "n2")] {
        for to in to {
            assert_eq!(answers(from, to), all(name), "{to} without a policy\n{}", cluster.logs());
        }
    }

    // Other nodes only, for the tunnel and neighbours.
    let nodes = json!(["remote-node"]);
    let policy = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumClusterwideNetworkPolicy", "metadata": {"name": "nodes"},
        "spec": {"nodeSelector": {}, "ingress": [{"fromEntities": nodes}], "egress": [{"toEntities": nodes}]},
    });
    cluster.apply("policy.json", &[policy]);
    for to in own {
        cluster.until("the host is closed", || match answers(&client, to) {
            [None, None] => Ok(()),
            answers => Err(format!("{to}: {answers:?}")),
        });
    }
    for to in backends {
        assert_eq!(answers(&host, to), [None, None], "{to} from the host\n{}", cluster.logs());
    }
    until_answered(&cluster, &client, "n2");
    for (from, to) in own.map(|to| (&client, to)).into_iter().chain(backends.map(|to| (&host, to))) {
        assert_eq!(answers(from, to), [None, None], "{to}, still\n{}", cluster.logs());
    }

    cluster.withdraw("policy.json");
    for (from, to, name) in [(&client, own, "host"), (&host, backends, "n2")] {
        for to in to {
            cluster.until("all is open again", || match answers(from, to) {
                answers if answers == all(name) => Ok(()),
                answers => Err(format!("{to}: {answers:?}")),
            });
        }
    }
}

#[test]
fn node_ports_to_other_nodes_are_not_subject_to_the_host_firewall_by_routes() {
    require_root!();
    node_ports_are_not_subject_to_the_host_firewall(Routing::Native);
}

#[test]
fn node_ports_to_other_nodes_are_not_subject_to_the_host_firewall_by_tunnel() {
    require_root!();
    node_ports_are_not_subject_to_the_host_firewall(Routing::Tunnel);
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

/// Answers clients with their own address, one datagram or connection after the other.
fn serve_peers(ns: &NetNs, addresses: &[IpAddr]) {
    for &ip in addresses {
        let address = SocketAddr::new(ip, BACKEND_PORT);
        let udp = ns.run(|| UdpSocket::bind(address)).unwrap();
        thread(move || {
            while let Ok((_, from)) = udp.recv_from(&mut [0; 64]) {
                let _ = udp.send_to(from.ip().to_string().as_bytes(), from);
            }
        });
        let tcp = ns.run(|| TcpListener::bind(address)).unwrap();
        thread(move || {
            while let Ok((mut stream, from)) = tcp.accept() {
                let _ = stream.read_exact(&mut [0; 1]);
                let _ = stream.write_all(from.ip().to_string().as_bytes());
            }
        });
    }
}

/// The backend sees the client's own address, and its node answers in the name of the first node, which has no
/// translations. Then the same nodes with hybrid mode and XDP: that holds for TCP alone, and the first node sends the
/// packets of both protocols by XDP.
#[test]
fn backends_of_other_nodes_answer_clients_directly() {
    require_root!();
    let mut first = Node::with_cgroup();
    let options = [("kube-proxy-replacement", "true"), ("bpf-lb-mode", "dsr")];
    first.config.extend(options.map(|(option, value)| (option.to_owned(), value.to_owned())));
    let mut cluster = Cluster::with_first(Routing::Native, first);
    let client = client(&cluster);
    let server = &cluster.pods[1].server;
    serve_peers(&server.ns, &server.addresses());
    cluster.apply("web.json", &service(server, MEMBERS[1].name));
    for to in frontends() {
        let own = if to.is_ipv4() { "192.0.2.1" } else { "2001:db8:7::1" };
        cluster.until(&format!("{to} answers with the client's address"), || {
            let answers = [udp(&client, to), tcp(&client, to)];
            let expected = [Some(own.to_owned()), Some(own.to_owned())];
            if answers == expected { Ok(()) } else { Err(format!("{answers:?}")) }
        });
        let (_, text) = explained(|arguments| cluster.apiary(0, arguments), own.parse().unwrap(), to, None);
        assert!(text.contains(&format!("source {own} stays: the backend's node answers")), "{to}\n{text}");
    }
    let ports = &cluster.nodes[0].get("/v1/healthz")["kube-proxy-replacement"]["features"]["nodePort"];
    assert_eq!((&ports["mode"], &ports["dsrMode"]), (&"DSR".into(), &"IP Option/Extension".into()));
    let translations = cluster.maps(0, "nat");
    assert!(!translations.contains(&format!(":{BACKEND_PORT}")), "{translations}");

    let options = [("bpf-lb-mode", "hybrid"), ("bpf-lb-acceleration", "testing-only")];
    for node in &mut cluster.nodes {
        node.stop();
        node.config.extend(options.map(|(option, value)| (option.to_owned(), value.to_owned())));
    }
    (0..MEMBERS.len()).for_each(|index| cluster.start(index));
    let ports = &cluster.nodes[0].get("/v1/healthz")["kube-proxy-replacement"]["features"]["nodePort"];
    assert_eq!((&ports["mode"], &ports["acceleration"]), (&"Hybrid".into(), &"Generic".into()));
    // XDP sees packets before a device completes their checksums.
    for ns in [&client, &cluster.pods[1].server.ns] {
        ns.disable_checksum_offload("eth0").unwrap();
    }
    for to in frontends() {
        let [own, node] = match to {
            SocketAddr::V4(_) => ["192.0.2.1".to_owned(), MEMBERS[0].addresses()[0].to_string()],
            SocketAddr::V6(_) => ["2001:db8:7::1".to_owned(), MEMBERS[0].addresses()[1].to_string()],
        };
        for (ask, expected, packets) in [(udp as fn(&NetNs, SocketAddr) -> _, node, 2), (tcp, own, 4)] {
            // Until the neighbours are resolved the programs of the device send the packets.
            cluster.until(&format!("XDP sends {packets} packets of {to}"), || {
                let before = sent_by_xdp(&cluster);
                let answer = ask(&client, to);
                let sent = sent_by_xdp(&cluster) - before;
                let holds = answer.as_ref() == Some(&expected) && sent >= packets;
                if holds { Ok(()) } else { Err(format!("{answer:?}, {sent} packets")) }
            });
        }
    }
}

/// The number of packets that the first node has sent by XDP.
fn sent_by_xdp(cluster: &Cluster) -> u64 {
    let rows = cluster.apiary(0, &["bpf", "metrics", "list", "-o", "json"]);
    by_xdp(&serde_json::from_str(&rows).unwrap(), "Success")
}
