//! The cell in network namespaces, with the programs of iptables and both backends.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use datapath_api::HostMark;
use hive::prelude::*;
use iptables::ipset::NODE_SETS;
use iptables::ipset::kernel::Sets;
use iptables::saved::Saved;
use iptables::{NoTrackRules, Traffic};
use local_node::{LocalNode, LocalNodeStore, StateConfig};
use maps::FamilyConfig;
use node_manager::Node;
use node_manager::testing::Nodes;
use policy_engine::Parser;
use proxy_ports::{DNS_PROXY, PortState, Proxies, Proxy, ProxyPort};
use socket2::{Domain, Socket, Type};
use test_kit::{NetNs, Sandbox, require_command, require_root, wait_until};
use tracing::Level as LogLevel;

const PODS: &str = "10.244.0.0/24";
const WRITTEN: &str = "Wrote rules of iptables";
const REPAIRED: &str = "Another program has changed rules of iptables";
/// Longer than any pass takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn node() -> LocalNode {
    LocalNode {
        name: "n".into(),
        ipv4_alloc_cidr: Some(PODS.parse().unwrap()),
        ipv6_alloc_cidr: Some("fd00:10:244::/112".parse().unwrap()),
        router_ipv4: Some([10, 244, 0, 1].into()),
        router_ipv6: Some("fd00:10:244::1".parse().unwrap()),
        ..LocalNode::default()
    }
}

/// Another node: the host outside.
fn peer() -> Node {
    node_manager::testing::node("peer", &["192.0.2.2", "2001:db8::2"], &[])
}

/// A hive with the cell, not started.
fn hive(options: &[(&str, &str)]) -> TestHive {
    options.iter().fold(hive_with([]), |hive, (key, value)| hive.set(key, value))
}

/// The same with other cells beside it.
fn hive_with<const N: usize>(others: [Cell; N]) -> TestHive {
    let cells = [
        statedb::cell(),
        config::<FamilyConfig>(),
        devices::cell(),
        local_node::testing::given(node()),
        invoke(|_: Arc<LocalNodeStore>, _: Arc<Nodes>, _: Arc<NoTrackRules>| {}),
        node_manager::testing::given(vec![peer()]),
        tunnel::cell(),
        masquerade::cell(),
        iptables::cell(),
    ];
    TestHive::needing::<HostMark>(cells.into_iter().chain(others).collect::<Vec<_>>())
}

/// Returns message and error of the job's report; empty before the first.
fn report(hive: &TestHive) -> (String, String) {
    let rows = hive.hive().health().snapshot();
    let row = rows.into_iter().find(|row| row.path() == "iptables.job-rules" && row.level != Level::Stopped);
    row.map(|row| (row.message, row.error)).unwrap_or_default()
}

/// Runs an agent until its rules are in force, and something with it.
fn with_rules(options: &[(&str, &str)], work: impl AsyncFnOnce(&TestHive)) {
    block_on(async {
        let mut hive = hive(options);
        hive.start().await;
        hive.until("rules are in force", || report(&hive).0.contains("in force (")).await;
        work(&hive).await;
        hive.stop().await;
    });
}

