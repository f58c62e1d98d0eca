//! The leader's cell and an API server within the process, in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use k8s_fake_apiserver::{FakeServer, Request};
use k8s_types::Kind;
use k8s_types::core::Namespace;
use operator_election::Leadership;
use operator_identities::{CREATIONS_PER_SECOND, IdentitiesConfig, PodIdentity};
use serde_json::{Value, json};
use statedb::Table;
use tokio::time::{Instant, sleep};

/// Operators may get no identity.
fn server() -> FakeServer {
    let server = FakeServer::permitting(&["create", "update"]);
    server.add(&namespace("default", &json!({"team": "a"})));
    server
}

async fn leader(server: &FakeServer, leadership: Leadership, options: &[(&str, &str)]) -> TestHive {
    let hive = TestHive::new([
        statedb::cell(),
        metrics::cell(),
        server.cell(),
        operator_definitions::cell(),
        k8s_tables::table::<Namespace>(),
        operator_objects::pods(),
        k8s_writer::cell(),
        supply(Arc::new(leadership)),
        operator_identities::cell(),
        invoke(|_: Arc<Table<PodIdentity>>, _: Arc<metrics::Metrics>| ()),
    ]);
    let defaults = [
        ("skip-crd-creation", "true"),
        ("identity-allocation-mode", "crd"),
        ("identity-management-mode", "operator"),
    ];
    let options = defaults.iter().chain(options);
    let mut hive = options.fold(hive, |hive, (key, value)| hive.set(key, value));
    hive.start().await;
    hive
}

async fn started(server: &FakeServer) -> TestHive {
    leader(server, Leadership::permanent(), &[]).await
}

fn namespace(name: &str, labels: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

fn pod(name: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"nodeName": "n1", "containers": [{"name": "a", "image": "none"}]},
        "status": {"phase": "Running"},
    })
}

fn identity(id: &str, labels: &Value, metadata: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumIdentity", "metadata": metadata, "security-labels": labels,
    });
    object["metadata"]["name"] = id.into();
    object
}

/// The labels of a pod `app=NAME` as an agent computes them.
fn labels(app: &str) -> Value {
    json!({
        "k8s:app": app, "k8s:io.cilium.k8s.namespace.labels.team": "a",
        "k8s:io.cilium.k8s.policy.cluster": "default", "k8s:io.kubernetes.pod.namespace": "default",
    })
}

/// Returns the labels of each identity by its id.
fn identities(server: &FakeServer) -> BTreeMap<String, Value> {
    let entry = |object: &Value| {
        (object["metadata"]["name"].as_str().unwrap().to_owned(), object["security-labels"].clone())
    };
    server.objects(Kind::CiliumIdentity).iter().map(entry).collect()
}

/// Returns the requests since the last call, without ids.
fn take_verbs(server: &FakeServer) -> Vec<&'static str> {
    server.take_requests().iter().map(|request| request.verb).collect()
}

