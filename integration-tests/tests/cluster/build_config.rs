//! `build-config` writes the same folder from a real API server, by the agent's binary, as from the tracker of scripts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use cluster_stage::User;
use config_sources::Surroundings;
use hive::prelude::*;
use integration_tests::binary;
use k8s_types::{Api, Kind};
use serde_json::{Value, json};
use test_kit::require_root;

use crate::stage_with_definitions;

const NAMESPACE: &str = "kube-system";
const NODE: &str = "worker-7";

/// A ConfigMap, three CiliumNodeConfigs of which two are for the node, and the node.
fn objects() -> Vec<Value> {
    let object = |api: &str, kind: &str, name: &str, rest: Value| {
        let metadata = match kind {
            "Node" => json!({"name": name}),
            _ => json!({"name": name, "namespace": NAMESPACE}),
        };
        let mut object = json!({"apiVersion": api, "kind": kind, "metadata": metadata});
        for (key, value) in rest.as_object().unwrap() {
            match key.as_str() {
                "metadata" => {
                    object["metadata"].as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
                }
                _ => object[key] = value.clone(),
            }
        }
        object
    };
    let node_config = |name: &str, selector: Value, defaults: Value| {
        let spec = json!({"spec": {"nodeSelector": selector, "defaults": defaults}});
        object("cilium.io/v2", "CiliumNodeConfig", name, spec)
    };
    let data = json!({"data": {"debug": "false", "mtu": "1400", "ipam": "cluster-pool", "enable-policy": "default"}});
    let node = json!({"metadata": {
        "labels": {"zone": "a"},
        "annotations": {"config.cilium.io/debug": "true", "config.cilium.io/ipam": "kubernetes"},
    }});
    vec![
        object("v1", "ConfigMap", "cilium-config", data),
        node_config("20-zone", json!({"matchLabels": {"zone": "a"}}), json!({"mtu": "9000"})),
        node_config("10-all", json!({}), json!({"mtu": "1500", "enable-policy": "always"})),
        node_config("30-other", json!({"matchLabels": {"zone": "b"}}), json!({"mtu": "1"})),
        object("v1", "Node", NODE, node),
    ]
}

const SOURCES: [&str; 3] = ["config-map:cilium-config", "cilium-node-config", "node"];

/// Returns the folder that these objects must give, if `ipam` must not be changed.
fn expected() -> BTreeMap<String, String> {
    let source = |kind: &str, name: &str| {
        let namespace = if kind == "node" { "" } else { NAMESPACE };
        format!(r#"{{"kind":"{kind}","namespace":"{namespace}","name":"{name}"}}"#)
    };
    let sources = [
        source("config-map", "cilium-config"),
        source("cilium-node-config", "10-all"),
        source("cilium-node-config", "20-zone"),
        source("node", NODE),
    ];
    [
        ("config-sources", format!("[{}]", sources.join(",")).as_str()),
        ("config-sources-overrides", r#"{"allowConfigKeys":[],"denyConfigKeys":["ipam"]}"#),
        ("debug", "true"),
        ("enable-policy", "always"),
        ("ipam", "cluster-pool"),
        ("mtu", "9000"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

/// The folder as an agent reads it.
fn read(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let keys = entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with(".."));
    keys.map(|entry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap()))
        .collect()
}

async fn create(api: Arc<dyn Api>) -> anyhow::Result<()> {
    for object in objects() {
        let kind = Kind::named(object["kind"].as_str().unwrap()).unwrap();
        api.create(kind, object.to_string().into()).await?;
    }
    Ok(())
}

async fn build_from_tracker(folder: &Path) -> Vec<String> {
    let surroundings = Surroundings { namespace: NAMESPACE.to_owned(), node: NODE.to_owned() };
    let cells = [
        statedb::cell(),
        hive_script::cell(),
        k8s_fake_apiserver::cell(),
        module("objects", "Those of the test", [invoke(create)]),
        config_sources::build(surroundings),
    ];
    let hive = Hive::builder(cells)
        .set("dest", folder.display())
        .set("source", SOURCES.join(","))
        .set("deny-config-keys", "ipam")
        .build()
        .unwrap();
    let outcome = hive.run_until_shutdown().await;
    outcome.errors.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn the_tracker_gives_the_folder() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("config-map");
    assert_eq!(build_from_tracker(&folder).await, [""; 0]);
    assert_eq!(read(&folder), expected());
}

/// `agent build-config` as the init container runs it.
fn build(folder: &Path, kubeconfig: &Path, more: &[&str]) -> Output {
    Command::new(binary("agent"))
        .arg("build-config")
        .arg(format!("--dest={}", folder.display()))
        .arg(format!("--k8s-kubeconfig-path={}", kubeconfig.display()))
        .args(SOURCES.map(|source| format!("--source={source}")))
        .args(["--deny-config-keys=ipam", "--timeout=20s"])
        .args(more)
        .env("CILIUM_K8S_NAMESPACE", NAMESPACE)
        .env("K8S_NODE_NAME", NODE)
        .output()
        .unwrap()
}

#[test]
fn a_real_api_server_gives_the_same_folder() {
    require_root!();
    let stage = stage_with_definitions();
    let gate = stage.gate().unwrap();
    let kubeconfig = gate.kubeconfig(User::Agent).unwrap();
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("config-map");
    let said = |output: &Output| {
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };

    // A missing node is reported by name.
    let output = build(&folder, &kubeconfig, &["--node-name=nobody"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("Node nobody cannot be read: there is no such node"), "{}", said(&output));
    assert!(!folder.exists(), "nothing is half done");

    for object in objects() {
        stage.apply(&object.to_string()).unwrap();
    }
    let output = build(&folder, &kubeconfig, &[]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(read(&folder), expected());
    assert!(said(&output).contains("Node worker-7: ipam must not be changed here"), "{}", said(&output));

    // Again: nothing to do. Without the map: what is left, at once.
    let before = fs::read_link(folder.join("..data")).unwrap();
    assert!(build(&folder, &kubeconfig, &[]).status.success());
    assert_eq!(fs::read_link(folder.join("..data")).unwrap(), before);
    stage.kubectl(&["-n", NAMESPACE, "delete", "configmap", "cilium-config"]).unwrap();
    let output = build(&folder, &kubeconfig, &[]);
    assert!(said(&output).contains("ConfigMap kube-system/cilium-config is not there"), "{}", said(&output));
    let now = read(&folder);
    assert_eq!((now.get("mtu").map(String::as_str), now.get("ipam")), (Some("9000"), None));
    assert_ne!(fs::read_link(folder.join("..data")).unwrap(), before);

    // A server that is away is waited for, and then named.
    gate.close();
    let output = build(&folder, &kubeconfig, &["--timeout=2s"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(
        said(&output).contains("ConfigMap kube-system/cilium-config cannot be read: "),
        "{}",
        said(&output)
    );
    assert_eq!(read(&folder), now, "what is there stays");
}
