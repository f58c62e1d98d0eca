//! The leader's cell and an API server within the process, in virtual time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hive::prelude::*;
use k8s_fake_apiserver::{FakeServer, Request};
use k8s_types::cilium::{CiliumEndpointSlice, CiliumNode};
use k8s_types::core::{Namespace, Node};
use k8s_types::{ApiError, Kind};
use operator_election::Leadership;
use operator_endpoint_slices::EndpointSlicesConfig;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

const MINUTE: Duration = Duration::from_secs(60);

fn server() -> FakeServer {
    // Operators may get none of the objects that they collect.
    FakeServer::permitting(&["update", "delete"])
}

/// Answers requests about objects of these names with an error. Nothing is ever deleted whatever it is.
fn fail(server: &FakeServer, errors: &[(&'static str, ApiError)]) {
    let errors: BTreeMap<_, _> = errors.iter().cloned().collect();
    server.on_request(move |_, request| {
        let has_uid = request.verb != "delete" || request.only_if.uid.is_some();
        assert!(has_uid, "{request} without its uid");
        errors.get(request.key.name.as_str()).map_or(Ok(()), |error| Err(error.clone()))
    });
}

fn is_marked(server: &FakeServer, identity: &str) -> bool {
    let object = server.object(Kind::CiliumIdentity, identity);
    object["metadata"]["annotations"]["io.cilium.heartbeat"].is_string()
}

fn has(server: &FakeServer, kind: Kind, name: &str) -> bool {
    server.find(kind, name).is_some()
}

fn leader(server: &FakeServer, leadership: Leadership, options: &[(&str, &str)]) -> TestHive {
    let hive = TestHive::new([
        statedb::cell(),
        metrics::cell(),
        server.cell(),
        operator_definitions::cell(),
        config::<EndpointSlicesConfig>(),
        k8s_tables::table::<CiliumNode>(),
        operator_objects::endpoints(|()| true),
        k8s_tables::table::<CiliumEndpointSlice>(),
        k8s_tables::table::<Node>(),
        operator_objects::pods(),
        supply(Arc::new(leadership)),
        k8s_tables::table::<Namespace>(),
        k8s_writer::cell(),
        operator_identities::cell(),
        operator_garbage_collection::cell(),
        invoke(|_: Arc<metrics::Metrics>| ()),
    ]);
    let defaults = [("skip-crd-creation", "true"), ("identity-allocation-mode", "crd")];
    defaults.iter().chain(options).fold(hive, |hive, (key, value)| hive.set(key, value))
}

async fn started(server: &FakeServer, options: &[(&str, &str)]) -> TestHive {
    let mut hive = leader(server, Leadership::permanent(), options);
    hive.start().await;
    hive
}

fn identity(id: &str) -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumIdentity",
        "metadata": {"name": id, "labels": {"io.kubernetes.pod.namespace": "default"}},
        "security-labels": {"k8s:app": id},
    })
}

fn endpoint(name: &str, identity: i64, owner: Option<&str>) -> Value {
    let mut object = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint", "metadata": {"name": name, "namespace": "default"},
        "status": {"identity": {"id": identity, "labels": []}},
    });
    if let Some(kind) = owner {
        let owner = json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": "u"});
        object["metadata"]["ownerReferences"] = json!([owner]);
    }
    object
}

fn pod(name: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"k8s-app": "kube-dns"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "a", "image": "none"}]},
        "status": {"phase": phase},
    })
}

fn object(kind: Kind, name: &str, metadata: &Value) -> Value {
    let mut object = json!({"apiVersion": kind.api_version(), "kind": kind.name(), "metadata": metadata});
    object["metadata"]["name"] = name.into();
    object
}

const OFF: [(&str, &str); 4] = [
    ("identity-gc-interval", "0s"),
    ("cilium-endpoint-gc-interval", "0s"),
    ("nodes-gc-interval", "0s"),
    ("unmanaged-pod-watcher-interval", "0s"),
];

