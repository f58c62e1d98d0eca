//! A real Envoy that takes a configuration without Cilium's filters.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use envoy_api::Types;
use envoy_proxy::testing::{Upstream, serve};
use envoy_proxy::{Delivery, Envoy, Kind};
use hive::prelude::*;
use serde_json::json;

use crate::backends::assignment;
use crate::model::ClusterAddresses;
use crate::testing::resources;

/// Answers each connection with a page.
fn server(jobs: JobGroup, page: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    jobs.one_shot("server", move |cx: JobCx| async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        while let Some(Ok((mut stream, _))) = cx.token().run_until_cancelled(listener.accept()).await {
            use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await?;
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{page}", page.len());
            stream.write_all(answer.as_bytes()).await?;
        }
        Ok(())
    })
    .add();
    port
}

fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: a.io\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstream_serves_a_configuration() {
    test_kit::require_root!();
    let binary = Upstream::binary();
    test_kit::require!(binary.is_some(), "Envoy is not there: tools/envoy fetches it");
    let (binary, folder) = (binary.unwrap(), tempfile::tempdir().unwrap());
    let socket = folder.path().join("xds.sock");
    let ports = Arc::new(std::sync::Mutex::new(0));
    let of_server = ports.clone();
    let started = invoke(move |jobs: JobGroup| *of_server.lock().unwrap() = server(jobs, "from the store"));
    let mut hive = TestHive::new([serve(socket.clone()), module("server", "A server", [started])]);
    hive.start().await;
    let backend = *ports.lock().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let of = |kind: &str| format!("type.googleapis.com/envoy.{kind}");
    let manager = json!({
        "@type": of("extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "front",
        "rds": {"route_config_name": "paths"},
        "http_filters": [{"name": "envoy.filters.http.router",
            "typed_config": {"@type": of("extensions.filters.http.router.v3.Router")}}],
    });
    let object = json!({
        "metadata": {"name": "gate", "namespace": "web"},
        "spec": {"backendServices": [{"name": "store"}], "resources": [
            {"@type": of("config.listener.v3.Listener"), "name": "front",
                "address": {"socket_address": {"address": "127.0.0.1", "port_value": free}},
                "filter_chains": [{"filters": [
                    {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}]},
            {"@type": of("config.route.v3.RouteConfiguration"), "name": "paths", "virtual_hosts": [
                {"name": "all", "domains": ["*"],
                    "routes": [{"match": {"prefix": "/store"}, "route": {"cluster": "web/store"}}]}]},
            {"@type": of("config.cluster.v3.Cluster"), "name": "web/store", "connect_timeout": "2s", "type": "EDS"},
        ]},
    });
    let types = Types::load().unwrap();
    let found = resources(object.to_string().as_bytes(), free, &types).unwrap().unwrap();
    let envoy = hive.get::<Envoy>();
    let addresses = vec![("127.0.0.1".to_owned(), backend)];
    let endpoints = assignment(&ClusterAddresses { cluster: "web/store".to_owned(), addresses });
    envoy.replace(Kind::Endpoints, BTreeMap::from([endpoints]));
    let mut versions = BTreeMap::new();
    for kind in [Kind::Clusters, Kind::Routes, Kind::Listeners] {
        let of_kind = found.iter().filter(|(of, ..)| *of == kind);
        let of_kind = of_kind.map(|(_, name, value)| (Arc::from(name.as_str()), value.clone())).collect();
        versions.insert(kind, envoy.replace(kind, of_kind));
    }
    let _envoy = Upstream::start(&binary, folder.path(), &socket).unwrap();
    for (kind, name) in
        [(Kind::Clusters, "web/store"), (Kind::Listeners, "web/gate/front"), (Kind::Routes, "web/gate/paths")]
    {
        hive.until(&format!("{name} is accepted"), || {
            envoy.delivery(kind, name, versions[&kind]) == Delivery::Done
        })
        .await;
    }
    let is_served = || get(free, "/store").is_some_and(|answer| answer.ends_with("from the store"));
    hive.until("requests are served by the backend", is_served).await;
    assert!(get(free, "/other").unwrap().starts_with("HTTP/1.1 404"));
    hive.stop().await;
}
