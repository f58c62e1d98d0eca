//! ADD, DEL, CHECK and GC in separate namespaces, against an agent that records its requests.

mod support;

use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::{CONFIG, CONTAINER_ID, Node};

const ATTACHMENT: &str = "cni-attachment-id:0123456789abcdef:eth0";

#[test]
fn add_creates_the_pair_and_the_endpoint() {
    test_kit::require_root!();
    let node = Node::new();
    node.agent.configure(|status| {
        for (n, limit) in ["GSOMaxSize", "GROMaxSize", "GSOIPv4MaxSize", "GROIPv4MaxSize"].iter().enumerate()
        {
            status[*limit] = json!(30_000 + n);
        }
    });
    let answer = node.call("ADD", CONFIG);
    assert!(answer.ok, "{answer:?}");
    let result = answer.json();

    let calls = node.agent.calls();
    let lines: Vec<_> = calls.iter().map(|call| call.line.as_str()).collect();
    let put = format!("PUT /v1/endpoint/{ATTACHMENT}");
    assert_eq!(lines, ["GET /v1/config", "POST /v1/ipam?owner=default%2Fp1", put.as_str()]);
    assert!(calls[1].headers.contains(&"expiration: true".to_owned()), "{:?}", calls[1].headers);

    let host = result["interfaces"][0]["name"].as_str().unwrap();
    let seen = &calls[2].host_links;
    assert!(seen.contains(host) && seen.contains("state DOWN"), "the host's end is down until then: {seen}");

    let mut body = calls[2].body.clone();
    let request: api_models::EndpointChangeRequest = serde_json::from_value(body.clone()).unwrap();
    assert_eq!(serde_json::to_value(&request).unwrap(), body, "every field is the API's own");
    assert_ne!(body["netns-cookie"], json!("0"));
    assert_eq!(body["host-mac"], result["interfaces"][0]["mac"]);
    assert_eq!(body["mac"], result["interfaces"][1]["mac"]);
    for changing in ["netns-cookie", "host-mac", "mac", "interface-index"] {
        body[changing] = json!("...");
    }
    insta::assert_snapshot!(format!("{body:#}"));

    let inside = node.pod.ip("-d link show eth0").unwrap();
    for part in [
        "altname cilium_cni:eth0",
        "mtu 1500",
        "state UP",
        "qlen 1000",
        "gso_max_size 30000",
        "gro_max_size 30001",
    ] {
        assert!(inside.contains(part), "{part}: {inside}");
    }
    let addresses = node.pod.ip("-o addr show eth0").unwrap();
    assert!(addresses.contains("inet 10.9.0.5/32 scope global"), "{addresses}");
    assert!(
        addresses.contains("inet6 fd09::5/128 scope global nodad")
            || addresses.contains("fd09::5/128 scope global")
    );
    assert!(!addresses.contains("tentative") || !addresses.contains("fd09::5/128 scope global tentative"));
    let routes = node.pod.ip("route").unwrap();
    assert_eq!(routes, "default via 10.9.0.1 dev eth0 mtu 1450 \n10.9.0.1 dev eth0 scope link \n");
    let routes = node.pod.ip("-6 route").unwrap();
    assert!(routes.contains("fd09::1 dev eth0 metric 1024"), "{routes}");
    assert!(routes.contains("default via fd09::1 dev eth0 metric 1024 mtu 1450"), "{routes}");
    assert_eq!(node.pod.sysctl("net/ipv4/ip_local_reserved_ports").unwrap(), "8472");
    assert_eq!(node.pod.sysctl("net/ipv4/tcp_mtu_probing").unwrap(), "1");
    let outside = node.sandbox.host();
    assert!(outside.ip(&format!("link show {host}")).unwrap().contains("state UP"));
    assert_eq!(outside.sysctl(&format!("net/ipv4/conf/{host}/rp_filter")).unwrap(), "0");
    assert_eq!(result["ips"][0]["address"], "fd09::5/128");
    assert_eq!(result["ips"][1]["address"], "10.9.0.5/32");
    assert_eq!(result["interfaces"][1]["sandbox"], node.pod.path().to_str().unwrap());
}

