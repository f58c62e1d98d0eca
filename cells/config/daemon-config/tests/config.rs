//! The cell in a hive with a fake node and devices, queried over its socket.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use api_models::DaemonConfiguration;
use daemon_config::ConfigRow;
use devices::{Device, Link};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use hive::TestHive;
use hive::prelude::*;
use k8s_types::{Kind, Selection, Source, SourceError, WatchEvent};
use local_node::{LocalNode, LocalNodeConfig, LocalNodeStore, StateConfig};
use metrics::Metrics;
use runtime_options::RuntimeOption;
use statedb::{RwTable, Table, TableDisplay as _};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

struct Agent {
    hive: TestHive,
    folder: tempfile::TempDir,
}

/// Provides a node with addresses, an external device and an internal one.
fn surroundings() -> Cell {
    let node = |table: Arc<RwTable<LocalNode>>, devices: Arc<RwTable<Device>>| {
        table.transact(|w| {
            w.insert(LocalNode {
                name: "node".to_owned(),
                ipv4_alloc_cidr: Some("10.244.0.0/16".parse().unwrap()),
                router_ipv4: Some([10, 244, 71, 14].into()),
                ..LocalNode::default()
            })
        });
        devices.transact(|w| {
            for (index, mtu, selected) in [(1, 1400, false), (2, 9000, true), (3, 1450, true)] {
                let link = Link { index, name: format!("eth{index}"), mtu, ..Link::default() };
                w.insert(Device { link, selected, ..Device::default() });
            }
        });
        Arc::new(LocalNodeStore::new(table))
    };
    module(
        "surroundings",
        "A node and its devices",
        [
            config::<StateConfig>(),
            config::<LocalNodeConfig>(),
            config::<maps::FamilyConfig>(),
            tunnel::cell(),
            statedb::table::<LocalNode>(),
            statedb::table::<Device>(),
            provide(node),
            invoke(|_: Arc<Table<RuntimeOption>>| ()),
        ],
    )
}

fn hive(run: PathBuf, options: &[(&str, &str)]) -> TestHive {
    let cells = [
        daemon_config::instance(),
        statedb::cell(),
        metrics::cell(),
        surroundings(),
        daemon_config::cell(),
        api::cell(),
    ];
    let mut hive = TestHive::new(cells)
        .set("socket-path", run.join("cilium.sock").display())
        .set("state-dir", run.display());
    for (key, value) in options {
        hive = hive.set(key, value);
    }
    hive
}

impl Agent {
    async fn end(mut self) {
        self.hive.stop().await;
    }

    async fn start(options: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut hive = hive(folder.path().to_owned(), options);
        hive.start().await;
        Self { hive, folder }
    }

    async fn ask(&self, method: &str, body: &str) -> (u16, String) {
        self.ask_for("/v1/config", method, body).await
    }

