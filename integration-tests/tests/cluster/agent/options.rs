//! The configuration of a running agent follows a ConfigMap of the cluster.

use integration_tests::Cluster;
use serde_json::json;
use test_kit::{require_root, wait_until};

use super::LIMIT;

#[test]
fn a_config_map_changes_live_options_and_a_wrong_value_changes_nothing() {
    require_root!();
    let mut cluster = Cluster::new(&[]);
    let sources = r#"[{"kind":"config-map","namespace":"kube-system","name":"cilium-config"}]"#;
    cluster.node.config.insert("config-sources".to_owned(), sources.to_owned());
    // Cilium's kinds are not defined.
    cluster.node.config.insert("crd-wait-timeout".to_owned(), "0s".to_owned());
    // Of the network namespace of the node.
    cluster.node.config.insert("prometheus-serve-addr".to_owned(), "127.0.0.1:9962".to_owned());
    cluster.start();
    let write = |debug: &str, enforcement: &str| {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"namespace": "kube-system", "name": "cilium-config"},
            "data": {"debug": debug, "enable-policy": enforcement},
        });
        cluster.stage.apply(&map.to_string()).unwrap();
    };
    let options = || {
        let spec = cluster.node.get("/v1/config")["spec"].clone();
        [spec["options"]["Debug"].clone(), spec["policy-enforcement"].clone()]
    };
    let wait = |debug: &str, enforcement: &str| {
        wait_until("the options to change", LIMIT, || options() == [debug, enforcement]);
    };
    let drift = || cluster.node.apiary(&["config", "drift"]);
    wait("Disabled", "default");
    write("true", "never");
    wait("Enabled", "never");
    assert!(!drift().contains("enable-policy"), "{}", drift());

    // Edited by hand: an option that needs a restart is named everywhere, and does not hold back a live one beside it.
    let count = || {
        let lines = cluster.node.metrics();
        let line = lines.iter().find_map(|line| line.strip_prefix("cilium_drift_checker_config_delta "));
        line.unwrap_or("no such metric").to_owned()
    };
    assert_eq!(count(), "0");
    let edit = |patch: serde_json::Value| {
        let target = ["-n", "kube-system", "patch", "configmap", "cilium-config", "--type=merge", "-p"];
        cluster.stage.kubectl(&[&target[..], &[&patch.to_string()]].concat()).unwrap();
    };
    edit(json!({"data": {"cluster-name": "other", "debug": "false"}}));
    wait("Disabled", "never");
    let waits = "cluster-name: running with \"default\", ConfigMap kube-system/cilium-config says \"other\": takes effect at \
                 the next start\n";
    assert!(drift().contains(waits), "{}", drift());
    wait_until("the metric counts it", LIMIT, || count() == "1");
    let health = || cluster.node.get("/v1/healthz")["cilium"]["msg"].as_str().unwrap_or_default().to_owned();
    wait_until("health names it", LIMIT, || health().contains("cluster-name: running with \"default\""));
    let log = cluster.node.log();
    assert!(
        log.lines().any(|line| line.contains("takes effect when the agent is started again")
            && line.contains("option=cluster-name")),
        "{log}"
    );
    edit(json!({"data": {"cluster-name": null, "debug": "true"}}));
    wait("Enabled", "never");
    wait_until("there is no drift", LIMIT, || count() == "0");
    assert!(!health().contains("cluster-name"), "{}", health());

    // An invalid value is reported with its source; valid ones beside it wait, and the values in force stay.
    write("false", "perhaps");
    wait_until("the refusal is reported", LIMIT, || {
        let log = cluster.node.log();
        log.lines()
            .any(|line| line.contains("is refused") && line.contains("(ConfigMap kube-system/cilium-config)"))
    });
    let says = |key: &str, running: &str, wanted: &str| {
        let line = format!(
            "{key}: running with {running:?}, ConfigMap kube-system/cilium-config says {wanted:?}: refused: "
        );
        assert!(drift().contains(&line), "{}", drift());
    };
    says("debug", "true", "false");
    says("enable-policy", "never", "perhaps");
    assert_eq!(options(), ["Enabled", "never"]);

    // Changes during a disconnection take effect as well; without the ConfigMap the files do.
    cluster.gate.close();
    write("false", "always");
    cluster.gate.open();
    wait("Disabled", "always");
    cluster.stage.kubectl(&["-n", "kube-system", "delete", "configmap", "cilium-config"]).unwrap();
    wait("Disabled", "default");
}
