//! Real sockets of the test's process in a cgroup of its own, with map entries as the load balancer writes them.

mod kit;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use datapath_abi::event::{sock_protocol, xlate};
use datapath_abi::{identity, lb_flag, lb_flag2};
use datapath_api::SocketCoverage;
use test_kit::require_root;

use socket2::{Domain, Socket, Type};

use kit::{Change, Node, Service, TCP, UDP, enter, on_a_runtime};

const VIP4: &str = "10.96.0.1:80";
const VIP6: &str = "[fd00:96::1]:80";

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// The same address for an IPv6 socket.
fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// A TCP server on loopback that answers each connection with its own address.
#[expect(clippy::disallowed_methods, reason = "a server of the test, which ends with it")]
fn server(ip: &str) -> SocketAddr {
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| stream.write_all(at.to_string().as_bytes()));
        }
    });
    at
}

/// A UDP server on loopback that returns each datagram.
#[expect(clippy::disallowed_methods, reason = "a server of the test, which ends with it")]
fn echo(ip: &str) -> SocketAddr {
    let socket = UdpSocket::bind((ip, 0)).unwrap();
    let at = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    at
}

fn ask(to: SocketAddr) -> std::io::Result<(String, SocketAddr)> {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(20))?;
    let peer = stream.peer_addr()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok((answer, peer))
}

