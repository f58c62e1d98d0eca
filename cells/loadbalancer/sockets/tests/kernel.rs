//! Sockets in separate namespaces, terminated by the real kernel when backends are removed.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::sync::{Arc, Mutex};

use bpf::{Layout, MapFlags, MapSpec, MapType, RawMap, UpdateMode};
use hive::prelude::*;
use hive::{Level, TestHive};
use loadbalancer::testing::FakeMaps;
use loadbalancer::{
    Backend, BackendState, FrontendParams, FrontendType, Initializers, LbAddress, LbMapsProvider, Protocol,
    Service, ServiceName, ServicesWriter, Source,
};
use loadbalancer_sockets::{Diag, ReverseSockets, Transport};
use local_node::{LocalNode, StateConfig};
use maps::FamilyConfig;
use test_kit::{Sandbox, require_root, skip};

/// Real maps of both families.
struct Maps {
    v4: RawMap,
    v6: RawMap,
}

impl Maps {
    fn new() -> Maps {
        let map = |name: &'static str, key_size, value_size| {
            let layout = Layout {
                map_type: MapType::LruHash,
                key_size,
                value_size,
                max_entries: 64,
                flags: MapFlags::default(),
            };
            RawMap::create(&MapSpec { name: name.into(), layout, inner: None }).unwrap()
        };
        Maps { v4: map("reverse_sk4", 16, 8), v6: map("reverse_sk6", 32, 20) }
    }

    /// Records in the maps that the socket was connected to this frontend and translated to its peer.
    fn led(&self, socket: &impl AsFd, peer: SocketAddr, frontend: SocketAddr) {
        let cookie = rustix::net::sockopt::socket_cookie(socket).unwrap();
        let octets = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let of = |address: SocketAddr| {
            [octets(address.ip()), address.port().to_be_bytes().to_vec(), vec![0; 2]].concat()
        };
        let key = |length: usize| {
            let mut key = [cookie.to_ne_bytes().to_vec(), of(peer)].concat();
            key.resize(length, 0);
            key
        };
        match peer {
            SocketAddr::V4(_) => self.v4.update(&key(16), &of(frontend), UpdateMode::Any).unwrap(),
            SocketAddr::V6(_) => self.v6.update(&key(32), &of(frontend), UpdateMode::Any).unwrap(),
        }
    }
}

struct Node {
    hive: TestHive,
    writer: Arc<ServicesWriter>,
    maps: Maps,
    source: Option<Initializers>,
}

impl Node {
    async fn start(sandbox: &Sandbox, options: &[(&str, &str)]) -> Node {
        let mut node = Node::silent(sandbox, options).await;
        node.speak();
        node
    }

    /// Returns a node whose source of services is not complete yet.
    async fn silent(sandbox: &Sandbox, options: &[(&str, &str)]) -> Node {
        let source = Arc::new(Mutex::new(None));
        let slot = source.clone();
        let register =
            move |writer: Arc<ServicesWriter>| *slot.lock().unwrap() = Some(writer.register("a-source"));
        let maps = Maps::new();
        let (v4, v6) = (maps.v4.try_clone().unwrap(), maps.v6.try_clone().unwrap());
        let open =
            move |name: &str| Ok(Some(if name.contains("lb4") { v4.try_clone()? } else { v6.try_clone()? }));
        let cells = [
            statedb::cell(),
            module("options", "Options of other cells", [config::<FamilyConfig>(), config::<StateConfig>()]),
            local_node::testing::given(LocalNode::default()),
            supply(Arc::new(LbMapsProvider::new(|| Ok(Arc::<FakeMaps>::default())))),
            loadbalancer::control_plane(),
            supply(Arc::new(ReverseSockets::new(open))),
            loadbalancer_sockets::termination(),
            module("a-source", "A source of services", [invoke(register)]),
        ];
        let mut hive = TestHive::needing::<ServicesWriter>(cells)
            .set("bpf-lb-sock", "true")
            .set("state-dir", sandbox.dir().join("state").display());
        for (option, value) in options {
            hive = hive.set(option, value);
        }
        hive.start().await;
        let writer = hive.get::<ServicesWriter>();
        let source = source.lock().unwrap().take();
        Node { hive, writer, maps, source }
    }

