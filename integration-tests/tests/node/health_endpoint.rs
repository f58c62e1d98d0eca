//! The health endpoint of a whole agent: as Cilium's in the APIs, the same after a restart, made again when its link is
//! deleted, gone when it is switched off or cleaned up, late when no address is left.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use integration_tests::{Node, Pod, request};
use serde_json::{Value, json};
use test_kit::{require_command, require_root, try_wait_until, wait_until};

const PATIENCE: Duration = Duration::from_secs(180);
const LINK: &str = "lxc_health";
const OWNER: &str = "health";

/// A node whose agent has the defaults of health checking.
fn node() -> Node {
    let mut node = Node::new();
    node.config.remove("enable-health-checking");
    node
}

/// Returns the health endpoints in `GET /endpoint`.
fn endpoints(node: &Node) -> Vec<Value> {
    let endpoints = node.get("/v1/endpoint");
    let is_health =
        |endpoint: &&Value| endpoint["status"]["identity"]["labels"] == json!(["reserved:health"]);
    endpoints.as_array().unwrap().iter().filter(is_health).cloned().collect()
}

/// Waits until there is one, ready and published; returns it.
fn ready(node: &Node) -> Value {
    let is_ready = || {
        let found = endpoints(node);
        let [endpoint] = &found[..] else { return Err(format!("{found:?}")) };
        let published = node.get("/v1/cluster/nodes")["nodes-added"][0]["health-endpoint-address"].clone();
        match endpoint["status"]["state"] == "ready" && published["ipv4"]["ip"] == addresses(endpoint)[0] {
            true => Ok(endpoint.clone()),
            false => Err(format!("{} {published}", endpoint["status"])),
        }
    };
    try_wait_until(PATIENCE, is_ready).unwrap_or_else(|error| panic!("{error:?}\n{}", node.log()))
}

/// Returns the endpoint's addresses, IPv4 first.
fn addresses(endpoint: &Value) -> Vec<String> {
    let pair = &endpoint["status"]["networking"]["addressing"][0];
    ["ipv4", "ipv6"].iter().filter_map(|family| pair[family].as_str().map(str::to_owned)).collect()
}

/// Returns the addresses that the allocator has given to the health endpoint.
fn allocated(node: &Node) -> BTreeSet<String> {
    let allocations = node.get("/v1/healthz")["ipam"]["allocations"].clone();
    let all = allocations.as_object().cloned().unwrap_or_default();
    all.into_iter().filter(|(_, owner)| owner == OWNER).map(|(address, _)| address).collect()
}

/// Returns the tree of health.
fn report(node: &Node) -> String {
    node.apiary(&["shell", "--shell-sock-path", &node.config["shell-sock-path"], "health"])
}

fn has_link(node: &Node) -> bool {
    node.host().ip("-o link show").unwrap().contains(LINK)
}

/// Probes the own node until both paths answer both checks; returns its part of the answer.
fn until_reachable(node: &Node) -> Value {
    until_answered(node, "PUT", "/v1beta/status/probe", PATIENCE)
}

fn until_answered(node: &Node, method: &str, path: &str, patience: Duration) -> Value {
    let socket = node.socket().with_file_name("health.sock");
    let probe = || {
        let answer = request(&socket, method, path, None).map_err(|error| error.to_string())?;
        let answer = answer.json();
        let own = answer["nodes"][0].clone();
        let paths = ["host", "health-endpoint"].map(|path| {
            let secondary = own[path]["secondary-addresses"].as_array().cloned().unwrap_or_default();
            [vec![own[path]["primary-address"].clone()], secondary].concat()
        });
        let answers = |path: &Value| {
            ["http", "icmp"]
                .iter()
                .all(|check| path[check]["latency"].as_i64().is_some_and(|latency| latency > 0))
        };
        match paths.iter().flatten().all(answers) {
            true => Ok(own),
            false => Err(answer.to_string()),
        }
    };
    try_wait_until(patience, probe).unwrap_or_else(|error| panic!("{error:?}\n{}", node.log()))
}

