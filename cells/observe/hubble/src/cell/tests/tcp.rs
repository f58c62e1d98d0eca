//! The TCP listener with real clients: TLS, certificates that change, many followers, peers.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use futures::{StreamExt, future};
use hubble_api::peer::{ChangeNotification, ChangeNotificationType, NotifyRequest, peer_client::PeerClient};
use hubble_api::{ClientTls, ConnectError};
use hyper_util::rt::{TokioExecutor, TokioIo};
use node_manager::testing::{Nodes, node};
use test_kit::{Authority, Identity as Certificate, Valid};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::*;

/// The name in the certificate of the test's server.
const NAME: &str = "node.east.hubble-grpc.cilium.io";

/// Returns the address that the listener has.
async fn address(hive: &TestHive) -> String {
    let served = || {
        let status = hive.hive().health().at("hubble.job-tcp")?;
        status.message.strip_prefix("Serving ").map(str::to_owned)
    };
    hive.until("the address is bound", || served().is_some()).await;
    served().unwrap()
}

/// Returns the state and the message of the agent's status.
fn status(hive: &TestHive) -> (String, String) {
    let mut status = api_models::StatusResponse::default();
    hive.get::<Sources>().0.iter().for_each(|source| source.fill(&mut status));
    let hubble = status.hubble.unwrap();
    (hubble.state, hubble.msg)
}

fn tcp_hive(folder: &Path) -> TestHive {
    hive(folder).set("enable-hubble", true).set("hubble-listen-address", "127.0.0.1:0")
}

/// Two authorities, of which the server and its clients trust one, and the server's files.
struct Trust {
    folder: PathBuf,
    good: Authority,
    other: Authority,
}

impl Trust {
    fn new(folder: &Path) -> Self {
        let (good, other) = (Authority::new(folder, "good"), Authority::new(folder, "other"));
        Self { folder: folder.to_owned(), good, other }
    }

    fn hive(&self) -> TestHive {
        tcp_hive(&self.folder)
            .set("hubble-disable-tls", false)
            .set("hubble-tls-cert-file", self.folder.join("server.crt").display())
            .set("hubble-tls-key-file", self.folder.join("server.key").display())
            .set("hubble-tls-client-ca-files", self.good.certificate().display())
    }

    /// Replaces the server's files, each at once as mounted secrets are.
    fn install(&self, certificate: &Certificate) {
        for (from, name) in [(&certificate.certificate, "server.crt"), (&certificate.key, "server.key")] {
            std::fs::copy(from, self.folder.join("new")).unwrap();
            std::fs::rename(self.folder.join("new"), self.folder.join(name)).unwrap();
        }
    }

    fn client(&self, certificate: Option<&Certificate>) -> ClientTls {
        ClientTls {
            authorities: vec![self.good.certificate()],
            identity: certificate.map(|it| (it.certificate.clone(), it.key.clone())),
            server_name: Some(NAME.to_owned()),
            is_insecure: false,
        }
    }
}

/// Requests the status once. Returns all causes of a failure.
async fn ask(address: &str, tls: ClientTls) -> Result<(), String> {
    let causes = |error: &dyn std::error::Error| {
        let causes = std::iter::successors(Some(error), |error| error.source());
        causes.map(|error| format!("{error} {error:?}")).collect::<Vec<_>>().join(": ")
    };
    let server = Server::Tls(address.to_owned(), tls);
    let (connection, work) = connect(&server).await.map_err(|error| causes(&error))?;
    let mut observer = ObserverClient::new(connection);
    // The refusal of a client's certificate is an alert, which comes after the client's handshake.
    let status = observer.server_status(ServerStatusRequest {});
    tokio::select! {
        biased;
        ended = work => Err(ended.map_or_else(|error| causes(&error), |()| "closed".to_owned())),
        status = status => status.map(drop).map_err(|status| causes(&status)),
    }
}