    /// Marks the source as complete.
    fn speak(&mut self) {
        self.writer.complete(self.source.take().unwrap());
    }

    /// A service with a frontend for UDP and TCP, and these backends.
    fn service(&self, name: &str, frontend: SocketAddr, backends: &[(SocketAddr, BackendState)]) {
        let name = ServiceName::new("shop", name);
        let both = |address: SocketAddr| {
            [Protocol::Udp, Protocol::Tcp]
                .map(|protocol| LbAddress::new(address.ip(), address.port(), protocol))
        };
        let params = |address| FrontendParams {
            address,
            kind: FrontendType::ClusterIP,
            port_name: "".into(),
            service_port: frontend.port(),
        };
        let rows = backends.iter().flat_map(|(address, state)| {
            let row = |address| Backend { state: *state, ..Backend::new(name.clone(), address, Source::Api) };
            both(*address).map(row)
        });
        let mut txn = self.writer.write();
        let service = Service::new(name.clone(), Source::Api);
        txn.upsert_service(service, both(frontend).map(params).into()).unwrap();
        txn.set_backends(&name, Source::Api, rows.collect());
        txn.commit();
    }

    async fn until_ended(&self, what: &str, socket: &UdpSocket) {
        let is_aborted = || match socket.take_error().unwrap() {
            None => false,
            Some(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{what}");
                true
            }
        };
        self.hive.until(what, is_aborted).await;
    }
}

/// Returns a UDP socket that is connected to an address.
fn udp(to: &str) -> (UdpSocket, SocketAddr) {
    let peer: SocketAddr = to.parse().unwrap();
    let own = if peer.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(own).unwrap();
    socket.connect(peer).unwrap();
    let canonical = match peer.ip() {
        IpAddr::V6(ip) => SocketAddr::new(ip.to_canonical(), peer.port()),
        IpAddr::V4(_) => peer,
    };
    (socket, canonical)
}

fn lives(socket: &UdpSocket) -> bool {
    socket.take_error().unwrap().is_none() && socket.peer_addr().is_ok()
}

/// Whether the kernel of this machine supports it.
fn supported() -> bool {
    let mut diag = Diag::open().unwrap();
    [Transport::Udp, Transport::Tcp].into_iter().all(|transport| match diag.can_destroy(transport) {
        Ok(()) => true,
        Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => false,
        Err(error) => panic!("{error}"),
    })
}

fn in_sandbox(work: impl AsyncFnOnce(&Sandbox)) {
    let sandbox = Sandbox::new().unwrap();
    fs::create_dir_all(sandbox.dir().join("state/netns")).unwrap();
    // Its threads are started in the sandbox's namespace, like this one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work(&sandbox));
}

const ACTIVE: BackendState = BackendState::Active;

