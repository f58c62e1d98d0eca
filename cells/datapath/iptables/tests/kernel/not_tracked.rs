//! Traffic that connection tracking leaves out.

use super::*;

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
