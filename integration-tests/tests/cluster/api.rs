//! The client of the API server against a real one: after any fault of connections and servers, a reader has the
//! objects that kubectl shows.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cluster_stage::{Gate, Stage, StageOptions, User};
use futures::StreamExt;
use hive::prelude::*;
use k8s_types::schema::custom_resource_definition;
use k8s_types::testing::{Reader, versions};
use k8s_types::{Api, ApiError, Key, Kind, Patch, Preconditions, Selection, Source};
use serde_json::{Value, json};
use test_kit::require_root;

const LIMIT: Duration = Duration::from_secs(120);

/// The client in a hive of its own.
struct Client {
    hive: TestHive,
    source: Arc<dyn Source>,
}

impl Client {
    async fn new(kubeconfig: &Path) -> Client {
        let taken: Arc<Mutex<Option<Arc<dyn Source>>>> = Arc::default();
        let given = taken.clone();
        let take = move |sources: Group<Arc<dyn Source>>| *given.lock().unwrap() = sources.first().cloned();
        let cells = [k8s_client::cell(), module("reader", "x", [invoke(take)])];
        let mut hive = TestHive::new(cells)
            .set("k8s-kubeconfig-path", kubeconfig.display())
            .set("crd-wait-timeout", "0s");
        hive.start().await;
        let source = taken.lock().unwrap().take().unwrap();
        Client { hive, source }
    }

