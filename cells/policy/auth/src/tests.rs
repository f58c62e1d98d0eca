//! Two agents with a SPIRE each, which hold handshakes over the loopback address.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bpf::{Map, MapFlags, MapSpec, MapType};
use datapath_abi::signal::{AuthEntry, AuthKey};
use futures::stream::{self, BoxStream, StreamExt as _};
use grpc::{Bounds, Server};
use hive::prelude::*;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use test_kit::require_root;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{mpsc, watch};
use tonic::{Request, Response, Status};

use crate::authenticator::{Authenticator, Settings, utime};
use crate::certificates::Certificates;
use crate::cluster::{Cluster, Needs};
use crate::mutual;
use crate::proto::delegated_identity_server::{DelegatedIdentity, DelegatedIdentityServer};
use crate::proto::{
    SubscribeToX509BundlesRequest, SubscribeToX509BundlesResponse, SubscribeToX509sviDsRequest,
    SubscribeToX509sviDsResponse, X509svidWithKey,
};
use crate::spiffe::TrustDomain;
use crate::spire::{Spire, State};
use crate::testing::Authority;

const DOMAIN: &str = "spiffe.cilium";
const LIMIT: Duration = Duration::from_secs(20);
/// The node id of the other agent.
const OTHER: u16 = 7;

fn domain() -> TrustDomain {
    TrustDomain::new(DOMAIN).unwrap()
}

fn hours(count: u64) -> SystemTime {
    // Certificates have whole seconds.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    SystemTime::UNIX_EPOCH + Duration::from_secs(now + 3600 * count)
}

/// SPIRE's agent, with certificates and authorities that tests change.
#[derive(Clone)]
struct FakeSpire {
    svids: watch::Sender<Vec<X509svidWithKey>>,
    bundles: watch::Sender<HashMap<String, Vec<u8>>>,
}

fn messages<T: Clone + Send + Sync + 'static, M: 'static>(
    sender: &watch::Sender<T>,
    message: fn(T) -> M,
) -> BoxStream<'static, Result<M, Status>> {
    let mut receiver = sender.subscribe();
    receiver.mark_changed();
    stream::unfold(receiver, move |mut receiver| async move {
        receiver.changed().await.ok()?;
        let value = receiver.borrow_and_update().clone();
        Some((Ok(message(value)), receiver))
    })
    .boxed()
}

#[tonic::async_trait]
impl DelegatedIdentity for FakeSpire {
    type SubscribeToX509SVIDsStream = BoxStream<'static, Result<SubscribeToX509sviDsResponse, Status>>;
    type SubscribeToX509BundlesStream = BoxStream<'static, Result<SubscribeToX509BundlesResponse, Status>>;