/// Scenario 82.
#[test]
fn sockets_end_with_the_backend_that_they_were_led_to() {
    require_root!();
    if !supported() {
        skip!("this kernel cannot end sockets (CONFIG_INET_DIAG_DESTROY)");
    }
    in_sandbox(async |sandbox| {
        let pod = sandbox.netns("pod").unwrap();
        symlink(pod.path(), sandbox.dir().join("state/netns/pod")).unwrap();
        fs::write(sandbox.dir().join("state/netns/no-namespace"), "").unwrap();
        let mut node = Node::start(sandbox, &[]).await;
        let (web, other) = ("10.96.0.1:53".parse().unwrap(), "10.96.0.2:53".parse().unwrap());
        let (first, second, third, v6): (SocketAddr, SocketAddr, SocketAddr, SocketAddr) = (
            "127.0.0.1:5301".parse().unwrap(),
            "127.0.0.1:5302".parse().unwrap(),
            "127.0.0.1:5303".parse().unwrap(),
            "[::1]:5301".parse().unwrap(),
        );
        let web6 = SocketAddr::new(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into(), 53);
        node.service("web", web, &[(first, ACTIVE), (second, ACTIVE), (third, ACTIVE)]);
        node.service("web6", web6, &[(v6, ACTIVE)]);
        node.service("other", other, &[(first, ACTIVE)]);
        let led = |socket: (UdpSocket, SocketAddr), frontend: SocketAddr| {
            node.maps.led(&socket.0, socket.1, frontend);
            socket.0
        };
        let here = led(udp("127.0.0.1:5301"), web);
        let mapped = led(udp("[::ffff:127.0.0.1]:5301"), web);
        let of_pod = led(pod.run(|| udp("127.0.0.1:5301")), web);
        let by_other_service = led(udp("127.0.0.1:5301"), other);
        let by_itself = udp("127.0.0.1:5301").0;
        let of_second = led(udp("127.0.0.1:5302"), web);
        let of_third = led(udp("127.0.0.1:5303"), web);
        let of_v6 = led(udp("[::1]:5301"), web6);
        let listener = TcpListener::bind("127.0.0.1:5301").unwrap();
        let tcp = TcpStream::connect("127.0.0.1:5301").unwrap();
        node.maps.led(&tcp, first, web);

        // Terminating backends keep existing connections; those that are not serving do not.
        node.service("web", web, &[(second, BackendState::Terminating), (third, BackendState::Maintenance)]);
        node.until_ended("the host's socket", &here).await;
        node.until_ended("the socket of IPv6 with a peer of IPv4", &mapped).await;
        node.until_ended("the pod's socket", &of_pod).await;
        node.until_ended("the socket of the backend in maintenance", &of_third).await;
        assert!(lives(&by_other_service), "its service still has the backend");
        assert!(lives(&by_itself), "it was not translated");
        assert!(lives(&of_second) && lives(&of_v6));
        assert!(tcp.take_error().unwrap().is_none() && tcp.peer_addr().is_ok(), "only UDP");
        drop(listener);

        node.service("web6", web6, &[]);
        node.until_ended("the socket of IPv6", &of_v6).await;
        let mut txn = node.writer.write();
        let address = LbAddress::new(second.ip(), second.port(), Protocol::Udp);
        assert!(txn.set_health(
            &ServiceName::new("shop", "web"),
            &address,
            false,
            std::time::SystemTime::now()
        ));
        txn.commit();
        node.until_ended("the socket of an unhealthy backend", &of_second).await;
        assert!(lives(&by_other_service) && lives(&by_itself));
        let job = || node.hive.health("socket-termination.job-socket-termination");
        node.hive.until("all are counted", || job().message == "6 sockets ended").await;
        assert_eq!(job().level, Level::Ok);
        node.hive.stop().await;
    });
}

