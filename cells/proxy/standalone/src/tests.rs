//! Agent and proxy, connected over the loopback address.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dns_proxy::{Client, Details, Directory, Event, Observation, Question, Timings, Transport};
use fqdn::Lookup;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;
use prost::Message as _;
use test_kit::require_root;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::client::session;
use crate::observed;
use crate::proto::{
    DnsPolicy, DnsResponseData, DnsServer, EndpointInfo, FqdnMapping, IdentityToEndpointMapping,
    IdentityToPrefixMapping, MetricsData, PolicyState, ProcessingStats, ResponseCode,
};
use crate::remote::Remote;
use crate::server;
use crate::service::Service;

const LIMIT: Duration = Duration::from_secs(20);
/// Longer than the test: an answer that is released earlier was released by the agent.
const MAX_DELAY: Duration = Duration::from_secs(60);
const CLIENT: [u8; 4] = [10, 0, 0, 7];

/// The agent's knowledge: endpoint 7, which may ask for names of `allowed`.
#[derive(Default)]
struct Node(Mutex<Vec<Lookup>>, Mutex<Vec<Observation>>);

impl Directory for Node {
    fn client(&self, source: IpAddr) -> Option<Client> {
        (source == IpAddr::from(CLIENT)).then_some(Client { endpoint: 7, identity: 1000, is_host: false })
    }

    fn allows(&self, _: Question<'_>) -> bool {
        unreachable!("the proxy decides")
    }

    fn may_see_client(&self, _: IpAddr) -> bool {
        unreachable!("the proxy decides")
    }

    fn learn(&self, endpoint: u16, lookup: Lookup) -> BoxFuture<'static, ()> {
        assert_eq!(endpoint, 7);
        self.0.lock().push(lookup);
        std::future::ready(()).boxed()
    }
}

fn state(pattern: &str) -> PolicyState {
    let server = DnsServer { dns_server_identity: 500, dns_server_port: 53, dns_server_proto: 17 };
    PolicyState {
        egress_l7_dns_policy: vec![DnsPolicy {
            source_endpoint_id: 7,
            dns_pattern: vec![pattern.to_owned()],
            dns_servers: vec![server],
        }],
        request_id: String::new(),
        identity_to_endpoint_mapping: vec![IdentityToEndpointMapping {
            identity: 1000,
            endpoint_info: vec![EndpointInfo { id: 7, ip: vec![CLIENT.to_vec()] }],
        }],
        identity_to_prefix_mapping: vec![IdentityToPrefixMapping {
            identity: 500,
            prefix: vec![vec![10, 1, 0, 53, 32]],
        }],
    }
}

/// An agent that serves.
struct Agent {
    address: SocketAddr,
    node: Arc<Node>,
    states: watch::Sender<Arc<PolicyState>>,
    stop: CancellationToken,
    serving: BoxFuture<'static, ()>,
}

async fn agent(address: SocketAddr) -> Agent {
    let listener = TcpListener::bind(address).await.unwrap();
    let (states, receiver) = watch::channel(Arc::new(state("*.allowed")));
    let node = Arc::new(Node::default());
    let service = service(node.clone(), receiver);
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let serving = server::serve(listener, service, stop.clone()).boxed();
    Agent { address, node, states, stop, serving }
}

fn service(node: Arc<Node>, states: watch::Receiver<Arc<PolicyState>>) -> Service {
    let observed = node.clone();
    Service {
        states,
        directory: node,
        names: Arc::new(|_, name| name.ends_with(".allowed.")),
        observer: Arc::new(move |client, observation| {
            assert_eq!(client.endpoint, 7);
            observed.1.lock().push(observation.clone());
        }),
    }
}

fn allows(remote: &Remote, name: &str) -> bool {
    let (transport, server) = (Transport::Udp, "10.1.0.53:53".parse().unwrap());
    remote.allows(Question { endpoint: 7, transport, server, name })
}

fn lookup(name: &str) -> Lookup {
    Lookup::new(name, vec![IpAddr::from([192, 0, 2, 1])], 600, Timestamp::now())
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, waiting).await.unwrap_or_else(|_| panic!("{what}"));
}

/// Runs agent and connection beside a test, which ends both.
async fn connected(agent: Agent, remote: &Remote, test: impl AsyncFnOnce(&Agent)) -> SocketAddr {
    let Agent { address, node, states, stop, serving } = agent;
    let agent = Agent { address, node, states, stop, serving: std::future::pending().boxed() };
    let run = async {
        let ended = session(remote, address, [true, true], || {}).await;
        remote.reports.lock().disconnected(Timestamp::now());
        ended
    };
    let test = async {
        until("a snapshot", || remote.client(CLIENT.into()).is_some()).await;
        test(&agent).await;
        agent.stop.cancel();
    };
    let (ended, (), ()) = tokio::join!(run, serving, test);
    ended.unwrap_err();
    address
}

