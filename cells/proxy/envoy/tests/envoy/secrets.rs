//! Secrets that rules name, from a source in memory.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use envoy_api::cilium::port_network_policy_rule::L7;
use envoy_api::cilium::{NetworkPolicy, TlsContext};
use envoy_api::cluster::Cluster;
use envoy_api::listener::Listener;
use envoy_api::tls::Secret;
use futures::stream::{self, BoxStream, StreamExt as _};
use hive::health::Level;
use k8s_types::{Kind, Resource as _, Selection, Source, SourceError, WatchEvent};
use proxy_ports::Proxies;
use serde_json::{Value, json};
use statedb::RwTable;
use tokio::sync::watch;

use crate::client::Client;
use crate::world::{World, insert};

const CERTIFICATES: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
const KEY: &str = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
const NAMESPACE: [(&str, &str); 2] =
    [("policy-secrets-namespace", "secrets"), ("policy-secrets-only-from-secrets-namespace", "true")];

/// Secrets by namespace and name; none can be listed while there is an error.
#[derive(Clone, Default)]
struct Objects {
    secrets: BTreeMap<(&'static str, &'static str), Value>,
    is_refused: bool,
}

/// A source that lists all selected secrets after each change, and records the selections.
struct Fake {
    objects: watch::Sender<Objects>,
    selections: watch::Sender<Vec<Selection>>,
}

impl Fake {
    fn new() -> Arc<Fake> {
        Arc::new(Fake { objects: watch::Sender::default(), selections: watch::Sender::default() })
    }

    fn set(&self, namespace: &'static str, name: &'static str, items: &[(&str, &str)]) {
        let data: BTreeMap<&str, String> =
            items.iter().map(|(key, value)| (*key, BASE64_STANDARD.encode(value))).collect();
        let object = json!({"metadata": {"namespace": namespace, "name": name}, "data": data});
        self.objects.send_modify(|objects| _ = objects.secrets.insert((namespace, name), object));
    }

    fn remove(&self, namespace: &'static str, name: &'static str) {
        self.objects.send_modify(|objects| _ = objects.secrets.remove(&(namespace, name)));
    }
}

fn listed(objects: &Objects, selection: &Selection) -> Vec<Result<WatchEvent, SourceError>> {
    if objects.is_refused {
        return vec![Err(SourceError("secrets is forbidden".to_owned()))];
    }
    let is_selected = |namespace: &str, name: &str| {
        let is_named = selection.fields.is_empty() || *selection.fields == format!("metadata.name={name}");
        selection.namespace.as_deref().is_none_or(|own| own == namespace) && is_named
    };
    let selected = objects.secrets.iter().filter(|((namespace, name), _)| is_selected(namespace, name));
    let applied = selected
        .map(|(_, object)| Ok(WatchEvent::Applied { json: object.to_string().into(), origin: "".into() }));
    [Ok(WatchEvent::Restart)].into_iter().chain(applied).chain([Ok(WatchEvent::Listed)]).collect()
}

impl Source for Fake {
    fn name(&self) -> &str {
        "fake"
    }

    fn has(&self, kind: Kind) -> bool {
        kind == k8s_types::core::Secret::KIND
    }

    fn watch(&self, selection: Selection) -> BoxStream<'static, Result<WatchEvent, SourceError>> {
        self.selections.send_modify(|selections| selections.push(selection.clone()));
        let mut objects = self.objects.subscribe();
        objects.mark_changed();
        let lists = stream::unfold((objects, selection), |(mut objects, selection)| async {
            objects.changed().await.ok()?;
            let events = listed(&objects.borrow_and_update(), &selection);
            Some((stream::iter(events), (objects, selection)))
        });
        lists.flatten().boxed()
    }
}

/// Returns a rule that terminates TLS by a secret.
fn terminating(namespace: &str, name: &str) -> Value {
    let secret = json!({"namespace": namespace, "name": name});
    let ports = json!([{"port": "443", "protocol": "TCP"}]);
    json!([{"toPorts": [{"ports": ports, "terminatingTLS": {"secret": secret}}]}])
}

