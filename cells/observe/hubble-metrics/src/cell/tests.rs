//! The cell in a hive with Hubble's, scraped over TCP.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use local_node::LocalNode;
use monitor::Monitor;
use test_kit::{Authority, Identity as Certificate, Valid};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

fn hive(folder: &Path) -> TestHive {
    let node = LocalNode { name: "node".into(), cluster: "east".into(), ..LocalNode::default() };
    // The tables of other cells, empty.
    let tables = [
        module("endpoints", "Endpoints", [statedb::table::<Endpoint>()]),
        module("ipcache", "Addresses", [statedb::table::<Entry>()]),
        module("identity", "Identities", [statedb::table::<identity::Identity>()]),
        module("loadbalancer", "Frontends", [statedb::table::<loadbalancer::Frontend>()]),
        module("devices", "Devices", [statedb::table::<devices::Device>()]),
        module("node-manager", "Nodes", [statedb::table::<node_manager::Node>()]),
    ];
    let cells = [statedb::cell(), local_node::testing::given(node), bundle(tables), hubble::cell(), cell()];
    TestHive::needing::<local_node::LocalNodeStore>(cells)
        .supply(Arc::new(Monitor::new(16)))
        .set("hubble-socket-path", folder.join("hubble.sock").display())
        .set("enable-hubble", true)
}

/// Returns a free address: that of a listener that is closed again.
fn free() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

async fn get(address: &str, path: &str) -> Option<String> {
    get_with(address, path, "").await
}

/// Returns the answer to a request with further headers.
async fn get_with(address: &str, path: &str, headers: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{headers}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}

/// A drop, by the reason, without a packet.
fn dropped(reason: u8) -> Vec<u8> {
    let mut event = vec![1, reason];
    event.resize(48, 0);
    event[14] = 3;
    event
}

#[tokio::test]
async fn drops_are_scraped_and_the_file_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let (path, address) = (folder.path().join("metrics.yaml"), free());
    std::fs::write(
        &path,
        "metrics: [{name: drop, excludeFilters: [{drop_reason_desc: [INVALID_PACKET_DROPPED]}]}]",
    )
    .unwrap();
    let mut hive = hive(folder.path())
        .set("hubble-metrics-server", &address)
        .set("enable-hubble-open-metrics", true)
        .set("hubble-dynamic-metrics-config-path", path.display());
    hive.start().await;
    let monitor = hive.get::<Monitor>();
    hive.until("the observer listens", || monitor.has_subscriptions()).await;
    let set = hive.get::<Counting>().0.clone().unwrap();
    hive.until("the file is read", || set.len() == 1).await;
    monitor.publish(|| dropped(133));
    monitor.publish(|| dropped(134));
    let registry = hive.get::<HubbleRegistry>();
    let counted = "hubble_drop_total{protocol=\"Unknown L4\",reason=\"POLICY_DENIED\"} 1\n";
    hive.until("a drop is counted", || registry.0.text().contains(counted)).await;
    let mut answer = None;
    while answer.is_none() {
        tokio::task::yield_now().await;
        answer = get(&address, "/metrics").await;
    }
    let answer = answer.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(counted), "{answer}");
    assert!(!answer.contains("INVALID_PACKET"), "{answer}");
    assert!(get(&address, "/other").await.unwrap().starts_with("HTTP/1.1 404"));
    let answer = get(&address, "/metrics").await.unwrap();
    assert!(answer.contains("hubble_metrics_http_handler_requests_total{code=\"200\"} 1\n"), "{answer}");
    assert!(answer.contains("content-type: text/plain") && !answer.contains("# EOF"), "{answer}");
    let accept = "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3\r\n";
    let answer = get_with(&address, "/metrics", accept).await.unwrap();
    assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0"), "{answer}");
    assert!(answer.contains("# TYPE hubble_drop counter\n") && answer.ends_with("# EOF\n"), "{answer}");
    std::fs::write(&path, "metrics: [{name: drop}, {name: tcp}]").unwrap();
    hive.until("the file is read again", || set.len() == 2).await;
    hive.stop().await;
    assert!(get(&address, "/metrics").await.is_none());
}