    async fn subscribe_to_x509svi_ds(
        &self,
        request: Request<SubscribeToX509sviDsRequest>,
    ) -> Result<Response<Self::SubscribeToX509SVIDsStream>, Status> {
        let selectors = request.into_inner().selectors;
        let selectors: Vec<_> = selectors.iter().map(|s| (s.r#type.as_str(), s.value.as_str())).collect();
        if selectors != [("cilium", "mutual-auth")] {
            return Err(Status::invalid_argument(format!("{selectors:?}")));
        }
        Ok(Response::new(messages(&self.svids, |x509_svids| SubscribeToX509sviDsResponse { x509_svids })))
    }

    async fn subscribe_to_x509_bundles(
        &self,
        _: Request<SubscribeToX509BundlesRequest>,
    ) -> Result<Response<Self::SubscribeToX509BundlesStream>, Status> {
        let bundle = |ca_certificates| SubscribeToX509BundlesResponse { ca_certificates };
        Ok(Response::new(messages(&self.bundles, bundle)))
    }
}

impl FakeSpire {
    fn new(authority: &Authority, svids: Vec<X509svidWithKey>) -> FakeSpire {
        let bundle = HashMap::from([(format!("spiffe://{DOMAIN}"), authority.certificate().to_vec())]);
        FakeSpire { svids: watch::Sender::new(svids), bundles: watch::Sender::new(bundle) }
    }

    /// Serves the API on a socket until the job ends.
    async fn serve(self, socket: PathBuf, cx: JobCx) {
        let listener = UnixListener::bind(socket).unwrap();
        let service = TowerToHyperService::new(DelegatedIdentityServer::new(self));
        let server = Server::new("SPIRE", Bounds::default(), service, cx.token().clone());
        server.serve_unix(&listener, &cx).await;
    }
}

/// The nodes and needs that an agent knows.
#[derive(Default)]
struct Known {
    peers: Vec<(u16, SocketAddr)>,
    identities: Vec<u32>,
}

impl Cluster for Known {
    fn peer(&mut self, node: u16) -> Option<SocketAddr> {
        self.peers.iter().find(|(id, _)| *id == node).map(|(_, peer)| *peer)
    }

    fn needs(&self) -> Needs {
        Needs { identities: Some(self.identities.iter().copied().collect()), ..Needs::default() }
    }
}

/// An agent.
struct Agent {
    address: SocketAddr,
    map: Arc<Map<AuthKey, AuthEntry>>,
    cluster: Arc<Mutex<Known>>,
    signals: mpsc::Sender<AuthKey>,
    state: watch::Receiver<State>,
}

fn settings() -> Settings {
    let (pause, gc_interval) = (Duration::from_millis(10), Duration::from_secs(3600));
    Settings { capacity: 1024, pause, gc_interval, limit: Duration::from_secs(5), port: Some(1) }
}

/// Returns a cell that adds jobs.
fn jobs(add: impl FnOnce(JobGroup) + Send + 'static) -> Cell {
    let add = Mutex::new(Some(add));
    invoke(move |jobs: JobGroup| {
        let add = add.lock().take();
        add.into_iter().for_each(|add| add(jobs.clone()));
    })
}

/// Returns an agent with endpoints of these identities, and the cell of its jobs.
async fn agent(socket: PathBuf, endpoints: &[u32], settings: Settings) -> (Agent, Cell) {
    let spec = MapSpec::new("auth", MapType::Hash, 12, 8, 4096, MapFlags::NO_PREALLOC);
    let map = Arc::new(Map::create(&spec).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let cluster = Arc::new(Mutex::new(Known::default()));
    let (signals, required) = mpsc::channel(settings.capacity);
    let (change, changes) = mpsc::channel(4);
    let (certificates, current) = watch::channel(Arc::new(Certificates::new(domain())));
    let (state, connection) = watch::channel(State::default());
    let agent = Agent { address, map: map.clone(), cluster: cluster.clone(), signals, state: connection };
    let spire = Spire { socket, certificates, changes: change, state };
    let endpoints: BTreeSet<u32> = endpoints.iter().copied().collect();
    let jobs = jobs(move |jobs| {
        jobs.one_shot("spire", move |cx: JobCx| async move {
            spire.run(cx).await;
            Ok(())
        })
        .add();
        let served = current.clone();
        jobs.one_shot("handshakes", move |cx: JobCx| async move {
            let has_endpoint = Arc::new(move |identity| endpoints.contains(&identity));
            mutual::serve(listener, served, has_endpoint, LIMIT, &cx).await;
            Ok(())
        })
        .add();
        let authenticator =
            Authenticator { settings, map, cluster, certificates: current, required, changes };
        jobs.one_shot("authenticate", move |cx: JobCx| authenticator.run(cx)).add();
    });
    (agent, jobs)
}

fn spire(fake: &FakeSpire, socket: PathBuf) -> Cell {
    let fake = fake.clone();
    jobs(move |jobs| {
        jobs.one_shot("fake-spire", move |cx: JobCx| async move {
            fake.serve(socket, cx).await;
            Ok(())
        })
        .add();
    })
}

fn key(local_identity: u32, remote_identity: u32, remote_node: u16) -> AuthKey {
    AuthKey { local_identity, remote_identity, remote_node, auth_type: 1, pad: 0 }
}

impl Agent {
    fn expiration(&self, key: &AuthKey) -> Option<u64> {
        self.map.lookup(key).unwrap().map(|entry| entry.expiration)
    }
}

/// proxy.md, scenarios 74 and 75: pairs authenticate, again when certificates are renewed; entries of withdrawn
/// certificates and of identities that are gone are deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identities_of_two_agents_authenticate() {
    require_root!();
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(DOMAIN);
    let one = FakeSpire::new(&authority, vec![authority.svid_until(1000, hours(2))]);
    let two = FakeSpire::new(&authority, vec![authority.svid_until(2000, hours(3)), authority.svid(3000)]);
    let sockets = ["one", "two"].map(|name| folder.path().join(name));
    let often = Settings { gc_interval: Duration::from_secs(1), ..settings() };
    let (a, a_jobs) = agent(sockets[0].clone(), &[1000], often).await;
    let (b, b_jobs) = agent(sockets[1].clone(), &[2000], settings()).await;
    for (agent, other) in [(&a, b.address), (&b, a.address)] {
        let mut cluster = agent.cluster.lock();
        cluster.peers = vec![(0, agent.address), (OTHER, other)];
        cluster.identities = vec![1000, 2000];
    }
    let cells = [
        module("one", "Agent", [spire(&one, sockets[0].clone()), a_jobs]),
        module("two", "Agent", [spire(&two, sockets[1].clone()), b_jobs]),
    ];
    // An entry of the previous run.
    let kept = key(1000, 1000, 0);
    a.map.update(&kept, &AuthEntry { expiration: utime(hours(1)) }).unwrap();
    let mut hive = TestHive::new(cells);
    hive.start().await;
    hive.until("SPIRE", || [&a, &b].iter().all(|agent| *agent.state.borrow() == State::Connected)).await;

    let pair = key(1000, 2000, OTHER);
    let refused = [
        // No endpoint of the identity there, no certificate here, no node, reserved, types without a method.
        key(1000, 3000, OTHER),
        key(4000, 2000, OTHER),
        key(1000, 2000, 8),
        key(1000, 6, OTHER),
        AuthKey { auth_type: 2, ..pair },
        AuthKey { auth_type: 9, ..pair },
    ];
    // Packets require it until it is done: certificates may still be on their way.
    let requires = |agent: &Agent, keys: &[AuthKey]| {
        for key in keys {
            let _ = agent.signals.try_send(*key);
        }
    };
    let until = |at: u64| Some(utime(hours(at)));
    let is_near = |found: Option<u64>, expected: Option<u64>| {
        found
            .zip(expected)
            .is_some_and(|(found, expected)| found.abs_diff(expected) < utime(SystemTime::UNIX_EPOCH + LIMIT))
    };
    hive.until("both identities", || {
        requires(&a, &refused);
        requires(&a, &[pair]);
        is_near(a.expiration(&pair), until(2))
    })
    .await;
    hive.until("the other direction", || {
        requires(&b, &[key(2000, 1000, OTHER), key(2000, 2000, 0)]);
        is_near(b.expiration(&key(2000, 1000, OTHER)), until(2))
            && is_near(b.expiration(&key(2000, 2000, 0)), until(3))
    })
    .await;
    assert!(refused.iter().all(|key| a.expiration(key).is_none()));
    assert!(is_near(a.expiration(&kept), until(1)), "a start renews nothing");

    // Renewed: the entry gets the end of the certificate that expires first now, while it exists.
    one.svids.send_replace(vec![authority.svid_until(1000, hours(9))]);
    hive.until("renewal", || {
        let found = a.expiration(&pair);
        assert!(found.is_some());
        is_near(found, until(3)) && is_near(a.expiration(&kept), until(9))
    })
    .await;
    a.map.delete(&kept).unwrap();
    // Expired entries and those of identities that are gone are deleted, others are not.
    let expired = key(1000, 2000, 0);
    a.map.update(&expired, &AuthEntry { expiration: utime(SystemTime::now()) }).unwrap();
    let gone = key(1000, 5000, OTHER);
    a.map.update(&gone, &AuthEntry { expiration: u64::MAX }).unwrap();
    hive.until("garbage collection", || a.map.keys().unwrap() == [pair]).await;
    // Withdrawn.
    one.svids.send_replace(Vec::new());
    hive.until("withdrawal", || a.expiration(&pair).is_none()).await;
    hive.stop().await;
}

/// Serves handshakes with these certificates, for any identity; returns the address.
async fn server(certificates: Certificates) -> (SocketAddr, TestHive) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_, certificates) = watch::channel(Arc::new(certificates));
    let mut hive = TestHive::new([module(
        "server",
        "Handshakes",
        [jobs(move |jobs| {
            jobs.one_shot("handshakes", move |cx: JobCx| async move {
                mutual::serve(listener, certificates, Arc::new(|_| true), LIMIT, &cx).await;
                Ok(())
            })
            .add();
        })],
    )]);
    hive.start().await;
    (address, hive)
}

