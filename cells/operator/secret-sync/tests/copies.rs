//! The leader's cell and an API server within the process, in virtual time.

use std::sync::Arc;

use hive::prelude::*;
use k8s_fake_apiserver::FakeServer;
use k8s_types::{Api, ApiError, Key, Kind};
use k8s_writer::Write;
use k8s_writer::testing::idle;
use operator_election::Leadership;
use operator_secret_sync::SecretSyncConfig;
use serde_json::{Value, json};
use statedb::Table;

const CNP: Kind = Kind::CiliumNetworkPolicy;
const CCNP: Kind = Kind::CiliumClusterwideNetworkPolicy;

/// Permits what the roles of the chart permit.
fn server() -> FakeServer {
    FakeServer::permitting(&["get", "create", "update", "delete"])
}

async fn started(server: &FakeServer, leadership: Leadership, options: &[(&str, &str)]) -> TestHive {
    let hive = TestHive::new([
        statedb::cell(),
        metrics::cell(),
        server.cell(),
        operator_definitions::cell(),
        k8s_writer::cell(),
        supply(Arc::new(leadership)),
        operator_policy_status::tables(|options: Config<SecretSyncConfig>| options.is_enabled()),
        operator_secret_sync::cell(),
        invoke(|_: Arc<Table<Write>>| ()),
    ]);
    let defaults = [
        ("skip-crd-creation", "true"),
        ("enable-policy-secrets-sync", "true"),
        ("policy-secrets-namespace", "copies"),
        ("external-envoy-proxy", "true"),
    ];
    let mut hive = defaults.iter().chain(options).fold(hive, |hive, (key, value)| hive.set(key, value));
    hive.start().await;
    idle(&hive).await;
    hive
}

fn secret(namespace: &str, name: &str, value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": namespace, "name": name},
        "type": "Opaque", "data": {"value": value},
    })
}

/// Returns a policy of which a rule takes the value of a header from a secret.
fn policy(kind: Kind, name: &str, namespace: &str, secret: &str) -> Value {
    let header =
        json!({"name": "x-token", "mismatch": "REPLACE", "secret": {"namespace": namespace, "name": secret}});
    let mut metadata = json!({"name": name});
    if kind.namespaced() {
        metadata["namespace"] = json!("default");
    }
    json!({
        "apiVersion": "cilium.io/v2", "kind": kind.name(), "metadata": metadata,
        "spec": {"endpointSelector": {}, "egress": [{"toPorts": [{
            "ports": [{"port": "80", "protocol": "TCP"}], "rules": {"http": [{"headerMatches": [header]}]},
        }]}]},
    })
}