fn block_on(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

/// The rules of a family without counters and comments.
fn saved(host: &NetNs, tool: &str) -> Saved {
    Saved::parse(&host.exec(&format!("{tool}-save")).unwrap())
}

fn restore(sandbox: &Sandbox, tool: &str, script: &str) {
    let path = sandbox.dir().join("script");
    fs::write(&path, script).unwrap();
    sandbox.host().exec(&format!("{tool}-restore --noflush --wait=60 {}", path.display())).unwrap();
}

fn own_chains(saved: &Saved) -> usize {
    saved.chains().filter(|(_, chain)| chain.starts_with("CILIUM_")).count()
}

/// A sandbox whose lock of iptables is its own. In a sandbox with a chain of kube-proxy in the older backend, the agent
/// uses that one.
fn sandbox(backend: &str) -> Sandbox {
    let sandbox = Sandbox::new().unwrap();
    sandbox.host().exec("mount -t tmpfs tmpfs /run").unwrap();
    if backend == "legacy" {
        restore(
            &sandbox,
            "iptables-legacy",
            "*filter\n:KUBE-FORWARD - [0:0]\n-A FORWARD -j KUBE-FORWARD\nCOMMIT\n",
        );
    }
    sandbox
}

/// The default backend is that of nf_tables on the systems that tests run on.
const BACKENDS: [&str; 2] = ["nft", "legacy"];

fn tools(backend: &str) -> [String; 2] {
    [format!("iptables-{backend}"), format!("ip6tables-{backend}")]
}

macro_rules! require_programs {
    () => {
        require_root!();
        require_command!("iptables-nft-save");
        require_command!("iptables-legacy-save");
    };
}

#[test]
fn a_start_writes_and_a_restart_does_not() {
    require_programs!();
    for backend in BACKENDS {
        let sandbox = sandbox(backend);
        let host = sandbox.host();
        let [v4, v6] = tools(backend);
        let foreign = "*nat\n:MINE - [0:0]\n-A POSTROUTING -s 198.51.100.0/24 -j MINE\nCOMMIT\n\
                       *filter\n-A INPUT -s 198.51.100.1/32 -j DROP\nCOMMIT\n";
        restore(&sandbox, &v4, foreign);
        let before = saved(host, &v4);
        with_rules(&[], async |hive| {
            assert_eq!(hive.logs().iter().filter(|log| log.message.contains(WRITTEN)).count(), 2);
            assert!(hive.get::<HostMark>().is_set());
            let message = report(hive).0;
            assert!(message.contains(if backend == "nft" { "(nf_tables)" } else { "(legacy)" }), "{message}");
        });
        let (first, first_v6) = (saved(host, &v4), saved(host, &v6));
        assert_eq!((own_chains(&first), own_chains(&first_v6)), (10, 7), "{backend}");
        assert_eq!(first.rules("filter", "INPUT").unwrap()[1..], *before.rules("filter", "INPUT").unwrap());
        assert_eq!(first.rules("nat", "POSTROUTING").unwrap().len(), 2);
        assert!(first.rules("nat", "CILIUM_POST_nat").unwrap()[0].ends_with("-j MASQUERADE"));
        with_rules(&[], async |hive| {
            assert!(!hive.has_logged(LogLevel::INFO, WRITTEN), "{:?}", hive.logs());
            assert!(hive.get::<HostMark>().is_set());
        });
        assert_eq!((saved(host, &v4), saved(host, &v6)), (first, first_v6));
        // Options that forbid all rules remove them, and only them.
        block_on(async {
            let mut hive = self::hive(&[("install-iptables-rules", "false")]);
            hive.start().await;
            hive.until("rules are removed", || report(&hive).0.starts_with("Off by")).await;
            assert!(!hive.get::<HostMark>().is_set());
            hive.stop().await;
        });
        let after = saved(host, &v4);
        assert_eq!(own_chains(&after) + own_chains(&saved(host, &v6)), 0);
        for (table, chain) in before.chains() {
            assert_eq!(after.rules(table, chain), before.rules(table, chain), "{backend} {table} {chain}");
        }
    }
}

/// Tables are written one after the other: a kill leaves the first of them, in both orders.
#[test]
fn a_start_completes_what_a_kill_has_left() {
    require_programs!();
    for backend in BACKENDS {
        let sandbox = sandbox(backend);
        let host = sandbox.host();
        let [v4, v6] = tools(backend);
        with_rules(&[], async |_| {});
        let whole = saved(host, &v4);
        let text = host.exec(&format!("{v4}-save")).unwrap();
        for left in ["filter", "mangle", "nat", "raw"] {
            for tool in [&v4, &v6] {
                for table in ["filter", "mangle", "nat", "raw"].into_iter().filter(|table| *table != left) {
                    host.exec(&format!("{tool} -t {table} -F")).unwrap();
                    host.exec(&format!("{tool} -t {table} -X")).unwrap();
                }
            }
            if backend == "legacy" {
                restore(
                    &sandbox,
                    &v4,
                    "*filter\n:KUBE-FORWARD - [0:0]\n-A FORWARD -j KUBE-FORWARD\nCOMMIT\n",
                );
            }
            with_rules(&[], async |hive| assert!(hive.has_logged(LogLevel::INFO, WRITTEN)));
            let now = saved(host, &v4);
            for (table, chain) in whole.chains().filter(|(_, chain)| chain.starts_with("CILIUM_")) {
                assert_eq!(
                    now.rules(table, chain),
                    whole.rules(table, chain),
                    "{backend} {left} {chain}\n{text}"
                );
            }
            assert_eq!(own_chains(&saved(host, &v6)), 7);
        }
    }
}

#[test]
fn changes_by_hand_are_repaired_at_once() {
    require_programs!();
    let sandbox = sandbox("nft");
    let host = sandbox.host().clone();
    with_rules(&[], async |hive| {
        let [v4, v6] = tools("nft");
        let whole = (saved(&host, &v4), saved(&host, &v6));
        for change in [
            "iptables-nft -t nat -F CILIUM_POST_nat",
            "iptables-nft -D CILIUM_OUTPUT 1",
            "iptables-nft -I CILIUM_FORWARD -i lxc+ -j DROP",
            "iptables-nft -t mangle -F PREROUTING",
            "iptables-nft -t raw -F",
            "ip6tables-nft -F",
            "nft delete table ip nat",
            "nft flush ruleset",
        ] {
            host.exec(change).unwrap();
            hive.until(change, || (saved(&host, &v4), saved(&host, &v6)) == whole).await;
        }
        assert!(hive.has_logged(LogLevel::INFO, REPAIRED));
        hive.until("the mark is set again", || hive.get::<HostMark>().is_set()).await;
        // A rule of another program before ours is not fought about.
        host.exec("iptables-nft -I INPUT -s 198.51.100.1/32 -j DROP").unwrap();
        host.exec("iptables-nft -t raw -F CILIUM_PRE_raw").unwrap();
        hive.until("the chain is back", || {
            saved(&host, &v4).rules("raw", "CILIUM_PRE_raw") == whole.0.rules("raw", "CILIUM_PRE_raw")
        })
        .await;
        assert!(saved(&host, &v4).rules("filter", "INPUT").unwrap()[0].ends_with("-j DROP"));
    });
    // The next start puts it first again.
    with_rules(&[], async |_| {});
    let input = saved(&host, "iptables-nft");
    let input = input.rules("filter", "INPUT").unwrap();
    assert!(input[0].ends_with("-j CILIUM_INPUT") && input[1].ends_with("-j DROP"), "{input:?}");
}

#[test]
fn rules_in_the_other_backend_are_removed_after_ours_are_in_force() {
    require_programs!();
    let sandbox = sandbox("nft");
    let host = sandbox.host();
    with_rules(&[], async |_| {});
    assert_eq!(own_chains(&saved(host, "iptables-nft")), 10);
    restore(&sandbox, "iptables-legacy", "*filter\n:KUBE-FORWARD - [0:0]\nCOMMIT\n");
    with_rules(&[], async |_| {});
    assert_eq!(own_chains(&saved(host, "iptables-legacy")), 10);
    assert_eq!(own_chains(&saved(host, "iptables-nft")) + own_chains(&saved(host, "ip6tables-nft")), 0);
}

#[test]
fn a_held_lock_and_missing_programs_are_named_and_waited_for() {
    require_programs!();
    let sandbox = sandbox("legacy");
    let lock = fs::File::create("/run/xtables.lock").unwrap();
    lock.lock().unwrap();
    let host = sandbox.host().clone();
    let options = [("iptables-lock-timeout", "1s"), ("enable-ipv6", "false")];
    block_on(async {
        let mut hive = hive(&options);
        hive.start().await;
        let error = || report(&hive).1;
        hive.until("the lock is named", || error().contains("holds the lock of iptables")).await;
        assert!(!hive.get::<HostMark>().is_set());
        drop(lock);
        hive.until("the rules are written", || report(&hive).0.contains("in force (")).await;
        assert_eq!(own_chains(&saved(&host, "iptables-legacy")), 10);
        hive.stop().await;

        host.exec("mount -t tmpfs tmpfs /usr/sbin").unwrap();
        let mut hive = self::hive(&options);
        hive.start().await;
        let error = || report(&hive).1;
        hive.until("the program is named", || error().starts_with("iptables is not installed: install "))
            .await;
        host.exec("umount /usr/sbin").unwrap();
        hive.until("the program is found", || report(&hive).0.contains("in force (")).await;
        assert!(hive.get::<HostMark>().is_set());
        hive.stop().await;
    });
}

/// Sends a packet from the pod to the world. Returns the source that it arrives with.
fn source(pod: &NetNs, world: &NetNs, to: &str) -> IpAddr {
    let to: IpAddr = to.parse().unwrap();
    let receiver = world.run(|| UdpSocket::bind((to, 7000)).unwrap());
    receiver.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let sender = pod.run(|| UdpSocket::bind((any, 0)).unwrap());
    let mut found = None;
    wait_until("a packet arrives", PATIENCE, || {
        let _ = sender.send_to(b"x", (to, 7000));
        found = receiver.recv_from(&mut [0; 8]).ok().map(|(_, from)| from.ip());
        found.is_some()
    });
    found.unwrap()
}

/// Connects a pod and the world by a host that forwards.
fn connect(host: &NetNs, pod: &NetNs, world: &NetNs) {
    host.veth("lxc0123456789ab", pod, "eth0").unwrap();
    host.veth("eth0", world, "eth0").unwrap();
    host.ip_batch(
        "addr add 192.0.2.1/24 dev eth0\naddr add 2001:db8::1/64 dev eth0 nodad\n\
         addr add 10.244.0.1/24 dev lxc0123456789ab\naddr add fd00:10:244::1/112 dev lxc0123456789ab nodad\n",
    )
    .unwrap();
    pod.ip_batch(
        "addr add 10.244.0.9/24 dev eth0\naddr add fd00:10:244::9/112 dev eth0 nodad\n\
         route add default via 10.244.0.1\nroute add default via fd00:10:244::1\n",
    )
    .unwrap();
    world
        .ip_batch(
            "addr add 192.0.2.2/24 dev eth0\naddr add 2001:db8::2/64 dev eth0 nodad\n\
             addr add 198.51.100.2/32 dev eth0\n\
             route add 10.244.0.0/24 via 192.0.2.1\nroute add fd00:10:244::/112 via 2001:db8::1\n",
        )
        .unwrap();
    host.ip("route add 198.51.100.0/24 via 192.0.2.2").unwrap();
    for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        host.set_sysctl(key, "1").unwrap();
    }
}