/// Returns certificates of SPIRE's messages.
fn certificates(authority: &Authority, svids: Vec<X509svidWithKey>) -> Certificates {
    let bundle = BTreeMap::from([(DOMAIN.to_owned(), authority.certificate().to_vec())]);
    Certificates::new(domain()).with_svids(svids).0.with_bundles(&bundle).unwrap()
}

/// A peer needs a valid certificate of exactly the wanted identity, signed by an authority: as server and as client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_with_other_certificates_are_refused() {
    let (authority, foreign) = (Authority::new(DOMAIN), Authority::new(DOMAIN));
    let uri = |domain: &str, identity: u32| format!("spiffe://{domain}/identity/{identity}");
    let svid = |uris: &[String]| {
        let uris: Vec<&str> = uris.iter().map(String::as_str).collect();
        authority.svid_of(2000, &uris, hours(2))
    };
    let both = [uri(DOMAIN, 2000), uri(DOMAIN, 2001)];
    // Each with a word of the client's error.
    let wrong = [
        (foreign.svid(2000), "InvalidSignatureForPublicKey"),
        (authority.svid_until(2000, SystemTime::now() - Duration::from_secs(60)), "CertExpired"),
        (svid(&[uri("other.cilium", 2000)]), "Foreign("),
        (svid(&[format!("spiffe://{DOMAIN}/ns/kube-system/sa/cilium")]), "Foreign("),
        (svid(&both), "Uris(2)"),
        (svid(&[]), "Uris(0)"),
        (svid(&[uri(DOMAIN, 2001)]), "Identity { found: 2001, expected: 2000 }"),
    ];
    let client = certificates(&authority, vec![authority.svid(1000)]);
    let own = certificates(&authority, vec![authority.svid(2000)]);
    let connect = async |client: &Certificates, address, pair| {
        mutual::connect(client, address, pair, LIMIT)
            .await
            .map_err(|e| format!("{:?}", anyhow::Error::new(e)))
    };
    let (good, mut hive) = server(own).await;
    connect(&client, good, (1000, 2000)).await.expect("the control");
    let missing = connect(&client, good, (1000, 4000)).await;
    assert!(missing.is_err_and(|error| error.contains("alert")), "the server has no such certificate");
    for (svid, expected) in wrong {
        let (address, mut hive) = server(certificates(&authority, vec![svid.clone()])).await;
        let error = connect(&client, address, (1000, 2000)).await.unwrap_err();
        assert!(error.contains(expected), "{error} has no {expected}");
        hive.stop().await;
        // As client: the server accepts any identity of the domain, here 2001 as well.
        let client = certificates(&authority, vec![svid]);
        let result = connect(&client, good, (2000, 2000)).await;
        assert_eq!(result.is_ok(), expected.starts_with("Identity"), "{expected}: {result:?}");
    }
    let nothing = Certificates::new(domain());
    assert!(connect(&nothing, good, (1000, 2000)).await.is_err_and(|error| error.contains("no authorities")));
    hive.stop().await;
}