/// Returns the answer to a client of TLS; nothing if it is refused.
async fn get_by_tls(address: &str, options: &[&std::ffi::OsStr]) -> String {
    let mut openssl = Command::new("openssl");
    openssl.args(["s_client", "-quiet", "-verify_return_error", "-connect", address]).args(options);
    openssl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let output = hive::blocking(move || {
        let mut client = openssl.spawn()?;
        // A refused client may have ended before it reads this.
        let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        drop(client.stdin.take().map(|mut stdin| stdin.write_all(request)));
        client.wait_with_output()
    });
    String::from_utf8(output.await.unwrap().stdout).unwrap()
}

#[tokio::test]
async fn by_tls_only_clients_with_a_certificate_of_the_authority_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let address = free();
    let (good, other) = (Authority::new(folder.path(), "good"), Authority::new(folder.path(), "other"));
    let mut hive = hive(folder.path())
        .set("hubble-metrics-server", &address)
        .set("hubble-metrics", "drop")
        .set("hubble-metrics-server-enable-tls", true)
        .set("hubble-metrics-server-tls-cert-file", path("server.crt").display())
        .set("hubble-metrics-server-tls-key-file", path("server.key").display())
        .set("hubble-metrics-server-tls-client-ca-files", good.certificate().display());
    hive.start().await;
    let health = |job: &str| hive.hive().health().at(&format!("hubble-metrics.job-{job}"));
    hive.until("the job waits for files", || {
        health("certificates").is_some_and(|it| it.error.contains("server.crt: is no certificate in PEM"))
    })
    .await;
    assert!(get(&address, "/metrics").await.is_none());
    let server = good.issue("server-certificate", "DNS:node", Valid::Now);
    std::fs::copy(&server.key, path("server.key")).unwrap();
    std::fs::copy(&server.certificate, path("server.crt")).unwrap();
    let is_served = || health("server").is_some_and(|it| it.message.starts_with("Serving"));
    hive.until("the address is bound", is_served).await;

    let (client, foreign) =
        (good.issue("client", "DNS:client", Valid::Now), other.issue("foreign", "DNS:client", Valid::Now));
    let authority = good.certificate();
    let ask = async |certificate: &Certificate, version: &str| {
        let options = [
            "-CAfile".as_ref(),
            authority.as_os_str(),
            "-cert".as_ref(),
            certificate.certificate.as_os_str(),
            "-key".as_ref(),
            certificate.key.as_os_str(),
            version.as_ref(),
        ];
        get_by_tls(&address, &options).await
    };
    let answer = ask(&client, "-tls1_3").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(ask(&client, "-tls1_2").await, "");
    assert_eq!(ask(&foreign, "-tls1_3").await, "");
    assert_eq!(get_by_tls(&address, &["-CAfile".as_ref(), authority.as_os_str()]).await, "");
    let plain = get(&address, "/metrics").await.unwrap_or_default();
    assert!(!plain.contains("HTTP"), "{plain}");
    hive.stop().await;
}

#[tokio::test]
async fn without_an_address_nothing_is_counted_and_two_sources_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut off = hive(folder.path()).set("hubble-metrics", "drop");
    off.start().await;
    assert!(off.get::<Counting>().0.is_none());
    off.stop().await;
    for (address, options, fault) in [
        (":0", "drop", "hubble-metrics and hubble-dynamic-metrics-config-path are both set"),
        ("nowhere", "", "hubble-metrics-server: \"nowhere\" is no address"),
    ] {
        let mut both = hive(folder.path())
            .set("hubble-metrics-server", address)
            .set("hubble-metrics", options)
            .set("hubble-dynamic-metrics-config-path", "/nowhere");
        let error = both.try_start().await.unwrap_err().to_string();
        assert!(error.contains(fault), "{error}");
    }
    let mut bare =
        hive(folder.path()).set("hubble-metrics-server", ":0").set("hubble-metrics-server-enable-tls", true);
    let error = bare.try_start().await.unwrap_err().to_string();
    assert!(error.contains("hubble-metrics-server-tls-cert-file: is empty"), "{error}");
}
