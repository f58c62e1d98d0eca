//! Calls behind another plugin, whose interface the agent gets an endpoint for.

mod support;

use serde_json::{Value, json};
use support::{CONTAINER_ID, Node};

const ATTACHMENT: &str = "cni-attachment-id:0123456789abcdef:eth0";

/// A pod with the interface that a bridge plugin makes.
fn bridged() -> Node {
    let node = Node::new();
    let host = node.sandbox.host();
    host.ip("link add cni0 type bridge").unwrap();
    host.ip("link set cni0 up").unwrap();
    host.ip("addr add 10.1.0.1/24 dev cni0").unwrap();
    // An unrelated pair, so that indexes in both namespaces differ.
    host.ip("link add other0 type veth peer name other1").unwrap();
    host.veth("veth0a1b2c3d", &node.pod, "eth0").unwrap();
    host.ip("link set veth0a1b2c3d master cni0").unwrap();
    node.pod
        .ip_batch(
            "addr add 10.1.0.5/24 dev eth0\naddr add fd01::5/64 dev eth0 nodad\n\
             route add default via 10.1.0.1 mtu 1400 advmss 1000\nroute add default via fd01::1\n",
        )
        .unwrap();
    node
}

fn previous(node: &Node) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "cni0", "mac": "02:00:00:00:00:01"}, {"name": "veth0a1b2c3d"},
                       {"name": "eth0", "mac": "02:00:00:00:00:02", "sandbox": node.pod.path()}],
        "ips": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1", "interface": 2},
                {"address": "fd01::5/64", "gateway": "fd01::1", "interface": 2}],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dns": {"nameservers": ["10.96.0.10"]},
    })
}

fn config(mode: &str, more: Value) -> String {
    let mut config =
        json!({"cniVersion": "1.0.0", "name": "cbr0", "type": "cilium-cni", "chaining-mode": mode});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config.to_string()
}

fn mac(text: &str) -> &str {
    text.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).unwrap()
}

#[test]
fn the_interface_of_another_plugin_gets_an_endpoint_in_every_mode() {
    test_kit::require_root!();
    let node = bridged();
    // The state of a bridge follows that of its ports with a delay.
    let traces = || node.traces().replace("state UNKNOWN", "state UP");
    let before = traces();
    for mode in ["generic-veth", "flannel", "aws-cni", "azure"] {
        let answer = node.call("ADD", &config(mode, json!({"prevResult": previous(&node)})));
        assert!(answer.ok, "{mode}: {answer:?}");
        assert_eq!(answer.json(), previous(&node), "the result passes through");
        let calls = node.agent.calls();
        let lines: Vec<_> = calls.iter().map(|call| call.line.as_str()).collect();
        assert_eq!(lines, ["GET /v1/config", &format!("PUT /v1/endpoint/{ATTACHMENT}")], "{mode}");
        let mut body = calls[1].body.clone();
        let request: api_models::EndpointChangeRequest = serde_json::from_value(body.clone()).unwrap();
        assert_eq!(serde_json::to_value(&request).unwrap(), body, "every field is the API's own");
        let [outside, inside] = [
            node.sandbox.host().ip("-o link show veth0a1b2c3d").unwrap(),
            node.pod.ip("-o link show eth0").unwrap(),
        ];
        assert_eq!((&body["mac"], &body["host-mac"]), (&json!(mac(&inside)), &json!(mac(&outside))));
        assert_eq!(body["interface-index"].to_string(), outside.split(':').next().unwrap());
        assert_ne!(body["netns-cookie"], "0");
        for changing in ["netns-cookie", "mac", "host-mac", "interface-index"] {
            body.as_object_mut().unwrap().remove(changing);
        }
        let expected = json!({
            "addressing": {"ipv4": "10.1.0.5", "ipv6": "fd01::5"},
            "container-id": CONTAINER_ID, "container-interface-name": "eth0",
            "container-netns-path": "/var/run/cilium/netns/pod",
            "datapath-configuration": {"external-ipam": true, "require-arp-passthrough": true,
                                       "require-egress-prog": true, "require-routing": false},
            "interface-name": "veth0a1b2c3d",
            "k8s-namespace": "default", "k8s-pod-name": "p1", "k8s-uid": "u1",
            "state": "waiting-for-identity", "sync-build-endpoint": true,
        });
        assert_eq!(body, expected, "{mode}");
    }
    assert_eq!(traces(), before, "nothing is changed");

    // The agent's endpoint goes, the interface stays for the plugin that has made it.
    assert!(node.call("DEL", &config("flannel", json!({}))).ok);
    assert_eq!(node.agent.lines(), ["DELETE /v1/endpoint"]);
    assert_eq!(traces(), before);
}

#[test]
fn an_add_that_is_repeated_or_fails_leaves_one_endpoint_or_none() {
    test_kit::require_root!();
    let node = bridged();
    let add = config("generic-veth", json!({"prevResult": previous(&node)}));
    // As after an ADD whose runtime has been killed.
    let repeated = std::sync::atomic::AtomicBool::new(false);
    node.agent.answer_with(move |line| {
        let first = line.starts_with("PUT") && !repeated.swap(true, std::sync::atomic::Ordering::Relaxed);
        let known = format!("\"CNI attachment ID {CONTAINER_ID}:eth0 already exists\"");
        first.then_some((400, known))
    });
    assert!(node.call("ADD", &add).ok);
    let put = format!("PUT /v1/endpoint/{ATTACHMENT}");
    let delete = format!("DELETE /v1/endpoint/{ATTACHMENT}");
    assert_eq!(node.agent.lines(), ["GET /v1/config", &put, &delete, &put]);

    // The MAC address that the agent wants cannot be set: a multicast address.
    let wrong = r#"{"status":{"networking":{"mac":"01:00:5e:00:00:01"}}}"#;
    node.agent.answer_with(move |line| line.starts_with("PUT").then(|| (201, wrong.to_owned())));
    let error = node.call("ADD", &add).error();
    assert!(error.starts_with("999 unable to set the MAC address of \"eth0\""), "{error}");
    assert_eq!(node.agent.lines(), ["GET /v1/config", &put, &delete]);

    let other = r#"{"status":{"networking":{"mac":"02:aa:00:00:00:01"}}}"#;
    node.agent.answer_with(move |line| line.starts_with("PUT").then(|| (201, other.to_owned())));
    let result = node.call("ADD", &add).json();
    assert_eq!(result["interfaces"][2]["mac"], "02:aa:00:00:00:01");
    assert_eq!(mac(&node.pod.ip("-o link show eth0").unwrap()), "02:aa:00:00:00:01");
}