    fn read(&self, what: Selection) -> Arc<Mutex<Reader>> {
        let reader: Arc<Mutex<Reader>> = Arc::default();
        let (mut stream, into) = (self.source.watch(what), Arc::downgrade(&reader));
        #[expect(clippy::disallowed_methods, reason = "the reader of a test, which ends with it")]
        tokio::spawn(async move {
            while let Some(event) = stream.next().await {
                let Some(reader) = into.upgrade() else { return };
                reader.lock().unwrap().apply(event);
            }
        });
        reader
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns the objects as kubectl shows them.
fn truth(stage: &Stage, arguments: &[&str]) -> BTreeMap<Key, String> {
    let list = stage.get(arguments).unwrap();
    versions(list["items"].as_array().unwrap())
}

async fn until_true(stage: &Stage, arguments: &[&str], reader: &Arc<Mutex<Reader>>) {
    let truth = truth(stage, arguments);
    let begun = Instant::now();
    loop {
        {
            let reader = reader.lock().unwrap();
            let versions = reader.versions();
            if reader.is_complete() && versions == truth {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "{versions:?} is not {truth:?}; {:?}", reader.errors);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn maps(range: std::ops::Range<usize>, value: &str) -> String {
    let map = |n| {
        format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m-{n}}}\ndata: {{v: '{value}'}}\n")
    };
    range.map(map).collect()
}

fn change(stage: &Stage, namespace: &str, round: usize) {
    stage
        .kubectl_with(
            &["-n", namespace, "apply", "-f", "-"],
            &maps(round * 3..round * 3 + 5, &round.to_string()),
        )
        .unwrap();
    stage.kubectl(&["-n", namespace, "delete", "configmap", &format!("m-{}", round * 3 + 1)]).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_is_cut_every_second_misses_nothing() {
    require_root!();
    let stage = Stage::shared();
    let (namespace, gate) = (stage.namespace("cuts"), stage.gate().unwrap());
    let mut client = Client::new(&gate.kubeconfig(User::Agent).unwrap()).await;
    let reader = client.read(Selection::all(Kind::ConfigMap).in_namespace(&namespace));
    let what = ["-n", namespace.as_str(), "configmap"];
    until_true(stage, &what, &reader).await;
    for round in 0..20 {
        change(stage, &namespace, round);
        gate.cut();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    until_true(stage, &what, &reader).await;
    let (lists, errors) = {
        let reader = reader.lock().unwrap();
        (reader.lists, reader.errors.clone())
    };
    assert_eq!((lists, errors), (1, vec![]), "each watch goes on where the one before was");
    client.hive.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_go_and_forget_and_tokens_that_change_lose_nothing() {
    require_root!();
    let stage = Stage::start().unwrap();
    let (namespace, gate) = (stage.namespace("outage"), stage.gate().unwrap());
    let mut client = Client::new(&gate.kubeconfig(User::Agent).unwrap()).await;
    let reader = client.read(Selection::all(Kind::ConfigMap).in_namespace(&namespace));
    let what = ["-n", namespace.as_str(), "configmap"];
    change(&stage, &namespace, 0);
    until_true(&stage, &what, &reader).await;

    // The server stops and restarts.
    stage.kill_api_server().unwrap();
    until("the outage is reported", || {
        client.hive.hive().health().at("k8s-client.server").unwrap().level == Level::Degraded
    })
    .await;
    stage.start_api_server().unwrap();
    change(&stage, &namespace, 1);
    until_true(&stage, &what, &reader).await;

    // While the reader is cut off, objects are deleted and etcd is compacted.
    gate.close();
    change(&stage, &namespace, 2);
    stage.kill_api_server().unwrap();
    stage.compact().unwrap();
    stage.start_api_server().unwrap();
    gate.open();
    until_true(&stage, &what, &reader).await;

    // The client's token is refused from now on; the file has a new one.
    stage.replace_token(User::Agent).unwrap();
    change(&stage, &namespace, 3);
    until_true(&stage, &what, &reader).await;
    until("the server answers", || {
        client.hive.hive().health().at("k8s-client.server").unwrap().level == Level::Ok
    })
    .await;
    client.hive.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_that_is_defined_later_is_picked_up() {
    require_root!();
    let stage = Stage::start().unwrap();
    let gate = stage.gate().unwrap();
    let mut client = Client::new(&gate.kubeconfig(User::Agent).unwrap()).await;
    let reader = client.read(Selection::all(Kind::CiliumCIDRGroup));
    let required = client.read(Selection::all(Kind::CiliumIdentity));
    until("the definitions are known", || {
        client
            .hive
            .hive()
            .health()
            .at("k8s-client.ciliumidentities")
            .is_some_and(|status| status.message.contains("has no definition"))
    })
    .await;
    stage
        .define(&[
            custom_resource_definition(Kind::CiliumCIDRGroup),
            custom_resource_definition(Kind::CiliumIdentity),
        ])
        .unwrap();
    let group = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumCIDRGroup", "metadata": {"name": "g"},
        "spec": {"externalCIDRs": ["10.0.0.0/8"]}
    });
    stage.apply(&group.to_string()).unwrap();
    until_true(&stage, &["ciliumcidrgroups"], &reader).await;
    until("an empty list", || required.lock().unwrap().lists == 1).await;
    assert_eq!(
        (reader.lock().unwrap().errors.clone(), required.lock().unwrap().errors.clone()),
        (vec![], vec![])
    );
    client.hive.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_allowed_is_named_and_the_rest_goes_on() {
    require_root!();
    let stage = Stage::with(&StageOptions { rbac: true, ..StageOptions::default() }).unwrap();
    let gate = stage.gate().unwrap();
    stage
        .kubectl(&["create", "clusterrole", "few", "--verb=get,list,watch", "--resource=namespaces"])
        .unwrap();
    let user = format!("--user={}", User::Agent.name());
    stage.kubectl(&["create", "clusterrolebinding", "few", "--clusterrole=few", &user]).unwrap();
    let mut client = Client::new(&gate.kubeconfig(User::Agent).unwrap()).await;
    let (namespaces, maps) =
        (client.read(Selection::all(Kind::Namespace)), client.read(Selection::all(Kind::ConfigMap)));
    until_true(&stage, &["namespaces"], &namespaces).await;
    until("the refusal", || !maps.lock().unwrap().errors.is_empty()).await;
    let error = maps.lock().unwrap().errors[0].clone();
    let wanted = "may not watch configmaps: allow verb watch on resource configmaps of API group \"\" in the agent's ClusterRole";
    assert!(error.starts_with(wanted), "{error}");
    let row = client.hive.hive().health().at("k8s-client.configmaps").unwrap();
    assert!(row.level == Level::Degraded && row.error == error, "{row:?}");
    client.hive.stop().await;
}

/// Writes a changed copy of the gate's kubeconfig.
fn changed(gate: &Gate, folder: &Path, change: impl Fn(String) -> String) -> std::path::PathBuf {
    let text = fs::read_to_string(gate.kubeconfig(User::Agent).unwrap()).unwrap();
    let file = folder.join("kubeconfig");
    fs::write(&file, change(text)).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_authority_is_named_and_its_replacement_is_taken() {
    require_root!();
    let stage = Stage::shared();
    let (gate, folder) = (stage.gate().unwrap(), tempfile::tempdir().unwrap());
    let right = stage.account(User::Agent).join("ca.crt");
    let authority = folder.path().join("ca.crt");
    let made = std::process::Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-subj",
            "/CN=other",
        ])
        .args(["-keyout", "/dev/null", "-out"])
        .arg(&authority)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let named = authority.display().to_string();
    let kubeconfig = changed(&gate, folder.path(), |text| {
        let ours = stage.account(User::Agent).join("ca.crt").display().to_string();
        text.replace(&ours, &named)
    });
    let mut client = Client::new(&kubeconfig).await;
    let reader = client.read(Selection::all(Kind::Namespace));
    until("the refusal", || !reader.lock().unwrap().errors.is_empty()).await;
    let error = reader.lock().unwrap().errors[0].clone();
    assert!(
        error.contains("is not signed by the authority of ")
            && error.contains(&format!("certificate-authority: {named}: give that cluster's CA")),
        "{error}"
    );
    fs::copy(right, &authority).unwrap();
    until("a list", || reader.lock().unwrap().lists == 1).await;
    client.hive.stop().await;
}

fn map(namespace: &str, name: &str, value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": namespace, "name": name}, "data": {"v": value}
    })
}

fn bytes(value: &Value) -> Bytes {
    value.to_string().into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_say_what_the_server_makes_of_them() {
    require_root!();
    let stage = Stage::shared();
    let (namespace, gate) = (stage.namespace("requests"), stage.gate().unwrap());
    let mut client = Client::new(&gate.kubeconfig(User::Agent).unwrap()).await;
    let (api, kind, key) = (client.hive.get::<dyn Api>(), Kind::ConfigMap, Key::new(namespace.as_str(), "m"));
    assert!(matches!(api.get(kind, &key).await, Err(ApiError::NotFound(_))));
    let made = api.create(kind, bytes(&map(&namespace, "m", "1"))).await.unwrap();
    let made: Value = serde_json::from_slice(&made).unwrap();
    assert!(matches!(
        api.create(kind, bytes(&map(&namespace, "m", "1"))).await,
        Err(ApiError::AlreadyExists(_))
    ));

    let mut newer = made.clone();
    newer["data"]["v"] = "2".into();
    api.update(kind, bytes(&newer)).await.unwrap();
    assert!(
        matches!(api.update(kind, bytes(&newer)).await, Err(ApiError::Conflict(_))),
        "of an older version"
    );

    let patch = |uid: &str| json!([{"op": "test", "path": "/metadata/uid", "value": uid}, {"op": "replace", "path": "/data/v", "value": "3"}]);
    let refused = api.patch(kind, &key, false, Patch::Json(bytes(&patch("another")))).await;
    assert!(matches!(refused, Err(ApiError::Conflict(_))), "{refused:?}");
    let uid = made["metadata"]["uid"].as_str().unwrap();
    let patched = api.patch(kind, &key, false, Patch::Json(bytes(&patch(uid)))).await.unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&patched).unwrap()["data"]["v"], "3");
    for patch in [Patch::Merge, Patch::Strategic] {
        api.patch(kind, &key, false, patch(bytes(&json!({"data": {"w": "4"}})))).await.unwrap();
    }
    let wrong =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": "A_B"}});
    assert!(matches!(api.create(kind, bytes(&wrong)).await, Err(ApiError::Invalid(_))));

    let other = Preconditions { uid: Some("another".into()), ..Preconditions::default() };
    assert!(matches!(api.delete(kind, &key, other).await, Err(ApiError::Conflict(_))));
    api.delete(kind, &key, Preconditions { uid: Some(uid.into()), resource_version: None }).await.unwrap();
    assert!(matches!(api.delete(kind, &key, Preconditions::default()).await, Err(ApiError::NotFound(_))));

    gate.close();
    let closed = api.get(kind, &key).await;
    assert!(closed.as_ref().is_err_and(ApiError::is_temporary), "{closed:?}");
    client.hive.stop().await;
}