#[tokio::test]
async fn only_clients_with_a_certificate_of_the_authority_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let trust = Trust::new(folder.path());
    let mut hive = trust.hive();
    hive.start().await;
    // The socket works while TCP waits for its files.
    hive.until("the socket is served", || folder.path().join("hubble.sock").exists()).await;
    hive.until("the job waits for files", || {
        hive.health("hubble.job-certificates").error.contains("server.crt: is no certificate in PEM")
    })
    .await;
    assert_eq!(hive.health("hubble.job-tcp").message, "Waits for certificates");
    assert_eq!(status(&hive), ("Warning".to_owned(), "Hubble starting".to_owned()));

    trust.install(&trust.good.issue("server", &format!("DNS:{NAME}"), Valid::Now));
    let address = address(&hive).await;
    assert_eq!(status(&hive), ("Ok".to_owned(), String::new()));
    let certificate = trust.good.issue("client", "DNS:client", Valid::Now);
    let good = trust.client(Some(&certificate));
    ask(&address, good.clone()).await.unwrap();
    let insecure =
        ClientTls { authorities: Vec::new(), server_name: None, is_insecure: true, ..good.clone() };
    ask(&address, insecure).await.unwrap();

    // Servers that the client does not trust.
    let refused = async |tls: ClientTls| ask(&address, tls).await.unwrap_err();
    let unknown = ClientTls { authorities: vec![trust.other.certificate()], ..good.clone() };
    assert!(refused(unknown).await.contains("UnknownIssuer"));
    let misnamed = ClientTls { server_name: None, ..good.clone() };
    assert!(refused(misnamed).await.contains("NotValidForName"));
    assert!(refused(ClientTls { authorities: Vec::new(), ..good.clone() }).await.contains("authorities"));

    // Clients that the server does not trust.
    let refusal = refused(trust.client(None)).await;
    assert!(refusal.contains("CertificateRequired"), "{refusal}");
    let expired = trust.good.issue("expired", "DNS:client", Valid::Before);
    let refusal = refused(trust.client(Some(&expired))).await;
    assert!(refusal.contains("CertificateExpired"), "{refusal}");
    let foreign = trust.other.issue("foreign", "DNS:client", Valid::Now);
    let refusal = refused(trust.client(Some(&foreign))).await;
    assert!(refusal.contains("UnknownCA") || refusal.contains("BadCertificate"), "{refusal}");
    let plain = connect(&Server::Tcp(address.clone())).await;
    let is_refused = match plain {
        Err(ConnectError::Protocol { .. }) => true,
        Err(error) => panic!("{error}"),
        Ok((_, work)) => work.await.is_err(),
    };
    assert!(is_refused, "plain text");
    for (version, is_served) in [("-tls1_2", false), ("-tls1_3", true)] {
        let mut openssl = Command::new("openssl");
        openssl.args(["s_client", "-connect", &address, version, "-alpn", "h2", "-cert"]);
        openssl
            .arg(&certificate.certificate)
            .arg("-key")
            .arg(&certificate.key)
            .stdin(std::process::Stdio::null());
        let output = hive::blocking(move || openssl.output()).await.unwrap();
        assert_eq!(output.status.success(), is_served, "{version}: {output:?}");
    }
    ask(&address, good).await.unwrap();
    hive.stop().await;
}