#[test]
fn packets_of_pods_leave_with_the_nodes_address() {
    require_programs!();
    for backend in BACKENDS {
        let sandbox = sandbox(backend);
        let host = sandbox.host().clone();
        let (pod, world) = (sandbox.netns("pod").unwrap(), sandbox.netns("world").unwrap());
        connect(&host, &pod, &world);
        let sources =
            || ["192.0.2.2", "2001:db8::2", "198.51.100.2"].map(|to| source(&pod, &world, to).to_string());
        assert_eq!(sources(), ["10.244.0.9", "fd00:10:244::9", "10.244.0.9"], "without rules");
        with_rules(&[], async |_| {
            assert_eq!(sources(), ["192.0.2.1", "2001:db8::1", "192.0.2.1"], "{backend}");
        });
        assert_eq!(sources(), ["192.0.2.1", "2001:db8::1", "192.0.2.1"], "rules stay at the stop");
        with_rules(
            &[("enable-ipv6-masquerade", "false"), ("ipv4-native-routing-cidr", "198.51.100.0/24")],
            async |_| {
                assert_eq!(sources(), ["192.0.2.1", "fd00:10:244::9", "10.244.0.9"], "{backend}");
            },
        );
        with_rules(
            &[("egress-masquerade-interfaces", "other0"), ("iptables-random-fully", "true")],
            async |_| {
                assert_eq!(sources(), ["10.244.0.9", "fd00:10:244::9", "10.244.0.9"], "{backend}");
            },
        );
        // Nodes of a network that routes the addresses of pods see them.
        with_rules(&[("routing-mode", "native")], async |hive| {
            let mut sets = Sets::open().unwrap();
            let mut members = || NODE_SETS.map(|set| sets.members(set).unwrap());
            let wanted: [Vec<IpAddr>; 2] = ["192.0.2.2", "2001:db8::2"].map(|ip| vec![ip.parse().unwrap()]);
            hive.until("nodes are in the sets", || members() == wanted).await;
            assert_eq!(sources(), ["10.244.0.9", "fd00:10:244::9", "192.0.2.1"], "{backend}");
            let nodes = hive.get::<Nodes>();
            nodes.0.transact(|txn| drop(txn.delete(Node::by_name("default", "peer"))));
            hive.until("a node that is gone is in none", || members().iter().all(Vec::is_empty)).await;
            assert_eq!(sources()[0], "192.0.2.1", "{backend}");
        });
        // A start with a tunnel needs no sets. The kernel may free the rules that used them only after the first.
        with_rules(&[], async |_| {});
        with_rules(&[], async |_| {
            let mut sets = Sets::open().unwrap();
            assert_eq!(NODE_SETS.map(|set| sets.exists(set).unwrap()), [false, false], "{backend}");
        });
        host.ip("addr add 192.0.2.77/32 dev eth0").unwrap();
        host.ip("route replace 198.51.100.0/24 via 192.0.2.2 src 192.0.2.77").unwrap();
        host.ip("route add default via 192.0.2.2").unwrap();
        with_rules(&[("enable-masquerade-to-route-source", "true"), ("devices", "eth0")], async |hive| {
            let rules = || saved(&host, &tools(backend)[0]).rules("nat", "CILIUM_POST_nat").unwrap().to_vec();
            hive.until("the routes have rules", || rules().iter().any(|rule| rule.contains("192.0.2.77")))
                .await;
            assert_eq!(sources()[2], "192.0.2.77", "{:?}", rules());
            host.ip("route del 198.51.100.0/24").unwrap();
            hive.until("a removed route has none", || {
                !rules().iter().any(|rule| rule.contains("192.0.2.77"))
            })
            .await;
        });
    }
}

