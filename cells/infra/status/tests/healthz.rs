//! The cell in a hive of its own, queried over its sockets.

use std::io::{Read, Write};
use std::net::{TcpListener as StdListener, TcpStream as StdStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use api::StatusSource;
use api_models::{K8sStatus, Status, StatusResponse};
use hive::TestHive;
use hive::prelude::*;
use k8s_tables::Row;
use k8s_tables::core::Node;
use local_node::{LocalNode, LocalNodeStore};
use statedb::Table;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

struct Agent {
    hive: TestHive,
    socket: PathBuf,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Agent {
    async fn end(mut self) {
        self.hive.stop().await;
    }

    async fn start(sources: Vec<StatusSource>, more: Vec<Cell>) -> Self {
        Self::start_with(sources, more, &[]).await
    }

    async fn start_with(sources: Vec<StatusSource>, more: Vec<Cell>, options: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("cilium.sock");
        let port = StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut cells =
            vec![statedb::cell(), metrics::cell(), api::cell(), status::cell(), supply(Members(sources))];
        cells.extend(more);
        let mut hive =
            TestHive::new(cells).set("socket-path", socket.display()).set("agent-health-port", port);
        for (option, value) in options {
            hive = hive.set(option, value);
        }
        hive.start().await;
        Self { hive, socket, port, _folder: folder }
    }

    async fn status(&self, headers: &str) -> StatusResponse {
        serde_json::from_str(&self.body(headers).await).unwrap()
    }

    async fn body(&self, headers: &str) -> String {
        let answer = unix(&self.socket, headers).await;
        assert!(answer.starts_with("HTTP/1.0 200 OK"), "{answer}");
        let start = answer.find("{").unwrap();
        answer[start..].lines().next().unwrap().to_owned()
    }

    /// Sends the kubelet's request; returns the status of the answer, which has no body.
    async fn probe(&self, headers: &str) -> u16 {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let request = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.to_lowercase().contains("content-length: 0\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\n"), "{answer}");
        answer.split(' ').nth(1).unwrap().parse().unwrap()
    }
}

async fn unix(socket: &Path, headers: &str) -> String {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    // HTTP/1.0, so that the body is not chunked.
    let request = format!("GET /v1/healthz HTTP/1.0\r\nHost: x\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn state(status: &StatusResponse) -> (&str, &str) {
    let cilium = status.cilium.as_ref().unwrap();
    (&cilium.state, &cilium.msg)
}

#[tokio::test]
async fn a_healthy_agent_is_reported_on_all_endpoints() {
    let agent = Agent::start(vec![], vec![]).await;
    assert_eq!(agent.probe("").await, 200);
    let status = agent.status("").await;
    assert_eq!(state(&status), ("Ok", "1.20.0 (v1.20.0)"));
    assert_eq!(status.kubernetes.as_ref().unwrap().state, "Disabled");
    assert_eq!(status.kvstore.as_ref().unwrap().state, "Disabled");
    let jobs: Vec<_> = status.controllers.iter().map(|job| job.name.as_str()).collect();
    assert!(jobs.contains(&"agent-healthz-server"), "{jobs:?}");
    // Equal to Cilium's brief answer but for the version and the health of the cluster.
    let brief = "{\"cilium\":{\"msg\":\"1.20.0 (v1.20.0)\",\"state\":\"Ok\"},\
                 \"cluster\":{\"ciliumHealth\":{\"state\":\"Disabled\"},\"nodes\":null}}";
    assert_eq!(agent.body("brief: true\r\n").await, brief);
    agent.end().await;
}

#[tokio::test]
async fn a_node_that_cannot_serve_pods_yet_fails_probes_with_the_reason() {
    let waits = Arc::new(AtomicBool::new(true));
    let known = waits.clone();
    let source = StatusSource::new("ipam", move |status| {
        if known.load(Ordering::Relaxed) {
            let msg = "Pods get no addresses yet".to_owned();
            status.cilium = Some(Status { state: "Warning".to_owned(), msg });
        }
    });
    let agent = Agent::start(vec![source], vec![]).await;
    assert_eq!(agent.probe("").await, 503);
    for headers in ["", "brief: true\r\n"] {
        assert_eq!(state(&agent.status(headers).await), ("Warning", "Pods get no addresses yet"));
    }
    waits.store(false, Ordering::Relaxed);
    assert_eq!(state(&agent.status("").await), ("Ok", "1.20.0 (v1.20.0)"));
    agent.end().await;
}

#[tokio::test]
async fn the_parts_are_those_of_cilium() {
    let agent = Agent::start(vec![], vec![]).await;
    let ours: serde_json::Value = serde_json::from_str(&agent.body("").await).unwrap();
    let sample = include_str!("../../api/models/tests/samples/GET_healthz.json");
    let sample: serde_json::Value = serde_json::from_str(sample).unwrap();
    let missing: Vec<_> =
        sample.as_object().unwrap().keys().filter(|part| ours.get(part.as_str()).is_none()).collect();
    // Parts of cells that are not in this hive, or of features that are off.
    assert_eq!(missing, ["bpf-maps", "ipam", "nodeMonitor", "proxy"]);
    agent.end().await;
}

#[tokio::test]
async fn parts_of_disabled_features_are_those_of_cilium() {
    let agent = Agent::start(vec![], vec![]).await;
    let ours: serde_json::Value = serde_json::from_str(&agent.body("").await).unwrap();
    let sample = include_str!("../../api/models/tests/samples/GET_healthz.json");
    let sample: serde_json::Value = serde_json::from_str(sample).unwrap();
    for part in ["ipv4-big-tcp", "ipv6-big-tcp", "srv6", "bandwidth-manager", "hubble-metrics", "encryption"]
    {
        assert_eq!(ours[part], sample[part], "{part}");
    }
    agent.end().await;
}

#[tokio::test]
async fn controllers_have_their_schedule_and_a_stable_uuid() {
    let slow = invoke(|jobs: JobGroup| {
        jobs.timer("slow", std::time::Duration::from_secs(300), |_| async { Ok(()) }).add();
        jobs.one_shot("once", |cx: JobCx| async move {
            for part in ["devices", "programs"] {
                cx.health.child(part).child("eth0").ok("There");
            }
            cx.cancelled().await;
            Ok(())
        })
        .add();
        let backoff = Backoff::constant(std::time::Duration::from_secs(60));
        jobs.one_shot_with_retry("again", backoff, |_| async { anyhow::bail!("no") }).add();
    });
    let agent = Agent::start(vec![], vec![module("test", "Has jobs", [slow])]).await;
    let uuids = |status: StatusResponse| -> Vec<_> {
        status.controllers.into_iter().map(|controller| (controller.name, controller.uuid)).collect()
    };
    let first = agent.status("").await;
    let configuration = |name: &str| {
        let controller = first.controllers.iter().find(|controller| controller.name == name);
        serde_json::to_value(controller.unwrap().configuration.as_ref().unwrap()).unwrap()
    };
    let timer = serde_json::json!({"error-retry": true, "interval": "5m0s"});
    assert_eq!(configuration("test-slow"), timer);
    assert_eq!(configuration("test-once"), serde_json::json!({}));
    assert_eq!(configuration("test-again"), serde_json::json!({"error-retry": true}));
    let names: Vec<&str> = first.controllers.iter().map(|controller| controller.name.as_str()).collect();
    assert!(
        names.contains(&"test-once-devices-eth0") && names.contains(&"test-once-programs-eth0"),
        "{names:?}"
    );
    let different: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(different.len(), names.len(), "{names:?}");
    let (first, second) = (uuids(first), uuids(agent.status("").await));
    assert_eq!(first, second);
    let different: std::collections::BTreeSet<_> = first.iter().map(|(_, uuid)| uuid.len()).collect();
    assert_eq!(different, [36].into());
    let different: std::collections::BTreeSet<_> = first.iter().map(|(_, uuid)| uuid).collect();
    assert_eq!(different.len(), first.len());
    agent.end().await;
}

#[tokio::test]
async fn kubernetes_is_required_on_request() {
    let lost = || {
        StatusSource::new("k8s", |status| {
            status.kubernetes = Some(K8sStatus {
                state: "Failure".to_owned(),
                msg: "connection refused".to_owned(),
                ..Default::default()
            });
        })
    };
    let agent = Agent::start(vec![lost()], vec![]).await;
    let message = "Kubernetes service is not ready: connection refused";
    assert_eq!(state(&agent.status("").await), ("Failure", message));
    assert_eq!(state(&agent.status("require-k8s-connectivity: false\r\n").await).0, "Ok");
    // On the probes' port the default without a header is the opposite.
    assert_eq!(agent.probe("").await, 200);
    assert_eq!(agent.probe("require-k8s-connectivity: true\r\n").await, 503);
    assert_eq!(agent.probe("require-k8s-connectivity: false\r\n").await, 200);
    agent.end().await;
    // The option overrides that default.
    for (value, answer) in [("true", 503), ("false", 200)] {
        let set = [("agent-health-require-k8s-connectivity", value)];
        let agent = Agent::start_with(vec![lost()], vec![], &set).await;
        assert_eq!(agent.probe("").await, answer);
        assert_eq!(agent.probe("require-k8s-connectivity: true\r\n").await, 503);
        assert_eq!(agent.probe("require-k8s-connectivity: false\r\n").await, 200);
        agent.end().await;
    }
}

#[tokio::test]
async fn a_lost_kvstore_and_an_unwritten_cni_file_fail_the_probes() {
    for (part, message) in [
        ("kvstore", "Kvstore service is not ready: broken"),
        ("cni", "Could not write CNI config file: broken"),
    ] {
        let source = StatusSource::new(part, move |status| {
            let broken = Some(Status { state: "Failure".to_owned(), msg: "broken".to_owned() });
            if part == "cni" { status.cni_file = broken } else { status.kvstore = broken }
        });
        let agent = Agent::start(vec![source], vec![]).await;
        assert_eq!(state(&agent.status("").await), ("Failure", message));
        assert_eq!(agent.probe("").await, 503);
        agent.end().await;
    }
}

#[tokio::test]
async fn a_source_that_fails_makes_the_status_stale() {
    let broken = StatusSource::new("ipam", |_| panic!("no status"));
    let agent = Agent::start(vec![broken], vec![]).await;
    let status = agent.status("").await;
    assert_eq!(state(&status), ("Warning", "Stale status data"));
    assert_eq!(status.stale["ipam"].0, "0001-01-01T00:00:00.000Z");
    assert_eq!(agent.probe("").await, 503);
    agent.end().await;
}

#[tokio::test]
async fn a_degraded_module_is_named_on_the_socket_and_does_not_fail_probes() {
    let sick = module(
        "sick",
        "Reports to be degraded",
        [invoke(|health: Health| health.degraded("cannot attach", "no such device"))],
    );
    let agent = Agent::start(vec![], vec![sick]).await;
    assert_eq!(
        state(&agent.status("").await),
        ("Warning", "1 degraded: sick: no such device (apiary explain sick)")
    );
    assert_eq!(agent.probe("").await, 200);
    agent.end().await;
}

#[tokio::test]
async fn a_stop_closes_the_port_and_a_second_agent_may_share_it() {
    let mut agent = Agent::start(vec![], vec![]).await;
    let folder = tempfile::tempdir().unwrap();
    let cells = [statedb::cell(), metrics::cell(), api::cell(), status::cell()];
    let mut second = TestHive::new(cells)
        .set("socket-path", folder.path().join("cilium.sock").display())
        .set("agent-health-port", agent.port);
    second.start().await;
    second.stop().await;
    assert_eq!(agent.probe("").await, 200);
    agent.hive.stop().await;
    assert!(TcpStream::connect(("127.0.0.1", agent.port)).await.is_err());
}

/// Two hives of the same cells have separate sockets, tables and health; the stop of one does not affect the other.
#[tokio::test]
async fn two_agents_in_one_process() {
    let extra = module("extra", "Only one has it", invoke(|health: Health| health.ok("here")));
    let (one, mut two) = tokio::join!(Agent::start(vec![], vec![]), Agent::start(vec![], vec![extra]));
    let has_extra = |agent: &Agent| agent.hive.hive().health().at("extra").is_some();
    assert_eq!((has_extra(&one), has_extra(&two)), (false, true));
    assert!(!std::sync::Arc::ptr_eq(&one.hive.get::<statedb::Db>(), &two.hive.get::<statedb::Db>()));
    for agent in [&one, &two] {
        assert_eq!(agent.probe("").await, 200);
        assert_eq!(state(&agent.status("").await).0, "Ok");
    }
    two.hive.stop().await;
    assert!(UnixStream::connect(&two.socket).await.is_err());
    assert!(TcpStream::connect(("127.0.0.1", two.port)).await.is_err());
    assert_eq!(one.probe("").await, 200);
    assert_eq!(state(&one.status("").await).0, "Ok");
    one.end().await;
}

/// Sends a load balancer's request; returns status and body. Blocks: the server has a thread of its own.
fn ask_proxy(port: u16, path: &str) -> (u16, String) {
    let mut stream = StdStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let is_typed = head.to_lowercase().contains("x-content-type-options: nosniff");
    assert_eq!(is_typed, path == "/healthz", "{answer}");
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[tokio::test]
async fn load_balancers_ask_as_they_ask_kube_proxy() {
    let port = StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let broken = Arc::new(AtomicBool::new(false));
    let of_source = broken.clone();
    let source = StatusSource::new("cni", move |status| {
        if of_source.load(Ordering::Relaxed) {
            status.cni_file = Some(Status { state: "Failure".to_owned(), msg: "x".to_owned() });
        }
    });
    let other_options = || {
        #[derive(hive::Config)]
        struct Other {
            /// As the services' cell has it
            #[flag(default = false)]
            kube_proxy_replacement: bool,
        }
        module(
            "other",
            "Options",
            [config::<Other>(), invoke(|other: Config<Other>| _ = other.kube_proxy_replacement)],
        )
    };
    let nodes = k8s_tables::table::<Node>();
    let given = local_node::testing::given(LocalNode { name: "here".to_owned(), ..LocalNode::default() });
    let needs = invoke(|_: Arc<LocalNodeStore>| ());
    let more = vec![
        other_options(),
        module("k8s-tables", "Nodes", [nodes]),
        k8s_fake_apiserver::cell(),
        given,
        needs,
    ];
    let options = [
        ("kube-proxy-replacement", "true"),
        ("kube-proxy-replacement-healthz-bind-address", address.as_str()),
        ("status-collector-interval", "100ms"),
    ];
    let agent = Agent::start_with(vec![source], more, &options).await;
    let (status, body) = ask_proxy(port, "/healthz");
    assert_eq!(status, 200, "{body}");
    let times: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert!(body.starts_with("{\"lastUpdated\": \"2") && body.contains("\",\"currentTime\": \"2"), "{body}");
    assert_eq!(times["lastUpdated"], times["currentTime"]);
    assert_eq!(ask_proxy(port, "/").0, 404);

    broken.store(true, Ordering::Relaxed);
    agent.hive.until("it is not well", || ask_proxy(port, "/healthz").0 == 503).await;
    let times: serde_json::Value = serde_json::from_str(&ask_proxy(port, "/healthz").1).unwrap();
    assert!(times["lastUpdated"].as_str() < times["currentTime"].as_str(), "{times}");
    broken.store(false, Ordering::Relaxed);
    agent.hive.until("it is well", || ask_proxy(port, "/healthz").0 == 200).await;

    let node = |name: &str, more: &str| {
        format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, finalizers: [a.b/c]{more}}}\n")
    };
    let going = ", deletionTimestamp: \"2026-01-01T00:00:00Z\"";
    let tracker = agent.hive.get::<k8s_fake_apiserver::Tracker>();
    tracker.add(&node("there", going)).unwrap();
    tracker.add(&node("here", "")).unwrap();
    let nodes = agent.hive.get::<Table<Row<Node>>>();
    let seen = || nodes.len(&nodes.snapshot()) == 2;
    agent.hive.until("both nodes are in the table", seen).await;
    assert_eq!(ask_proxy(port, "/healthz").0, 200);
    tracker.update(&node("here", going), false).unwrap();
    agent.hive.until("it is not well", || ask_proxy(port, "/healthz").0 == 503).await;
    agent.end().await;

    let without = [("kube-proxy-replacement-healthz-bind-address", address.as_str())];
    let agent = Agent::start_with(vec![], vec![other_options()], &without).await;
    assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
    assert_eq!(agent.hive.health("agent-healthz.kube-proxy-healthz").level, hive::Level::Degraded);
    agent.end().await;
}