fn context(policies: &[NetworkPolicy]) -> Option<TlsContext> {
    let [policy] = policies else { panic!("{policies:?}") };
    policy.egress_per_port_policies.first()?.rules[0].downstream_tls_context.clone()
}

/// Connects and accepts listeners, so that health is about secrets.
async fn clients(world: &World) -> (Client<Cluster>, Client<Listener>, Client<NetworkPolicy>) {
    let socket = world.xds().await;
    let clusters = Client::accepting(&socket).await;
    (clusters, Client::accepting(&socket).await, Client::envoy(&socket).await)
}

async fn reports(world: &World, text: &str) {
    let has_text = || world.health().0 == Level::Degraded && world.health().1.contains(text);
    world.hive.until(text, has_text).await;
}

#[tokio::test]
async fn certificates_follow_their_secret_and_traffic_without_one_is_denied() {
    let source = Fake::new();
    source.set("secrets", "tls", &[("tls.crt", CERTIFICATES), ("tls.key", KEY)]);
    let world = World::start_with(Some(source.clone()), &NAMESPACE, |_, _, _| ()).await;
    world.set(7, terminating("secrets", "tls"));
    let (_clusters, _listeners, mut policies) = clients(&world).await;
    let found = context(&policies.next().await).unwrap();
    assert_eq!((&*found.certificate_chain, &*found.private_key), (CERTIFICATES, KEY));
    policies.ack();
    let renewed = CERTIFICATES.replace("AAAA", "BBBB");
    source.set("secrets", "tls", &[("tls.crt", &renewed), ("tls.key", KEY)]);
    assert_eq!(context(&policies.next().await).unwrap().certificate_chain, renewed);
    policies.ack();
    source.set("secrets", "tls", &[("tls.crt", CERTIFICATES)]);
    assert_eq!(context(&policies.next().await), None, "no rule: the port is denied");
    policies.ack();
    reports(&world, "secret secrets/tls has item tls.crt without its private key").await;
    source.remove("secrets", "tls");
    reports(&world, "secret secrets/tls does not exist: create it").await;
    // Rows of policies have the same text.
    let faults = world.hive.get::<Proxies>().secret_faults();
    let fault = |name: &str| {
        let faults = faults.borrow().clone();
        faults.iter().find(|(secret, _)| secret.name == name).map(|(_, reason)| reason.clone())
    };
    world.hive.until("the fault", || fault("tls").as_deref() == Some("does not exist: create it")).await;
    source.set("secrets", "tls", &[("tls.crt", CERTIFICATES), ("tls.key", KEY)]);
    world.hive.until("no fault", || fault("tls").is_none()).await;
    assert!(context(&policies.next().await).is_some(), "the rule is back");
    policies.ack();
    source.remove("secrets", "tls");
    world.set(7, terminating("shop", "tls"));
    reports(&world, "secret shop/tls secrets are read from the namespace \"secrets\" only").await;
    world.end().await;
}

#[tokio::test]
async fn copies_of_secrets_are_resources() {
    let source = Fake::new();
    let options = [("enable-policy-secrets-sync", "true"), NAMESPACE[0]];
    let world = World::start_with(Some(source.clone()), &options, |_, _, _| ()).await;
    let rules = json!({"http": [{"headerMatches": [{"name": "a", "secret": {"namespace": "shop", "name": "token"}}]}]});
    let ports = json!([{"port": "80", "protocol": "TCP"}]);
    world.set(7, json!([{"toPorts": [{"ports": ports, "rules": rules}]}]));
    let (_clusters, _listeners, mut policies) = clients(&world).await;
    assert_eq!(policies.next().await[0].egress_per_port_policies, []);
    policies.ack();
    reports(&world, "secret shop/token has no copy secrets/shop-token").await;
    let mut secrets = Client::<Secret>::envoy(&world.xds().await).await;
    assert_eq!(secrets.next().await, []);
    secrets.ack();
    source.set("secrets", "shop-token", &[("token", "v")]);
    let policy = &policies.next().await[0];
    let Some(L7::HttpRules(rules)) = &policy.egress_per_port_policies[0].rules[0].l7 else { panic!() };
    assert_eq!(rules.http_rules[0].header_matches[0].value_sds_secret, "secrets/shop-token");
    policies.ack();
    let [secret] = &secrets.next().await[..] else { panic!("one resource") };
    assert_eq!(secret.name, "secrets/shop-token");
    secrets.ack();
    // A new value is a new resource; the policy is the same.
    source.set("secrets", "shop-token", &[("token", "w")]);
    assert_ne!(secrets.next().await[0], *secret);
    policies.is_silent().await;
    world.hive.until("the secret is there", || world.health().0 == Level::Ok).await;
    world.end().await;
}