/// The options with all collections off but those that are given.
fn only<'o>(options: &[(&'o str, &'o str)]) -> Vec<(&'o str, &'o str)> {
    OFF.iter().chain(options).copied().collect()
}

#[tokio::test(start_paused = true)]
async fn unused_identities_are_marked_then_deleted_and_used_ones_stay() {
    let server = server();
    fail(&server, &[]);
    for id in ["1001", "1002", "1004", "reserved"] {
        server.add(&identity(id));
    }
    // Of a newer version, which has members that this one does not know.
    let mut newer = identity("1003");
    newer["spec"] = json!({"weights": [7, null]});
    server.add(&newer);
    server.add(&endpoint("web", 1001, None));
    let slice = json!([{"name": "db", "id": 1002, "networking": {"addressing": [], "node": "192.0.2.1"}}]);
    let mut slices = object(Kind::CiliumEndpointSlice, "ces-1", &json!({}));
    slices["endpoints"] = slice;
    server.add(&slices);
    let options = only(&[("identity-gc-interval", "16m"), ("enable-cilium-endpoint-slice", "true")]);
    let hive = started(&server, &options).await;
    sleep(31 * MINUTE).await;
    assert!(!is_marked(&server, "1003"));
    sleep(2 * MINUTE).await;
    let marked = ["1001", "1002", "1003", "1004", "reserved"].map(|id| is_marked(&server, id));
    assert_eq!(marked, [false, false, true, true, false]);
    let object = server.object(Kind::CiliumIdentity, "1003");
    assert_eq!((&object["security-labels"], &object["spec"]), (&json!({"k8s:app": "1003"}), &newer["spec"]));
    assert_eq!(object["metadata"]["labels"], json!({"io.kubernetes.pod.namespace": "default"}));

    // An agent takes one up again: without the mark it stays, although it has no endpoint yet.
    sleep(3 * MINUTE).await;
    server.add(&identity("1004"));
    sleep(27 * MINUTE).await;
    assert!(has(&server, Kind::CiliumIdentity, "1003"));
    sleep(2 * MINUTE).await;
    assert!(!has(&server, Kind::CiliumIdentity, "1003"));
    server.add(&endpoint("late", 1004, None));
    sleep(120 * MINUTE).await;
    for id in ["1001", "1002", "1004", "reserved"] {
        assert!(has(&server, Kind::CiliumIdentity, id) && !is_marked(&server, id), "{id}");
    }
    let message = hive.health("garbage-collection.job-identities").message;
    assert!(message.starts_with("3 identities are alive, 0 were marked, 0 deleted"), "{message}");
    let text = hive.get::<metrics::Metrics>().text();
    assert!(text.contains("identity_gc_entries{status=\"alive\",identity_type=\"crd\"} 3"), "{text}");
    assert!(text.contains("identity_gc_runs{outcome=\"success\""), "{text}");

    // Its endpoint goes, and so does the identity.
    server.remove(Kind::CiliumEndpoint, "late");
    sleep(100 * MINUTE).await;
    assert!(!has(&server, Kind::CiliumIdentity, "1004"));
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_conflict_or_a_refusal_of_one_identity_ends_no_run_and_an_outage_does() {
    let server = server();
    fail(&server, &[]);
    for id in ["1001", "1002", "1003"] {
        server.add(&identity(id));
    }
    let forbidden = ApiError::Forbidden("a policy forbids it".to_owned());
    fail(&server, &[("1001", ApiError::Conflict("modified".to_owned())), ("1002", forbidden)]);
    let hive = started(&server, &only(&[("identity-gc-interval", "16m")])).await;
    sleep(33 * MINUTE).await;
    assert_eq!(["1001", "1002", "1003"].map(|id| is_marked(&server, id)), [false, false, true]);
    let health = hive.health("garbage-collection.job-identities");
    assert_eq!(health.level, Level::Degraded);
    assert_eq!(health.error, "update ciliumidentities/1002: a policy forbids it");

    // Without a server nothing is known about the others either.
    fail(&server, &[("1001", Request::unreachable())]);
    sleep(16 * MINUTE).await;
    assert!(!is_marked(&server, "1002"));
    fail(&server, &[]);
    sleep(16 * MINUTE).await;
    assert!(is_marked(&server, "1002"));
    assert_eq!(hive.health("garbage-collection.job-identities").level, Level::Ok);
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn marks_and_deletions_are_limited_and_an_identity_is_looked_up_again_before_its_own() {
    let server = server();
    fail(&server, &[]);
    let ids: Vec<String> = (1000..1020).map(|id| id.to_string()).collect();
    ids.iter().for_each(|id| server.add(&identity(id)));
    let limited = [
        ("identity-gc-interval", "31m"),
        ("identity-gc-rate-interval", "1m"),
        ("identity-gc-rate-limit", "2"),
    ];
    let hive = started(&server, &only(&limited)).await;
    let marked = || ids.iter().filter(|id| is_marked(&server, id)).count();
    sleep(33 * MINUTE).await;
    assert!((4..=6).contains(&marked()), "one at once, then two a minute: {}", marked());
    // The run still waits for its turns when an endpoint appears.
    server.add(&endpoint("early", 1018, None));
    sleep(9 * MINUTE).await;
    assert_eq!(marked(), 19);
    // The run of the marks has taken ten minutes; the next one deletes.
    let count = || ids.iter().filter(|id| has(&server, Kind::CiliumIdentity, id)).count();
    sleep(31 * MINUTE).await;
    let left = count();
    assert!((14..=18).contains(&left), "one at once, then two a minute: {left}");
    server.add(&endpoint("web", 1019, None));
    sleep(20 * MINUTE).await;
    assert_eq!(count(), 2);
    assert!(["1018", "1019"].into_iter().all(|id| has(&server, Kind::CiliumIdentity, id)));
    hive.finish().await;
}

/// Each mark is an event for every agent: those of a large cluster are no burst.
#[tokio::test(start_paused = true)]
async fn many_unused_identities_are_marked_at_the_rate_of_the_default_options() {
    const COUNT: usize = 400;
    let server = server();
    let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let requests = times.clone();
    server.on_request(move |_, _| {
        requests.lock().unwrap().push(Instant::now());
        Ok(())
    });
    for id in 1000..1000 + COUNT {
        server.add(&identity(&id.to_string()));
    }
    let hive = started(&server, &only(&[("identity-gc-interval", "31m")])).await;
    sleep(32 * MINUTE).await;
    let times = times.lock().unwrap().clone();
    assert_eq!(times.len(), COUNT);
    let second = |at: Instant| {
        let within = |time: &&Instant| **time >= at && **time - at < Duration::from_secs(1);
        times.iter().filter(within).count()
    };
    let most = times.iter().map(|at| second(*at)).max().unwrap();
    assert!(most <= 84, "2,500 a minute, a second's worth ahead: {most}");
    let took = *times.last().unwrap() - times[0];
    assert!((8..=10).contains(&took.as_secs()), "{took:?}");
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_waits_for_signs_and_one_without_the_lease_writes_nothing() {
    let server = server();
    fail(&server, &[]);
    server.add(&identity("1001"));
    let options = only(&[("identity-gc-interval", "16m")]);
    let hive = started(&server, &options).await;
    sleep(50 * MINUTE).await;
    assert!(is_marked(&server, "1001"));
    hive.finish().await;
    let hive = started(&server, &options).await;
    sleep(29 * MINUTE).await;
    assert!(has(&server, Kind::CiliumIdentity, "1001"), "its mark is old, the leader is not");
    hive.finish().await;

    server.add(&object(Kind::CiliumNode, "n1", &json!({})));
    server.add(&endpoint("gone", 1001, None));
    let mut hive = leader(&server, Leadership::default(), &[]);
    hive.start().await;
    sleep(120 * MINUTE).await;
    let all = [(Kind::CiliumIdentity, "1001"), (Kind::CiliumNode, "n1"), (Kind::CiliumEndpoint, "gone")];
    assert!(all.iter().all(|(kind, name)| has(&server, *kind, name)));
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_identity_of_a_pod_without_an_endpoint_is_kept_where_the_operator_creates_it() {
    for (mode, is_kept) in [("operator", true), ("agent", false)] {
        let server = FakeServer::permitting(&["create", "update", "delete"]);
        server.add(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}));
        server.add(&pod("waits", "Pending"));
        // As an agent or the previous leader has created it; the other one has no pod.
        let mut object = identity("1001");
        object["security-labels"] = json!({
            "k8s:k8s-app": "kube-dns", "k8s:io.cilium.k8s.policy.cluster": "default",
            "k8s:io.kubernetes.pod.namespace": "default",
        });
        server.add(&object);
        server.add(&identity("1002"));
        let options = only(&[("identity-gc-interval", "16m"), ("identity-management-mode", mode)]);
        let hive = started(&server, &options).await;
        sleep(120 * MINUTE).await;
        let left = ["1001", "1002"].map(|id| has(&server, Kind::CiliumIdentity, id));
        assert_eq!(left, [is_kept, false], "{mode}");
        if is_kept {
            assert!(!is_marked(&server, "1001"));
            server.remove(Kind::Pod, "waits");
            sleep(120 * MINUTE).await;
            assert_eq!(server.find(Kind::CiliumIdentity, "1001"), None, "once the pod is gone");
        }
        hive.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn endpoints_without_a_pod_are_deleted_after_an_interval() {
    let server = server();
    fail(&server, &[]);
    let names = ["running", "ended", "missing", "owned", "foreign", "late"];
    for name in names {
        let owner = match name {
            "owned" => Some("Pod"),
            "foreign" => Some("VirtualMachine"),
            _ => None,
        };
        server.add(&endpoint(name, 1001, owner));
    }
    server.add(&pod("running", "Running"));
    server.add(&pod("ended", "Succeeded"));
    let hive = started(&server, &only(&[("cilium-endpoint-gc-interval", "5m")])).await;
    sleep(4 * MINUTE).await;
    let left = || names.map(|name| has(&server, Kind::CiliumEndpoint, name));
    assert_eq!(left(), [true; 6]);
    server.add(&pod("late", "Pending"));
    sleep(2 * MINUTE).await;
    assert_eq!(left(), [true, false, false, false, true, true]);
    let text = hive.get::<metrics::Metrics>().text();
    assert!(text.contains("endpoint_gc_objects{outcome=\"success\"} 3"), "{text}");

    // One that is refused holds up no other one, and is named.
    fail(&server, &[("foreign-1", ApiError::Forbidden("no".to_owned()))]);
    server.add(&endpoint("foreign-1", 1, None));
    server.add(&endpoint("gone", 1, None));
    sleep(11 * MINUTE).await;
    assert!(!has(&server, Kind::CiliumEndpoint, "gone") && has(&server, Kind::CiliumEndpoint, "foreign-1"));
    let health = hive.health("garbage-collection.job-endpoints");
    assert_eq!(health.error, "delete ciliumendpoints/default/foreign-1: no");
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn nodes_without_a_node_are_deleted_after_an_interval() {
    let server = server();
    fail(&server, &[]);
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "owned", "uid": "u"}]);
    for (name, metadata) in [
        ("there", json!({})),
        ("gone", json!({})),
        ("kept", json!({"annotations": {"cilium.io/do-not-gc": "true"}})),
        ("owned", json!({"ownerReferences": owner})),
        ("back", json!({})),
    ] {
        server.add(&object(Kind::CiliumNode, name, &metadata));
    }
    server.add(&object(Kind::Node, "there", &json!({})));
    let hive = started(&server, &only(&[("nodes-gc-interval", "5m")])).await;
    sleep(4 * MINUTE).await;
    server.add(&object(Kind::Node, "back", &json!({})));
    let left = || ["there", "gone", "kept", "owned", "back"].map(|name| has(&server, Kind::CiliumNode, name));
    assert_eq!(left(), [true; 5]);
    sleep(2 * MINUTE).await;
    assert_eq!(left(), [true, false, true, true, true]);
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn objects_of_kinds_that_are_not_in_use_are_deleted_once() {
    let server = server();
    fail(&server, &[]);
    let cluster = || {
        server.add(&object(Kind::CiliumEndpointSlice, "ces-1", &json!({})));
        server.add(&endpoint("web", 1, None));
        server.add(&pod("web", "Running"));
        server.add(&object(Kind::CiliumNode, "n1", &json!({})));
        server.add(&object(Kind::Node, "n1", &json!({})));
    };
    let all = [(Kind::CiliumEndpointSlice, "ces-1"), (Kind::CiliumEndpoint, "web"), (Kind::CiliumNode, "n1")];
    for (options, left) in [
        (vec![("enable-cilium-endpoint-slice", "true")], [true, true, true]),
        (vec![], [false, true, true]),
        (vec![("disable-endpoint-crd", "true")], [false, false, true]),
        (vec![("enable-ciliumnode-crd", "false")], [false, true, false]),
    ] {
        cluster();
        let hive = started(&server, &only(&options)).await;
        sleep(10 * MINUTE).await;
        assert_eq!(all.map(|(kind, name)| has(&server, kind, name)), left, "{options:?}");
        hive.finish().await;
    }
    // Without endpoints no identity is known to be unused; those of a kvstore are no objects.
    server.add(&identity("1001"));
    for off in [("disable-endpoint-crd", "true"), ("identity-allocation-mode", "kvstore")] {
        let options = only(&[("identity-gc-interval", "16m"), off]);
        let hive = started(&server, &options).await;
        sleep(120 * MINUTE).await;
        assert!(has(&server, Kind::CiliumIdentity, "1001") && !is_marked(&server, "1001"), "{off:?}");
        assert!(hive.health("garbage-collection.identities").message.contains(off.0));
        hive.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn running_pods_without_an_endpoint_are_restarted_one_by_one() {
    let server = server();
    fail(&server, &[]);
    for name in ["dns-1", "dns-2", "managed", "pending", "host", "other"] {
        let mut object = pod(name, if name == "pending" { "Pending" } else { "Running" });
        if name == "host" {
            object["spec"]["hostNetwork"] = true.into();
        }
        if name == "other" {
            object["metadata"]["labels"] = json!({"app": "web"});
        }
        server.add(&object);
    }
    server.add(&endpoint("managed", 1, None));
    let hive = started(&server, &only(&[("unmanaged-pod-watcher-interval", "15s")])).await;
    sleep(Duration::from_secs(29)).await;
    let left = || ["dns-1", "dns-2"].map(|name| has(&server, Kind::Pod, name));
    assert_eq!(left(), [true, true]);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(left(), [false, true], "one in a run");
    server.add(&pod("dns-1", "Running"));
    sleep(Duration::from_secs(15)).await;
    assert_eq!(left(), [true, false]);
    sleep(4 * MINUTE).await;
    assert_eq!(left(), [true, false], "a name has its turn every five minutes");
    sleep(2 * MINUTE).await;
    assert_eq!(left(), [false, false]);
    let others = ["managed", "pending", "host", "other"];
    assert!(others.iter().all(|name| has(&server, Kind::Pod, name)));
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn wrong_options_are_refused() {
    for (option, value, expected) in [
        ("identity-heartbeat-timeout", "0s", "identity-heartbeat-timeout: 0s is wrong"),
        ("identity-gc-rate-limit", "0", "identity-gc-rate-limit: 0 within 60s is wrong"),
    ] {
        let cell = config::<operator_garbage_collection::GarbageCollectionConfig>();
        let refused = hive::Hive::builder(cell).set(option, value).build();
        let error = refused.err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