/// A socket of a proxy: bound to an address that need not be the host's, with the mark of the egress proxy.
fn transparent(at: SocketAddr, kind: Type) -> Socket {
    let socket = Socket::new(Domain::for_address(at), kind, None).unwrap();
    // The option of IPv4 is the same flag of the socket for both families.
    socket.set_ip_transparent_v4(true).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.set_mark(0xb00).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.bind(&at.into()).unwrap();
    socket
}

/// Answers the first client with the address that it has.
fn answer_with_peer(listener: &TcpListener) {
    let (mut stream, client) = listener.accept().unwrap();
    stream.write_all(client.ip().to_string().as_bytes()).unwrap();
}

fn read(mut stream: impl Read) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Packets that the programs mark for a proxy reach its sockets with their destination; the proxy's own connection has
/// the pod's address, and both get their answers. Here a rule of the test marks in the place of the programs.
#[test]
fn marked_packets_reach_a_proxy_that_has_the_address_of_the_pod_to_the_server() {
    require_programs!();
    const PORT: u16 = 7001;
    for backend in BACKENDS {
        let sandbox = sandbox(backend);
        let host = sandbox.host().clone();
        let (pod, world) = (sandbox.netns("pod").unwrap(), sandbox.netns("world").unwrap());
        connect(&host, &pod, &world);
        let pairs = [("10.244.0.9", "192.0.2.2", "127.0.0.1"), ("fd00:10:244::9", "2001:db8::2", "::1")];
        let pairs = pairs.map(|(a, b, c)| [a, b, c].map(|ip| ip.parse::<IpAddr>().unwrap()));
        let servers = pairs.map(|[_, server, _]| world.run(|| TcpListener::bind((server, PORT)).unwrap()));
        // The port of the first proxy, as it is in the mark.
        let first = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mark = 0x200 | u32::from(first.to_be()) << 16;
        for tool in tools(backend) {
            for protocol in ["tcp", "udp"] {
                host.exec(&format!(
                    "{tool} -t mangle -A PREROUTING -i lxc0123456789ab -p {protocol} --dport {PORT} -j MARK --set-mark {mark:#x}"
                ))
                .unwrap();
            }
        }
        let file = sandbox.state_dir().join("state/proxy_ports_state.json");
        let options = [
            ("state-dir", sandbox.state_dir().display().to_string()),
            ("prepend-iptables-chains", "false".to_owned()),
            ("enable-ipv4-masquerade", "false".to_owned()),
            ("enable-ipv6-masquerade", "false".to_owned()),
        ];
        for run in 0..3 {
            block_on(async {
                let cells = [config::<StateConfig>(), routes::cell(), proxy_ports::cell()];
                let mut hive =
                    options.iter().fold(hive_with(cells), |hive, (key, value)| hive.set(key, value.clone()));
                hive.start().await;
                let proxies = hive.get::<Proxies>();
                let dns = Proxy { name: DNS_PROXY.into(), parser: Parser::Dns, ingress: false, fixed: None };
                let registered = proxies.register(dns);
                let preferred = (run > 0).then_some(first);
                assert_eq!(
                    registered.preferred(),
                    preferred,
                    "{backend}: of the file, or of the rules without it"
                );
                let listeners = pairs.map(|[_, _, loopback]| {
                    let at = SocketAddr::new(loopback, first);
                    let tcp = transparent(at, Type::STREAM);
                    tcp.listen(8).unwrap();
                    (TcpListener::from(tcp), UdpSocket::from(transparent(at, Type::DGRAM)))
                });
                registered.listening(first).unwrap();
                tokio::time::timeout(PATIENCE, registered.ready()).await.unwrap();
                for (([own, server, _], (tcp, udp)), upstream) in
                    pairs.into_iter().zip(&listeners).zip(&servers)
                {
                    let client =
                        pod.run(|| TcpStream::connect_timeout(&(server, PORT).into(), PATIENCE).unwrap());
                    let (mut accepted, from) = tcp.accept().unwrap();
                    assert_eq!((accepted.local_addr().unwrap(), from.ip()), ((server, PORT).into(), own));
                    let to_server = transparent((own, 0).into(), Type::STREAM);
                    to_server.connect_timeout(&SocketAddr::from((server, PORT)).into(), PATIENCE).unwrap();
                    answer_with_peer(upstream);
                    let answer = read(TcpStream::from(to_server));
                    assert_eq!(answer, own.to_string(), "the server sees the pod");
                    accepted.write_all(answer.as_bytes()).unwrap();
                    drop(accepted);
                    assert_eq!(read(client), own.to_string());

                    let client = pod.run(|| UdpSocket::bind((own, 0)).unwrap());
                    client.set_read_timeout(Some(PATIENCE)).unwrap();
                    client.connect((server, PORT)).unwrap();
                    client.send(b"query").unwrap();
                    let mut buffer = [0; 16];
                    let (length, from) = udp.recv_from(&mut buffer).unwrap();
                    assert_eq!((&buffer[..length], from), (&b"query"[..], client.local_addr().unwrap()));
                    let reply = UdpSocket::from(transparent((server, PORT).into(), Type::DGRAM));
                    reply.send_to(b"answer", from).unwrap();
                    assert_eq!(client.recv(&mut buffer).unwrap(), 6, "from the server's address");
                }
                let rules = saved(&host, &tools(backend)[0]);
                let count = |text: &str| {
                    rules
                        .rules("mangle", "CILIUM_PRE_mangle")
                        .unwrap()
                        .iter()
                        .filter(|rule| rule.contains(text))
                        .count()
                };
                assert_eq!(count("cilium: TPROXY to host cilium-dns-egress proxy"), 2, "{rules:?}");
                hive.stop().await;
            });
            assert!(fs::read_to_string(&file).unwrap().contains(&format!("\"port\":{first}")));
            if run == 1 {
                fs::remove_file(&file).unwrap();
            }
        }
    }
}

