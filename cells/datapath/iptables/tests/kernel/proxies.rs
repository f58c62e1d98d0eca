//! Packets for proxies.

use super::*;

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

/// Programs that give packets to sockets need the rule that matches sockets, and none that leads to proxies.
#[test]
fn proxies_of_programs_have_no_rules() {
    require_programs!();
    let sandbox = sandbox("nft");
    let host = sandbox.host().clone();
    for install in ["true", "false"] {
        let options = [
            ("state-dir", sandbox.state_dir().display().to_string()),
            ("enable-bpf-tproxy", "true".to_owned()),
            ("install-iptables-rules", install.to_owned()),
        ];
        block_on(async {
            let cells = [config::<StateConfig>(), routes::cell(), proxy_ports::cell()];
            let mut hive =
                options.iter().fold(hive_with(cells), |hive, (key, value)| hive.set(key, value.clone()));
            hive.start().await;
            let proxies = hive.get::<Proxies>();
            assert!(proxies.has_rules(), "the proxy has not to withdraw");
            let dns = Proxy { name: DNS_PROXY.into(), parser: Parser::Dns, ingress: false, fixed: None };
            let registered = proxies.register(dns);
            registered.listening(7003).unwrap();
            tokio::time::timeout(PATIENCE, registered.ready()).await.unwrap();
            let expected = if install == "true" { "Rules are in force" } else { "Off by" };
            hive.until("the job is done", || report(&hive).0.contains(expected)).await;
            for tool in tools("nft") {
                let saved = saved(&host, &tool);
                let rules = saved.rules("mangle", "CILIUM_PRE_mangle");
                let count = |text: &str| rules.into_iter().flatten().filter(|r| r.contains(text)).count();
                assert_eq!(
                    (count("socket"), count("TPROXY")),
                    (usize::from(install == "true"), 0),
                    "{rules:?}"
                );
            }
            hive.stop().await;
        });
    }
}
