//! The whole way of a connection with rules of HTTP: a pod, the rules of iptables, a stand-in of Envoy that takes it at the
//! port of the listener and connects with the address of the pod, another pod, and the answer back.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use envoy_api::Message as _;
use envoy_api::cilium::network_policy_discovery_service_client::NetworkPolicyDiscoveryServiceClient;
use envoy_api::cilium::port_network_policy_rule::L7;
use envoy_api::cilium::{EntryType, HttpLogEntry, HttpProtocol, LogEntry, NetworkPolicy, log_entry};
use envoy_api::core::Node as Proxy;
use envoy_api::discovery::{DiscoveryRequest, DiscoveryResponse};
use envoy_api::listener::Listener;
use envoy_api::service::cluster::v3::cluster_discovery_service_client::ClusterDiscoveryServiceClient;
use envoy_api::service::listener::v3::listener_discovery_service_client::ListenerDiscoveryServiceClient;
use futures::StreamExt as _;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::stream::BoxStream;
use hubble_api::{Server, connect};
use integration_tests::{Node, Pod};
use parking_lot::Mutex;
use serde_json::{Value, json};
use socket2::{Domain, SockAddr, Socket, Type};
use test_kit::{NetNs, require_command, require_root, wait_until};
use tokio::sync::oneshot;

const PORT: u16 = 8080;
const LIMIT: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_millis(500);
/// The mark of packets of a proxy of egress traffic, with the identity of the client in the upper half.
const MARK_EGRESS_PROXY: u32 = 0xB00;
const REQUEST: &[u8] = b"GET /ok HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";

/// The last resources that the stand-in has taken.
#[derive(Default)]
struct Taken {
    listeners: Mutex<Vec<Vec<u8>>>,
    policies: Mutex<Vec<Vec<u8>>>,
    clusters: Mutex<Vec<Vec<u8>>>,
}

impl Taken {
    /// Returns the port of the listener of rules of HTTP.
    fn port(&self) -> Option<u16> {
        let listeners = self.listeners.lock();
        let mut names = listeners.iter().map(|bytes| Listener::decode(&**bytes).unwrap().name);
        names.find_map(|name| name.strip_prefix("cilium-http-egress:")?.parse().ok())
    }

    /// Returns the number of rules of HTTP in the policy of an address.
    fn http_rules(&self, of: IpAddr) -> usize {
        let policies = self.policies.lock();
        let policies = policies.iter().map(|bytes| NetworkPolicy::decode(&**bytes).unwrap());
        let mine = policies.filter(|policy| policy.endpoint_ips.contains(&of.to_string()));
        let ports = mine.flat_map(|policy| policy.egress_per_port_policies);
        let rules = ports.filter(|port| port.port == u32::from(PORT)).flat_map(|port| port.rules);
        rules
            .map(|rule| match rule.l7 {
                Some(L7::HttpRules(rules)) => rules.http_rules.len(),
                None => 0,
            })
            .sum()
    }
}

fn requests() -> (UnboundedSender<DiscoveryRequest>, UnboundedReceiver<DiscoveryRequest>) {
    let (sender, receiver) = unbounded();
    let id = "host~127.0.0.1~no-id~localdomain".to_owned();
    let node = Some(Proxy { id, cluster: "ingress-cluster".to_owned() });
    sender.unbounded_send(DiscoveryRequest { node, ..DiscoveryRequest::default() }).unwrap();
    (sender, receiver)
}

/// Takes and acknowledges the resources of a stream.
async fn take(
    requests: UnboundedSender<DiscoveryRequest>,
    mut responses: BoxStream<'_, DiscoveryResponse>,
    taken: &Mutex<Vec<Vec<u8>>>,
) {
    while let Some(response) = responses.next().await {
        *taken.lock() = response.resources.into_iter().map(|resource| resource.value).collect();
        let acknowledged = DiscoveryRequest {
            version_info: response.version_info,
            response_nonce: response.nonce,
            ..DiscoveryRequest::default()
        };
        requests.unbounded_send(acknowledged).unwrap();
    }
}