/// Returns the value in a copy; none if there is no such copy.
async fn copy(server: &FakeServer, name: &str) -> Option<String> {
    match Api::get(server.tracker(), Kind::Secret, &Key::new("copies", name)).await {
        Ok(bytes) => {
            let object: Value = serde_json::from_slice(&bytes).unwrap();
            Some(object["data"]["value"].as_str().unwrap_or_default().to_owned())
        }
        Err(ApiError::NotFound(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

fn text(value: &str) -> Option<String> {
    Some(value.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_secret_has_a_copy_while_a_policy_names_it() {
    let server = server();
    server.add(&secret("shop", "token", "MQ=="));
    server.add(&secret("shop", "other", "Mg=="));
    server.add(&policy(CNP, "a", "shop", "token"));
    let hive = started(&server, Leadership::permanent(), &[]).await;
    assert_eq!(copy(&server, "shop-token").await, text("MQ=="));
    assert_eq!(copy(&server, "shop-other").await, None, "no policy names it");
    let labels = server.object(Kind::Secret, "copies/shop-token")["metadata"]["labels"].clone();
    assert_eq!(labels["secretsync.cilium.io/owning-secret-namespace"], "shop");
    assert_eq!(labels["secretsync.cilium.io/owning-secret-name"], "token");

    // The copy follows its original, and changes of others do not last.
    server.edit(Kind::Secret, "shop/token", |secret| secret["data"]["value"] = json!("Mw=="));
    idle(&hive).await;
    assert_eq!(copy(&server, "shop-token").await, text("Mw=="));
    server.edit(Kind::Secret, "copies/shop-token", |secret| secret["data"]["value"] = json!("NA=="));
    idle(&hive).await;
    assert_eq!(copy(&server, "shop-token").await, text("Mw=="));
    server.remove(Kind::Secret, "copies/shop-token");
    idle(&hive).await;
    assert_eq!(copy(&server, "shop-token").await, text("Mw=="));

    // Another type cannot be written into the same object.
    let uid = server.object(Kind::Secret, "copies/shop-token")["metadata"]["uid"].clone();
    server.edit(Kind::Secret, "shop/token", |secret| secret["type"] = json!("example.org/token"));
    idle(&hive).await;
    let copied = server.object(Kind::Secret, "copies/shop-token");
    assert_eq!((&copied["type"], copied["metadata"]["uid"] == uid), (&json!("example.org/token"), false));

    server.add(&policy(CCNP, "b", "shop", "token"));
    server.remove(CNP, "a");
    idle(&hive).await;
    assert_eq!(copy(&server, "shop-token").await, text("Mw=="), "the other policy names it");
    // Agents keep the rules of the valid version.
    server.edit(CCNP, "b", |policy| policy["spec"]["egress"][0]["fromRequires"] = json!([{}]));
    idle(&hive).await;
    assert_eq!(copy(&server, "shop-token").await, text("Mw=="));
    server.remove(CCNP, "b");
    idle(&hive).await;
    assert_eq!(copy(&server, "shop-token").await, None);

    server.add(&policy(CNP, "a", "shop", "late"));
    idle(&hive).await;
    let health = hive.health("secret-sync.job-policies");
    assert_eq!(
        (health.level, &*health.message),
        (Level::Ok, "1 secrets of policies, without a copy: shop/late does not exist")
    );
    server.add(&secret("shop", "late", "NQ=="));
    idle(&hive).await;
    assert_eq!(copy(&server, "shop-late").await, text("NQ=="));
    assert_eq!(hive.health("secret-sync.job-policies").message, "1 secrets of policies");
    server.remove(Kind::Secret, "shop/late");
    idle(&hive).await;
    assert_eq!(copy(&server, "shop-late").await, None, "the original is gone");
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn secrets_that_are_no_copies_and_those_of_ambiguous_names_are_never_replaced() {
    let server = server();
    server.add(&secret("copies", "shop-token", "Ynk="));
    server.add(&secret("shop", "token", "MQ=="));
    server.add(&policy(CNP, "by-hand", "shop", "token"));
    // Without a policy: that of Cilium's operator may be of an Ingress.
    let mut of_ingress = secret("copies", "web-tls", "dGxz");
    of_ingress["metadata"]["labels"] = json!({
        "secretsync.cilium.io/owning-secret-namespace": "web", "secretsync.cilium.io/owning-secret-name": "tls",
    });
    server.add(&of_ingress);
    server.add(&secret("a-b", "c", "YS1i"));
    server.add(&secret("a", "b-c", "YQ=="));
    server.add(&policy(CNP, "first", "a-b", "c"));
    let hive = started(&server, Leadership::permanent(), &[]).await;
    assert_eq!(copy(&server, "a-b-c").await, text("YS1i"));
    server.add(&policy(CNP, "second", "a", "b-c"));
    idle(&hive).await;
    assert_eq!(copy(&server, "a-b-c").await, text("YS1i"), "the first one keeps it");
    assert_eq!(copy(&server, "shop-token").await, text("Ynk="));
    assert_eq!(copy(&server, "web-tls").await, text("dGxz"));
    let health = hive.health("secret-sync.job-policies").message;
    assert!(health.contains("a/b-c has the name of another secret's copy"), "{health}");
    assert!(health.contains("shop/token is not copied: there is a secret of this name"), "{health}");

    server.remove(CNP, "first");
    idle(&hive).await;
    assert_eq!(copy(&server, "a-b-c").await, text("YQ=="), "the name is free");
    let health = hive.health("secret-sync.job-policies").message;
    assert!(!health.contains("another secret's copy"), "{health}");
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_next_leader_writes_what_differs_and_a_former_one_nothing() {
    let server = server();
    for number in 0..20 {
        server.add(&secret("shop", &format!("s{number}"), "MQ=="));
        server.add(&policy(CNP, &format!("p{number}"), "shop", &format!("s{number}")));
    }
    let is_write = |request: &k8s_fake_apiserver::Request| request.verb != "get";
    let former = started(&server, Leadership::default(), &[]).await;
    assert_eq!(
        server.take_requests().iter().filter(|request| is_write(request)).count(),
        0,
        "it does not lead"
    );
    former.finish().await;
    started(&server, Leadership::permanent(), &[]).await.finish().await;
    assert_eq!(server.take_requests().iter().filter(|request| is_write(request)).count(), 20);
    // While no operator runs.
    server.remove(CNP, "p0");
    server.remove(Kind::Secret, "shop/s1");
    server.edit(Kind::Secret, "shop/s2", |secret| secret["data"]["value"] = json!("Mg=="));
    started(&server, Leadership::permanent(), &[]).await.finish().await;
    let writes: Vec<String> =
        server.take_requests().iter().filter(|request| is_write(request)).map(ToString::to_string).collect();
    assert_eq!(writes.len(), 3, "{writes:?}");
    assert_eq!(
        (copy(&server, "shop-s0").await, copy(&server, "shop-s1").await, copy(&server, "shop-s2").await),
        (None, None, text("Mg=="))
    );
    let off = started(&server, Leadership::permanent(), &[("external-envoy-proxy", "false")]).await;
    assert_eq!(server.take_requests(), []);
    assert!(hive_is_off(&off));
    off.finish().await;
}

fn hive_is_off(hive: &TestHive) -> bool {
    hive.health("secret-sync").message.starts_with("Off (external-envoy-proxy=false)")
}