/// A kernel without `xt_TPROXY` or `xt_socket`: here a program in the place of the system's refuses such rules.
#[test]
fn rules_that_the_kernel_refuses_cost_proxies_their_traffic_and_nothing_else() {
    require_programs!();
    let sandbox = sandbox("nft");
    let host = sandbox.host().clone();
    let refused = sandbox.dir().join("refused");
    let refuse = |text: &str| fs::write(&refused, text).unwrap();
    let program = format!(
        "#!/bin/sh\nread -r refused <{}\ninput=$(cat)\nif [ \"$refused\" ] && echo \"$input\" | grep -qE -e \"$refused\"; \
         then echo \"refused\" >&2; exit 2; fi\necho \"$input\" | exec /usr/sbin/ip6tables-restore \"$@\"\n",
        refused.display()
    );
    host.exec("mount -t tmpfs tmpfs /usr/local/sbin").unwrap();
    fs::write("/usr/local/sbin/ip6tables-restore", program).unwrap();
    host.exec("chmod 755 /usr/local/sbin/ip6tables-restore").unwrap();
    let options = [
        ("state-dir", sandbox.state_dir().display().to_string()),
        ("enable-ipv4", "false".to_owned()),
        ("enable-ipv4-masquerade", "false".to_owned()),
    ];
    let agent = || {
        let cells = [config::<StateConfig>(), routes::cell(), proxy_ports::cell()];
        options.iter().fold(hive_with(cells), |hive, (key, value)| hive.set(key, value.clone()))
    };
    let proxy = || Proxy { name: DNS_PROXY.into(), parser: Parser::Dns, ingress: false, fixed: None };
    let has_rules = || {
        saved(&host, "ip6tables")
            .rules("mangle", "CILIUM_PRE_mangle")
            .is_some_and(|rules| rules.iter().any(|rule| rule.contains("TPROXY")))
    };
    block_on(async {
        refuse("TPROXY|-m socket\n");
        let mut hive = agent();
        hive.start().await;
        let proxies = hive.get::<Proxies>();
        let registered = proxies.register(proxy());
        registered.listening(7002).unwrap();
        let ports = proxies.ports();
        let is_ready = || {
            let snapshot = ports.snapshot();
            ports.get(&snapshot, ProxyPort::by_name(DNS_PROXY)).unwrap().state == PortState::Ready
        };
        hive.until("the refusal is reported", || report(&hive).1.contains("refused")).await;
        assert_eq!(own_chains(&saved(&host, "ip6tables")), 7, "all others are written");
        assert!(!has_rules() && !is_ready());

        refuse("\n");
        hive.until("the proxy is reachable", is_ready).await;
        assert!(has_rules());
        refuse("TPROXY\n");
        host.exec("ip6tables -t mangle -F CILIUM_PRE_mangle").unwrap();
        hive.until("the proxy is not reachable any more", || !is_ready()).await;
        refuse("\n");
        hive.until("the proxy is reachable again", is_ready).await;
        hive.stop().await;

        // Without the file the port comes from the rules, which only one family has.
        fs::remove_file(sandbox.state_dir().join("state/proxy_ports_state.json")).unwrap();
        let mut hive = agent();
        hive.start().await;
        assert_eq!(hive.get::<Proxies>().register(proxy()).preferred(), Some(7002));
        hive.stop().await;
    });
}