/// Peers that do not answer hold up neither other pairs nor the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_silent_peers_are_bounded_in_time() {
    require_root!();
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(DOMAIN);
    let fake = FakeSpire::new(&authority, vec![authority.svid(1000)]);
    let socket = folder.path().join("socket");
    // The kernel accepts connections, which no process reads.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let limit = Duration::from_millis(200);
    let impatient = Settings { limit, ..settings() };
    let (a, jobs) = agent(socket.clone(), &[1000], impatient).await;
    a.cluster.lock().peers = vec![(0, a.address), (OTHER, silent.local_addr().unwrap())];
    let mut hive = TestHive::new([module("one", "Agent", [spire(&fake, socket), jobs])]);
    hive.start().await;
    hive.until("SPIRE", || *a.state.borrow() == State::Connected).await;
    // Clients that send nothing.
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(TcpStream::connect(a.address).await.unwrap());
    }
    let start = Instant::now();
    for identity in 0..1000 {
        a.signals.send(key(1000, 10_000 + identity, OTHER)).await.unwrap();
    }
    hive.until("an own identity behind a thousand others", || {
        let _ = a.signals.try_send(key(1000, 1000, 0));
        a.expiration(&key(1000, 1000, 0)).is_some()
    })
    .await;
    assert!(start.elapsed() < 1000 / 64 * limit + LIMIT / 2, "{:?}", start.elapsed());
    assert_eq!(a.map.keys().unwrap().len(), 1);
    let mut byte = [0];
    let read = tokio::time::timeout(Duration::from_millis(10), idle[0].read(&mut byte)).await;
    assert!(read.is_err(), "the server still waits for the idle client");
    hive.stop().await;
}