#[test]
fn check_compares_with_the_result_of_add() {
    test_kit::require_root!();
    let node = Node::new();
    let config = |result: &serde_json::Value| {
        json!({"cniVersion": "1.1.0", "name": "cilium", "type": "cilium-cni", "prevResult": result})
            .to_string()
    };
    let result = node.call("ADD", CONFIG).json();
    assert!(node.call("CHECK", &config(&result)).ok);
    assert!(node.agent.lines().contains(&format!("GET /v1/endpoint/{ATTACHMENT}/healthz")));

    let mut other = result.clone();
    other["ips"][1]["address"] = json!("10.9.0.6/32");
    insta::assert_snapshot!(node.call("CHECK", &config(&other)).error(), @"999 expected ip 10.9.0.6/32 on interface eth0");
    node.agent.answer_with(|line| {
        line.contains(ATTACHMENT).then(|| (200, r#"{"overallHealth":"Failure"}"#.into()))
    });
    insta::assert_snapshot!(node.call("CHECK", &config(&result)).error(), @"101 Unhealthy (container is unhealthy in agent)");
    node.agent.answer_with(|line| line.contains(ATTACHMENT).then(|| (404, String::new())));
    insta::assert_snapshot!(node.call("CHECK", &config(&result)).error(), @"100 HealthzFailed (failed to retrieve container health: status 404)");
    node.agent.answer_with(|_| None);
    node.pod.ip("link del eth0").unwrap();
    insta::assert_snapshot!(node.call("CHECK", &config(&result)).error(), @"999 cannot find container link eth0");
}

#[test]
fn add_and_del_repeatedly() {
    test_kit::require_root!();
    let node = Node::new();
    for round in 0..5 {
        let added = node.call("ADD", CONFIG);
        assert!(added.ok, "round {round}: {added:?}");
        assert!(node.call("DEL", CONFIG).ok);
    }
    assert!(node.call("DEL", CONFIG).ok, "a repeated DEL");
    node.await_no_link();
    assert!(node.call("ADD", CONFIG).ok);
    assert!(node.call("ADD", CONFIG).ok, "an ADD over what is there");
    assert_eq!(node.sandbox.host().ip("-o link show type veth").unwrap().lines().count(), 1);
    assert!(node.pod.ip("-o addr show eth0").unwrap().contains("10.9.0.5/32"));
}

#[test]
fn a_repeated_add_replaces_the_endpoint() {
    test_kit::require_root!();
    let node = Node::new();
    let exists = format!("\"endpoint for CNI attachment ID {CONTAINER_ID}:eth0 already exists\"");
    let (puts, text) = (AtomicUsize::new(0), exists.clone());
    node.agent.answer_with(move |line| {
        let refuse = line.starts_with("PUT") && puts.fetch_add(1, Ordering::SeqCst) == 0;
        refuse.then(|| (400, text.clone()))
    });
    let added = node.call("ADD", CONFIG);
    assert!(added.ok, "{added:?}");
    let endpoint = format!("/v1/endpoint/{ATTACHMENT}");
    let lines = node.agent.lines();
    assert_eq!(
        lines[lines.len() - 3..],
        [format!("PUT {endpoint}"), format!("DELETE {endpoint}"), format!("PUT {endpoint}")]
    );

    node.agent.answer_with(move |line| line.starts_with("PUT").then(|| (400, exists.clone())));
    assert!(!node.call("ADD", CONFIG).ok, "an agent that keeps the endpoint");
}

/// The kernel acknowledges an IPv6 address before it accepts packets to it, on a busy machine by some milliseconds.
#[test]
fn the_addresses_of_an_answer_receive_packets() {
    test_kit::require_root!();
    let node = Node::new();
    let stop = AtomicUsize::new(0);
    let mut late = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while stop.load(Ordering::Relaxed) == 0 {
                    std::hint::spin_loop()
                }
            });
        }
        for n in 0..50 {
            let answer = node.call("ADD", CONFIG);
            let routes = node.pod.run(|| std::fs::read_to_string("/proc/thread-self/net/ipv6_route"));
            if !answer.ok || !routes.unwrap().lines().any(is_local_route) {
                late.push((n, answer));
            }
        }
        stop.store(1, Ordering::Relaxed);
    });
    assert!(late.is_empty(), "{} of 50: {late:?}", late.len());
}

