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