/// Takes resources from the agent until the sender of `stop` is dropped.
async fn configure(socket: &Path, taken: &Taken, stop: oneshot::Receiver<()>) {
    let (connection, work) = connect(&Server::Unix(socket.to_owned())).await.unwrap();
    let streams = async {
        let (sender, receiver) = requests();
        let mut client = ClusterDiscoveryServiceClient::new(connection.clone());
        let clusters = client
            .stream_clusters(receiver)
            .await
            .unwrap()
            .into_inner()
            .filter_map(async |message| message.ok())
            .boxed();
        let clusters = take(sender, clusters, &taken.clusters);
        let (sender, receiver) = requests();
        let mut client = ListenerDiscoveryServiceClient::new(connection.clone());
        let listeners = client
            .stream_listeners(receiver)
            .await
            .unwrap()
            .into_inner()
            .filter_map(async |message| message.ok())
            .boxed();
        let listeners = take(sender, listeners, &taken.listeners);
        let (sender, receiver) = requests();
        let mut client = NetworkPolicyDiscoveryServiceClient::new(connection);
        let policies = client.stream_network_policies(receiver).await.unwrap().into_inner();
        let policies = policies.filter_map(async |message| message.ok()).boxed();
        tokio::join!(clusters, listeners, take(sender, policies, &taken.policies));
    };
    tokio::select! {
        _ = stop => {}
        _ = work => {}
        () = streams => {}
    }
}

/// Returns a socket of a proxy, which may have any address.
fn proxy_socket(mark: u32) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_ip_transparent_v4(true)?;
    socket.set_reuse_address(true)?;
    socket.set_mark(mark)?;
    Ok(socket)
}

/// Listens for redirected connections.
fn listen(host: &NetNs, port: u16) -> TcpListener {
    host.run(|| {
        let socket = proxy_socket(MARK_EGRESS_PROXY)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
        socket.listen(16)?;
        std::io::Result::Ok(socket.into())
    })
    .unwrap()
}

/// Forwards a request and its answer; the connection to the server has the address and port of the client. Returns the
/// addresses of both.
fn forward(host: &NetNs, mut stream: TcpStream, identity: u32) -> std::io::Result<[SocketAddr; 2]> {
    let (client, server) = (stream.peer_addr()?, stream.local_addr()?);
    let mark = MARK_EGRESS_PROXY | (identity & 0xFFFF) << 16 | (identity >> 16) & 0xFF;
    let mut upstream: TcpStream = host.run(|| {
        let socket = proxy_socket(mark)?;
        socket.bind(&client.into())?;
        socket.connect_timeout(&server.into(), TIMEOUT)?;
        std::io::Result::Ok(socket.into())
    })?;
    upstream.set_read_timeout(Some(TIMEOUT))?;
    let mut request = vec![0; REQUEST.len()];
    stream.read_exact(&mut request)?;
    upstream.write_all(&request)?;
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer)?;
    stream.write_all(&answer)?;
    Ok([client, server])
}

/// Logs an answer, as Cilium's filter in Envoy does.
fn log(socket: &Path, [client, server]: [SocketAddr; 2], [from, to]: [u32; 2], port: u16) {
    let http = HttpLogEntry {
        http_protocol: HttpProtocol::Http11.into(),
        scheme: "http".to_owned(),
        host: "server".to_owned(),
        path: "/ok".to_owned(),
        method: "GET".to_owned(),
        status: 200,
        ..HttpLogEntry::default()
    };
    let entry = LogEntry {
        timestamp: 1_700_000_000_000_000_000,
        entry_type: EntryType::Response.into(),
        policy_name: client.ip().to_string(),
        source_security_id: from,
        source_address: client.to_string(),
        destination_security_id: to,
        destination_address: server.to_string(),
        proxy_id: port.into(),
        l7: Some(log_entry::L7::Http(http)),
        ..LogEntry::default()
    };
    let log = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
    log.connect(&SockAddr::unix(socket).unwrap()).unwrap();
    log.send(&entry.encode_to_vec()).unwrap();
}

/// Answers requests at a pod with the address of the client.
fn serve(pod: &Pod) {
    let listener = pod.ns.run(|| TcpListener::bind((pod.addresses()[0], PORT))).unwrap();
    let work = move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = vec![0; REQUEST.len()];
            if stream.read_exact(&mut request).is_ok() {
                let client = stream.peer_addr().unwrap().ip();
                let _ = write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{client}");
            }
        }
    };
    thread::Builder::new().name("server".to_owned()).spawn(work).unwrap();
}

/// Sends a request. Returns the address that the server has seen.
fn ask(from: &Pod, to: &Pod) -> Option<IpAddr> {
    let server = SocketAddr::new(to.addresses()[0], PORT);
    let mut stream = from.ns.run(|| TcpStream::connect_timeout(&server, TIMEOUT)).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(REQUEST).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.rsplit("\r\n\r\n").next()?.parse().ok()
}