#[tokio::test]
async fn an_agent_learns_what_was_answered_while_there_was_none() {
    let remote = Remote::new(MAX_DELAY);
    assert!(!allows(&remote, "a.allowed."), "no snapshot");
    let first = agent(([127, 0, 0, 1], 0).into()).await;
    let address = connected(first, &remote, async |agent| {
        assert!(allows(&remote, "a.allowed.") && !allows(&remote, "a.denied."));
        remote.learn(7, lookup("a.allowed")).await;
        assert_eq!(agent.node.0.lock()[0].name.as_ref(), "a.allowed.", "before the answer is released");
        agent.states.send_replace(Arc::new(state("*.other")));
        until("the next snapshot", || allows(&remote, "a.other.")).await;
        assert!(!allows(&remote, "a.allowed."));
    });
    let address = address.await;
    assert!(allows(&remote, "a.other."), "the last snapshot");
    let begin = Instant::now();
    for name in ["a.allowed", "b.allowed", "refused.other"] {
        remote.learn(7, lookup(name)).await;
    }
    assert!(begin.elapsed() < MAX_DELAY / 2, "answers do not wait");
    connected(agent(address).await, &remote, async |agent| {
        until("two names", || agent.node.0.lock().len() >= 2).await;
        let mut names: Vec<String> =
            agent.node.0.lock().iter().map(|lookup| lookup.name.to_string()).collect();
        names.sort();
        assert_eq!(names, ["a.allowed.", "b.allowed."]);
        let left = agent.node.0.lock()[0].ttl;
        assert!((590..=600).contains(&left), "{left}");
        remote.learn(7, lookup("refused.other")).await;
    })
    .await;
}

#[tokio::test]
async fn processes_of_other_users_are_refused() {
    require_root!();
    let agent = agent(([127, 0, 0, 1], 0).into()).await;
    let port = agent.address.port();
    // A server of HTTP/2 sends its settings first.
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; timeout 5 head -c 1 <&3 | wc -c");
    let bytes = |user: u32| {
        let script = script.clone();
        async move {
            let run = move || Command::new("bash").args(["-c", &script]).uid(user).output().unwrap();
            let output = tokio::task::spawn_blocking(run).await.unwrap();
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        }
    };
    let test = async {
        assert_eq!((bytes(0).await, bytes(65_534).await), ("1".to_owned(), "0".to_owned()));
        agent.stop.cancel();
    };
    tokio::join!(agent.serving, test);
}

#[tokio::test]
async fn addresses_are_taken_only_for_names_that_an_endpoint_may_ask_for() {
    let node = Arc::new(Node::default());
    let service = service(node.clone(), watch::channel(Arc::default()).1);
    let mapping = FqdnMapping {
        fqdn: "A.allowed".to_owned(),
        record_ip: vec![b"192.0.2.1".to_vec(), b"::ffff:192.0.2.2".to_vec()],
        ttl: 60,
        source_identity: 1000,
        source_ip: b"10.0.0.7".to_vec(),
        response_code: 0,
        metrics_data: None,
    };
    assert_eq!(service.learn(mapping.clone()).await, ResponseCode::NoError);
    let learned = std::mem::take(&mut *node.0.lock());
    assert_eq!(learned[0].name.as_ref(), "a.allowed.");
    assert_eq!(learned[0].addresses, ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse::<IpAddr>().unwrap()));
    let with = |change: fn(&mut FqdnMapping)| {
        let mut mapping = mapping.clone();
        change(&mut mapping);
        service.learn(mapping)
    };
    assert_eq!(with(|m| m.fqdn = "a.denied".to_owned()).await, ResponseCode::Refused);
    assert_eq!(with(|m| m.source_ip = b"10.0.0.8".to_vec()).await, ResponseCode::ErrorEndpointNotFound);
    assert_eq!(with(|m| m.source_ip = vec![10, 0, 0, 7]).await, ResponseCode::ErrorInvalidArgument);
    assert_eq!(with(|m| m.record_ip.push(vec![0xFF])).await, ResponseCode::ErrorInvalidArgument);
    assert_eq!(with(|m| m.fqdn = "a".repeat(1025)).await, ResponseCode::ErrorInvalidArgument);
    assert_eq!(with(|m| m.response_code = 3).await, ResponseCode::NoError);
    assert_eq!(with(|m| m.record_ip.clear()).await, ResponseCode::NoError);
    assert!(node.0.lock().is_empty());
}