/// Whether a line of `/proc/net/ipv6_route` is the local route to the pod's address.
fn is_local_route(line: &str) -> bool {
    const RTF_LOCAL: u32 = 0x8000_0000;
    let columns: Vec<&str> = line.split_ascii_whitespace().collect();
    let flags = u32::from_str_radix(columns[8], 16).unwrap();
    columns[0] == "fd090000000000000000000000000005" && flags & RTF_LOCAL != 0
}

#[test]
fn a_removal_behind_an_answer_spares_the_next_pair() {
    test_kit::require_root!();
    let node = Node::new();
    for _ in 0..10 {
        assert!(node.call("ADD", CONFIG).ok);
        assert!(node.call("DEL", CONFIG).ok);
    }
    assert!(node.call("ADD", CONFIG).ok);
    std::thread::sleep(Duration::from_millis(300));
    assert!(node.pod.ip("-o link show eth0").unwrap().contains("state UP"));
}

#[test]
fn del_deletes_the_endpoint_and_finds_the_link_without_a_namespace() {
    test_kit::require_root!();
    let node = Node::new();
    assert!(node.call("ADD", CONFIG).ok);
    node.agent.calls();
    let gone = node.sandbox.dir().join("gone");
    assert!(node.call_with("DEL", CONFIG, &[("CNI_NETNS", gone.to_str().unwrap())]).ok);
    let calls = node.agent.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!(
        (calls[0].line.as_str(), &calls[0].body),
        ("DELETE /v1/endpoint", &json!({"container-id": CONTAINER_ID}))
    );
    node.await_no_link();
    assert!(node.deletion_queue().is_empty());

    // An unmounted namespace leaves a file that cannot be entered.
    assert!(node.call("ADD", CONFIG).ok);
    std::fs::write(&gone, "").unwrap();
    assert!(node.call_with("DEL", CONFIG, &[("CNI_NETNS", gone.to_str().unwrap())]).ok);
    node.await_no_link();

    let loop_ = node.sandbox.dir().join("loop");
    std::os::unix::fs::symlink(&loop_, &loop_).unwrap();
    let error = node.call_with("DEL", CONFIG, &[("CNI_NETNS", loop_.to_str().unwrap())]).error();
    assert!(error.starts_with("999 opening the network namespace"), "cannot be opened: {error}");
}

#[test]
fn del_leaves_the_interface_of_another_plugin() {
    test_kit::require_root!();
    let node = Node::new();
    assert!(node.call("ADD", CONFIG).ok);
    node.agent.calls();
    let chained = r#"{"cniVersion":"1.0.0","name":"cbr0","type":"cilium-cni","chaining-mode":"flannel"}"#;
    assert!(node.call("DEL", chained).ok);
    assert_eq!(node.agent.lines(), ["DELETE /v1/endpoint"]);
    std::thread::sleep(Duration::from_millis(100));
    assert!(node.pod.ip("-o link show eth0").unwrap().contains("state UP"));
}

