//! The cell in a hive with Hubble's, on events of the monitor.

use std::path::Path;

use endpoints::Endpoint;
use monitor::Monitor;

use super::*;

fn hive(options: &[(&str, String)]) -> TestHive {
    let node = LocalNode { name: "node".into(), cluster: "east".into(), ..LocalNode::default() };
    // The tables of other cells, empty.
    let tables = [
        module("endpoints", "Endpoints", [statedb::table::<Endpoint>()]),
        module("ipcache", "Addresses", [statedb::table::<ipcache::Entry>()]),
        module("identity", "Identities", [statedb::table::<identity::Identity>()]),
        module("loadbalancer", "Frontends", [statedb::table::<loadbalancer::Frontend>()]),
        module("devices", "Devices", [statedb::table::<devices::Device>()]),
        module("node-manager", "Nodes", [statedb::table::<node_manager::Node>()]),
    ];
    let cells = [statedb::cell(), local_node::testing::given(node), bundle(tables), hubble::cell(), cell()];
    let hive = TestHive::needing::<local_node::LocalNodeStore>(cells)
        .supply(Arc::new(Monitor::new(16)))
        .set("enable-hubble", true);
    options.iter().fold(hive, |hive, (key, value)| hive.set(key, value))
}

/// A drop, by the reason, without a packet.
fn dropped(reason: u8) -> Vec<u8> {
    let mut event = vec![1, reason];
    event.resize(48, 0);
    event[14] = 3;
    event
}

fn lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn flows_are_written_by_options_and_by_a_file_that_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let file = |text: &str| {
        // As ConfigMaps are replaced: at once.
        std::fs::write(path("new"), text.replace("DIR", &folder.path().display().to_string())).unwrap();
        std::fs::rename(path("new"), path("flowlogs.yaml")).unwrap();
    };
    file("flowLogs: [{name: a, filePath: DIR/a.log, fieldMask: [drop_reason_desc]}]");
    let mut hive = hive(&[
        ("hubble-socket-path", path("hubble.sock").display().to_string()),
        ("hubble-export-file-path", path("all.log").display().to_string()),
        ("hubble-export-denylist", "{\"drop_reason_desc\":[\"INVALID_PACKET_DROPPED\"]}".to_owned()),
        ("hubble-export-fieldmask", "drop_reason_desc node_name".to_owned()),
        ("hubble-flowlogs-config-path", path("flowlogs.yaml").display().to_string()),
    ]);
    hive.start().await;
    let monitor = hive.get::<Monitor>();
    hive.until("the observer listens", || monitor.has_subscriptions()).await;
    let text = |hive: &TestHive| hive.get::<HubbleRegistry>().0.text();
    hive.until("the file is read", || text(&hive).contains("hubble_dynamic_exporter_up{name=\"a\"} 1\n"))
        .await;
    monitor.publish(|| dropped(133));
    monitor.publish(|| dropped(134));
    hive.until("both are written", || (lines(&path("all.log")).len(), lines(&path("a.log")).len()) == (1, 2))
        .await;
    let all =
        r#"{"flow":{"node_name":"east/node","drop_reason_desc":"POLICY_DENIED"},"node_name":"east/node"}"#;
    assert_eq!(lines(&path("all.log")), [all]);
    assert_eq!(lines(&path("a.log"))[0], r#"{"flow":{"drop_reason_desc":"POLICY_DENIED"}}"#);

    file("flowLogs: [{name: b, filePath: DIR/b.log, fieldAggregate: [verdict], aggregationInterval: 1h}]");
    hive.until("b is an exporter", || text(&hive).contains("hubble_dynamic_exporter_up{name=\"b\"} 1\n"))
        .await;
    assert!(!text(&hive).contains("name=\"a\""), "{}", text(&hive));
    file("flowLogs: [{name: b}]");
    let failed = "hubble_dynamic_exporter_reconfigurations_total{op=\"failure\"} 1\n";
    hive.until("the file is refused", || text(&hive).contains(failed)).await;
    // The same path in another form.
    file("flowLogs: [{name: c, filePath: DIR//all.log}]");
    let failed = "hubble_dynamic_exporter_reconfigurations_total{op=\"failure\"} 2\n";
    hive.until("the file of the options is refused", || text(&hive).contains(failed)).await;
    monitor.publish(|| dropped(133));
    hive.until("it is written", || lines(&path("all.log")).len() == 2).await;
    hive.stop().await;
    assert_eq!(lines(&path("a.log")).len(), 2);
    // The stop ends the interval.
    let b = lines(&path("b.log"));
    assert!(b.len() == 1 && b[0].contains(r#""verdict":"DROPPED""#), "{b:?}");
    assert!(b[0].contains(r#""aggregate":{"unknown_direction_flow_count":1}"#), "{b:?}");
}

#[tokio::test]
async fn options_without_a_valid_form_fail_the_start() {
    for (key, value, fault) in [
        ("hubble-export-allowlist", "{", "hubble-export-allowlist: objects in JSON"),
        ("hubble-export-fieldmask", "sauce", "invalid fieldmask: \"sauce\""),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut hive = hive(&[
            ("hubble-socket-path", folder.path().join("hubble.sock").display().to_string()),
            ("hubble-export-file-path", folder.path().join("all.log").display().to_string()),
            (key, value.to_owned()),
        ]);
        let error = hive.try_start().await.unwrap_err().to_string();
        assert!(error.contains(fault), "{error}");
    }
}
