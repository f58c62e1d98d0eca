//! Files of the configuration folder are replaced while the agent runs.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use bpf::RawMap;
use integration_tests::Node;
use serde_json::Value;
use test_kit::{require_root, wait_until};

/// Timeout that allows for a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

struct Running {
    node: Node,
    folder: PathBuf,
}

impl Running {
    fn start() -> Self {
        let mut node = Node::new();
        node.config.insert("prometheus-serve-addr".to_owned(), "127.0.0.1:9962".to_owned());
        node.start();
        let folder = node.sandbox().dir().join("config");
        Self { node, folder }
    }

    fn write(&self, key: &str, value: &str) {
        fs::write(self.folder.join(key), value).unwrap();
    }

    /// Returns the values in `GET /config` of `Debug`, `PolicyAuditMode` and the enforcement of policy.
    fn options(&self) -> [Value; 3] {
        let spec = self.node.get("/v1/config")["spec"].clone();
        let option = |name: &str| spec["options"][name].clone();
        [option("Debug"), option("PolicyAuditMode"), spec["policy-enforcement"].clone()]
    }

    #[track_caller]
    fn wait_for(&self, debug: &str, audit: &str, enforcement: &str) {
        let wanted = [debug, audit, enforcement].map(Value::from);
        wait_until("the options to change", PATIENCE, || self.options() == wanted);
    }

    #[track_caller]
    fn wait_for_log(&self, parts: &[&str]) {
        let reported = || self.node.log().lines().any(|line| parts.iter().all(|part| line.contains(part)));
        wait_until(&format!("{parts:?} in the log"), PATIENCE, reported);
    }

    /// Returns the number of options that need a restart.
    fn drift(&self) -> String {
        let lines = self.node.metrics();
        let line = lines.iter().find(|line| line.starts_with("cilium_drift_checker_config_delta "));
        line.unwrap_or_else(|| panic!("no such metric: {lines:?}")).rsplit(' ').next().unwrap().to_owned()
    }

    fn configuration_health(&self) -> String {
        let status = self.node.get("/v1/healthz");
        status["cilium"]["msg"].as_str().unwrap_or_default().to_owned()
    }
}

#[test]
fn live_options_change_others_wait_and_wrong_ones_change_nothing() {
    require_root!();
    let r = Running::start();
    r.wait_for("Disabled", "Disabled", "default");
    assert_eq!(r.drift(), "0");

    r.write("debug", "true");
    r.write("enable-policy", "never");
    r.wait_for("Enabled", "Disabled", "never");
    r.wait_for_log(&["An option has changed", "option=enable-policy", "before=default", "value=never"]);

    // Needs a restart: reported by name, and live options still take effect.
    r.write("cluster-name", "other");
    r.write("policy-audit-mode", "true");
    r.wait_for("Enabled", "Enabled", "never");
    r.wait_for_log(&[
        "takes effect when the agent is started again",
        "option=cluster-name",
        "configured=other",
    ]);
    wait_until("the metric to count it", PATIENCE, || r.drift() == "1");
    wait_until("health to name the option", PATIENCE, || {
        let text = r.configuration_health();
        text.contains("cluster-name: running with \"default\"") && text.contains("says \"other\"")
    });

    let says = |key: &str, value: &str| format!("file {} says {value:?}", r.folder.join(key).display());
    let reported = format!(
        "cluster-name: running with \"default\", {}: takes effect at the next start\n",
        says("cluster-name", "other")
    );
    assert!(
        r.node.apiary(&["config", "drift"]).contains(&reported),
        "{}",
        r.node.apiary(&["config", "drift"])
    );

    // One invalid value: the valid ones with it are not applied.
    r.write("enable-policy", "perhaps");
    r.write("debug", "false");
    r.wait_for_log(&["is refused", "enable-policy", "perhaps", "expected default, always or never"]);
    r.wait_for("Enabled", "Enabled", "never");
    let drift = r.node.apiary(&["config", "drift"]);
    let wrong =
        format!("enable-policy: running with \"never\", {}: refused: ", says("enable-policy", "perhaps"));
    let waits = format!("debug: running with \"true\", {}: refused: ", says("debug", "false"));
    assert!(drift.contains(&wrong) && drift.contains(&waits), "{drift}");
    let rows = r.node.apiary(&["statedb", "configuration"]);
    assert!(
        rows.contains("\"Name\":\"enable-policy\"") || rows.contains("\"Name\": \"enable-policy\""),
        "{rows}"
    );
    r.write("enable-policy", "always");
    fs::remove_file(r.folder.join("cluster-name")).unwrap();
    r.wait_for("Disabled", "Enabled", "always");
    wait_until("no drift", PATIENCE, || r.drift() == "0");

    // A patched value stays until the folder changes it.
    let patch = r#"{"options":{"Debug":"true"}}"#;
    assert_eq!(r.node.request("PATCH", "/v1/config", Some(patch)).unwrap().status, 200);
    r.write("policy-audit-mode", "false");
    r.wait_for("Enabled", "Disabled", "always");
}

/// A map entry that another process deletes.
struct Lost {
    map: RawMap,
    key: Vec<u8>,
}

