//! A client, the proxy and a server of DNS that answers by the words in the name of a query.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream as StdTcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dns_proxy::{Client, Directory, DnsProxyConfig, Observation, Question, Server, Transport};
use fqdn::Lookup;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use hickory_proto::op::{Message, MessageType, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, CNAME};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use labels::Label;
use metrics::Metrics;
use monitor::Monitor;
use parking_lot::Mutex;
use test_kit::{NetNs, Sandbox};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
/// The identity of the client.
pub(crate) const IDENTITY: u32 = 1000;
/// The server, by both families.
pub(crate) const SERVER_V4: &str = "10.2.0.2:53";
pub(crate) const SERVER_V6: &str = "[fd02::2]:53";
/// An address of the server with a route for packets with the mark of the client's identity only.
pub(crate) const MARKED_SERVER: &str = "10.3.0.2:53";

/// The knowledge of the node: the client is endpoint 7 and may ask for names of `allowed`.
#[derive(Default)]
pub(crate) struct Node {
    pub(crate) learned: Mutex<Vec<(u16, Lookup)>>,
    /// Answers for names with `gated` are held until it is notified.
    pub(crate) gate: Arc<Notify>,
    /// Whether rules of the client are on their way.
    pub(crate) is_behind: AtomicBool,
    /// The identities of which the labels were looked up.
    pub(crate) described: Mutex<Vec<u32>>,
    pub(crate) observed: Mutex<Vec<Observation>>,
}

impl Directory for Node {
    fn client(&self, source: IpAddr) -> Option<Client> {
        let known = [IpAddr::from([10, 1, 0, 2]), "fd01::2".parse().unwrap()];
        known.contains(&source).then_some(Client { endpoint: 7, identity: IDENTITY, is_host: false })
    }

    fn allows(&self, question: Question<'_>) -> bool {
        assert!(question.endpoint == 7 && question.server.port() == 53);
        question.name.ends_with("allowed.") && !self.is_behind.load(Ordering::Relaxed)
    }

    fn observe(&self, make: &dyn Fn() -> Observation) {
        self.observed.lock().push(make());
    }

    fn is_behind(&self, _source: IpAddr, _transport: Transport, _server: SocketAddr) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    fn may_see_client(&self, server: IpAddr) -> bool {
        server.is_ipv4()
    }

    fn server(&self, _address: IpAddr) -> Server {
        Server { endpoint: 0, identity: 2 }
    }

    fn labels(&self, identity: u32) -> Vec<Label> {
        self.described.lock().push(identity);
        vec![Label::parse(&format!("k8s:id={identity}"))]
    }

    fn node(&self) -> [Option<IpAddr>; 2] {
        [Some(IpAddr::from([192, 0, 2, 1])), None]
    }

    fn learn(&self, endpoint: u16, lookup: Lookup) -> BoxFuture<'static, ()> {
        let is_gated = lookup.name.contains("gated");
        self.learned.lock().push((endpoint, lookup));
        let gate = self.gate.clone();
        async move {
            if is_gated {
                gate.notified().await;
            }
        }
        .boxed()
    }
}

/// The queries that the server has seen: the name and the address of the client.
pub(crate) type Seen = Arc<Mutex<Vec<(String, SocketAddr)>>>;

pub(crate) struct Stage {
    pub(crate) client: NetNs,
    pub(crate) node: Arc<Node>,
    pub(crate) seen: Seen,
    /// Those of the proxy for IPv4.
    pub(crate) metrics: Metrics,
    pub(crate) monitor: Arc<Monitor>,
    _sandbox: Sandbox,
}