#[tokio::test]
async fn modes_without_a_range_of_pods_need_devices() {
    let cells = || {
        [
            statedb::cell(),
            config::<FamilyConfig>(),
            devices::cell(),
            local_node::testing::row(node()),
            invoke(|_: Arc<LocalNodeStore>| {}),
            node_manager::testing::given(vec![]),
            tunnel::cell(),
            masquerade::cell(),
            iptables::cell(),
        ]
    };
    require_root!();
    let sandbox = sandbox("nft");
    let hive = |interfaces: &str| {
        TestHive::needing::<HostMark>(cells())
            .set("ipam", "delegated-plugin")
            .set("egress-masquerade-interfaces", interfaces)
    };
    let mut without = hive("");
    without.start().await;
    let status = without.health("iptables.masquerade");
    assert_eq!(status.level, Level::Degraded);
    assert!(status.error.contains("set egress-masquerade-interfaces"), "{status:?}");
    without.stop().await;
    let mut with = hive("eth0");
    with.start().await;
    with.until("rules are in force", || report(&with).0.contains("in force (")).await;
    with.stop().await;
    drop(sandbox);
}

/// The ports of a pod are not tracked while it has the row; a twin port is. Rules that were removed return.
#[test]
fn traffic_of_pods_that_is_not_tracked() {
    require_programs!();
    for backend in BACKENDS {
        let sandbox = sandbox(backend);
        let host = sandbox.host();
        let [v4, v6] = tools(backend);
        // Counts packets that reach the node without tracking.
        let port = |port: u16| format!("-p udp --dport {port} -m conntrack --ctstate UNTRACKED");
        host.exec("ip link set lo up").unwrap();
        for tool in [&v4, &v6] {
            for number in [53, 54] {
                host.exec(&format!("{tool} -t mangle -A INPUT {}", port(number))).unwrap();
            }
        }
        let counted = |tool: &str| {
            // From the node to itself: by the raw chains of both directions.
            let address: SocketAddr = if tool == v4 { "127.0.0.1:53" } else { "[::1]:53" }.parse().unwrap();
            host.run(|| {
                let socket = UdpSocket::bind((address.ip(), 0)).unwrap();
                for port in [53, 54] {
                    // The refusal of an earlier datagram may be reported by the next call.
                    let _ = socket.send_to(b"x", (address.ip(), port));
                    let _ = socket.send_to(b"x", (address.ip(), port));
                }
            });
            let rules = host.exec(&format!("{tool}-save -c")).unwrap();
            let packets = |port: u16| {
                let rule = rules
                    .lines()
                    .find(|line| line.contains(&format!("--dport {port} ")) && line.contains("UNTRACKED"));
                let count = rule.unwrap().trim_start_matches('[').split(':').next().unwrap();
                count.parse::<u64>().unwrap()
            };
            (packets(53), packets(54))
        };
        let set = |hive: &TestHive, addresses: Option<&[IpAddr]>| {
            let pod = addresses.map(|addresses| Traffic::Pod { addresses: addresses.to_vec(), port: 53 });
            hive.get::<NoTrackRules>().set([("endpoint/7".into(), pod)]);
        };
        let rules = |tool: &str| {
            let saved = saved(host, tool);
            [
                "raw CILIUM_PRE_raw",
                "raw CILIUM_OUTPUT_raw",
                "filter CILIUM_INPUT",
                "filter CILIUM_FORWARD",
                "filter CILIUM_OUTPUT",
            ]
            .map(|chain| {
                let (table, chain) = chain.split_once(' ').unwrap();
                let rules = saved.rules(table, chain).unwrap();
                rules.iter().filter(|rule| rule.contains("pods without tracking")).count()
            })
        };
        with_rules(&[], async |hive| {
            assert_eq!((counted(&v4), counted(&v6)), ((0, 0), (0, 0)), "a control: all is tracked");
            let both = [IpAddr::from([127, 0, 0, 1]), "::1".parse().unwrap()];
            set(hive, Some(&both));
            hive.until("the rules are there", || rules(&v4) == [4; 5] && rules(&v6) == [4; 5]).await;
            for tool in [&v4, &v6] {
                let (untracked, twin) = counted(tool);
                assert!(untracked > 0 && twin == 0, "{tool}: {untracked} {twin}");
            }
            if backend == "nft" {
                host.exec(&format!("{v4} -t raw -F CILIUM_PRE_raw")).unwrap();
                hive.until("they are repaired", || rules(&v4) == [4; 5]).await;
            }
        });
        // The next run does not know its pods yet.
        block_on(async {
            let source = Arc::new(Mutex::new(None));
            let registered = source.clone();
            let incomplete = invoke(move |rules: Arc<NoTrackRules>| {
                *registered.lock().unwrap() = Some(rules.register_initializer("test"));
            });
            let mut hive = hive_with([incomplete]);
            hive.start().await;
            hive.until("rules are in force", || report(&hive).0.contains("in force (")).await;
            assert_eq!((rules(&v4), rules(&v6)), ([4; 5], [4; 5]));
            assert!(!hive.has_logged(LogLevel::INFO, WRITTEN), "nothing is written");
            let source = source.lock().unwrap().take().unwrap();
            hive.get::<NoTrackRules>().finish(source);
            hive.until("the pod is gone", || rules(&v4) == [0; 5] && rules(&v6) == [0; 5]).await;
            hive.stop().await;
        });
        // Nothing of the range is tracked, whatever the port, and IPv6 is.
        let before = (counted(&v4), counted(&v6));
        block_on(async {
            let options = NO_CONNTRACK.into_iter().chain([("ipv4-native-routing-cidr", "127.0.0.0/8")]);
            let hive = hive_with([config::<KubeProxyConfig>()]);
            let mut hive = options.fold(hive, |hive, (key, value)| hive.set(key, value));
            hive.start().await;
            hive.until("rules are in force", || report(&hive).0.contains("in force (")).await;
            let ((first, twin), v6) = (counted(&v4), counted(&v6));
            assert!(
                first > before.0.0 && twin > before.0.1 && v6 == before.1,
                "{before:?} {first} {twin} {v6:?}"
            );
            hive.stop().await;
        });
    }
}

