//! Pods whose interfaces a bridge plugin has made, which the test is: the agent has endpoints for them.

use std::io::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use integration_tests::{Node, plugin, pod_manifest};
use serde_json::{Value, json};
use test_kit::{NetNs, require_root, wait_until};

const LIMIT: Duration = Duration::from_secs(60);
const MODE: &str = "generic-veth";
const BRIDGE_MAC: &str = "02:00:00:00:10:01";

/// A pod on the bridge.
struct Chained {
    name: &'static str,
    ns: NetNs,
    addresses: [String; 2],
    veth: String,
    result: Value,
}

/// Creates the bridge with the addresses of the pods' gateway.
fn bridge(node: &Node) {
    node.host()
        .ip_batch(&format!(
            "link add cni0 address {BRIDGE_MAC} type bridge\nlink set cni0 up\naddr add 10.1.0.1/24 dev cni0\n\
             addr add fd01::1/64 dev cni0 nodad\n"
        ))
        .unwrap();
    // As flannel and the bridge plugin do.
    node.host().set_sysctl("net/ipv4/ip_forward", "1").unwrap();
    node.host().set_sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
}

/// Connects a pod to the bridge, then calls the plugin with the result so far.
fn add(node: &Node, name: &'static str, number: u8) -> Chained {
    node.apply(&format!("pod-{name}.yaml"), &pod_manifest("default", name, &[("name", name)]));
    let ns = node.sandbox().netns(name).unwrap();
    let veth = format!("veth{name}");
    let addresses = [format!("10.1.0.{number}"), format!("fd01::{number}")];
    node.host().veth(&veth, &ns, "eth0").unwrap();
    node.host().ip(&format!("link set {veth} master cni0")).unwrap();
    ns.ip_batch(&format!(
        "addr add {}/24 dev eth0\naddr add {}/64 dev eth0 nodad\nroute add default via 10.1.0.1\n\
         route add default via fd01::1\n",
        addresses[0], addresses[1]
    ))
    .unwrap();
    // The programs answer solicitations for addresses of pods and of the node's devices, as Cilium's do, and drop others: the
    // bridge's own is among these.
    ns.ip(&format!("-6 neigh add fd01::1 lladdr {BRIDGE_MAC} dev eth0")).unwrap();
    let previous = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": veth}, {"name": "eth0", "sandbox": ns.path()}],
        "ips": [{"address": format!("{}/24", addresses[0]), "interface": 1},
                {"address": format!("{}/64", addresses[1]), "interface": 1}],
    });
    let mut pod = Chained { name, ns, addresses, veth, result: previous };
    pod.result = call(node, &pod, "ADD");
    pod
}

/// Calls the plugin, which must succeed; its result, null for verbs without one.
fn call(node: &Node, pod: &Chained, verb: &str) -> Value {
    let config = json!({"cniVersion": "1.0.0", "name": "net", "type": "cilium-cni", "chaining-mode": MODE,
                        "prevResult": pod.result});
    let mut child = plugin(node, verb, "default", pod.name, &pod.ns).spawn().unwrap();
    child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{verb} {}: {text}\n{}", pod.name, node.log());
    serde_json::from_str(&text).unwrap_or_default()
}

/// Removes the pod as a runtime does: the plugins in reverse order, then the namespace.
fn delete(node: &Node, pod: Chained) {
    call(node, &pod, "DEL");
    assert!(node.host().ip(&format!("link show {}", pod.veth)).is_ok(), "the bridge plugin removes it");
    node.host().ip(&format!("link del {}", pod.veth)).unwrap();
    node.withdraw(&format!("pod-{}.yaml", pod.name));
    node.sandbox().remove_netns(pod.ns).unwrap();
}

fn pings(from: &NetNs, address: &str) -> bool {
    from.exec(&format!("ping -c 1 -W 1 -q {address}")).is_ok()
}

/// The keys of endpoints and addresses in the kernel, and the node's links and pins of endpoints.
fn traces(node: &Node) -> Vec<String> {
    let mut traces: Vec<String> = [&["bpf", "endpoint", "list"][..], &["bpf", "ipcache", "list"]]
        .iter()
        .flat_map(|line| node.apiary(line).lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let pins = std::fs::read_dir(node.pin("x").parent().unwrap()).unwrap().flatten();
    traces.extend(
        pins.map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.contains("policy_v")),
    );
    let files = std::fs::read_dir(node.endpoint_files()).unwrap().flatten();
    let names = files.map(|entry| entry.file_name().to_string_lossy().into_owned());
    traces.extend(names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())));
    traces.sort();
    traces
}

#[test]
fn pods_behind_a_bridge_talk_are_cut_by_a_policy_and_leave_nothing() {
    require_root!();
    let mut node = Node::started();
    bridge(&node);
    let before = traces(&node);
    let (client, server, stranger) =
        (add(&node, "client", 11), add(&node, "server", 12), add(&node, "stranger", 13));
    for pod in [&client, &server, &stranger] {
        let ips = pod.result["ips"].as_array().unwrap();
        assert_eq!(ips[0]["address"], format!("{}/24", pod.addresses[0]), "the result passes through");
        call(&node, pod, "CHECK");
    }
    let check = |from: &Chained, to: &Chained, expected: bool| {
        for address in &to.addresses {
            let what = format!("{} to {} ({address}): {expected}", from.name, to.name);
            wait_until(&what, LIMIT, || pings(&from.ns, address) == expected);
        }
    };
    check(&client, &server, true);
    check(&stranger, &server, true);
    check(&server, &client, true);
    // The programs learn of the host's new addresses a moment later.
    for router in ["10.1.0.1", "fd01::1", Node::IPV4, Node::IPV6, Node::WORLD_IPV4, Node::WORLD_IPV6] {
        wait_until(router, LIMIT, || pings(&client.ns, router));
    }
    let identities: Vec<Value> = node
        .get("/v1/endpoint")
        .as_array()
        .unwrap()
        .iter()
        .map(|endpoint| endpoint["status"]["identity"]["labels"].clone())
        .collect();
    assert!(identities.iter().any(|labels| labels.to_string().contains("k8s:name=server")), "{identities:?}");

    node.apply(
        "policy.yaml",
        "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {namespace: default, name: only-clients}\n\
         spec:\n  endpointSelector: {matchLabels: {name: server}}\n  ingress:\n  \
         - fromEndpoints: [{matchLabels: {name: client}}]\n",
    );
    check(&stranger, &server, false);
    check(&client, &server, true);
    check(&stranger, &client, true);

    // A restart takes the endpoints over, with policy in force all the time.
    node.stop();
    check(&stranger, &server, false);
    node.start();
    check(&stranger, &server, false);
    check(&client, &server, true);

    let known: IpAddr = server.addresses[0].parse().unwrap();
    assert!(node.apiary(&["ip", "list"]).contains(&known.to_string()));
    node.withdraw("policy.yaml");
    for pod in [client, server, stranger] {
        delete(&node, pod);
    }
    let mut left = Vec::new();
    wait_until("nothing is left", LIMIT, || {
        left = traces(&node);
        left == before
    });
}