#[test]
fn deletions_are_queued_while_the_agent_is_down() {
    test_kit::require_root!();
    let node = Node::new();
    assert!(node.call("ADD", CONFIG).ok);
    let body = format!(r#"{{"container-id":"{CONTAINER_ID}"}}"#);

    node.agent.answer_with(|line| line.starts_with("DELETE").then(|| (503, "\"restoring\"".into())));
    assert!(node.call("DEL", CONFIG).ok);
    assert_eq!(node.deletion_queue(), std::slice::from_ref(&body));
    node.await_no_link();

    std::fs::remove_dir_all(node.sandbox.run_dir().join("deleteQueue")).unwrap();
    let dead = node.sandbox.run_dir().join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    let answer = node.call_with("DEL", CONFIG, &[("CILIUM_SOCK", dead.to_str().unwrap())]);
    assert!(answer.ok, "{answer:?}");
    assert!(answer.took < Duration::from_secs(5), "{answer:?}");
    assert_eq!(node.deletion_queue(), [body]);
}

#[test]
fn a_failed_add_leaves_nothing() {
    test_kit::require_root!();
    let node = Node::new();
    assert!(node.call("ADD", CONFIG).ok && node.call("DEL", CONFIG).ok);
    node.await_no_link();
    let before = node.traces();
    node.agent.calls();

    node.agent.answer_with(|line| {
        line.starts_with("PUT").then(|| (400, "\"IP ipv4:10.9.0.5 is already in use\"".into()))
    });
    insta::assert_snapshot!(node.call("ADD", CONFIG).error(), @"999 unable to create the endpoint: status 400: IP ipv4:10.9.0.5 is already in use");
    let lines = node.agent.lines();
    assert_eq!(lines[3..], ["DELETE /v1/ipam/10.9.0.5?pool=default", "DELETE /v1/ipam/fd09::5?pool=default"]);
    assert_eq!(node.traces(), before);

    node.agent.answer_with(|line| line.starts_with("POST").then(|| (502, "\"range is full\"".into())));
    insta::assert_snapshot!(node.call("ADD", CONFIG).error(), @"999 unable to allocate an address from the agent: status 502: range is full");
    assert_eq!(node.traces(), before);

    node.agent.answer_with(|line| {
        line.starts_with("PUT").then(|| (201, r#"{"status":{"networking":{"mac":"x"}}}"#.into()))
    });
    insta::assert_snapshot!(node.call("ADD", CONFIG).error(), @r#"999 unable to take over the endpoint's MAC address: "x" is none"#);
    assert!(
        node.agent.lines().contains(&format!("DELETE /v1/endpoint/{ATTACHMENT}")),
        "the endpoint goes again"
    );
    assert_eq!(node.traces(), before);
}

#[test]
fn node_configurations_that_are_not_served() {
    test_kit::require_root!();
    let node = Node::new();
    node.agent.configure(|status| status["datapathMode"] = json!("netkit"));
    insta::assert_snapshot!(node.call("ADD", CONFIG).error(), @r#"999 unable to serve the agent's configuration: datapath-mode "netkit" is not supported, veth is"#);
    node.agent.configure(|status| {
        status["datapathMode"] = json!("veth");
        status["ipam-mode"] = json!("eni");
    });
    insta::assert_snapshot!(node.call("ADD", CONFIG).error(), @r#"999 unable to serve the agent's configuration: ipam mode "eni" is not supported"#);
    node.agent.configure(|status| status["ipam-mode"] = json!("delegated-plugin"));
    insta::assert_snapshot!(node.call("ADD", CONFIG).error(), @r#"7 invalid network configuration, key "ipam": ipam.type is missing, the agent's ipam mode is delegated-plugin"#);
    assert!(node.agent.lines().iter().all(|line| line == "GET /v1/config"));
}

#[test]
fn the_agents_mac_wins() {
    test_kit::require_root!();
    let node = Node::new();
    let answer = r#"{"status":{"networking":{"mac":"02:00:00:00:00:07"}}}"#;
    node.agent.answer_with(move |line| line.starts_with("PUT").then(|| (201, answer.into())));
    assert_eq!(node.call("ADD", CONFIG).json()["interfaces"][1]["mac"], "02:00:00:00:00:07");
    assert!(node.pod.ip("-o link show eth0").unwrap().contains("02:00:00:00:00:07"));
}

#[test]
fn a_delegated_plugin_allocates_the_addresses() {
    test_kit::require_root!();
    let node = Node::new();
    node.agent.configure(|status| status["ipam-mode"] = json!("delegated-plugin"));
    let folder = node.sandbox.dir().join("bin");
    let calls = folder.join("calls");
    std::fs::create_dir(&folder).unwrap();
    let script = format!(
        "#!/bin/sh\necho $CNI_COMMAND $CNI_CONTAINERID >> {}\ncat > /dev/null\n[ $CNI_COMMAND = ADD ] && echo '{{\"ips\":[{{\"address\":\"10.9.0.77/24\"}}]}}'\nexit 0\n",
        calls.display()
    );
    std::fs::write(folder.join("pool"), script).unwrap();
    let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    std::fs::set_permissions(folder.join("pool"), mode).unwrap();
    let config = r#"{"cniVersion":"1.1.0","name":"cilium","type":"cilium-cni","ipam":{"type":"pool"}}"#;
    let path = format!("/nonexistent:{}", folder.display());
    let env = [("CNI_PATH", path.as_str()), ("PATH", "/usr/bin:/bin")];

    let result = node.call_with("ADD", config, &env);
    assert!(result.ok, "{result:?}");
    assert_eq!(result.json()["ips"][0]["address"], "10.9.0.77/32");
    let put = node.agent.calls().pop().unwrap();
    assert_eq!(put.body["datapath-configuration"], json!({"external-ipam": true}));
    assert!(node.call_with("DEL", config, &env).ok);
    assert_eq!(std::fs::read_to_string(calls).unwrap(), format!("ADD {CONTAINER_ID}\nDEL {CONTAINER_ID}\n"));
    assert!(node.agent.lines().iter().all(|line| !line.contains("ipam")));
    insta::assert_snapshot!(node.call_with("STATUS", config, &[("CNI_PATH", "/nonexistent")]).error(), @r#"999 failed to invoke delegated plugin "pool" STATUS for IPAM: no such file in CNI_PATH ["/nonexistent"]"#);
}

#[test]
fn gc_deletes_attachments_that_the_runtime_does_not_list() {
    test_kit::require_root!();
    let node = Node::new();
    node.sandbox.host().ip("link add lxc_gone type veth peer name lxc_peer").unwrap();
    let endpoint = |attachment: &str, interface: &str| {
        json!({"id": 1, "status": {"state": "ready", "external-identifiers": {"cni-attachment-id": attachment},
            "networking": {"interface-name": interface}}})
    };
    node.agent.list_endpoints(json!([
        endpoint("known:eth0", "lxc_known"),
        endpoint("gone:eth0", "lxc_gone"),
        {"id": 2, "status": {"state": "ready"}},
    ]));
    let config = r#"{"cniVersion":"1.1.0","name":"cilium","cni.dev/valid-attachments":[{"containerID":"known","ifname":"eth0"}]}"#;
    let answer = node.call("GC", config);
    assert!(answer.ok, "{answer:?}");
    let lines = node.agent.lines();
    assert_eq!(lines[1..], ["GET /v1/endpoint", "DELETE /v1/endpoint/cni-attachment-id:gone:eth0"]);
    assert!(!node.sandbox.host().ip("-o link").unwrap().contains("lxc_gone"));

    node.agent.answer_with(|line| line.starts_with("DELETE").then(|| (503, "\"restoring\"".into())));
    insta::assert_snapshot!(node.call("GC", config).error(), @"999 unable to delete an endpoint: status 503: restoring");
}

#[test]
fn status_asks_the_agent() {
    test_kit::require_root!();
    let node = Node::new();
    assert!(node.call("STATUS", CONFIG).ok);
    node.agent.answer_with(|line| line.contains("healthz").then(|| (500, "\"starting\"".into())));
    insta::assert_snapshot!(node.call("STATUS", CONFIG).error(), @"50 DaemonDown (unable to connect to Cilium agent: status 500: starting)");
}