/// The option of the load balancer, which the rules depend on.
#[derive(Clone, Debug, hive::Config)]
struct KubeProxyConfig {
    /// Serve services for clients outside
    #[flag(default = false)]
    #[expect(dead_code, reason = "read by its name")]
    kube_proxy_replacement: bool,
}

/// Options with which connections of pods need no tracking.
const NO_CONNTRACK: [(&str, &str); 5] = [
    ("install-no-conntrack-iptables-rules", "true"),
    ("routing-mode", "native"),
    ("kube-proxy-replacement", "true"),
    ("enable-ipv4-masquerade", "false"),
    ("enable-ipv6-masquerade", "false"),
];

#[test]
fn connections_are_tracked_where_something_else_needs_it() {
    for (option, value, needed) in [
        ("routing-mode", "tunnel", "routing-mode=native"),
        ("kube-proxy-replacement", "false", "kube-proxy-replacement=true"),
        ("enable-ipv4-masquerade", "true", "enable-bpf-masquerade=true"),
        ("enable-ipv4", "false", "enable-ipv4=true"),
    ] {
        let options =
            NO_CONNTRACK.into_iter().map(|(key, given)| (key, if key == option { value } else { given }));
        let options = options.chain((option == "enable-ipv4").then_some((option, value)));
        let hive = hive_with([config::<KubeProxyConfig>()]);
        let mut hive = options.fold(hive, |hive, (key, value)| hive.set(key, value));
        block_on(async {
            let error = hive.try_start().await.unwrap_err();
            let error = format!("{error:#}");
            let text = format!("option install-no-conntrack-iptables-rules: true needs {needed}");
            assert!(error.contains(&text), "{error}");
        });
    }
}
