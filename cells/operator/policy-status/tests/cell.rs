//! The leader's cell and an API server within the process, in virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;

use hive::prelude::*;
use k8s_fake_apiserver::FakeServer;
use k8s_types::Kind;
use k8s_writer::Write;
use k8s_writer::testing::idle;
use operator_election::Leadership;
use operator_policy_status::PolicyStatusConfig;
use serde_json::{Value, json};
use statedb::Table;

fn server() -> FakeServer {
    FakeServer::permitting(&["patch/status"])
}

/// Returns status and message of the condition.
fn validity(server: &FakeServer, kind: Kind, name: &str) -> (String, String) {
    let conditions = server.object(kind, name)["status"]["conditions"].clone();
    let is_valid = |condition: &&Value| condition["type"] == "Valid";
    let found: Vec<&Value> = conditions.as_array().into_iter().flatten().filter(is_valid).collect();
    assert!(found.len() <= 1, "{conditions}");
    let text =
        |field: &str| found.first().and_then(|found| found[field].as_str()).unwrap_or_default().to_owned();
    (text("status"), text("message"))
}

/// Returns how often each object was patched since the last call.
fn patched(server: &FakeServer) -> BTreeMap<String, u32> {
    let mut patches = BTreeMap::new();
    server.take_requests().iter().for_each(|request| {
        *patches.entry(request.key.name.to_string()).or_default() += 1;
    });
    patches
}

async fn started(server: &FakeServer, leadership: Leadership, options: &[(&str, &str)]) -> TestHive {
    let hive = TestHive::new([
        statedb::cell(),
        metrics::cell(),
        server.cell(),
        operator_definitions::cell(),
        k8s_writer::cell(),
        supply(Arc::new(leadership)),
        operator_policy_status::tables(|options: Config<PolicyStatusConfig>| options.validate_network_policy),
        operator_policy_status::cell(),
        invoke(|_: Arc<Table<Write>>| ()),
    ]);
    let defaults = [("skip-crd-creation", "true")];
    let mut hive = defaults.iter().chain(options).fold(hive, |hive, (key, value)| hive.set(key, value));
    hive.start().await;
    idle(&hive).await;
    hive
}

fn policy(kind: Kind, name: &str, rule: &Value) -> Value {
    let mut metadata = json!({"name": name, "generation": 1});
    if kind.namespaced() {
        metadata["namespace"] = json!("default");
    }
    json!({"apiVersion": "cilium.io/v2", "kind": kind.name(), "metadata": metadata, "spec": rule})
}

fn rule(port: &str) -> Value {
    json!({"endpointSelector": {}, "ingress": [{"toPorts": [{"ports": [{"port": port, "protocol": "TCP"}]}]}]})
}

const CNP: Kind = Kind::CiliumNetworkPolicy;
const CCNP: Kind = Kind::CiliumClusterwideNetworkPolicy;

fn valid() -> (String, String) {
    ("True".to_owned(), "Policy validation succeeded".to_owned())
}

#[tokio::test(start_paused = true)]
async fn each_policy_has_one_condition_that_follows_its_rules() {
    let server = server();
    let mut web = policy(CNP, "web", &rule("80"));
    web["status"] = json!({
        "derivativePolicies": {"n1": {"enforcing": true, "ok": true}},
        "conditions": [{"type": "Foreign", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    });
    server.add(&web);
    server.add(&policy(CNP, "wrong", &rule("70000")));
    server.add(&policy(CCNP, "all", &rule("80")));
    let hive = started(&server, Leadership::permanent(), &[]).await;
    assert_eq!((validity(&server, CNP, "web"), validity(&server, CCNP, "all")), (valid(), valid()));
    let status = server.object(CNP, "web")["status"].clone();
    assert_eq!(status["derivativePolicies"], web["status"]["derivativePolicies"], "the rest stays");
    assert_eq!(status["conditions"][0], web["status"]["conditions"][0], "conditions of others stay");
    let (is_valid, message) = validity(&server, CNP, "wrong");
    assert_eq!(is_valid, "False");
    assert!(message.starts_with("spec.ingress[0].toPorts[0].ports[0].port: "), "{message}");
    assert_eq!(
        patched(&server),
        [("all".into(), 1), ("web".into(), 1), ("wrong".into(), 1)].into(),
        "once each"
    );
    let health = hive.health("policy-status.job-namespaced");
    assert_eq!((health.level, &*health.message), (Level::Ok, "1 of 2 policies are invalid: default/wrong"));

    server.edit(CNP, "wrong", |policy| policy["spec"] = rule("7000"));
    server.edit(CNP, "web", |policy| policy["spec"]["ingress"][0]["fromRequires"] = json!([{}]));
    idle(&hive).await;
    assert_eq!(validity(&server, CNP, "wrong"), valid());
    let (is_valid, message) = validity(&server, CNP, "web");
    assert!(is_valid == "False" && message.contains("spec.ingress[0].fromRequires"), "{message}");

    // Another client removes the condition.
    server.edit(CNP, "wrong", |policy| policy["status"] = json!({}));
    idle(&hive).await;
    assert_eq!(validity(&server, CNP, "wrong"), valid());
    server.remove(CNP, "web");
    idle(&hive).await;
    assert_eq!(hive.health("policy-status.job-namespaced").message, "1 policies are valid");
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_next_leader_writes_nothing_that_is_there_and_a_former_one_nothing_at_all() {
    let server = server();
    for number in 0..200 {
        server.add(&policy(CNP, &format!("p{number}"), &rule(if number % 2 == 0 { "80" } else { "70000" })));
    }
    let former = started(&server, Leadership::default(), &[]).await;
    assert_eq!(patched(&server), BTreeMap::new(), "it does not lead");
    former.finish().await;
    started(&server, Leadership::permanent(), &[]).await.finish().await;
    assert_eq!(patched(&server).values().copied().collect::<Vec<u32>>(), [1; 200]);
    started(&server, Leadership::permanent(), &[]).await.finish().await;
    assert_eq!(patched(&server), BTreeMap::new());
    let off = started(&server, Leadership::permanent(), &[("validate-network-policy", "false")]).await;
    server.add(&policy(CNP, "new", &rule("80")));
    idle(&off).await;
    assert_eq!(patched(&server), BTreeMap::new());
    off.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_condition_is_never_that_of_an_older_version() {
    let server = server();
    server.add(&policy(CNP, "web", &rule("80")));
    let mut other = Some(policy(CNP, "web", &rule("70000")));
    server.on_request(move |tracker, _| {
        other.take().map_or(Ok(()), |object| tracker.update(&object.to_string(), false))
    });
    let hive = started(&server, Leadership::permanent(), &[]).await;
    assert_eq!(validity(&server, CNP, "web").0, "False");
    hive.finish().await;
}