fn udp(any: IpAddr) -> UdpSocket {
    let socket = UdpSocket::bind((any, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

const ANY4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const ANY6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

#[test]
fn tcp_reaches_a_backend_and_sees_the_service() {
    require_root!();
    on_a_runtime(async {
        let mut node = Node::start(&[("bpf-lb-sock", "true")]).await;
        let (one, two) = (server("127.0.0.1"), server("::1"));
        node.put(&Service::new(VIP4, TCP, &[one]));
        node.put(&Service::new(VIP6, TCP, &[two]));
        let (vip4, vip6) = (address(VIP4), address(VIP6));
        assert_eq!(ask(vip4).unwrap(), (one.to_string(), vip4));
        assert_eq!(ask(vip6).unwrap(), (two.to_string(), vip6));
        assert_eq!(ask(mapped(vip4)).unwrap(), (one.to_string(), mapped(vip4)), "IPv4 by a socket of IPv6");
        // Its row goes with the socket.
        assert_eq!(node.socket_rows(), (0, 0));
        // A control: the service is in no route, only the hook leads there.
        node.remove(&Service::new(VIP4, TCP, &[one]));
        let failed = TcpStream::connect_timeout(&vip4, Duration::from_millis(200)).unwrap_err();
        assert!(failed.kind() == ErrorKind::TimedOut || failed.raw_os_error() == Some(101), "{failed}");
        node.finish().await;
    });
}

#[test]
fn udp_reaches_a_backend_connected_or_not_and_sees_the_service() {
    require_root!();
    on_a_runtime(async {
        let mut node = Node::start(&[("bpf-lb-sock", "true")]).await;
        let (one, two) = (echo("127.0.0.1"), echo("::1"));
        node.put(&Service::new(VIP4, UDP, &[one]));
        node.put(&Service::new(VIP6, UDP, &[two]));
        let (vip4, vip6) = (address(VIP4), address(VIP6));
        let mut buffer = [0; 64];
        for (any, vip) in [(ANY4, vip4), (ANY6, vip6), (ANY6, mapped(vip4))] {
            let connected = udp(any);
            connected.connect(vip).unwrap();
            assert_eq!(connected.peer_addr().unwrap(), vip);
            connected.send(b"connected").unwrap();
            assert_eq!(connected.recv_from(&mut buffer).unwrap(), (9, vip));
            let free = udp(any);
            for _ in 0..3 {
                free.send_to(b"free", vip).unwrap();
                assert_eq!(free.recv_from(&mut buffer).unwrap(), (4, vip));
            }
        }
        node.finish().await;
    });
}

#[test]
fn a_lost_row_costs_only_the_name_and_a_deleted_service_is_not_shown() {
    require_root!();
    on_a_runtime(async {
        let mut node = Node::start(&[("bpf-lb-sock", "true")]).await;
        let (backend, vip) = (echo("127.0.0.1"), address(VIP4));
        let service = Service::new(VIP4, UDP, &[backend]);
        node.put(&service);
        let mut buffer = [0; 64];
        let socket = udp(ANY4);
        socket.connect(vip).unwrap();
        let talk = |socket: &UdpSocket, buffer: &mut [u8; 64]| {
            socket.send(b"x").unwrap();
            socket.recv_from(buffer).unwrap().1
        };
        assert_eq!(talk(&socket, &mut buffer), vip);
        // The map is emptied, as by an operator: the socket goes on, and new ones are not affected.
        node.forget_sockets();
        assert_eq!(talk(&socket, &mut buffer), backend);
        let other = udp(ANY4);
        other.connect(vip).unwrap();
        assert_eq!(talk(&other, &mut buffer), vip);
        // Another service has taken the address: the name would be wrong. The stale row goes.
        node.put(&Service { id: 9, ..service.clone() });
        assert_eq!(talk(&other, &mut buffer), backend);
        assert_eq!(node.socket_rows(), (0, 0));
        node.put(&service);
        other.connect(vip).unwrap();
        node.remove(&service);
        assert_eq!(talk(&other, &mut buffer), backend);
        assert_eq!(node.socket_rows(), (0, 0));
        node.finish().await;
    });
}

#[test]
fn a_service_without_backends_refuses_and_a_missing_slot_is_skipped() {
    require_root!();
    on_a_runtime(async {
        let mut node = Node::start(&[("bpf-lb-sock", "true")]).await;
        for vip in [VIP4, VIP6] {
            node.put(&Service::new(vip, TCP, &[]));
            node.put(&Service::new(vip, UDP, &[]));
            let vip = address(vip);
            const UNREACHABLE: Option<i32> = Some(113);
            assert_eq!(TcpStream::connect(vip).unwrap_err().raw_os_error(), UNREACHABLE);
            let socket = udp(if vip.is_ipv4() { ANY4 } else { ANY6 });
            assert_eq!(socket.connect(vip).unwrap_err().raw_os_error(), UNREACHABLE);
            assert_eq!(socket.send_to(b"x", vip).unwrap_err().raw_os_error(), UNREACHABLE);
        }
        // Two of three slots are there, as while the agent removes one.
        let backend = server("127.0.0.1");
        let service = Service::new(VIP4, TCP, &[backend, backend]);
        node.put(&Service { count: 3, ..service });
        for _ in 0..40 {
            assert_eq!(ask(address(VIP4)).unwrap().0, backend.to_string());
        }
        node.finish().await;
    });
}

#[test]
fn connections_are_spread_and_affinity_keeps_a_namespace_with_its_backend() {
    require_root!();
    on_a_runtime(async {
        let mut node = Node::start(&[("bpf-lb-sock", "true")]).await;
        let backends: Vec<SocketAddr> = (0..4).map(|_| server("127.0.0.1")).collect();
        let service = Service::new(VIP4, TCP, &backends);
        node.put(&service);
        let answers = |count: usize| -> std::collections::BTreeSet<String> {
            (0..count).map(|_| ask(address(VIP4)).unwrap().0).collect()
        };
        assert_eq!(answers(200).len(), 4);
        node.put(&Service { affinity: Some(1000), ..service.clone() });
        let kept = answers(50);
        assert_eq!(kept.len(), 1);
        // The backend goes: another one is kept.
        let left: Vec<SocketAddr> = backends
            .iter()
            .copied()
            .filter(|backend| backend.to_string() != *kept.first().unwrap())
            .collect();
        node.remove(&service);
        node.put(&Service { affinity: Some(1000), first_backend: 50, ..Service::new(VIP4, TCP, &left) });
        let other = answers(50);
        assert_eq!(other.len(), 1);
        assert_ne!(other, kept);
        node.finish().await;
    });
}

/// Scenario 80.
#[test]
fn node_ports_answer_on_loopback_and_node_addresses_and_cannot_be_bound() {
    require_root!();
    on_a_runtime(async {
        let mut node = Node::start(&[("kube-proxy-replacement", "true")]).await;
        const PORT: u16 = 30_080;
        let (one, two) = (server("127.0.0.1"), server("::1"));
        for (any, backend) in [(ANY4, one), (ANY6, two)] {
            let any = SocketAddr::new(any, PORT).to_string();
            node.put(&Service { flags: lb_flag::NODE_PORT, ..Service::new(&any, TCP, &[backend]) });
        }
        node.identify("192.0.2.1", identity::HOST);
        node.identify("192.0.2.2", identity::REMOTE_NODE);
        node.identify("192.0.2.3", 0x1_0000);
        for ip in ["127.0.0.1", "127.9.9.9", "192.0.2.1", "192.0.2.2"] {
            let to = SocketAddr::new(ip.parse().unwrap(), PORT);
            assert_eq!(ask(to).unwrap(), (one.to_string(), to), "{ip}");
            assert_eq!(ask(mapped(to)).unwrap(), (one.to_string(), mapped(to)), "{ip}");
        }
        let to = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), PORT);
        assert_eq!(ask(to).unwrap(), (two.to_string(), to));
        // Neither another port, nor an address of others, nor loopback of a pod.
        assert_eq!(ask(address("127.0.0.1:30081")).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let foreign = SocketAddr::new("192.0.2.3".parse().unwrap(), PORT);
        assert!(TcpStream::connect_timeout(&foreign, Duration::from_millis(200)).is_err());
        let pod = node.sandbox().netns("pod").unwrap();
        pod.ip("link set lo up").unwrap();
        let refused = pod.run(|| TcpStream::connect(("127.0.0.1", PORT)).unwrap_err().kind());
        assert_eq!(refused, ErrorKind::ConnectionRefused);
        // Ports of services are not for processes of the host; for pods they are.
        for (ip, free) in
            [("0.0.0.0", "0.0.0.0:30081"), ("127.0.0.1", "127.0.0.1:30081"), ("::", "[::]:30081")]
        {
            let taken = TcpListener::bind((ip, PORT)).unwrap_err();
            assert_eq!(taken.kind(), ErrorKind::AddrInUse, "{ip}");
            drop(TcpListener::bind(free).unwrap());
            drop(UdpSocket::bind((ip, PORT)).unwrap());
        }
        pod.run(|| drop(TcpListener::bind(("0.0.0.0", PORT)).unwrap()));
        node.finish().await;
    });
    // Without the protection.
    on_a_runtime(async {
        const PORT: u16 = 30_080;
        let options = [("kube-proxy-replacement", "true"), ("node-port-bind-protection", "false")];
        let mut node = Node::start(&options).await;
        let backend = server("127.0.0.1");
        node.put(&Service { flags: lb_flag::NODE_PORT, ..Service::new("0.0.0.0:30080", TCP, &[backend]) });
        drop(TcpListener::bind(("0.0.0.0", PORT)).unwrap());
        node.finish().await;
    });
}

#[test]
fn external_ips_and_host_ports_are_translated_only_at_addresses_of_the_node() {
    require_root!();
    for (disabled, reached) in [("false", false), ("true", true)] {
        on_a_runtime(async {
            let options = [("bpf-lb-sock", "true"), ("disable-external-ip-mitigation", disabled)];
            let mut node = Node::start(&options).await;
            let backend = server("127.0.0.1");
            let external = |ip: &str| {
                let at = format!("{ip}:443");
                Service { flags: lb_flag::EXTERNAL_IP, ..Service::new(&at, TCP, &[backend]) }
            };
            node.identify("192.0.2.1", identity::HOST);
            node.put(&external("192.0.2.1"));
            node.put(&Service { id: 2, first_backend: 5, ..external("192.0.2.9") });
            assert_eq!(ask(address("192.0.2.1:443")).unwrap().0, backend.to_string());
            let other = TcpStream::connect_timeout(&address("192.0.2.9:443"), Duration::from_millis(300));
            assert_eq!(other.is_ok(), reached);
            // A host port on loopback alone.
            let flags = (lb_flag::HOST_PORT, lb_flag2::LOOPBACK);
            let service = Service::new("0.0.0.0:8080", TCP, &[backend]);
            node.put(&Service { id: 3, first_backend: 7, flags: flags.0, flags2: flags.1, ..service });
            assert_eq!(ask(address("127.0.0.1:8080")).unwrap().0, backend.to_string());
            assert!(
                TcpStream::connect_timeout(&address("192.0.2.1:8080"), Duration::from_millis(300)).is_err()
            );
            node.finish().await;
        });
    }
}

/// Scenario 81.
#[test]
fn with_hostns_only_other_namespaces_are_left_alone() {
    require_root!();
    on_a_runtime(async {
        let options = [("bpf-lb-sock", "true"), ("bpf-lb-sock-hostns-only", "true")];
        let mut node = Node::start(&options).await;
        assert_eq!(node.coverage(), SocketCoverage::Host);
        let backend = server("127.0.0.1");
        node.put(&Service::new(VIP4, TCP, &[backend]));
        assert_eq!(ask(address(VIP4)).unwrap().0, backend.to_string());
        let pod = node.sandbox().netns("pod").unwrap();
        pod.ip("link set lo up").unwrap();
        let other = pod.run(|| TcpStream::connect(address(VIP4)).unwrap_err());
        assert_eq!(other.raw_os_error(), Some(101), "no route: {other}");
        node.finish().await;
    });
    on_a_runtime(async {
        let mut node = Node::start(&[("bpf-lb-sock", "true")]).await;
        assert_eq!(node.coverage(), SocketCoverage::All);
        node.put(&Service::new(VIP4, TCP, &[server("127.0.0.1")]));
        let pod = node.sandbox().netns("pod").unwrap();
        pod.ip("link set lo up").unwrap();
        // The pod's own loopback has no such server.
        let translated = pod.run(|| TcpStream::connect(address(VIP4)).unwrap_err().kind());
        assert_eq!(translated, ErrorKind::ConnectionRefused);
        node.finish().await;
    });
}

/// Scenario 78, at sockets: a namespace reaches a redirected frontend itself where a row says so.
#[test]
fn a_namespace_with_a_row_is_not_redirected() {
    require_root!();
    on_a_runtime(async {
        let mut node = Node::start(&[("bpf-lb-sock", "true")]).await;
        for (vip, backend) in [(VIP4, server("127.0.0.1")), (VIP6, server("::1"))] {
            let service = Service::new(vip, TCP, &[backend]);
            let redirected = Service { flags2: lb_flag2::LOCAL_REDIRECT, ..service.clone() };
            node.put(&redirected);
            let vip = address(vip);
            assert_eq!(ask(vip).unwrap().0, backend.to_string());
            node.skip(SocketAddr::new(vip.ip(), vip.port() + 1));
            assert_eq!(ask(vip).unwrap().0, backend.to_string(), "the row of another port");
            node.skip(vip);
            let itself = TcpStream::connect_timeout(&vip, Duration::from_millis(200)).unwrap_err();
            assert!(itself.kind() == ErrorKind::TimedOut || itself.raw_os_error() == Some(101), "{itself}");
            // The row counts for redirections alone.
            node.put(&service);
            assert_eq!(ask(vip).unwrap().0, backend.to_string());
        }
        node.finish().await;
    });
}

/// Scenario 83, at sockets: a prober's socket binds any address in place of its backend's, which is stored, and connects to
/// the frontend itself.
#[test]
fn sockets_of_health_probes_name_their_backends() {
    require_root!();
    on_a_runtime(async {
        let mut node = Node::start(&[
            ("kube-proxy-replacement", "true"),
            ("bpf-lb-mode", "dsr"),
            ("bpf-lb-dsr-dispatch", "ipip"),
            ("bpf-lb-ipip-sock-mark", "true"),
        ])
        .await;
        assert_eq!(node.link_names().len(), 13, "{:?}", node.link_names());
        node.sandbox()
            .host()
            .ip_batch("route add 10.96.0.1/32 dev lo\nroute add fd00:96::1/128 dev lo")
            .unwrap();
        node.put(&Service::new(VIP4, UDP, &[echo("127.0.0.1")]));
        node.put(&Service::new(VIP6, UDP, &[echo("::1")]));
        const MARK: u32 = 0xd00;
        const NOT_AVAILABLE: Option<i32> = Some(99);
        let socket = |at: SocketAddr, mark: u32| {
            let domain = if at.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
            let socket = Socket::new(domain, Type::DGRAM, None).unwrap();
            socket.set_mark(mark).unwrap();
            socket
        };
        let pod = node.sandbox().netns("pod").unwrap();
        let (remote4, remote6) = (address("10.1.0.20:8080"), address("[fd01::20]:8080"));
        for (backend, vip) in
            [(remote4, address(VIP4)), (remote6, address(VIP6)), (mapped(remote4), mapped(address(VIP4)))]
        {
            let probe = socket(backend, MARK);
            probe.bind(&backend.into()).unwrap();
            let bound = probe.local_addr().unwrap().as_socket().unwrap();
            assert!(bound.ip().to_canonical().is_unspecified(), "{bound}");
            let named = if backend.ip().to_canonical().is_ipv4() { remote4 } else { remote6 };
            assert_eq!(node.probed(probe.cookie().unwrap()), Some((named, UDP)), "{backend}");
            probe.connect(&vip.into()).unwrap();
            assert_eq!((probe.mark().unwrap(), node.socket_rows()), (0, (0, 0)), "{vip}");
            assert_eq!(probe.peer_addr().unwrap().as_socket(), Some(vip));
            // The controls: a socket without the mark, and one of a pod.
            let plain = socket(backend, 0);
            assert_eq!(plain.bind(&backend.into()).unwrap_err().raw_os_error(), NOT_AVAILABLE);
            assert_eq!(node.probed(plain.cookie().unwrap()), None);
            plain.connect(&vip.into()).unwrap();
            assert_ne!(node.socket_rows(), (0, 0), "translated");
            drop(plain);
            let inside = pod.run(|| socket(backend, MARK));
            assert_eq!(inside.bind(&backend.into()).unwrap_err().raw_os_error(), NOT_AVAILABLE);
        }
        // Without the option the mark means nothing.
        node.restart(&[("kube-proxy-replacement", "true")], false).await;
        node.until_links(11).await;
        let probe = socket(remote4, MARK);
        assert_eq!(probe.bind(&remote4.into()).unwrap_err().raw_os_error(), NOT_AVAILABLE);
        node.finish().await;
    });
}

/// Connections all the time while agents come and go, and while backends are exchanged.
#[test]
fn no_connection_fails_while_agents_and_backends_are_replaced() {
    require_root!();
    on_a_runtime(async {
        let mut node = Node::start(&[("bpf-lb-sock", "true")]).await;
        let backends: Vec<SocketAddr> = (0..3).map(|_| server("127.0.0.1")).collect();
        node.put(&Service::new(VIP4, TCP, &backends));
        let done = Arc::new(AtomicBool::new(false));
        let is_done = done.clone();
        #[expect(clippy::disallowed_methods, reason = "a client of the test, which waits for it")]
        let stream = std::thread::spawn(move || {
            let (mut count, mut failures) = (0, Vec::new());
            while !is_done.load(Ordering::Relaxed) {
                match TcpStream::connect_timeout(&address(VIP4), Duration::from_secs(20)) {
                    Ok(stream) if stream.peer_addr().is_ok_and(|peer| peer == address(VIP4)) => count += 1,
                    failed => failures.push(format!("{failed:?}")),
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            (count, failures)
        });
        for killed in [false, true, false, true] {
            let before = node.link_ids();
            node.restart(&[("bpf-lb-sock", "true")], killed).await;
            assert_eq!(node.coverage(), SocketCoverage::All, "known at the start, from the links");
            node.until_replaced().await;
            assert_eq!(node.link_ids(), before, "links are updated in place");
        }
        // An agent with a constant changed replaces the programs, too; backends come and go meanwhile.
        for first_backend in [100, 200, 300] {
            node.put(&Service { first_backend, ..Service::new(VIP4, TCP, &backends) });
        }
        done.store(true, Ordering::Relaxed);
        let (count, failures) = stream.join().unwrap();
        assert!(failures.is_empty() && count > 10, "{count} connections, failed: {failures:?}");
        node.finish().await;
    });
}

#[test]
fn links_of_others_are_taken_over_and_all_go_when_the_option_is_off() {
    require_root!();
    on_a_runtime(async {
        let mut node = Node::start(&[("bpf-lb-sock", "true")]).await;
        let names = node.link_names();
        assert_eq!(names.len(), 9, "{names:?}");
        // A link of Cilium that has no counterpart, a pin to something else, and a pin that was removed.
        node.spoil_links();
        node.restart(&[("bpf-lb-sock", "true")], true).await;
        node.until_attached().await;
        node.until_replaced().await;
        assert_eq!(node.link_names(), names);
        let backend = server("127.0.0.1");
        node.put(&Service::new(VIP4, TCP, &[backend]));
        assert_eq!(ask(address(VIP4)).unwrap().0, backend.to_string());
        // Off: nothing is left, nothing is translated.
        node.restart(&[], false).await;
        node.until_links_are_gone().await;
        assert_eq!(node.coverage(), SocketCoverage::None);
        let failed = TcpStream::connect_timeout(&address(VIP4), Duration::from_millis(200)).unwrap_err();
        assert!(failed.kind() == ErrorKind::TimedOut || failed.raw_os_error() == Some(101), "{failed}");
        node.finish().await;
    });
}

#[test]
fn translations_are_reported_with_each_address() {
    require_root!();
    on_a_runtime(async {
        let mut node = Node::start(&[("bpf-lb-sock", "true"), ("monitor-aggregation", "none")]).await;
        let (one, two) = (server("127.0.0.1"), echo("::1"));
        node.put(&Service::new(VIP4, TCP, &[one]));
        node.put(&Service::new(VIP6, UDP, &[two]));
        let (vip4, vip6, mut events) = (address(VIP4), address(VIP6), node.events());
        let expected = |vip, backend| {
            [
                (xlate::PRE_FWD, vip),
                (xlate::POST_FWD, backend),
                (xlate::PRE_REV, backend),
                (xlate::POST_REV, vip),
            ]
        };
        ask(vip4).unwrap();
        let traces = events.read();
        let cgroup = std::fs::metadata(node.cgroup()).unwrap().ino();
        for trace in &traces {
            let of_socket = (trace.protocol, trace.cookie, trace.cgroup);
            assert_eq!(of_socket, (sock_protocol::TCP, traces[0].cookie, cgroup), "{trace:?}");
        }
        let addresses: Vec<(u8, SocketAddr)> =
            traces.iter().map(|trace| (trace.point, SocketAddr::new(trace.address, trace.port))).collect();
        assert_eq!(addresses, expected(vip4, one));
        ask(mapped(vip4)).unwrap();
        assert_eq!(events.addresses(), expected(vip4, one), "an IPv4 address of an IPv6 socket");
        let (free, mut buffer) = (udp(ANY6), [0; 64]);
        free.send_to(b"free", vip6).unwrap();
        free.recv_from(&mut buffer).unwrap();
        assert_eq!(events.addresses(), expected(vip6, two));
        // A control: without a translation there is nothing to report.
        ask(one).unwrap();
        assert_eq!(events.read(), []);
        node.restart(&[("bpf-lb-sock", "true"), ("trace-sock", "false")], false).await;
        node.until_replaced().await;
        ask(vip4).unwrap();
        assert_eq!(events.read(), []);
        node.finish().await;
    });
}

#[test]
fn with_aggregation_one_connect_an_interval_is_reported_and_the_others_are_counted() {
    require_root!();
    on_a_runtime(async {
        let interval = ("monitor-aggregation-interval", "1h");
        let options = [("bpf-lb-sock", "true"), ("monitor-aggregation", "medium"), interval];
        let mut node = Node::start(&options).await;
        let (one, two) = (server("127.0.0.1"), echo("127.0.0.1"));
        node.put(&Service::new(VIP4, TCP, &[one]));
        node.put(&Service::new(VIP4, UDP, &[two]));
        let (vip, mut events) = (address(VIP4), node.events());
        // Not a connect.
        udp(ANY4).send_to(b"free", vip).unwrap();
        assert_eq!((events.read(), node.suppressed_events()), (Vec::new(), 0));
        for _ in 0..3 {
            ask(vip).unwrap();
        }
        assert_eq!(events.addresses(), [(xlate::PRE_FWD, vip)]);
        assert_eq!(node.suppressed_events(), 5);
        node.finish().await;
    });
}

#[test]
fn the_aggregation_of_patch_config_reaches_the_programs() {
    require_root!();
    on_a_runtime(async {
        let interval = ("monitor-aggregation-interval", "1h");
        let options = [("bpf-lb-sock", "true"), ("monitor-aggregation", "medium"), interval];
        let mut node = Node::start(&options).await;
        let backend = server("127.0.0.1");
        node.put(&Service::new(VIP4, TCP, &[backend]));
        let (vip, mut events) = (address(VIP4), node.events());
        ask(vip).unwrap();
        assert_eq!(events.addresses(), [(xlate::PRE_FWD, vip)]);
        node.patch_aggregation("none").await;
        ask(vip).unwrap();
        assert_eq!(events.addresses().len(), 4, "each address of connect and getpeername");
        // A value that is in force already loads nothing.
        let before = node.link_infos();
        node.patch_aggregation("None").await;
        assert_eq!(node.link_infos(), before);
        node.patch_aggregation("maximum").await;
        ask(vip).unwrap();
        assert_eq!(events.addresses(), [], "the interval of the first event goes on");
        node.finish().await;
    });
}

/// The rounds of the watchdog in tests.
const WATCHDOG: (&str, &str) = ("endpoint-bpf-prog-watchdog-interval", "20ms");

#[test]
fn changes_by_other_processes_are_repaired_and_counted() {
    require_root!();
    on_a_runtime(async {
        let mut node = Node::start(&[("bpf-lb-sock", "true"), WATCHDOG]).await;
        node.until_attached().await;
        let backend = server("127.0.0.1");
        node.put(&Service::new(VIP4, TCP, &[backend]));
        let (names, mut repairs) = (node.link_names(), 0);
        for change in [Change::Unpin, Change::Detach, Change::Update, Change::Occupy] {
            node.change(change);
            repairs = node.until_repaired(repairs).await;
            assert_eq!(ask(address(VIP4)).unwrap().0, backend.to_string(), "{change:?}");
            assert_eq!(node.link_names(), names, "{change:?}");
            assert_eq!(node.coverage(), SocketCoverage::All, "{change:?}");
        }
        // A control: without changes nothing is written.
        let before = node.link_infos();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(node.link_infos(), before);
        node.finish().await;
    });
}

#[test]
fn a_cgroup_that_goes_and_comes_again_has_the_programs_again() {
    require_root!();
    on_a_runtime(async {
        let mut node = Node::start(&[("bpf-lb-sock", "true")]).await;
        let (home, cgroup) = (node.cgroup(), node.cgroup().join("child"));
        let root = cgroup.to_str().unwrap().to_owned();
        std::fs::create_dir(&cgroup).unwrap();
        node.restart(&[("bpf-lb-sock", "true"), WATCHDOG, ("cgroup-root", &root)], false).await;
        node.until_attached().await;
        node.until_replaced().await;
        let backend = server("127.0.0.1");
        node.put(&Service::new(VIP4, TCP, &[backend]));
        let ask_inside = || {
            enter(&cgroup);
            let answer = ask(address(VIP4));
            enter(&home);
            answer.unwrap().0
        };
        assert_eq!(ask_inside(), backend.to_string());
        for _ in 0..2 {
            std::fs::remove_dir(&cgroup).unwrap();
            let error = node.until_uncovered().await;
            assert!(error.contains(&format!("option cgroup-root: {root} is not a cgroup v2")), "{error}");
            std::fs::create_dir(&cgroup).unwrap();
            node.until_attached().await;
            assert_eq!(ask_inside(), backend.to_string());
        }
        // The sandbox hides the folder once it is gone.
        std::fs::remove_dir(&cgroup).unwrap();
        node.finish().await;
    });
}