pub(crate) fn staged(config: DnsProxyConfig, test: impl AsyncFnOnce(&Stage)) {
    let sandbox = Sandbox::new().unwrap();
    let (client, server) = (sandbox.netns("client").unwrap(), sandbox.netns("server").unwrap());
    let host = sandbox.host();
    host.veth("toclient", &client, "eth0").unwrap();
    host.veth("toserver", &server, "eth0").unwrap();
    host.ip_batch(
        "addr add 10.1.0.1/24 dev toclient\naddr add fd01::1/64 dev toclient nodad\n\
         addr add 10.2.0.1/24 dev toserver\naddr add fd02::1/64 dev toserver nodad\n\
         rule add iif toclient lookup 100\nrule add iif toserver to 10.1.0.0/24 lookup 100\n\
         route add local default dev lo table 100\n\
         rule add fwmark 0x3e80b00 lookup 200\nroute add 10.3.0.2 via 10.2.0.2 table 200\n",
    )
    .unwrap();
    host.ip("-6 rule add iif toclient lookup 100").unwrap();
    host.ip("-6 route add local default dev lo table 100").unwrap();
    client.ip_batch("addr add 10.1.0.2/24 dev eth0\naddr add fd01::2/64 dev eth0 nodad\n").unwrap();
    client.ip_batch("route add default via 10.1.0.1\nroute add fd02::/64 via fd01::1\n").unwrap();
    server
        .ip_batch(
            "addr add 10.2.0.2/24 dev eth0\naddr add fd02::2/64 dev eth0 nodad\naddr add 10.3.0.2/32 dev lo\n\
             route add default via 10.2.0.1\n",
        )
        .unwrap();
    let (node, seen) = (Arc::new(Node::default()), Seen::default());
    let metrics = Metrics::default();
    let monitor = Arc::new(Monitor::new(64).with_labels(vec!["rack=1".to_owned()]));
    let (of_stage, seen_by_stage) = (monitor.clone(), seen.clone());
    let stage = Stage {
        client,
        node: node.clone(),
        seen: seen_by_stage,
        metrics,
        monitor: of_stage,
        _sandbox: sandbox,
    };
    let stop = CancellationToken::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let sockets = server.run(|| {
            let udp = |address| std::net::UdpSocket::bind(address).unwrap();
            (
                udp(SERVER_V4),
                udp(SERVER_V6),
                udp(MARKED_SERVER),
                std::net::TcpListener::bind(SERVER_V4).unwrap(),
            )
        });
        let serve = |address: &str, metrics| {
            let address = address.parse().unwrap();
            let monitor = monitor.clone();
            dns_proxy::testing::serve(address, node.clone(), config.clone(), metrics, monitor, stop.clone())
        };
        let of_v6 = Metrics::default();
        let serving = async {
            let (v4, v6) = tokio::join!(serve("0.0.0.0:53", &stage.metrics), serve("[::]:53", &of_v6));
            v4.and(v6).unwrap();
        };
        let test = async {
            test(&stage).await;
            stop.cancel();
        };
        let udp = |socket: std::net::UdpSocket| answer_udp(socket, seen.clone());
        let servers = async {
            tokio::join!(udp(sockets.0), udp(sockets.1), udp(sockets.2), answer_tcp(sockets.3, seen.clone()))
        };
        tokio::select! {
            ((), ()) = futures::future::join(serving, test) => {}
            _ = servers => {}
        }
    });
}

pub(crate) async fn answer_udp(socket: std::net::UdpSocket, seen: Seen) {
    socket.set_nonblocking(true).unwrap();
    let socket = UdpSocket::from_std(socket).unwrap();
    let mut buffer = [0; 4096];
    loop {
        let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
        for reply in replies(&buffer[..length], client, &seen) {
            socket.send_to(&reply, client).await.unwrap();
        }
    }
}

/// Answers the queries of one connection after another. The answer to a query for `late` follows the next one; one for
/// `reset` ends the connection.
pub(crate) async fn answer_tcp(listener: std::net::TcpListener, seen: Seen) {
    listener.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    loop {
        let (mut stream, client) = listener.accept().await.unwrap();
        let mut late = Vec::new();
        while let Ok(message) = read(&mut stream).await {
            let replies = replies(&message, client, &seen);
            let name = Message::from_vec(&message).unwrap().query().unwrap().name().to_string();
            if name.contains("reset") {
                break;
            }
            match name.contains("late") {
                true => late.extend(replies),
                false => {
                    for reply in replies.into_iter().chain(late.drain(..)) {
                        // A proxy that is at its end closes its connections.
                        if write(&mut stream, &reply).await.is_err() {
                            break;
                        }
                    }
                }
            }
        }
    }
}