#[test]
fn a_start_ends_sockets_of_backends_that_went_while_no_agent_ran() {
    require_root!();
    if !supported() {
        skip!("this kernel cannot end sockets (CONFIG_INET_DIAG_DESTROY)");
    }
    in_sandbox(async |sandbox| {
        let pod = sandbox.netns("pod").unwrap();
        symlink(pod.path(), sandbox.dir().join("state/netns/pod")).unwrap();
        let mut node = Node::silent(sandbox, &[]).await;
        let table = node.writer.frontends();
        let (web, other, unowned): (SocketAddr, SocketAddr, SocketAddr) = (
            "10.96.0.1:53".parse().unwrap(),
            "10.96.0.2:53".parse().unwrap(),
            "10.96.0.3:53".parse().unwrap(),
        );
        let (first, second) = ("127.0.0.1:5301".parse().unwrap(), "127.0.0.1:5302".parse().unwrap());
        let led = |socket: (UdpSocket, SocketAddr), frontend: SocketAddr| {
            node.maps.led(&socket.0, socket.1, frontend);
            socket.0
        };
        let gone = led(udp("127.0.0.1:5309"), web);
        let gone_in_pod = led(pod.run(|| udp("127.0.0.1:5309")), unowned);
        let of_another_service = led(udp("127.0.0.1:5302"), web);
        let stays = led(udp("127.0.0.1:5301"), web);
        let of_no_service = led(udp("127.0.0.1:5301"), unowned);
        let by_itself = udp("127.0.0.1:5309").0;
        node.service("web", web, &[(first, ACTIVE)]);
        node.service("other", other, &[(second, ACTIVE)]);
        // A source is incomplete: a backend that arrives later must not count as removed.
        let probe = led(udp("127.0.0.1:5310"), web);
        node.service(
            "probe",
            "10.96.0.9:53".parse().unwrap(),
            &[("127.0.0.1:5310".parse().unwrap(), ACTIVE)],
        );
        node.service("probe", "10.96.0.9:53".parse().unwrap(), &[]);
        node.until_ended("a socket of a backend that went meanwhile", &probe).await;
        assert!(!table.initialized(&table.snapshot()) && lives(&gone) && lives(&gone_in_pod));

        node.speak();
        node.until_ended("the socket whose backend is gone", &gone).await;
        node.until_ended("the pod's socket whose backend is gone", &gone_in_pod).await;
        node.until_ended("the socket whose service has lost the backend", &of_another_service).await;
        assert!(lives(&stays), "its service has the backend");
        assert!(lives(&of_no_service), "its service is unknown, its backend is there");
        assert!(lives(&by_itself), "it was not translated");
        let job = || node.hive.health("socket-termination.job-socket-termination").message;
        node.hive.until("all are counted", || job() == "4 sockets ended").await;
        node.hive.stop().await;
    });
}

#[test]
fn tcp_and_pods_by_their_options() {
    require_root!();
    if !supported() {
        skip!("this kernel cannot end sockets (CONFIG_INET_DIAG_DESTROY)");
    }
    in_sandbox(async |sandbox| {
        let pod = sandbox.netns("pod").unwrap();
        symlink(pod.path(), sandbox.dir().join("state/netns/pod")).unwrap();
        let options =
            [("lb-sock-terminate-all-protos", "true"), ("bpf-lb-sock-terminate-pod-connections", "false")];
        let mut node = Node::start(sandbox, &options).await;
        let (web, first) = ("10.96.0.1:53".parse().unwrap(), "127.0.0.1:5301".parse().unwrap());
        node.service("web", web, &[(first, ACTIVE)]);
        let listener = TcpListener::bind(first).unwrap();
        let tcp = TcpStream::connect(first).unwrap();
        let other = TcpStream::connect(first).unwrap();
        node.maps.led(&tcp, first, web);
        let (of_pod, _) = pod.run(|| udp("127.0.0.1:5301"));
        node.maps.led(&of_pod, first, web);
        node.service("web", web, &[]);
        let is_aborted =
            || tcp.take_error().unwrap().is_some_and(|error| error.kind() == ErrorKind::ConnectionAborted);
        node.hive.until("the TCP socket", is_aborted).await;
        assert!(other.take_error().unwrap().is_none() && other.peer_addr().is_ok());
        let job = || node.hive.health("socket-termination.job-socket-termination").message;
        node.hive.until("the round is over", || job() == "1 sockets ended").await;
        assert!(lives(&of_pod), "pods are left alone");
        drop(listener);
        node.hive.stop().await;
    });
}

#[test]
fn without_socket_load_balancing_nothing_ends() {
    require_root!();
    in_sandbox(async |sandbox| {
        let mut node = Node::start(sandbox, &[("bpf-lb-sock", "false")]).await;
        assert!(node.hive.hive().health().at("socket-termination.job-socket-termination").is_none());
        node.hive.stop().await;
    });
}