#[test]
fn the_endpoint_is_that_of_cilium() {
    require_root!();
    let mut node = node();
    node.start();
    let endpoint = ready(&node);
    let controllers = node.get("/v1/healthz")["controllers"].clone();
    let has_name = |controller: &Value| controller["name"] == "cilium-health-ep";
    assert!(controllers.as_array().unwrap().iter().any(has_name), "clients look for it: {controllers}");
    let status = &endpoint["status"];
    assert_eq!(status["identity"], json!({"id": 4, "labels": ["reserved:health"]}));
    assert_eq!(status["labels"], json!({"realized": {}, "security-relevant": ["reserved:health"]}));
    assert_eq!(status["external-identifiers"], json!({"pod-name": "/"}));
    let health = json!({"bpf": "OK", "connected": true, "overallHealth": "OK", "policy": "OK"});
    assert_eq!(status["health"], health);
    assert_eq!(status["policy"]["realized"]["policy-enabled"], "none");
    let networking = &status["networking"];
    assert_eq!(networking["interface-name"], LINK);
    assert_eq!(networking["addressing"][0]["ipv4-pool-name"], "default");
    let keys: Vec<&String> = networking.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["addressing", "host-mac", "interface-index", "interface-name", "mac"]);

    // The link, whose namespace has no name.
    let link = node.host().ip(&format!("-o link show dev {LINK}")).unwrap();
    assert!(link.contains(networking["host-mac"].as_str().unwrap()), "{link}");
    assert!(link.contains("link-netnsid ") && !link.contains("link-netns "), "{link}");
    assert_eq!(node.host().sysctl(&format!("net/ipv4/conf/{LINK}/rp_filter")).unwrap(), "0");

    // Addresses of both families, in allocator, ipcache and the table of nodes.
    let own = addresses(&endpoint);
    assert_eq!(own.len(), 2);
    assert_eq!(allocated(&node), own.iter().cloned().collect());
    let known = node.apiary(&["bpf", "ipcache", "list"]);
    for address in &own {
        let line = known.lines().find(|line| line.contains(address)).unwrap_or_else(|| panic!("{known}"));
        assert!(line.contains("identity=4 "), "{line}");
    }

    // No client takes it away.
    let id = endpoint["id"].as_u64().unwrap();
    assert_eq!(node.request("DELETE", &format!("/v1/endpoint/{id}"), None).unwrap().status, 400);
    assert_ne!(node.request("DELETE", &format!("/v1/ipam/{}", own[0]), None).unwrap().status, 200);
    assert_ne!(node.request("POST", &format!("/v1/ipam/{}", own[0]), None).unwrap().status, 200);

    // Probes of both paths, from this node: once they can be answered. In their turn the last would be one after 72 seconds.
    until_answered(&node, "GET", "/v1beta/status", Duration::from_secs(60));
    let probed = until_reachable(&node);
    assert_eq!(probed["health-endpoint"]["primary-address"]["ip"], own[0].as_str());
    assert_eq!(probed["health-endpoint"]["secondary-addresses"][0]["ip"], own[1].as_str());
    let socket = node.socket().with_file_name("health.sock");
    let host = ["--host", socket.to_str().unwrap(), "health", "status", "--verbose"];
    let lines = node.apiary(&host);
    assert!(lines.contains("1/1 reachable"), "{lines}");
    assert!(lines.contains(&format!("Endpoint connectivity to {}:", own[0])), "{lines}");

    // And from a pod.
    let pod = node.add_pod("client");
    for address in &own {
        let address = SocketAddr::new(address.parse().unwrap(), 4240);
        let hello = || {
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
            stream.write_all(b"GET /hello HTTP/1.0\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            std::io::Result::Ok(text)
        };
        let text = try_wait_until(PATIENCE, || pod.ns.run(hello).map_err(|error| error.to_string()));
        let text = text.unwrap_or_else(|error| panic!("{address}: {error:?}\n{}", node.log()));
        assert!(text.starts_with("HTTP/1.0 200 OK\r\n"), "{text}");
    }
}