#[tokio::test]
async fn changed_certificates_are_in_force_for_the_next_connection() {
    let folder = tempfile::tempdir().unwrap();
    let trust = Trust::new(folder.path());
    let issue = |name: &str, valid| trust.good.issue(name, &format!("DNS:{NAME}"), valid);
    let (valid, expired) = (issue("valid", Valid::Now), issue("expired", Valid::Before));
    trust.install(&valid);
    let mut hive = trust.hive();
    hive.start().await;
    let address = address(&hive).await;
    let tls = trust.client(Some(&trust.good.issue("client", "DNS:client", Valid::Now)));
    let server = Server::Tls(address.clone(), tls.clone());
    let (connection, work) = connect(&server).await.unwrap();
    let tracker = TaskTracker::new();
    let _work = AbortOnDropHandle::new(tracker.spawn(async move { drop(work.await) }));
    let mut open = ObserverClient::new(connection);
    open.server_status(ServerStatusRequest {}).await.unwrap();

    let until = async |wanted: &str| {
        let limit = Instant::now() + Duration::from_secs(20);
        loop {
            let found = ask(&address, tls.clone()).await.err().unwrap_or_default();
            if found.contains(wanted) && found.is_empty() == wanted.is_empty() {
                return;
            }
            assert!(Instant::now() < limit, "{found}, not {wanted}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    trust.install(&expired);
    until("Expired").await;
    // Files that do not fit change nothing: the previous ones stay in use.
    std::fs::copy(&valid.certificate, folder.path().join("server.crt")).unwrap();
    let is_degraded = || {
        let certificates = hive.health("hubble.job-certificates");
        certificates.error.contains("the certificate cannot be used with its key")
    };
    hive.until("the files are refused", is_degraded).await;
    until("Expired").await;
    std::fs::copy(&valid.key, folder.path().join("server.key")).unwrap();
    until("").await;
    assert!(!is_degraded());
    open.server_status(ServerStatusRequest {}).await.expect("open connections stay");
    hive.stop().await;
}

/// A follower of flows by a connection of its own, with small windows as clients of slow networks have them.
async fn follow(
    address: &str,
    tracker: &TaskTracker,
) -> impl futures::Stream<Item = Result<GetFlowsResponse, tonic::Status>> + Unpin + use<> {
    let stream = TcpStream::connect(address).await.unwrap();
    let mut client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    client.initial_stream_window_size(16 << 10);
    let (mut sender, work) = client.handshake::<_, tonic::body::Body>(TokioIo::new(stream)).await.unwrap();
    tracker.spawn(async move { drop(work.await) });
    let service = tower::service_fn(move |request| sender.send_request(request));
    let origin = "http://localhost".parse().unwrap();
    let mut observer = ObserverClient::with_origin(service, origin);
    let request = GetFlowsRequest { follow: true, ..GetFlowsRequest::default() };
    observer.get_flows(request).await.unwrap().into_inner()
}

/// Returns the number of flows of a response, received or lost, and of those that are received.
fn count(response: &GetFlowsResponse) -> (u64, u64) {
    match response.response_types.as_ref().unwrap() {
        ResponseTypes::Flow(_) => (1, 1),
        ResponseTypes::LostEvents(lost) => (lost.num_events_lost, 0),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_hundred_followers_of_which_half_do_not_read_get_or_lose_every_flow() {
    const FLOWS: u64 = 400;
    let folder = tempfile::tempdir().unwrap();
    let mut hive = tcp_hive(folder.path()).set("hubble-event-buffer-capacity", 127);
    hive.start().await;
    let monitor = hive.get::<Monitor>();
    hive.until("the observer listens", || monitor.has_subscriptions()).await;
    let (address, tracker) = (address(&hive).await, TaskTracker::new());
    let mut followers = Vec::new();
    for _ in 0..100 {
        followers.push(follow(&address, &tracker).await);
    }
    let unread = followers.split_off(50);
    let total = |mut follower: futures::stream::BoxStream<
        'static,
        Result<GetFlowsResponse, tonic::Status>,
    >| async move {
        let (mut all, mut received) = (0, 0);
        while all < FLOWS {
            let (some, read) = count(&follower.next().await.unwrap().unwrap());
            (all, received) = (all + some, received + read);
        }
        (all, received)
    };
    let publish = async {
        for _ in 0..FLOWS / 20 {
            (0..20).for_each(|_| monitor.publish(|| dropped(133)));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let (reading, ()) =
        future::join(future::join_all(followers.into_iter().map(|it| total(it.boxed()))), publish).await;
    assert!(reading.iter().all(|(all, _)| *all == FLOWS), "{reading:?}");
    let late = future::join_all(unread.into_iter().map(|it| total(it.boxed()))).await;
    assert!(late.iter().all(|(all, received)| *all == FLOWS && *received < FLOWS), "{late:?}");

    // Connections have their limit; other listeners do not suffer from it.
    let mut more = Vec::new();
    for _ in 0..140 {
        more.push(TcpStream::connect(&address).await.unwrap());
    }
    hive.until("clients are refused", || {
        hive.has_logged(tracing::Level::INFO, "Hubble client refused: too many are connected")
    })
    .await;
    let (connection, _work) = client(folder.path()).await;
    ObserverClient::new(connection).server_status(ServerStatusRequest {}).await.unwrap();
    hive.stop().await;
}

#[tokio::test]
async fn peers_follow_the_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let mut hive = hive(folder.path()).set("enable-hubble", true);
    hive.start().await;
    hive.until("the socket is served", || folder.path().join("hubble.sock").exists()).await;
    let (connection, _work) = client(folder.path()).await;
    let nodes = hive.get::<Nodes>();
    let mut changes = PeerClient::new(connection).notify(NotifyRequest {}).await.unwrap().into_inner();
    let mut next = async || changes.message().await.unwrap().unwrap();
    let change = |r#type: ChangeNotificationType, name: &str, address: &str| ChangeNotification {
        name: name.to_owned(),
        address: address.to_owned(),
        r#type: r#type.into(),
        tls: None,
    };
    assert_eq!(next().await, change(ChangeNotificationType::PeerAdded, "other", "10.0.0.2"));
    let write = |row: Node| nodes.0.transact(|txn| drop(txn.insert(row)));
    write(Node { cluster: "west".into(), ..node("far", &["10.0.1.1", "fd00::1"], &[]) });
    assert_eq!(next().await, change(ChangeNotificationType::PeerAdded, "west/far", "10.0.1.1"));
    // A change that clients do not see, and then one that they do.
    write(node("other", &["10.0.0.2"], &["10.244.0.0/24"]));
    write(node("other", &["10.0.0.3"], &[]));
    assert_eq!(next().await, change(ChangeNotificationType::PeerUpdated, "other", "10.0.0.3"));
    nodes.0.transact(|txn| drop(txn.delete(Node::by_name("west", "far"))));
    assert_eq!(next().await, change(ChangeNotificationType::PeerDeleted, "west/far", "10.0.1.1"));
    hive.stop().await;
}

#[tokio::test]
async fn reflection_names_the_services_in_both_versions() {
    use tonic_reflection::pb::{v1, v1alpha};

    let folder = tempfile::tempdir().unwrap();
    let mut hive = hive(folder.path()).set("enable-hubble", true);
    hive.start().await;
    hive.until("the socket is served", || folder.path().join("hubble.sock").exists()).await;
    let (connection, _work) = client(folder.path()).await;
    let message_request = v1::server_reflection_request::MessageRequest::ListServices(String::new());
    let request =
        v1::ServerReflectionRequest { message_request: Some(message_request), ..Default::default() };
    let mut reflection = v1::server_reflection_client::ServerReflectionClient::new(connection.clone());
    let answers = reflection.server_reflection_info(futures::stream::iter([request])).await.unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap().message_response.unwrap();
    let v1::server_reflection_response::MessageResponse::ListServicesResponse(list) = answer else {
        panic!("{answer:?}")
    };
    let mut services: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    services.sort();
    assert!(
        ["grpc.health.v1.Health", "observer.Observer", "peer.Peer"]
            .iter()
            .all(|name| services.contains(&(*name).to_owned())),
        "{services:?}"
    );

    let symbol = "observer.Observer".to_owned();
    let message_request = v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(symbol);
    let request =
        v1alpha::ServerReflectionRequest { message_request: Some(message_request), ..Default::default() };
    let mut reflection = v1alpha::server_reflection_client::ServerReflectionClient::new(connection);
    let answers = reflection.server_reflection_info(futures::stream::iter([request])).await.unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap().message_response.unwrap();
    let v1alpha::server_reflection_response::MessageResponse::FileDescriptorResponse(files) = answer else {
        panic!("{answer:?}")
    };
    let file = String::from_utf8_lossy(&files.file_descriptor_proto[0]).into_owned();
    assert!(file.contains("GetAgentEvents"), "{file}");
    hive.stop().await;
}

#[tokio::test]
async fn a_client_that_sends_nothing_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let mut hive = tcp_hive(folder.path());
    hive.start().await;
    let mut silent = TcpStream::connect(address(&hive).await).await.unwrap();
    // The settings of the server show that it is served.
    let mut settings = [0; 9];
    silent.read_exact(&mut settings).await.unwrap();
    tokio::time::pause();
    let ended = tokio::time::timeout(Duration::from_secs(60), silent.read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "it would keep one of 128 connections");
    tokio::time::resume();
    hive.stop().await;
}