#[test]
fn messages_have_the_fields_of_cilium() {
    let mapping = FqdnMapping {
        fqdn: "a".to_owned(),
        record_ip: vec![b"1".to_vec()],
        ttl: 2,
        source_identity: 3,
        source_ip: b"4".to_vec(),
        response_code: 5,
        metrics_data: None,
    };
    assert_eq!(mapping.encode_to_vec(), b"\x0a\x01a\x12\x011\x18\x02\x20\x03\x2a\x014\x30\x05");
    let state = PolicyState { request_id: "r".to_owned(), ..state("p") };
    let policy = b"\x0a\x0e\x08\x07\x12\x01p\x1a\x07\x08\xf4\x03\x10\x35\x18\x11";
    let endpoints = b"\x1a\x0d\x08\xe8\x07\x12\x08\x08\x07\x12\x04\x0a\x00\x00\x07";
    let prefixes = b"\x22\x0a\x08\xf4\x03\x12\x05\x0a\x01\x00\x35\x20";
    let expected = [&policy[..], b"\x12\x01r", endpoints, prefixes].concat();
    let bytes = state.encode_to_vec();
    assert_eq!(PolicyState::decode(&expected[..]).unwrap(), state);
    assert_eq!(bytes, expected);
    let data = MetricsData {
        processing_stats: Some(ProcessingStats { dataplane_time_ns: 1, ..ProcessingStats::default() }),
        dns_response_data: Some(DnsResponseData { qtypes: vec![28], ..DnsResponseData::default() }),
        source_port: 2,
        server_addr: "s".to_owned(),
        server_identity: 3,
        protocol: "u".to_owned(),
        allowed: true,
        error_message: "e".to_owned(),
        is_timeout: true,
    };
    let expected =
        b"\x0a\x02\x38\x01\x12\x03\x1a\x01\x1c\x18\x02\x22\x01s\x28\x03\x32\x01u\x38\x01\x42\x01e\x48\x01";
    assert_eq!(data.encode_to_vec(), expected);
    let with_data = FqdnMapping { metrics_data: Some(data), ..mapping.clone() };
    let bytes = [&mapping.encode_to_vec()[..], b"\x3a\x1a", expected].concat();
    assert_eq!(with_data.encode_to_vec(), bytes);
}

/// Returns the events of a query: allowed and answered, denied, failed.
fn events() -> Vec<Observation> {
    let event = |event| Observation {
        client: (CLIENT, 4000).into(),
        server: "10.1.0.53:53".parse().unwrap(),
        transport: Transport::Tcp,
        name: "a.allowed.".to_owned(),
        qtypes: vec![1],
        event,
        timings: Timings { upstream: Duration::from_nanos(7), ..Timings::default() },
    };
    let details = Details {
        code: 0,
        addresses: vec![[192, 0, 2, 1].into()],
        ttl: 30,
        aliases: vec!["b.test.".to_owned()],
        types: vec![5, 1],
    };
    let failed = Event::Failed { error: "no answer".to_owned(), is_timeout: true };
    [Event::Allowed, Event::Answered(details), Event::Denied, failed].map(event).into()
}

#[tokio::test]
async fn events_of_queries_reach_the_agent_in_order() {
    let remote = Remote::new(MAX_DELAY);
    let events = events();
    remote.observe(&|| unreachable!("there is no agent"));
    connected(agent(([127, 0, 0, 1], 0).into()).await, &remote, async |agent| {
        until("the agent takes events", || remote.reports.lock().is_connected()).await;
        for event in &events {
            remote.observe(&|| event.clone());
        }
        until("all are there", || agent.node.1.lock().len() == events.len()).await;
        assert_eq!(*agent.node.1.lock(), events);
        assert_eq!(agent.node.0.lock().len(), 1, "the addresses of the answer");
        // Events do not fill the memory.
        for _ in 0..5000 {
            remote.observe(&|| events[0].clone());
        }
        assert!(remote.observations.lock().len() <= 1024);
    })
    .await;
}

#[tokio::test]
async fn events_that_are_not_valid_are_none() {
    let node = Arc::new(Node::default());
    let service = service(node.clone(), watch::channel(Arc::default()).1);
    let valid = observed::message(&events()[1], 1000);
    assert_eq!(service.learn(valid.clone()).await, ResponseCode::NoError);
    assert_eq!(std::mem::take(&mut *node.1.lock()).len(), 1);
    let with = |change: fn(&mut MetricsData)| {
        let mut mapping = valid.clone();
        mapping.metrics_data.as_mut().map(change);
        service.learn(mapping)
    };
    for change in [
        (|data| data.protocol = "icmp".to_owned()) as fn(&mut MetricsData),
        |data| data.source_port = 65_536,
        |data| data.server_addr = "dns.test:53".to_owned(),
    ] {
        assert_eq!(with(change).await, ResponseCode::NoError, "the addresses are taken");
    }
    let denied_name = FqdnMapping { fqdn: "a.denied".to_owned(), ..valid.clone() };
    assert_eq!(service.learn(denied_name).await, ResponseCode::Refused);
    assert_eq!(*node.1.lock(), []);
}
