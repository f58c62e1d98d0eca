//! A real Envoy as the client, of upstream: it has none of Cilium's filters.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use envoy_api::cluster::Cluster;
use envoy_api::listener::Listener;
use hive::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use xds::Delivery;

use crate::config::EnvoyConfig;
use crate::kind::Kind;
use crate::listeners::Settings;
use crate::metrics::Counters;
use crate::process::{Bootstrap, EnvoyProcessConfig, Process, admin};
use crate::resources::{Owner, Resources, encoded};
use crate::server::{Services, serve};
use crate::testing::Upstream;

const PROXY: &str = "cilium-http-egress";

/// Serves resources on a socket, until the hive stops.
async fn server(resources: &Resources, socket: &Path) -> TestHive {
    let (services, socket) = (Services::new(resources.clone()).unwrap(), socket.to_owned());
    let serving = invoke(move |jobs: JobGroup| {
        let (services, socket) = (services.clone(), socket.clone());
        jobs.one_shot("xds", move |cx: JobCx| serve(socket, 0, services, cx)).add();
    });
    let mut hive = TestHive::new([module("xds", "A server", [serving])]);
    hive.start().await;
    hive
}

/// Returns a listener without Cilium's filters.
fn plain(mut listener: Listener) -> Listener {
    listener.listener_filters.retain(|filter| !filter.name.starts_with("cilium."));
    listener.filter_chains.retain(|chain| chain.transport_socket.is_none());
    for chain in &mut listener.filter_chains {
        chain.filters.retain(|filter| !filter.name.starts_with("cilium."));
        for filter in &mut chain.filters {
            use envoy_api::listener::filter::ConfigType;
            use envoy_api::{Message as _, http::HttpConnectionManager};
            let Some(ConfigType::TypedConfig(any)) = &mut filter.config_type else { continue };
            if any.type_url.ends_with(".HttpConnectionManager") {
                let mut manager = HttpConnectionManager::decode(&*any.value).unwrap();
                manager.http_filters.retain(|filter| !filter.name.starts_with("cilium."));
                any.value = manager.encode_to_vec();
            }
        }
    }
    listener
}

fn listeners(resources: &Resources, listener: &Listener) -> u64 {
    let all = BTreeMap::from([(Arc::from(listener.name.as_str()), encoded(listener))]);
    resources.replace(Owner::Policy, Kind::Listeners, all).unwrap()
}

