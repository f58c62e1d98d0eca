//! Policy and a service in the path: no packet is lost, none gets through that may not, and nothing is forgotten when the agent stops,
//! is killed, and starts again, or when an identity changes under traffic.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use integration_tests::cast::{Cast, LONG, SHORT, assert_nothing, assert_perfect, eventually, identity};
use integration_tests::{Node, Pod, pod_manifest};
use serde_json::{Value, json};
use test_kit::{UdpFlow, require_root};

const RUNS: usize = 5;

/// How the agent ends before its next start.
#[derive(Clone, Copy, Debug)]
enum End {
    Terminate,
    Kill,
}

/// Whether the pod's identity has changed everywhere.
fn has_moved(node: &Node, pod: &Pod, before: u64) -> bool {
    let path = format!("/v1/endpoint/cni-attachment-id:{}:eth0", pod.container());
    let status = &node.get(&path)["status"];
    status["identity"]["id"] != before && status["state"] == "ready"
}

#[test]
fn restarts_with_policy_lose_nothing_and_open_nothing() {
    require_root!();
    let mut cast = Cast::new();
    let (identities, prefixes) = (cast.identities(), cast.prefixes());
    assert_eq!(prefixes.len(), 2, "{prefixes:?}");
    let long = cast.allowed(LONG);
    let never = cast.denied();
    sleep(Duration::from_millis(100));
    let connections = cast.all_connections();
    // Each of UDP and TCP, of both families: at the client's side and at the server's.
    assert!(connections.len() >= 8, "{connections:#?}");
    for end in [End::Terminate, End::Kill] {
        for run in 0..RUNS {
            let (allowed, denied) = (cast.allowed(SHORT), cast.denied());
            sleep(Duration::from_millis(100));
            match end {
                End::Terminate => cast.node.stop(),
                End::Kill => {
                    cast.node.kill();
                }
            }
            // The kernel and the endpoints' records have the identities as well.
            for file in ["identities.json", "local_allocator_state.json"].iter().take(run) {
                fs::write(cast.node.endpoint_files().join(file), "{").unwrap();
            }
            sleep(Duration::from_millis(50));
            cast.node.start();
            sleep(Duration::from_millis(150));
            let what = format!("{end:?}");
            assert_perfect(allowed, &what, &cast.node);
            assert_nothing(denied, &what, &cast.node);
            assert_eq!(cast.identities(), identities, "{end:?}: identities stay");
            assert_eq!(cast.prefixes(), prefixes, "{end:?}: identities of prefixes stay");
            assert_eq!(cast.connections(), connections, "{end:?}: connections stay");
        }
    }
    // Flows over all ends and starts: their connections have stayed.
    assert_perfect(long, "all runs", &cast.node);
    assert_nothing(never, "all runs", &cast.node);
    // The control: with the label of a client the other pod passes.
    cast.node.apply("pod-other.yaml", &pod_manifest("default", "other", &[("app", "caller")]));
    eventually(|| has_moved(&cast.node, &cast.other, identities[2]));
    let flows =
        cast.server.addresses().map(|ip| UdpFlow::start(&cast.other.ns, &cast.server.ns, ip).unwrap());
    sleep(Duration::from_millis(200));
    assert!(flows.into_iter().all(|flow| flow.stop().received > 0));
}