impl Lost {
    fn delete(node: &Node, map: &str) -> Self {
        let map = RawMap::open(&node.pin(map)).unwrap();
        let (keys, _) = map.entries().unwrap();
        let key = keys[..map.layout().key_size as usize].to_vec();
        assert!(map.delete(&key).unwrap());
        Self { map, key }
    }

    fn is_back(&self) -> bool {
        self.map.lookup(&self.key, &mut vec![0; self.map.value_len()]).unwrap()
    }
}

/// Intervals of loops that are an hour long at the start, the selection of metrics, the form of the log.
#[test]
fn loops_metrics_and_the_log_follow_the_folder() {
    require_root!();
    const INTERVALS: [&str; 4] = [
        "conntrack-gc-interval",
        "endpoint-bpf-prog-watchdog-interval",
        "bpf-policy-map-full-reconciliation-interval",
        "endpoint-gc-interval",
    ];
    let mut node = Node::new();
    node.config.insert("prometheus-serve-addr".to_owned(), "127.0.0.1:9962".to_owned());
    node.config.extend(INTERVALS.map(|key| (key.to_owned(), "1h".to_owned())));
    node.start();
    let pod = node.add_pod("a");
    let endpoint = node.get("/v1/endpoint/pod-name:default%2Fa")["id"].as_u64().unwrap();
    let folder = node.sandbox().dir().join("config");
    let r = Running { node, folder };
    let has = |line: &str| r.node.metrics().iter().any(|found| found.starts_with(line));

    let interval = "cilium_datapath_conntrack_gc_interval_seconds{global=\"global\"}";
    assert!(has(&format!("{interval} 3600")));
    r.write("conntrack-gc-interval", "7s");
    wait_until("the interval of the collection", PATIENCE, || has(&format!("{interval} 7")));

    assert!(has("cilium_endpoint "));
    r.write("metrics", "-cilium_endpoint");
    wait_until("a metric to go", PATIENCE, || !has("cilium_endpoint "));
    r.write("metrics", "");
    wait_until("a metric to come back", PATIENCE, || has("cilium_endpoint "));

    // The changes of the pod's arrival are done, and link-local addresses of the host's devices are known to be unique,
    // up to two seconds after the start: that changes their routes, after which all of it is looked at.
    sleep(Duration::from_secs(3));
    let rule = Lost::delete(&r.node, &format!("cilium_policy_v2_{endpoint:05}"));
    let row = Lost::delete(&r.node, "cilium_lxc");
    sleep(Duration::from_secs(1));
    assert_eq!([rule.is_back(), row.is_back()], [false; 2], "not before an hour has passed");
    r.write("bpf-policy-map-full-reconciliation-interval", "500ms");
    wait_until("the policy map to be compared", PATIENCE, || rule.is_back());
    assert!(!row.is_back());
    r.write("endpoint-bpf-prog-watchdog-interval", "500ms");
    wait_until("other rows to be compared", PATIENCE, || row.is_back());

    let name = pod.result["interfaces"][0]["name"].as_str().unwrap();
    r.node.host().ip(&format!("link del {name}")).unwrap();
    let known = || r.node.endpoints().iter().any(|row| row.starts_with(&format!("{endpoint} ")));
    assert!(known());
    r.write("endpoint-gc-interval", "300ms");
    wait_until("the endpoint without interface to go", PATIENCE, || !known());

    r.write("log-opt", "format=json,level=debug");
    wait_until("a debug line as JSON", PATIENCE, || {
        // The end of a connection logs a debug line.
        let mut stream = UnixStream::connect(r.node.socket()).unwrap();
        stream.write_all(b"nonsense\r\n\r\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
        r.node.log().contains("\n{\"level\":\"debug\",\"msg\":")
    });
    r.write("log-opt", "format=text,level=loud");
    r.wait_for_log(&["is refused", "level loud: use error, warn, info, debug or trace"]);
    assert!(r.node.log().lines().last().unwrap().starts_with('{'), "the form of before stays");
}

/// The folder as Kubernetes mounts a ConfigMap: all files change atomically.
#[test]
fn an_exchanged_config_map_is_followed() {
    require_root!();
    let mut node = Node::new();
    node.config.insert("debug".to_owned(), "false".to_owned());
    node.config.insert("enable-policy".to_owned(), "default".to_owned());
    let command = node.agent_command();
    let folder = node.sandbox().dir().join("config");
    let mut files = node.config.clone();
    let exchange = |data: &str, files: &BTreeMap<String, String>| {
        fs::create_dir(folder.join(data)).unwrap();
        for (key, value) in files {
            fs::write(folder.join(data).join(key), value).unwrap();
        }
        symlink(data, folder.join("..data_tmp")).unwrap();
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    };
    exchange("..2026_11_21", &files);
    for key in files.keys() {
        fs::remove_file(folder.join(key)).unwrap();
        symlink(format!("..data/{key}"), folder.join(key)).unwrap();
    }
    node.spawn_command(command);
    node.wait_ready();
    let r = Running { folder: folder.clone(), node };
    r.wait_for("Disabled", "Disabled", "default");
    files.insert("debug".to_owned(), "true".to_owned());
    files.insert("enable-policy".to_owned(), "always".to_owned());
    exchange("..2026_11_22", &files);
    fs::remove_dir_all(folder.join("..2026_11_21")).unwrap();
    r.wait_for("Enabled", "Disabled", "always");
}
