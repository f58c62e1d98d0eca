//! Servers in a hive of their own, with requests over TCP.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use hive::{Level, TestHive};
use loadbalancer::testing::FakeMaps;
use loadbalancer::{
    Backend, BackendState, Frontend, FrontendParams, FrontendType, LbAddress, LbMapsProvider, Protocol,
    ProxyRedirect, Service, ServiceName, ServicesWriter, Source, TrafficPolicy,
};
use loadbalancer_healthserver::ListenOn;
use local_node::{LocalNode, LocalNodeStore};
use maps::FamilyConfig;
use statedb::Table;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

struct Node {
    hive: TestHive,
    writer: Arc<ServicesWriter>,
}

impl Node {
    async fn start(options: &[(&str, &str)]) -> Node {
        let cells = [
            statedb::cell(),
            module("options", "Options of other cells", [config::<FamilyConfig>()]),
            local_node::testing::given(LocalNode { name: "here".to_owned(), ..LocalNode::default() }),
            supply(Arc::new(LbMapsProvider::new(|| Ok(Arc::<FakeMaps>::default())))),
            loadbalancer::control_plane(),
            loadbalancer_healthserver::cell(),
            invoke(|_: Arc<LocalNodeStore>| ()),
        ];
        let mut hive = TestHive::needing::<ServicesWriter>(cells)
            .supply(Arc::new(ListenOn(LOOPBACK)))
            .set("kube-proxy-replacement", "true");
        for (option, value) in options {
            hive = hive.set(option, value);
        }
        hive.start().await;
        let writer = hive.get::<ServicesWriter>();
        Node { hive, writer }
    }

    fn put(&self, name: &str, port: u16, policy: TrafficPolicy, ip: [u8; 4]) {
        let name = ServiceName::new("shop", name);
        let service = Service {
            health_check_node_port: port,
            ext_traffic_policy: policy,
            ..Service::new(name, Source::Api)
        };
        let frontend = FrontendParams {
            address: LbAddress::new(ip.into(), 80, Protocol::Tcp),
            kind: FrontendType::LoadBalancer,
            port_name: "".into(),
            service_port: 80,
        };
        let mut txn = self.writer.write();
        txn.upsert_service(service, vec![frontend]).unwrap();
        txn.commit();
    }

    fn backends(&self, name: &str, backends: &[(u8, &str, BackendState)]) {
        let name = ServiceName::new("shop", name);
        let backend = |&(last, node, state): &(u8, &str, BackendState)| Backend {
            node_name: node.into(),
            state,
            ..Backend::new(
                name.clone(),
                LbAddress::new([10, 0, 0, last].into(), 80, Protocol::Tcp),
                Source::Api,
            )
        };
        let mut txn = self.writer.write();
        txn.set_backends(&name, Source::Api, backends.iter().map(backend).collect());
        txn.commit();
    }