/// Returns the packets that the server sends for a query, by the words in its name.
pub(crate) fn replies(query: &[u8], client: SocketAddr, seen: &Seen) -> Vec<Vec<u8>> {
    let query = Message::from_vec(query).unwrap();
    let name = query.query().unwrap().name().clone();
    let text = name.to_string();
    seen.lock().push((text.clone(), client));
    let address = |last: u8| RData::A(A(Ipv4Addr::new(192, 0, 2, last)));
    let mut good = Message::new();
    good.set_id(query.id()).set_message_type(MessageType::Response);
    good.add_queries(query.queries().iter().cloned());
    if text.contains("missing") {
        good.set_response_code(ResponseCode::NXDomain);
    } else if text.contains("alias") {
        let target = Name::from_ascii("target.test.").unwrap();
        good.add_answer(Record::from_rdata(name, 60, RData::CNAME(CNAME(target.clone()))));
        good.add_answer(Record::from_rdata(target, 30, address(2)));
        good.add_answer(Record::from_rdata(Name::from_ascii("victim.test.").unwrap(), 30, address(66)));
    } else {
        let count = if text.contains("large") { 60 } else { 1 };
        good.add_answers((1..=count).map(|last| Record::from_rdata(name.clone(), 60, address(last))));
    }
    let packet = |message: &Message| message.to_vec().unwrap();
    if text.contains("silent") {
        return Vec::new();
    }
    if text.contains("forged") {
        let mut other_id = good.clone();
        other_id.set_id(query.id().wrapping_add(1));
        let mut other_name = good.clone();
        *other_name.queries_mut() =
            vec![Query::query(Name::from_ascii("victim.test.").unwrap(), RecordType::A)];
        return vec![packet(&other_id), packet(&other_name), vec![0; 5], packet(&good)];
    }
    vec![packet(&good)]
}

pub(crate) async fn read(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut message = vec![0; from.read_u16().await?.into()];
    from.read_exact(&mut message).await?;
    Ok(message)
}

pub(crate) async fn write(to: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    to.write_u16(message.len().try_into().unwrap()).await?;
    to.write_all(message).await
}

pub(crate) fn query(id: u16, name: &str) -> Vec<u8> {
    let mut message = Message::new();
    message.set_id(id).set_recursion_desired(true);
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    message.to_vec().unwrap()
}

impl Stage {
    /// Returns a socket of the client that takes packets of this server only.
    pub(crate) fn udp(&self, server: &str) -> UdpSocket {
        let local = if server.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        let socket = self.client.run(|| {
            let socket = std::net::UdpSocket::bind(local).unwrap();
            socket.connect(server).unwrap();
            socket
        });
        socket.set_nonblocking(true).unwrap();
        UdpSocket::from_std(socket).unwrap()
    }

    pub(crate) async fn ask(&self, server: &str, name: &str) -> Message {
        let socket = self.udp(server);
        socket.send(&query(7, name)).await.unwrap();
        reply(&socket).await
    }

    /// Connects to the server; the handshake needs no task of the runtime.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = self.client.run(|| StdTcpStream::connect(SERVER_V4).unwrap());
        stream.set_nonblocking(true).unwrap();
        TcpStream::from_std(stream).unwrap()
    }

    pub(crate) fn learned(&self) -> Vec<(String, Vec<IpAddr>, u32)> {
        let learned = self.node.learned.lock();
        let lookup = |(endpoint, lookup): &(u16, Lookup)| {
            assert_eq!(*endpoint, 7);
            (lookup.name.to_string(), lookup.addresses.clone(), lookup.ttl)
        };
        learned.iter().map(lookup).collect()
    }
}

pub(crate) async fn reply(socket: &UdpSocket) -> Message {
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).await.unwrap();
    Message::from_vec(&buffer[..length]).unwrap()
}

pub(crate) fn ip(last: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, last).into()
}