#[tokio::test]
async fn only_secrets_that_rules_name_are_read_from_other_namespaces() {
    let source = Fake::new();
    source.objects.send_modify(|objects| objects.is_refused = true);
    source.set("shop", "tls", &[("tls.crt", CERTIFICATES), ("tls.key", KEY)]);
    source.set("shop", "other", &[("token", "v")]);
    let before = |_: &Path, policies: &RwTable<_>, endpoints: &RwTable<_>| {
        insert(policies, endpoints, 7, 1, terminating("shop", "tls"));
    };
    let world = World::start_with(Some(source.clone()), &[], before).await;
    let mut policies = Client::<NetworkPolicy>::envoy(&world.xds().await).await;
    // An Envoy that has run while the agent was away keeps the policies of then.
    policies.is_silent().await;
    let job = || world.hive.health("envoy-proxy.job-secrets-fake");
    world.hive.until("the error is reported", || job().level == Level::Degraded).await;
    assert!(job().error.contains("shop/tls: secrets is forbidden"), "{}", job().error);
    source.objects.send_modify(|objects| objects.is_refused = false);
    assert!(context(&policies.next().await).is_some());
    let named = Selection::all(k8s_types::core::Secret::KIND).in_namespace("shop").named("tls");
    assert_eq!(*source.selections.borrow(), [named]);
    world.end().await;
}

/// Files come before the secrets of the cluster and are followed; without them the cluster's count again.
#[tokio::test]
async fn certificates_in_files_come_first_and_are_read_again() {
    let files = tempfile::tempdir().unwrap();
    let folder = files.path().join("shop/tls");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("tls.crt"), CERTIFICATES).unwrap();
    let source = Fake::new();
    let of_cluster = CERTIFICATES.replace("AAAA", "BBBB");
    source.set("shop", "tls", &[("tls.crt", &of_cluster), ("tls.key", KEY)]);
    let root = files.path().display().to_string();
    let options =
        [("certificates-directory", root.as_str()), ("enable-policy-secrets-sync", "true"), NAMESPACE[0]];
    source.set("secrets", "shop-tls", &[("tls.crt", &of_cluster), ("tls.key", KEY)]);
    let world = World::start_with(Some(source.clone()), &options, |_, _, _| ()).await;
    world.set(7, terminating("shop", "tls"));
    let (_clusters, _listeners, mut policies) = clients(&world).await;
    reports(&world, "secret shop/tls has item tls.crt without its private key: add it").await;
    assert_eq!(
        context(&policies.next().await),
        None,
        "that of the cluster does not stand in for half of a file's"
    );
    policies.ack();
    std::fs::write(folder.join("tls.key"), KEY).unwrap();
    let found = context(&policies.next().await).unwrap();
    assert_eq!(
        (&*found.certificate_chain, &*found.private_key, &*found.tls_sds_secret),
        (CERTIFICATES, KEY, "")
    );
    policies.ack();
    std::fs::remove_dir_all(&folder).unwrap();
    let found = context(&policies.next().await).unwrap();
    assert_eq!((&*found.certificate_chain, &*found.tls_sds_secret), ("", "secrets/shop-tls"));
    world.end().await;
}