#[tokio::test(start_paused = true)]
async fn each_label_set_gets_one_identity_and_known_ones_no_request() {
    let server = server();
    for (name, app, hash) in [("web-1", "web", "x"), ("web-2", "web", "y"), ("db-1", "db", "z")] {
        server.add(&pod(name, &json!({"app": app, "pod-template-hash": hash})));
    }
    let mut host = pod("host", &json!({"app": "host"}));
    host["spec"]["hostNetwork"] = true.into();
    let mut ended = pod("ended", &json!({"app": "ended"}));
    ended["status"]["phase"] = "Failed".into();
    let mut elsewhere = pod("elsewhere", &json!({"app": "elsewhere"}));
    elsewhere["metadata"]["namespace"] = "unknown".into();
    [&host, &ended, &elsewhere].into_iter().for_each(|object| server.add(object));
    let hive = started(&server).await;
    sleep(Duration::from_secs(10)).await;
    let found: BTreeSet<String> = identities(&server).values().map(ToString::to_string).collect();
    assert_eq!(found, ["db", "web"].map(|app| labels(app).to_string()).into());
    assert_eq!(take_verbs(&server), ["create"; 2]);
    let object = server.objects(Kind::CiliumIdentity).remove(0);
    assert_eq!(object["metadata"]["labels"], json!({"io.kubernetes.pod.namespace": "default"}));
    assert_eq!(hive.health("identities.job-sync").message, "2 label sets of 3 pods, 0 without identity");
    let text = hive.get::<metrics::Metrics>().text();
    for line in [
        "cid_controller_work_queue_event_count{resource=\"cid\",outcome=\"success\"} 2",
        "cid_controller_work_queue_latency_count{resource=\"cid\",phase=\"processing\"} 2",
    ] {
        assert!(text.contains(line), "{text}");
    }

    // Pods that come, change back and forth, and go cost requests for new label sets alone.
    server.add(&pod("web-3", &json!({"app": "web"})));
    server.add(&pod("db-1", &json!({"app": "web"})));
    sleep(Duration::from_secs(10)).await;
    server.add(&pod("db-1", &json!({"app": "db"})));
    server.remove(Kind::Pod, "web-1");
    server.add(&namespace("unknown", &json!({})));
    sleep(Duration::from_secs(10)).await;
    assert_eq!((take_verbs(&server), identities(&server).len()), (vec!["create"], 3));

    // A label of a namespace is one of all its pods.
    server.add(&namespace("default", &json!({"team": "b"})));
    sleep(Duration::from_secs(10)).await;
    assert_eq!((take_verbs(&server), identities(&server).len()), (vec!["create"; 2], 5));
    hive.finish().await;

    // The next leader finds all of them.
    let hive = started(&server).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(take_verbs(&server), [""; 0]);
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_oldest_of_several_counts_and_a_mark_is_removed_from_what_pods_have() {
    let server = server();
    let marked =
        json!({"annotations": {"io.cilium.heartbeat": "x"}, "creationTimestamp": "2026-01-01T00:00:00Z"});
    server.add(&identity("400", &labels("web"), &marked));
    server.add(&identity("300", &labels("web"), &json!({"creationTimestamp": "2026-01-02T00:00:00Z"})));
    server.add(&identity("500", &labels("unused"), &marked));
    server.add(&pod("web", &json!({"app": "web"})));
    let hive = started(&server).await;
    sleep(Duration::from_secs(10)).await;
    let row = || {
        let table = hive.get::<Table<PodIdentity>>();
        table.all(&table.snapshot()).map(|row| (row.id, row.pods, row.is_created)).collect::<Vec<_>>()
    };
    assert_eq!(row(), [(Some(400), 1, true)]);
    assert_eq!(take_verbs(&server), ["update"]);
    assert_eq!(server.object(Kind::CiliumIdentity, "400")["metadata"]["annotations"], json!({}));
    assert!(
        server.object(Kind::CiliumIdentity, "500")["metadata"]["annotations"]["io.cilium.heartbeat"]
            .is_string()
    );

    // The other one is as good; when none is left, the id of one of them is created again.
    server.remove(Kind::CiliumIdentity, "400");
    sleep(Duration::from_secs(10)).await;
    assert_eq!((row(), take_verbs(&server)), (vec![(Some(300), 1, true)], vec![]));
    server.remove(Kind::CiliumIdentity, "300");
    sleep(Duration::from_secs(10)).await;
    assert_eq!((row(), take_verbs(&server)), (vec![(Some(300), 1, true)], vec!["create"]));

    // Another client gives it other labels: the pods get another one.
    server.edit(Kind::CiliumIdentity, "300", |object| object["security-labels"] = labels("other"));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(identities(&server)["300"], labels("other"));
    assert_eq!(identities(&server)[&row()[0].0.unwrap().to_string()], labels("web"));
    server.remove(Kind::Pod, "web");
    sleep(Duration::from_secs(10)).await;
    assert_eq!(row(), []);
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn two_leaders_and_an_agent_that_race_make_no_duplicate() {
    let server = server();
    let (one, two) = (started(&server).await, started(&server).await);
    for number in 0..40 {
        server.add(&pod(&format!("p{number}"), &json!({"app": format!("a{}", number % 20)})));
    }
    // An agent of the mode `both` is faster with each third object, and another label set has its id with each fifth.
    let mut count = 0;
    server.on_request(move |tracker, request| {
        count += 1;
        let object = match (request.verb, count % 15) {
            ("create", 3 | 6 | 9) => request.object.clone(),
            ("create", 5) => identity(&request.key.name, &labels(&format!("agent-{count}")), &json!({})),
            _ => return Ok(()),
        };
        let mut object = object;
        (object["apiVersion"], object["kind"]) = ("cilium.io/v2".into(), "CiliumIdentity".into());
        tracker.add(&object.to_string())
    });
    sleep(Duration::from_secs(60)).await;
    let all = identities(&server);
    let own: Vec<&Value> =
        all.values().filter(|labels| !labels["k8s:app"].as_str().unwrap().starts_with("agent")).collect();
    let distinct: BTreeSet<String> = own.iter().map(ToString::to_string).collect();
    assert_eq!((own.len(), distinct.len()), (20, 20), "{all:?}");
    for hive in [one, two] {
        assert_eq!(
            hive.health("identities.job-sync").message,
            "20 label sets of 40 pods, 0 without identity"
        );
        hive.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn creations_have_a_rate_and_an_outage_is_named_and_caught_up() {
    let server = server();
    for number in 0..400 {
        server.add(&pod(&format!("p{number}"), &json!({"app": format!("a{number}")})));
    }
    let begin = Instant::now();
    let hive = started(&server).await;
    hive.until("all have identities", || identities(&server).len() == 400).await;
    let expected = (400.0 - 100.0) / CREATIONS_PER_SECOND;
    let took = begin.elapsed().as_secs_f64();
    assert!((expected * 0.9..expected * 1.5).contains(&took), "{took} s, expected {expected} s");
    assert_eq!(take_verbs(&server), vec!["create"; 400]);

    server.on_request(|_, _| Err(Request::unreachable()));
    server.add(&pod("late", &json!({"app": "late"})));
    server.add(&pod("gone", &json!({"app": "gone"})));
    sleep(Duration::from_secs(60)).await;
    let health = hive.health("identities.job-sync");
    assert_eq!(
        (health.level, &*health.message),
        (Level::Degraded, "2 of 402 label sets wait for their identity")
    );
    assert!(health.error.contains("k8s:app=late"), "{}", health.error);
    server.remove(Kind::Pod, "gone");
    sleep(Duration::from_secs(1)).await;
    server.execute_all();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(identities(&server).len(), 401, "the one of a pod that is gone is not created");
    assert_eq!(hive.health("identities.job-sync").level, Level::Ok);
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn without_the_lease_or_in_the_agents_mode_nothing_is_written() {
    let server = server();
    server.add(&pod("web", &json!({"app": "web"})));
    let former = leader(&server, Leadership::default(), &[]).await;
    sleep(Duration::from_secs(600)).await;
    former.finish().await;
    let off = leader(&server, Leadership::permanent(), &[("identity-management-mode", "agent")]).await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(off.health("identities").message, "Off (identity-management-mode=agent)");
    off.finish().await;
    assert_eq!((take_verbs(&server), identities(&server).len()), (vec![], 0));
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_creation_is_named_with_the_role() {
    let server = FakeServer::permitting(&["update"]);
    server.add(&namespace("default", &json!({})));
    server.add(&pod("web", &json!({"app": "web"})));
    let hive = started(&server).await;
    sleep(Duration::from_secs(60)).await;
    let row = hive.health("k8s-writer.create-ciliumidentities");
    assert_eq!(row.level, Level::Degraded);
    assert_eq!(hive.health("identities.job-sync").level, Level::Degraded);
    hive.finish().await;
}

#[tokio::test]
async fn wrong_options_are_refused() {
    for (options, expected) in [
        ([("identity-management-mode", "operator"), ("identity-allocation-mode", "kvstore")], "give crd"),
        ([("cluster-id", "256"), ("cluster-name", "x")], "cluster-id: 256 is wrong: give 0 to 255"),
        ([("max-connected-clusters", "300"), ("cluster-id", "1")], "give 255 or 511"),
    ] {
        let builder = hive::Hive::builder(config::<IdentitiesConfig>());
        let builder = options.iter().fold(builder, |builder, (key, value)| builder.set(*key, *value));
        let error = builder.build().err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