/// Returns the identities and an endpoint's policy as the REST API shows them.
#[test]
fn identities_and_policy_are_shown() {
    require_root!();
    let cast = Cast::new();
    let [server, client, other] = cast.identities()[..] else { panic!("three pods") };
    let policy = |pod: &Pod| {
        let path = format!("/v1/endpoint/cni-attachment-id:{}:eth0", pod.container());
        let status = cast.node.get(&path)["status"].clone();
        assert_eq!(status["health"]["policy"], "OK");
        status["policy"]["realized"].clone()
    };
    let of_server = policy(&cast.server);
    assert_eq!((&of_server["policy-enabled"], &of_server["id"]), (&json!("ingress"), &json!(server)));
    let allowed = of_server["allowed-ingress-identities"].as_array().unwrap();
    assert!(allowed.contains(&json!(client)) && !allowed.contains(&json!(other)), "{of_server}");
    assert_eq!(
        (&of_server["denied-ingress-identities"], &of_server["allowed-egress-identities"]),
        (&Value::Null, &json!([0]))
    );
    let of_client = policy(&cast.client);
    assert_eq!(of_client["policy-enabled"], "egress");
    let mut peers: Vec<Value> = cast.prefixes().iter().map(|row| row["id"].clone()).collect();
    peers.push(json!(server));
    let allowed = of_client["allowed-egress-identities"].as_array().unwrap();
    assert!(
        peers.iter().all(|peer| allowed.contains(peer)) && !allowed.contains(&json!(other)),
        "{of_client}"
    );
    assert_eq!(policy(&cast.other)["policy-enabled"], "none");

    let asked = |path: &str, labels: &[&str]| {
        let answer = cast.node.request("GET", path, Some(&json!(labels).to_string())).unwrap();
        (answer.status, if answer.status == 200 { answer.json() } else { Value::Null })
    };
    let (status, addresses) = asked("/v1/ip", &["k8s:app=server"]);
    let mut found: Vec<&str> =
        addresses.as_array().unwrap().iter().map(|row| row["cidr"].as_str().unwrap()).collect();
    found.sort_unstable();
    let mut expected = [format!("{}/32", cast.server.ipv4), format!("{}/128", cast.server.ipv6)];
    expected.sort_unstable();
    assert_eq!((status, found), (200, expected.iter().map(String::as_str).collect()));
    assert_eq!(asked("/v1/ip", &["k8s:app=nobody"]).0, 404);
    let whole = cast.node.get(&format!("/v1/identity/{server}"))["labels"].clone();
    let whole: Vec<&str> = whole.as_array().unwrap().iter().map(|label| label.as_str().unwrap()).collect();
    assert_eq!(asked("/v1/identity", &whole).1[0]["id"], server);
    assert_eq!(asked("/v1/identity", &["k8s:app=server"]).0, 404, "all labels or none");
    let counts = cast.node.get("/v1/identity/endpoints");
    let count = |id: u64| counts.as_array().unwrap().iter().find(|row| row["identity"]["id"] == id).cloned();
    assert_eq!(count(server).unwrap()["refCount"], 1);
    let prefix = &cast.prefixes()[0]["labels"];
    assert_eq!(prefix, &json!(["cidr:192.0.2.2/32", "reserved:world-ipv4"]));
}

/// A change between labels with the same verdict loses no packet; a third set of labels, which is denied, stops the
/// flow.
#[test]
fn a_change_of_identity_under_traffic_loses_nothing() {
    require_root!();
    let mut cast = Cast::new();
    let relabel = |cast: &Cast, app: &str| {
        let before = identity(&cast.node, &cast.client);
        cast.node.apply("pod-client.yaml", &pod_manifest("default", "client", &[("app", app)]));
        eventually(|| has_moved(&cast.node, &cast.client, before));
    };
    let long = cast.allowed(LONG);
    for _ in 0..10 {
        for app in ["caller", "client"] {
            let short = cast.allowed(SHORT);
            sleep(Duration::from_millis(20));
            relabel(&cast, app);
            sleep(Duration::from_millis(50));
            assert_perfect(short, app, &cast.node);
        }
    }
    assert_perfect(long, "all changes", &cast.node);
    relabel(&cast, "stranger");
    sleep(Duration::from_millis(50));
    let after =
        cast.server.addresses().map(|ip| UdpFlow::start(&cast.client.ns, &cast.server.ns, ip).unwrap());
    sleep(Duration::from_millis(100));
    assert_nothing(after.into(), "a stranger", &cast.node);
    // Prefixes that no policy names after a start have had their time.
    assert_eq!(cast.prefixes().len(), 2);
    cast.node.stop();
    cast.node.withdraw("policy.yaml");
    cast.node.config.insert("identity-restore-grace-period".into(), "200ms".into());
    cast.node.start();
    eventually(|| cast.prefixes().is_empty());
    eventually(|| !cast.node.endpoint_files().join("local_allocator_state.json").exists());
}