    async fn ask_for(&self, path: &str, method: &str, body: &str) -> (u16, String) {
        let mut stream = UnixStream::connect(self.folder.path().join("cilium.sock")).await.unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    async fn configuration(&self) -> DaemonConfiguration {
        let (status, body) = self.ask("GET", "").await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }
}

/// The response equals the recorded one, except for the settings and features of that run.
#[tokio::test]
async fn the_response_has_the_members_and_values_of_cilium() {
    let agent = Agent::start(&[("mtu", "1500")]).await;
    let ours = agent.configuration().await;
    let sample = include_str!("../../../infra/api/models/tests/samples/GET_config.json");
    let sample: DaemonConfiguration = serde_json::from_str(sample).unwrap();
    assert_eq!(ours.spec, sample.spec);
    let (ours, mut sample) = (ours.status.unwrap(), sample.status.unwrap());
    let known = std::mem::take(&mut sample.daemon_configuration_map);
    for (name, value) in &ours.daemon_configuration_map {
        let same_type = std::mem::discriminant(value) == std::mem::discriminant(&known[name]);
        assert!(same_type, "{name}: {value} here, {} there", known[name]);
    }
    assert_eq!(ours.daemon_configuration_map["IPAM"], "cluster-pool");
    // This agent has no masquerading, kvstore or monitor.
    sample.masquerade = false;
    sample.masquerade_protocols = Some(Default::default());
    sample.kvstore_configuration = Some(Default::default());
    sample.node_monitor = None;
    sample.daemon_configuration_map = ours.daemon_configuration_map.clone();
    assert_eq!(ours, sample);
    agent.end().await;
}

#[tokio::test]
async fn the_mtu_is_the_smallest_of_the_external_devices() {
    let agent = Agent::start(&[]).await;
    let status = agent.configuration().await.status.unwrap();
    assert_eq!((status.device_mtu, status.route_mtu), (1450, 1400));
    agent.end().await;
}

#[tokio::test]
async fn options_of_the_plugin_are_returned() {
    let agent = Agent::start(&[
        ("packetization-layer-pmtud-mode", "always"),
        ("container-ip-local-reserved-ports", "8472,51871"),
        ("ipam", "delegated-plugin"),
        ("install-uplink-routes-for-delegated-ipam", "true"),
    ])
    .await;
    let status = agent.configuration().await.status.unwrap();
    assert_eq!(status.packetization_layer_pmtud_mode, "2");
    assert_eq!(status.ip_local_reserved_ports, "8472,51871");
    assert_eq!(status.ipam_mode, "delegated-plugin");
    assert!(status.install_uplink_routes_for_delegated_ipam);
    agent.end().await;
}

#[tokio::test]
async fn a_patch_changes_all_of_its_options_or_none() {
    let agent = Agent::start(&[]).await;
    let table: Arc<Table<RuntimeOption>> = agent.hive.get();
    let value =
        |name: &str| table.get(&table.snapshot(), RuntimeOption::by_name(name)).unwrap().value.clone();
    let before = agent.configuration().await.spec;

    for (body, status, text) in [
        (
            "{\"options\":{\"Debug\":\"on\",\"Nope\":\"1\"}}",
            400,
            "\"invalid configuration option: unknown option \\\"Nope\\\"\"\n",
        ),
        (
            "{\"options\":{\"Debug\":\"on\",\"DebugLB\":\"x\"}}",
            400,
            "\"invalid configuration option: invalid option value x\"\n",
        ),
        (
            "{\"policy-enforcement\":\"maybe\"}",
            422,
            "{\"code\":606,\"message\":\"policy-enforcement in body should be one of [default always never]\"}",
        ),
        ("", 422, "{\"code\":602,\"message\":\"configuration in body is required\"}"),
    ] {
        assert_eq!(agent.ask("PATCH", body).await, (status, text.to_owned()), "{body}");
        assert_eq!(agent.configuration().await.spec, before, "{body}");
    }

    let snapshot = table.snapshot();
    let (_, watch) = table.all_watch(&snapshot);
    let body = "{\"options\":{\"debug\":\"on\",\"MonitorAggregationLevel\":\"medium\"},\"policy-enforcement\":\"always\"}";
    assert_eq!(agent.ask("PATCH", body).await, (200, String::new()));
    watch.changed().await;
    assert_eq!(value("Debug"), "Enabled");
    let configuration = agent.configuration().await;
    let spec = configuration.spec.unwrap();
    assert_eq!(spec.options["MonitorAggregationLevel"], "Medium");
    assert_eq!(spec.policy_enforcement, "always");
    assert_eq!(configuration.status.unwrap().realized, Some(spec));

    // The same request again changes nothing.
    let revision = table.revision(&table.snapshot());
    assert_eq!(agent.ask("PATCH", body).await.0, 200);
    assert_eq!(table.revision(&table.snapshot()), revision);
    agent.end().await;
}

#[tokio::test]
async fn unsupported_values_are_refused_at_the_start() {
    for (key, value, text) in [
        ("datapath-mode", "netkit", "datapath-mode: \"netkit\" is wrong, expected veth or auto"),
        (
            "packetization-layer-pmtud-mode",
            "often",
            "packetization-layer-pmtud-mode: \"often\" is wrong, expected blackhole, always or disabled",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut hive = hive(folder.path().to_owned(), &[(key, value)]);
        let error = hive.try_start().await.unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
    }
}

#[tokio::test]
async fn the_run_folder_belongs_to_one_agent() {
    let mut agent = Agent::start(&[]).await;
    let run = agent.folder.path().to_owned();
    let files = || {
        let mut all: Vec<_> =
            fs::read_dir(run.join("state")).unwrap().map(|f| f.unwrap().file_name()).collect();
        all.sort();
        all
    };
    let stored = |name: &str| run.join("state").join(name).exists();
    let both = || stored("agent-runtime-config.json") && stored("viper-agent-config.yaml");
    agent.hive.until("both files", both).await;
    let before = files();
    let mut second = hive(run.clone(), &[("socket-path", run.join("other.sock").to_str().unwrap())]);
    let error = second.try_start().await.unwrap_err().to_string();
    assert!(error.contains("another agent (pid "), "{error}");
    assert_eq!(files(), before, "the second agent has touched nothing");
    assert_eq!(agent.hive.hook_order().first().map(String::as_str), Some("pid-file"));

    assert!(run.join("cilium.pid").exists());
    let stored = fs::read_to_string(run.join("state/agent-runtime-config.json")).unwrap();
    assert!(stored.contains("\n \"IPAM\": \"cluster-pool\","), "{stored}");
    agent.hive.stop().await;
    assert!(!run.join("cilium.pid").exists());
}

/// The table `configuration`: sources by priority, patched values, and the drift page.
#[tokio::test]
async fn sources_and_drift_are_a_table() {
    let agent = Agent::start(&[("enable-policy", "always"), ("mtu", "1500")]).await;
    let table: Arc<Table<ConfigRow>> = agent.hive.get();
    let rows = || -> Vec<String> {
        let snapshot = table.snapshot();
        let ours =
            table.all(&snapshot).filter(|row| !matches!(row.key.as_str(), "state-dir" | "socket-path"));
        ours.map(|row| row.row().join(" | ")).collect()
    };
    let wait = async |expected: &[&str]| {
        agent.hive.until(&format!("{expected:#?}"), || rows() == expected).await;
    };
    let mtu = "mtu | set by the program | 1 | 1500 | 1500 | in force";
    wait(&["enable-policy | set by the program | 1 | always | always | in force", mtu]).await;
    let body = "{\"options\":{\"Debug\":\"on\"},\"policy-enforcement\":\"never\"}";
    assert_eq!(agent.ask("PATCH", body).await.0, 200);
    let patched = [
        "debug | default | 6 | false | Enabled | changed by PATCH /config",
        "enable-policy | set by the program | 1 | always | never | changed by PATCH /config",
        mtu,
    ];
    wait(&patched).await;
    let body = "{\"options\":{\"Debug\":\"off\"},\"policy-enforcement\":\"always\"}";
    assert_eq!(agent.ask("PATCH", body).await.0, 200);
    wait(&["enable-policy | set by the program | 1 | always | always | in force", mtu]).await;

    // Cilium's columns, and two more.
    let snapshot = table.snapshot();
    let row = table.all(&snapshot).find(|row| row.key == "mtu").unwrap();
    assert_eq!(
        serde_json::to_value(&**row).unwrap(),
        serde_json::json!({
            "Key": {"Name": "mtu", "Source": "set by the program"},
            "Value": "1500",
            "Priority": 1,
            "Running": "1500",
            "State": "in force"
        })
    );
    agent.end().await;
}

/// A source of cluster objects with one ConfigMap.
struct Map(tokio::sync::watch::Sender<String>);

impl Source for Map {
    fn name(&self) -> &str {
        "map"
    }

    fn has(&self, kind: Kind) -> bool {
        kind == Kind::ConfigMap
    }

    fn watch(&self, _: Selection) -> BoxStream<'static, Result<WatchEvent, SourceError>> {
        let events = futures::stream::unfold((self.0.subscribe(), true), |(mut map, first)| async move {
            if !first {
                map.changed().await.ok()?;
            }
            let json = map.borrow_and_update().clone().into();
            let applied = WatchEvent::Applied { json, origin: "".into() };
            let listed = [WatchEvent::Restart, applied, WatchEvent::Listed].map(Ok);
            Some((futures::stream::iter(listed), (map, false)))
        });
        events.flatten().boxed()
    }
}

fn map(data: &str) -> String {
    format!(r#"{{"metadata":{{"name":"cilium-config","namespace":"kube-system"}},"data":{data}}}"#)
}

/// Starts an agent in a cluster with the default ConfigMap.
async fn with_map(data: &str, options: &[(&str, &str)]) -> (Agent, Arc<Map>) {
    let folder = tempfile::tempdir().unwrap();
    let source = Arc::new(Map(tokio::sync::watch::channel(map(data)).0));
    let sources: Members<Arc<dyn Source>> = Members(vec![source.clone()]);
    let mut hive = hive(folder.path().to_owned(), options).supply(sources);
    hive.start().await;
    (Agent { hive, folder }, source)
}

impl Agent {
    fn drift(&self) -> String {
        let text = self.hive.get::<Metrics>().text();
        let line = text.lines().find(|line| line.starts_with("cilium_drift_checker_config_delta ")).unwrap();
        line.rsplit(' ').next().unwrap().to_owned()
    }

    fn option(&self, name: &str) -> String {
        let table = self.hive.get::<Table<RuntimeOption>>();
        table.get(&table.snapshot(), RuntimeOption::by_name(name)).unwrap().value.clone()
    }
}

const NAMED: &str = r#"[{"kind":"config-map","namespace":"kube-system","name":"cilium-config"}]"#;

/// Objects that are named by `config-sources`: live options follow them, others wait for the next start, all
/// differences are counted.
#[tokio::test]
async fn live_options_follow_named_objects() {
    let data =
        r#"{"debug":"true","mtu":"9000","enable-policy":"never","endpoint-gc":"x","ipam":"cluster-pool"}"#;
    let options = [("config-sources", NAMED), ("enable-policy", "always")];
    let (agent, source) = with_map(data, &options).await;
    agent.hive.until("debug to follow", || agent.option("Debug") == "Enabled").await;
    // The MTU waits for the next start, enforcement was patched, and no cell declares endpoint-gc.
    agent.hive.until("all differences", || agent.drift() == "3").await;
    assert_eq!(agent.option("policy-enforcement"), "always");
    let object = "ConfigMap kube-system/cilium-config";
    let table = agent.hive.get::<Table<ConfigRow>>();
    let row = |key: &str| {
        let snapshot = table.snapshot();
        table
            .all(&snapshot)
            .filter(|row| row.key == key)
            .map(|row| row.row()[1..].join(" | "))
            .collect::<Vec<_>>()
    };
    assert_eq!(row("debug"), [format!("{object} | 4 | true | true | in force")]);
    assert_eq!(row("mtu"), [format!("{object} | 4 | 9000 | 0 | takes effect at the next start")]);
    assert_eq!(
        row("enable-policy")[0],
        format!("{object} | 4 | never | always | overridden by set by the program")
    );
    let (_, page) = agent.ask_for("/apiary/drift", "GET", "").await;
    assert!(
        page.contains(&format!("mtu: running with \"0\", {object} says \"9000\": takes effect")),
        "{page}"
    );

    source.0.send_replace(map(r#"{"debug":"false"}"#));
    agent.hive.until("no drift", || agent.option("Debug") == "Disabled" && agent.drift() == "0").await;
    source.0.send_replace(map(r#"{"debug":"perhaps","mtu":"9000"}"#));
    let health = || agent.hive.health("daemonconfig.configuration");
    agent.hive.until("a refusal", || health().error.contains("option debug: \"perhaps\" is not")).await;
    agent.hive.until("both to count", || agent.drift() == "2").await;
    assert_eq!(agent.option("Debug"), "Disabled");
    drop((table, source));
    agent.end().await;
}

/// Without `config-sources`, or with `apply-dynamic-config=false`, drift is only reported, as in Cilium.
#[tokio::test]
async fn default_objects_are_only_compared() {
    for options in [vec![], vec![("config-sources", NAMED), ("apply-dynamic-config", "false")]] {
        let data = r#"{"debug":"true","mtu":"9000","api-rate-limit":""}"#;
        let ignored = ("ignore-flags-drift-checker", "mtu");
        let (agent, source) = with_map(data, &[&options[..], &[ignored]].concat()).await;
        agent.hive.until("the difference", || agent.drift() == "1").await;
        assert_eq!(agent.option("Debug"), "Disabled");
        let (_, page) = agent.ask_for("/apiary/drift", "GET", "").await;
        let line =
            "debug: running with \"false\", ConfigMap kube-system/cilium-config says \"true\": not followed";
        assert!(page.contains(line), "{page}");
        source.0.send_replace(map("{}"));
        agent.hive.until("no drift", || agent.drift() == "0").await;
        drop(source);
        agent.end().await;
    }
}