fn clusters(resources: &Resources, settings: &Settings, keep: impl Fn(&Cluster) -> bool) -> u64 {
    let all = settings.clusters().into_iter().filter(|(_, cluster)| keep(cluster));
    let all = all.map(|(name, cluster)| (Arc::from(name), encoded(&cluster))).collect();
    resources.replace(Owner::Policy, Kind::Clusters, all).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstream_takes_listeners_and_clusters_and_refuses_those_of_cilium() {
    test_kit::require_root!();
    let binary = Upstream::binary();
    test_kit::require!(binary.is_some(), "Envoy is not there: tools/envoy fetches it");
    let (binary, folder) = (binary.unwrap(), tempfile::tempdir().unwrap());
    let socket = folder.path().join("xds.sock");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let settings = Settings {
        config: EnvoyConfig { http_403_msg: "denied".to_owned(), ..EnvoyConfig::default() },
        addresses: vec!["127.0.0.1", "::1"],
        bpf_root: "/sys/fs/bpf".to_owned(),
        bpf_tproxy: false,
        access_log: folder.path().join("access_log.sock"),
    };
    let resources = Resources::new(Counters::default());
    let of_clusters = clusters(&resources, &settings, |cluster| cluster.transport_socket.is_none());
    let whole = settings.listener(PROXY, true, false, free);
    let of_listener = listeners(&resources, &plain(whole.clone()));
    let mut hive = server(&resources, &socket).await;
    let _envoy = Upstream::start(&binary, folder.path(), &socket).unwrap();
    let is =
        |kind, name: &str, version, wanted: &Delivery| resources.delivery(kind, name, version) == *wanted;
    let done = |kind, name: &str, version| is(kind, name, version, &Delivery::Done);
    hive.until("clusters are accepted", || done(Kind::Clusters, "egress-cluster", of_clusters)).await;
    hive.until("the listener is accepted", || done(Kind::Listeners, &whole.name, of_listener)).await;
    let answer = async || {
        let mut stream = TcpStream::connect(("127.0.0.1", free)).await.ok()?;
        stream.write_all(b"GET /a//b HTTP/1.1\r\nhost: a.io\r\nconnection: close\r\n\r\n").await.ok()?;
        let mut answer = String::new();
        tokio::time::timeout(Duration::from_secs(5), stream.read_to_string(&mut answer)).await.ok()?.ok()?;
        Some(answer)
    };
    let text = answer().await.unwrap();
    assert!(text.starts_with("HTTP/1.1 503"), "it serves, and knows no original destination: {text}");

    let refused = |kind, name: &str, version, text: &str| match resources.delivery(kind, name, version) {
        Delivery::Refused(error) => error.contains(text),
        _ => false,
    };
    let of_whole = listeners(&resources, &whole);
    let names = [whole.name.as_str(), "cilium."];
    hive.until("filters of Cilium are refused, by the name of the listener", || {
        names.iter().all(|text| refused(Kind::Listeners, &whole.name, of_whole, text))
    })
    .await;
    assert!(answer().await.unwrap().starts_with("HTTP/1.1 503"), "the former one serves on");
    let of_all = clusters(&resources, &settings, |_| true);
    hive.until("the transport socket is refused", || {
        refused(Kind::Clusters, "egress-cluster-tls", of_all, "cilium.tls_wrapper")
    })
    .await;

    // The next process of the agent knows no versions; Envoy holds those of this one.
    hive.stop().await;
    let before = resources.version(Kind::Clusters);
    let resources = Resources::new(Counters::default());
    clusters(&resources, &settings, |cluster| cluster.transport_socket.is_none());
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let moved = plain(settings.listener(PROXY, true, false, port));
    let of_moved = listeners(&resources, &moved);
    let mut hive = server(&resources, &socket).await;
    hive.until("it is accepted", || {
        resources.delivery(Kind::Listeners, &moved.name, of_moved) == Delivery::Done
    })
    .await;
    assert!(resources.version(Kind::Clusters) >= of_clusters && before > 0);
    assert!(resources.version(Kind::Listeners) > of_listener, "versions continue");
    hive.stop().await;
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Requests a path of a port, and returns the answer.
async fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: a.io\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    tokio::time::timeout(Duration::from_secs(5), stream.read_to_string(&mut answer)).await.ok()?.ok()?;
    Some(answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstream_runs_as_a_process_of_the_agent_and_is_replaced_when_it_is_killed() {
    test_kit::require_root!();
    let binary = Upstream::binary();
    test_kit::require!(binary.is_some(), "Envoy is not there: tools/envoy fetches it");
    let folder = tempfile::tempdir().unwrap();
    let sockets = folder.path().join("envoy/sockets");
    let [metrics, port] = [free_port(), free_port()];
    let settings = Settings {
        config: EnvoyConfig::default(),
        addresses: vec!["127.0.0.1"],
        bpf_root: "/sys/fs/bpf".to_owned(),
        bpf_tproxy: false,
        access_log: folder.path().join("access_log.sock"),
    };
    let resources = Resources::new(Counters::default());
    clusters(&resources, &settings, |cluster| cluster.transport_socket.is_none());
    listeners(&resources, &plain(settings.listener(PROXY, true, false, port)));
    let config = EnvoyProcessConfig {
        // Beside other tests: Envoys of one id refuse each other.
        envoy_base_id: std::process::id(),
        proxy_prometheus_port: metrics,
        ..EnvoyProcessConfig::default()
    };
    let bootstrap = Bootstrap { config, connect_timeout: 2, is_ipv4: true };
    let process = Process {
        binary: binary.unwrap(),
        bootstrap,
        sockets: sockets.clone(),
        resources: resources.clone(),
    };
    let (services, socket) = (Services::new(resources.clone()).unwrap(), sockets.join("xds.sock"));
    let cells = invoke(move |jobs: JobGroup| {
        let (process, services, socket) = (process.clone(), services.clone(), socket.clone());
        jobs.one_shot("xds", move |cx: JobCx| serve(socket, 0, services, cx)).add();
        jobs.one_shot("process", move |cx: JobCx| process.run(cx)).add();
    });
    let mut hive = TestHive::new([module("envoy", "An Envoy", [cells])]);
    hive.start().await;
    let is_done = || {
        let version = resources.version(Kind::Listeners);
        resources.delivery(Kind::Listeners, &format!("{PROXY}:{port}"), version) == Delivery::Done
    };
    hive.until("it has the listener", is_done).await;
    assert!(get(port, "/").await.unwrap().starts_with("HTTP/1.1 503"));
    let series = get(metrics, "/metrics").await.unwrap();
    assert!(series.contains("envoy_server_uptime"), "{series}");
    let pid = || {
        let message = hive.health("envoy.job-process").message;
        let rest = message.strip_prefix("Envoy runs, process ")?;
        rest.split(',').next()?.parse::<u32>().ok()
    };
    let first = pid().unwrap();
    std::process::Command::new("kill").args(["-9", &first.to_string()]).status().unwrap();
    hive.until("another one is started", || pid().is_some_and(|pid| pid != first)).await;
    hive.until("it has lost the first one", || !is_done()).await;
    hive.until("it has the listener again", is_done).await;
    hive.stop().await;
    assert!(get(port, "/").await.unwrap().starts_with("HTTP/1.1 503"), "it serves without an agent");
    admin::quit(&sockets.join("admin.sock")).await.unwrap();
}