fn identity(node: &Node, pod: &Pod) -> u32 {
    let endpoints = node.get("/v1/endpoint");
    let ip = json!(pod.addresses()[0]);
    let is_own = |row: &&Value| row["status"]["networking"]["addressing"][0]["ipv4"] == ip;
    let row = endpoints.as_array().unwrap().iter().find(is_own).unwrap();
    row["status"]["identity"]["id"].as_u64().unwrap().try_into().unwrap()
}

fn policy() -> Value {
    let port = json!({"port": PORT.to_string(), "protocol": "TCP"});
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"name": "http", "namespace": "default"},
        "spec": {"endpointSelector": {}, "egress": [{
            "toEndpoints": [{}],
            "toPorts": [{"ports": [port], "rules": {"http": [{"path": "/ok"}]}}],
        }]},
    })
}

#[test]
fn a_connection_with_rules_of_http_goes_through_the_proxy_with_the_address_of_its_client() {
    require_root!();
    require_command!("iptables");
    let mut node = Node::new();
    for option in ["install-iptables-rules", "external-envoy-proxy", "enable-hubble"] {
        node.config.insert(option.to_owned(), "true".to_owned());
    }
    node.config.insert("enable-ipv4-masquerade".to_owned(), "false".to_owned());
    let socket = node.socket().with_file_name("hubble.sock");
    node.config.insert("hubble-socket-path".to_owned(), socket.display().to_string());
    node.start();
    let (client, server) = (node.add_pod("client"), node.add_pod("server"));
    serve(&server);
    let address = client.addresses()[0];
    wait_until("pods are connected", LIMIT, || ask(&client, &server) == Some(address));
    node.apply("http.yaml", &policy().to_string());
    wait_until("without an Envoy the port is denied", LIMIT, || ask(&client, &server).is_none());

    let sockets = Path::new(&node.config["state-dir"]).join("envoy/sockets");
    let identities = [identity(&node, &client), identity(&node, &server)];
    let (taken, (end, stop)) = (Taken::default(), oneshot::channel());
    thread::scope(|scope| {
        let end = end;
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(configure(&sockets.join("xds.sock"), &taken, stop));
        });
        wait_until("a listener and the policy", LIMIT, || {
            taken.port().is_some() && taken.http_rules(address) == 1
        });
        let port = taken.port().unwrap();
        let listener = listen(node.host(), port);
        listener.set_nonblocking(true).unwrap();
        let mut forwarded = Vec::new();
        // The stand-in takes a connection while the client waits for the answer.
        let mut ask_through = || {
            thread::scope(|scope| {
                let asking = scope.spawn(|| ask(&client, &server));
                while !asking.is_finished() {
                    match listener.accept() {
                        Ok((stream, _)) => {
                            stream.set_nonblocking(false).unwrap();
                            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                            forwarded.extend(forward(node.host(), stream, identities[0]));
                        }
                        Err(_) => thread::sleep(Duration::from_millis(1)),
                    }
                }
                asking.join().unwrap()
            })
        };
        wait_until("requests go through the proxy", LIMIT, || ask_through() == Some(address));
        let ends = *forwarded.last().expect("there is no other way");
        assert_eq!((ends[0].ip(), ends[1]), (address, SocketAddr::new(server.addresses()[0], PORT)));

        log(&sockets.join("access_log.sock"), ends, identities, port);
        let flow = || {
            let lines = node.apiary(&["hubble", "observe", "--all", "-o", "json"]);
            let mut flows =
                lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["flow"].clone());
            flows.find(|flow| flow["l7"]["http"]["url"] == "http://server/ok")
        };
        wait_until("the flow of the answer", LIMIT, || flow().is_some());
        let flow = flow().unwrap();
        assert_eq!(
            (&flow["l7"]["type"], &flow["l7"]["http"]["code"]),
            (&json!("RESPONSE"), &json!(200)),
            "{flow}"
        );
        let pods = (&flow["source"]["pod_name"], &flow["destination"]["pod_name"]);
        assert_eq!(pods, (&json!("server"), &json!("client")), "{flow}");

        drop(listener);
        assert_eq!(ask(&client, &server), None, "nothing listens at the port of the proxy");
        drop(end);
    });
}