#[test]
fn it_is_the_same_after_restarts_and_gone_when_it_is_switched_off() {
    require_root!();
    let mut node = node();
    node.start();
    let first = addresses(&ready(&node));
    for kill in [true, false] {
        match kill {
            true => drop(node.kill()),
            false => node.stop(),
        }
        wait_until("the kernel has freed the namespace", PATIENCE, || !has_link(&node));
        node.start();
        let endpoint = ready(&node);
        assert_eq!(addresses(&endpoint), first, "other nodes know its addresses");
        until_reachable(&node);
        let record = node.endpoint_files().join(endpoint["id"].to_string()).join("ep_config.json");
        assert!(record.exists(), "{record:?}");
    }

    node.kill();
    // As if the process of a previous agent still held the namespace.
    node.host().ip(&format!("link add {LINK} type veth peer name left")).unwrap_or_else(|_| {
        wait_until("the kernel has freed the namespace", PATIENCE, || !has_link(&node));
        node.host().ip(&format!("link add {LINK} type veth peer name left")).unwrap()
    });
    node.config.insert("enable-endpoint-health-checking".to_owned(), "false".to_owned());
    node.start();
    wait_until("its link is gone", PATIENCE, || !has_link(&node));
    let none = || endpoints(&node).is_empty() && allocated(&node).is_empty();
    wait_until("the endpoint is gone", PATIENCE, none);
    let published = node.get("/v1/cluster/nodes")["nodes-added"][0]["health-endpoint-address"].clone();
    assert!(!published.to_string().contains(&first[0]), "{published}");
    wait_until("its addresses have no identity", PATIENCE, || {
        let known = node.apiary(&["bpf", "ipcache", "list"]);
        !first.iter().any(|address| known.contains(&format!("{address}/")))
    });
}

#[test]
fn a_deleted_link_is_made_again_with_its_addresses() {
    require_root!();
    let mut node = node();
    node.start();
    let first = ready(&node);
    let index = |endpoint: &Value| endpoint["status"]["networking"]["interface-index"].clone();
    node.host().ip(&format!("link del {LINK}")).unwrap();
    let again = || {
        let found = endpoints(&node);
        match &found[..] {
            [one] if index(one) != index(&first) && one["status"]["state"] == "ready" => Ok(one.clone()),
            _ => Err(format!("{found:?}")),
        }
    };
    let again = try_wait_until(PATIENCE, again).unwrap_or_else(|error| panic!("{error:?}\n{}", node.log()));
    assert_eq!(addresses(&again), addresses(&first));
    assert_eq!(allocated(&node), addresses(&first).into_iter().collect());
    until_reachable(&node);
}

#[test]
fn without_a_free_address_it_is_named_and_comes_later() {
    require_root!();
    let mut node = Node::new();
    node.config.insert("ipv4-range".to_owned(), "10.244.0.0/30".to_owned());
    node.start();
    // The router and the pod have the two addresses.
    let pod: Pod = node.add_pod("last");
    node.stop();
    node.config.remove("enable-health-checking");
    node.start();
    let named = || report(&node).contains("Other nodes cannot probe the health endpoint");
    wait_until("the lack is named", PATIENCE, named);
    assert!(endpoints(&node).is_empty() && allocated(&node).is_empty() && !has_link(&node));
    pod.cni(&node, "DEL").unwrap();
    let endpoint = ready(&node);
    assert!(addresses(&endpoint)[0].parse::<IpAddr>().unwrap().is_ipv4());
    wait_until("health is well again", PATIENCE, || !named());
}

#[test]
fn cleanup_removes_it() {
    require_root!();
    let mut node = node();
    node.start();
    ready(&node);
    node.kill();
    let output = node.agent_command().args(["cleanup", "--force"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    wait_until("its link is gone", PATIENCE, || !has_link(&node));
    assert!(!node.endpoint_files().exists());
}

#[test]
fn an_agent_that_may_not_make_a_namespace_names_it() {
    require_root!();
    require_command!("setpriv");
    let mut node = node();
    let capabilities = "-all,+net_admin,+bpf,+perfmon,+net_raw";
    let agent = integration_tests::binary("agent");
    let command =
        node.agent_command_of(&["setpriv", "--bounding-set", capabilities, agent.to_str().unwrap()]);
    node.spawn_command(command);
    node.wait_ready();
    wait_until("the lack is named", PATIENCE, || report(&node).contains("needs CAP_SYS_ADMIN"));
    assert!(endpoints(&node).is_empty() && !has_link(&node));
    // All else works.
    node.add_pod("a");
}