    /// Repeats requests until the response is this one.
    async fn until_answer(&self, port: u16, wanted: &str) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        loop {
            let answer = get(port, "/").await;
            match &answer {
                Ok(answer) if answer.contains(wanted) => return,
                _ if tokio::time::Instant::now() > deadline => panic!("{wanted}: {answer:?}"),
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    fn row(&self, name: &str) -> Option<(Level, String)> {
        let row = self.hive.hive().health().at(&format!("loadbalancer-healthserver.{name}"))?;
        Some((row.level, if row.error.is_empty() { row.message } else { row.error }))
    }

    async fn until_row(&self, name: &str, level: Level, text: &str) {
        let is = || self.row(name).is_some_and(|(is, message)| is == level && message.contains(text));
        self.hive.until(&format!("{name}: {text}"), is).await;
    }
}

/// Returns a free port.
fn free_port() -> u16 {
    StdListener::bind((LOOPBACK, 0)).unwrap().local_addr().unwrap().port()
}

async fn get(port: u16, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect((LOOPBACK, port)).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    timeout(Duration::from_secs(30), stream.read_to_string(&mut answer)).await??;
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_have_the_number_of_active_local_backends() {
    let mut node = Node::start(&[]).await;
    let port = free_port();
    node.put("web", port, TrafficPolicy::Local, [192, 0, 2, 1]);
    node.until_row("job-control-loop", Level::Ok, "1 health servers running").await;
    node.until_answer(port, r#"{"service":{"namespace":"shop","name":"web"},"localEndpoints":0}"#).await;
    assert!(get(port, "/").await.unwrap().starts_with("HTTP/1.1 503 Service Unavailable\r\n"));

    use BackendState::{Active, Maintenance, Terminating};
    let backends = [(1, "here", Active), (2, "", Active), (3, "there", Active), (4, "here", Terminating)];
    node.backends("web", &backends);
    node.backends("other", &[(5, "here", Active)]);
    let answer = get(port, "/any/path?x").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    for header in [
        "Content-Type: application/json",
        "X-Content-Type-Options: nosniff",
        "X-Load-Balancing-Endpoint-Weight: 2",
        "Content-Length: 65",
    ] {
        assert!(answer.contains(&format!("\r\n{header}\r\n")), "{header}: {answer}");
    }
    let body = "{\"service\":{\"namespace\":\"shop\",\"name\":\"web\"},\"localEndpoints\":2}\n";
    assert!(answer.ends_with(&format!("\r\n\r\n{body}")), "{answer}");

    // The row of the source with the highest precedence takes effect, and an address counts once.
    let name = ServiceName::new("shop", "web");
    let believed = Backend {
        state: Maintenance,
        node_name: "here".into(),
        ..Backend::new(
            name.clone(),
            LbAddress::new([10, 0, 0, 1].into(), 80, Protocol::Tcp),
            Source::Kubernetes,
        )
    };
    let mut txn = node.writer.write();
    txn.set_backends(&name, Source::Kubernetes, vec![believed]);
    txn.commit();
    assert!(get(port, "/").await.unwrap().contains("\"localEndpoints\":1}"));

    let mut txn = node.writer.write();
    txn.set_backends(&name, Source::Api, vec![]);
    txn.set_proxy_redirects(&name, vec![ProxyRedirect { proxy_port: 9, ports: vec![443] }]);
    txn.commit();
    assert!(get(port, "/").await.unwrap().contains("\"localEndpoints\":1}"), "the proxy is one");

    node.put("web", port, TrafficPolicy::Cluster, [192, 0, 2, 1]);
    node.until_row("job-control-loop", Level::Ok, "0 health servers running").await;
    assert_eq!(node.row(&format!("job-listener-{port}")), None);
    assert!(TcpStream::connect((LOOPBACK, port)).await.is_err());
    node.hive.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_is_reported_and_taken_once_it_is_free() {
    let mut node = Node::start(&[]).await;
    let taken = StdListener::bind((LOOPBACK, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    node.put("web", port, TrafficPolicy::Local, [192, 0, 2, 1]);
    let listener = format!("job-listener-{port}");
    let error = format!("healthCheckNodePort {port} of service shop/web: ");
    node.until_row(&listener, Level::Degraded, &error).await;
    drop(taken);
    node.until_row(&listener, Level::Ok, "Running").await;
    node.until_answer(port, "\"localEndpoints\":0").await;
    node.hive.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_services_with_one_port_the_second_waits_and_is_named() {
    let mut node = Node::start(&[]).await;
    let port = free_port();
    node.put("b", port, TrafficPolicy::Local, [192, 0, 2, 1]);
    node.until_answer(port, r#""name":"b""#).await;
    node.put("a", port, TrafficPolicy::Local, [192, 0, 2, 2]);
    let error = format!("healthCheckNodePort {port} of service shop/a is shop/b's; give one of them another");
    node.until_row("ports", Level::Degraded, &error).await;
    node.until_answer(port, r#""name":"b""#).await;

    // The address of its only frontend moves to another service: only a change of the new service is reported.
    let mut txn = node.writer.write();
    txn.delete_service(&ServiceName::new("shop", "b"));
    txn.commit();
    node.until_answer(port, r#""name":"a""#).await;
    node.hive.until("the row goes", || node.row("ports").is_none()).await;
    assert_eq!(node.row("job-control-loop").unwrap().1, "1 health servers running");
    node.hive.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_follows_a_frontend_that_moves() {
    let mut node = Node::start(&[]).await;
    let (before, after) = (free_port(), free_port());
    node.put("a", before, TrafficPolicy::Local, [192, 0, 2, 1]);
    node.until_answer(before, r#""name":"a""#).await;
    let frontends: Table<Frontend> = node.writer.frontends();
    let snapshot = frontends.snapshot();
    let address = LbAddress::new([192, 0, 2, 1].into(), 80, Protocol::Tcp);
    let params = frontends.get(&snapshot, Frontend::by_address(&address)).unwrap().params.clone();
    let mut txn = node.writer.write();
    txn.delete_service(&ServiceName::new("shop", "a"));
    let service = Service {
        health_check_node_port: after,
        ext_traffic_policy: TrafficPolicy::Local,
        ..Service::new(ServiceName::new("shop", "b"), Source::Api)
    };
    txn.upsert_service(service, vec![params]).unwrap();
    txn.commit();
    node.until_answer(after, r#""name":"b""#).await;
    node.until_row("job-control-loop", Level::Ok, "1 health servers running").await;
    assert!(TcpStream::connect((LOOPBACK, before)).await.is_err());
    node.hive.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn load_balancer_addresses_are_redirected_to_the_servers() {
    let mut node = Node::start(&[("enable-health-check-loadbalancer-ip", "true")]).await;
    let port = free_port();
    let frontends = node.writer.frontends();
    let at = |ip: [u8; 4]| {
        let address = LbAddress::new(ip.into(), port, Protocol::Tcp);
        let snapshot = frontends.snapshot();
        let frontend = frontends.get(&snapshot, Frontend::by_address(&address))?;
        let backends: Vec<String> = frontend.backends.iter().map(|row| row.address.to_string()).collect();
        Some((frontend.service.name.to_string(), backends))
    };
    // Another service has the address and port already.
    let mut txn = node.writer.write();
    let taken = FrontendParams {
        address: LbAddress::new([192, 0, 2, 1].into(), port, Protocol::Tcp),
        kind: FrontendType::ClusterIP,
        port_name: "".into(),
        service_port: port,
    };
    let owner = ServiceName::new("shop", "owner");
    txn.upsert_service(Service::new(owner.clone(), Source::Api), vec![taken]).unwrap();
    txn.commit();
    node.put("web", port, TrafficPolicy::Local, [192, 0, 2, 1]);
    let error = format!(
        "health checks of service shop/web: frontend already owned by another service: 192.0.2.1:{port}/TCP is owned by shop/owner"
    );
    node.until_row("load-balancer-addresses", Level::Degraded, &error).await;
    timeout(Duration::from_secs(120), frontends.wait_initialized()).await.unwrap();

    let mut txn = node.writer.write();
    txn.delete_service(&owner);
    txn.commit();
    node.put("web", port, TrafficPolicy::Local, [192, 0, 2, 3]);
    let own = ("shop/web:healthserver".to_owned(), vec![format!("0.0.0.0:{port}/TCP")]);
    node.hive.until("the address leads to the node", || at([192, 0, 2, 3]).as_ref() == Some(&own)).await;
    node.hive.until("the row goes", || node.row("load-balancer-addresses").is_none()).await;

    node.put("web", port, TrafficPolicy::Cluster, [192, 0, 2, 3]);
    let services = node.writer.services();
    node.hive
        .until("nothing is left", || {
            let snapshot = services.snapshot();
            let backends = node.writer.backends();
            services.len(&snapshot) == 1 && backends.is_empty(&snapshot)
        })
        .await;
    node.hive.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn options_switch_the_servers_off() {
    for option in ["kube-proxy-replacement", "enable-health-check-nodeport"] {
        let mut node = Node::start(&[(option, "false")]).await;
        let port = free_port();
        node.put("web", port, TrafficPolicy::Local, [192, 0, 2, 1]);
        assert_eq!(node.row("job-control-loop"), None);
        assert!(TcpStream::connect((LOOPBACK, port)).await.is_err());
        node.hive.stop().await;
    }
}

/// Clients on one machine that hold connections, send slowly, send too much, or do not read.
#[tokio::test(flavor = "multi_thread")]
async fn bad_clients_do_not_affect_others() {
    let mut node = Node::start(&[]).await;
    let ports = [free_port(), free_port()];
    node.put("a", ports[0], TrafficPolicy::Local, [192, 0, 2, 1]);
    node.put("b", ports[1], TrafficPolicy::Local, [192, 0, 2, 2]);
    for port in ports {
        node.until_answer(port, "\"localEndpoints\":0").await;
    }
    let address = SocketAddr::new(LOOPBACK, ports[0]);
    let mut held = Vec::new();
    for number in 0..400 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let sent: &[u8] = match number % 4 {
            0 => b"",
            1 => b"GET / HTTP/1.1\r\nX-Slow: 1",
            2 => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            _ => b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\nx",
        };
        // The server may have closed it already.
        let _sent = stream.write_all(sent).await;
        held.push(stream);
    }
    // Requests without end, whose responses the client does not read.
    let mut pipelining = JoinSet::new();
    for _ in 0..100 {
        let stream = TcpStream::connect(address).await.unwrap();
        pipelining.spawn(async move {
            let mut stream = stream;
            let requests = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100);
            while stream.write_all(&requests).await.is_ok() {}
        });
    }
    for port in ports {
        node.until_answer(port, "\"localEndpoints\":0").await;
    }
    // A head that does not fit is refused, without more memory.
    let mut stream = TcpStream::connect(address).await.unwrap();
    let huge = format!("GET / HTTP/1.1\r\nX-Huge: {}\r\n\r\n", "x".repeat(1 << 20));
    let _sent = stream.write_all(huge.as_bytes()).await;
    let mut answer = Vec::new();
    let _read = timeout(Duration::from_secs(30), stream.read_to_end(&mut answer)).await.unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");

    let open = || {
        let sockets = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let is_socket = |path: &std::path::Path| path.to_string_lossy().starts_with("socket:");
        sockets.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| is_socket(&to))).count()
    };
    let ours = held.len() + 100;
    assert!(open() < ours + 256 + 100, "{} sockets, of which {ours} are the clients'", open());
    pipelining.shutdown().await;
    drop(held);
    node.until_answer(ports[1], "\"localEndpoints\":0").await;
    node.hive.stop().await;
}