#[test]
fn routes_get_the_nodes_mtu_on_request() {
    test_kit::require_root!();
    let node = bridged();
    let before = node.pod.ip("route").unwrap();
    let add = |more: Value| {
        let mut more = more;
        more["prevResult"] = previous(&node);
        assert!(node.call("ADD", &config("generic-veth", more)).ok);
        node.pod.ip("route").unwrap()
    };
    assert_eq!(add(json!({})), before);
    let after = add(json!({"enable-route-mtu": true}));
    assert!(after.contains("default via 10.1.0.1 dev eth0 mtu 1450 advmss 1000"), "{after}");
    assert!(after.contains("10.1.0.0/24 dev eth0 proto kernel scope link src 10.1.0.5 mtu 1450"), "{after}");
    assert_eq!(after.lines().count(), before.lines().count(), "{after}");
    let v6 = node.pod.ip("-6 route show default").unwrap();
    assert!(v6.contains("default via fd01::1 dev eth0") && v6.contains("mtu 1450"), "{v6}");
    node.agent.configure(|status| {
        status["enableRouteMTUForCNIChaining"] = json!(true);
        status["routeMTU"] = json!(1300);
    });
    let by_agent = add(json!({}));
    assert_eq!(by_agent, after.replace("1450", "1300"));
}

#[test]
fn errors_name_what_the_plugin_before_lacks() {
    test_kit::require_root!();
    let node = Node::new();
    let add = |node: &Node, previous: Value| {
        node.call("ADD", &config("generic-veth", json!({"prevResult": previous}))).error()
    };
    let error = add(&node, json!({}));
    assert!(
        error.ends_with("has no veth: the plugin before this one in the list of plugins has to create it"),
        "{error}"
    );
    node.pod.ip("link add eth0 type bridge").unwrap();
    assert!(add(&node, json!({})).contains("has no veth"), "another kind is none");
    node.pod.ip("link del eth0").unwrap();

    // Both ends in the pod; then the other end in a third namespace, where the node has a link of that index.
    node.pod.ip("link add eth0 type veth peer name eth1").unwrap();
    let error = add(&node, json!({}));
    assert!(error.contains("the peer of \"eth0\"") && error.ends_with("is no veth of this node"), "{error}");
    node.pod.ip("link del eth0").unwrap();
    let third = node.sandbox.netns("third").unwrap();
    node.sandbox.host().ip("link add index 77 name near type veth peer name near1").unwrap();
    third
        .ip(&format!(
            "link add index 77 name far type veth peer name eth0 netns {}",
            node.pod.path().display()
        ))
        .unwrap();
    let error = add(&node, json!({}));
    assert!(error.ends_with("index 77, is no veth of this node"), "{error}");
    third.ip("link del far").unwrap();

    node.sandbox.host().veth("veth0", &node.pod, "eth0").unwrap();
    insta::assert_snapshot!(add(&node, json!({})), @r#"999 the plugin before has left no address of a family that the node has enabled on "eth0""#);
    assert_eq!(node.agent.lines().iter().filter(|line| line.starts_with("PUT")).count(), 0);
    insta::assert_snapshot!(node.call("ADD", &config("generic-veth", json!({}))).error(), @r#"7 invalid network configuration, key "prevResult": missing; chaining-mode "generic-veth" takes over the interface of the plugin before it in the list of plugins"#);
}

#[test]
fn check_asks_for_health_and_gc_leaves_the_interfaces() {
    test_kit::require_root!();
    let node = bridged();
    let config = |more: Value| {
        let text = config("generic-veth", more);
        text.replace("\"cniVersion\":\"1.0.0\"", "\"cniVersion\":\"1.1.0\"")
    };
    assert!(node.call("CHECK", &config(json!({}))).ok);
    assert_eq!(node.agent.lines(), ["GET /v1/config", &format!("GET /v1/endpoint/{ATTACHMENT}/healthz")]);
    node.agent
        .answer_with(|line| line.contains("healthz").then(|| (200, r#"{"overallHealth":"Failure"}"#.into())));
    assert!(node.call("CHECK", &config(json!({}))).error().starts_with("101 Unhealthy"));
    node.agent.answer_with(|_| None);
    assert!(node.call("STATUS", &config(json!({}))).ok);
    node.agent.calls();
    let endpoint = json!({"status": {"external-identifiers": {"cni-attachment-id": format!("{CONTAINER_ID}:eth0")},
                                     "networking": {"interface-name": "veth0a1b2c3d"}}});
    node.agent.list_endpoints(json!([endpoint]));
    assert!(node.call("GC", &config(json!({"cni.dev/valid-attachments": []}))).ok);
    assert!(node.agent.lines().contains(&format!("DELETE /v1/endpoint/{ATTACHMENT}")));
    assert!(node.sandbox.host().ip("link show veth0a1b2c3d").is_ok(), "the other plugin removes it");
}
