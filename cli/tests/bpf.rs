//! `bpf ...` reads pinned maps from a bpf file system of the test's own.

use bpf::{Layout, Map, MapFlags, MapSpec, MapType, PerCpuMap, RawMap, UpdateMode, bytes_of, possible_cpus};
use datapath_abi::signal::{AuthEntry, AuthKey};
use datapath_abi::{
    CtEntry, CtTuple4, CtTuple6, EndpointInfo, EndpointKey, IpMasqKey4, IpMasqKey6, IpcacheKey, LbBackend4,
    LbReverseNat4, LbReverseSk4, LbReverseSkKey4, LbService, LbServiceKey4, LbSourceRange4, MetricsKey,
    MetricsValue, NatEntry4, NatEntry6, PolicyEntry, PolicyKey, PolicyStatsKey, PolicyStatsValue,
    RemoteEndpointInfo, direction, drop, ipv4_word, ipv6_words, lb_flag, lb_flag2, lxc_flag, mac_word,
    runtime_config, tuple_flag,
};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use test_kit::Sandbox;

fn run(sandbox: &Sandbox, line: &str) -> String {
    let mut command = sandbox.host().command(env!("CARGO_BIN_EXE_apiary"));
    let output =
        command.env("CILIUM_SOCK", "/nonexistent/agent.sock").args(line.split(' ')).output().unwrap();
    let mut text = String::from_utf8(output.stdout).unwrap() + std::str::from_utf8(&output.stderr).unwrap();
    if !output.status.success() {
        text += &format!("[exit code {}]\n", output.status.code().unwrap());
    }
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn make(sandbox: &Sandbox, spec: &MapSpec) -> RawMap {
    let globals = sandbox.bpf_root().join("tc/globals");
    std::fs::create_dir_all(&globals).unwrap();
    let map = RawMap::create(spec).unwrap();
    map.pin(&globals.join(spec.name.as_ref())).unwrap();
    map
}

#[test]
fn tables_of_pinned_maps() {
    test_kit::require_root!();
    let sandbox = Sandbox::new().unwrap();
    let missing = run(&sandbox, "bpf endpoint list");
    assert!(missing.starts_with("Error: cannot open map /sys/fs/bpf/tc/globals/cilium_lxc"), "{missing}");
    assert!(missing.ends_with("[exit code 1]\n"), "{missing}");

    let spec = MapSpec::new("cilium_lxc", MapType::Hash, 20, 48, 16, MapFlags::NO_PREALLOC);
    let lxc: Map<EndpointKey, EndpointInfo> = Map::new(make(&sandbox, &spec)).unwrap();
    let pod = EndpointInfo {
        ifindex: 9,
        lxc_id: 2386,
        sec_id: 5,
        mac: mac_word([0x6e, 0xa7, 0xd1, 0xdb, 0x66, 0xa5]),
        node_mac: mac_word([0xbe, 0x5e, 0x28, 0x23, 0xab, 0xa6]),
        ..EndpointInfo::default()
    };
    let host = EndpointInfo { flags: lxc_flag::HOST, ..EndpointInfo::default() };
    lxc.update(&EndpointKey::v4(Ipv4Addr::new(10, 0, 0, 5)), &pod).unwrap();
    lxc.update(&EndpointKey::v6("fd00::1".parse().unwrap()), &host).unwrap();
    insta::assert_snapshot!("bpf-endpoint-list", run(&sandbox, "bpf endpoint list"));
    insta::assert_snapshot!("bpf-endpoint-list-json", run(&sandbox, "bpf endpoint list -o json"));

    let spec = MapSpec::new("cilium_ipcache_v2", MapType::LpmTrie, 24, 24, 16, MapFlags::NO_PREALLOC);
    let ipcache: Map<IpcacheKey, RemoteEndpointInfo> = Map::new(make(&sandbox, &spec)).unwrap();
    let world = RemoteEndpointInfo { sec_identity: 2, ..RemoteEndpointInfo::default() };
    let init = RemoteEndpointInfo { sec_identity: 5, ..RemoteEndpointInfo::default() };
    ipcache.update(&IpcacheKey::v4(Ipv4Addr::UNSPECIFIED, 0), &world).unwrap();
    ipcache.update(&IpcacheKey::v4(Ipv4Addr::new(10, 0, 0, 5), 32), &init).unwrap();
    insta::assert_snapshot!("bpf-ipcache-list", run(&sandbox, "bpf ipcache list"));
    assert_eq!(
        run(&sandbox, "bpf ipcache get 10.0.0.5"),
        "10.0.0.5 maps to identity identity=5 encryptkey=0 tunnelendpoint=0.0.0.0 flags=<none>\n"
    );
    assert_eq!(
        run(&sandbox, "bpf ipcache get 10.0.0.6"),
        "10.0.0.6 maps to identity identity=2 encryptkey=0 tunnelendpoint=0.0.0.0 flags=<none>\n"
    );
    assert_eq!(
        run(&sandbox, "bpf ipcache get fd00::6"),
        "fd00::6 does not map to any identity\n[exit code 1]\n"
    );

    let spec = MapSpec::new("cilium_metrics", MapType::PerCpuHash, 8, 16, 16, MapFlags::NO_PREALLOC);
    let metrics: PerCpuMap<MetricsKey, MetricsValue> = PerCpuMap::new(make(&sandbox, &spec)).unwrap();
    let each = vec![MetricsValue { count: 1, bytes: 100 }; possible_cpus()];
    let denied =
        MetricsKey { reason: drop::POLICY_DENIED, dir: direction::INGRESS, line: 7, ..MetricsKey::default() };
    metrics.update(&denied, &each).unwrap();
    metrics.update(&MetricsKey { reason: 0, dir: direction::EGRESS, ..denied }, &each).unwrap();
    let cpus = possible_cpus();
    let listed = run(&sandbox, "bpf metrics list");
    let numbers =
        listed.replace(&format!("{}  ", cpus * 100), "BYTES").replace(&format!(" {cpus}  "), " N  ");
    insta::assert_snapshot!("bpf-metrics-list", numbers);
    let packets = run(&sandbox, "bpf metrics list -o jsonpath={[*].packets}");
    assert_eq!(packets, format!("{cpus} {cpus}\n"));
}

#[test]
fn policy_rows_with_their_counters() {
    test_kit::require_root!();
    let sandbox = Sandbox::new().unwrap();
    let spec = MapSpec::new("cilium_policy_v2_02386", MapType::LpmTrie, 12, 12, 16, MapFlags::NO_PREALLOC);
    let policy: Map<PolicyKey, PolicyEntry> = Map::new(make(&sandbox, &spec)).unwrap();
    let http = PolicyKey { prefixlen: 64, sec_label: 6592, egress: 0, protocol: 6, dport: 80u16.to_be() };
    policy.update(&PolicyKey::any(true), &PolicyEntry::allow(0)).unwrap();
    policy.update(&http, &PolicyEntry { flags: 1 | 24 << 3, ..PolicyEntry::allow(24) }).unwrap();
    insta::assert_snapshot!("bpf-policy-get", run(&sandbox, "bpf policy get 2386"));

    let spec = MapSpec::new("cilium_policystats", MapType::LruPerCpuHash, 12, 16, 64, MapFlags::NONE);
    let stats: PerCpuMap<PolicyStatsKey, PolicyStatsValue> = PerCpuMap::new(make(&sandbox, &spec)).unwrap();
    let key = PolicyStatsKey {
        endpoint_id: 2386,
        prefix_len: 24,
        sec_label: 6592,
        protocol: 6,
        dport: http.dport,
        ..PolicyStatsKey::default()
    };
    let mut values = vec![PolicyStatsValue::default(); possible_cpus()];
    values[0] = PolicyStatsValue { packets: 3, bytes: 180 };
    stats.update(&key, &values).unwrap();
    insta::assert_snapshot!("bpf-policy-get-numeric", run(&sandbox, "bpf policy get 2386 --numeric"));
    insta::assert_snapshot!("bpf-policy-get-all", run(&sandbox, "bpf policy get --all"));
    let counted = run(&sandbox, "bpf policy get 2386 -o jsonpath={[0].Packets}/{[0].Key.Identity}");
    assert_eq!(counted, "3/6592\n");
    let unknown = run(&sandbox, "bpf policy get 7");
    assert!(
        unknown.starts_with("Error: cannot open map /sys/fs/bpf/tc/globals/cilium_policy_v2_00007"),
        "{unknown}"
    );
}

#[test]
fn connections_of_all_and_of_an_endpoint() {
    test_kit::require_root!();
    let sandbox = Sandbox::new().unwrap();
    let missing = run(&sandbox, "bpf ct list global");
    assert!(missing.contains("Unable to open cilium_ct4_global: "), "{missing}");
    assert!(missing.ends_with("[exit code 1]\n"), "{missing}");

    let word = |octets: [u8; 4]| u32::from_ne_bytes(octets);
    let spec = MapSpec::new("cilium_ct4_global", MapType::LruHash, 14, 56, 16, MapFlags::NONE);
    let tcp: Map<CtTuple4, CtEntry> = Map::new(make(&sandbox, &spec)).unwrap();
    // Entries store the addresses reversed.
    let key = CtTuple4 {
        daddr: word([10, 0, 0, 5]),
        saddr: word([10, 0, 0, 6]),
        dport: 80_u16.to_be(),
        sport: 40000_u16.to_be(),
        nexthdr: 6,
        flags: tuple_flag::OUT,
    };
    let entry = CtEntry {
        packets: 3,
        bytes: 180,
        lifetime: 8021,
        flags: 0x13,
        tx_flags_seen: 0x12,
        src_sec_id: 300,
        ..CtEntry::default()
    };
    tcp.update(&key, &entry).unwrap();
    let service = CtEntry { backend_id: 7, rev_nat_index: 2_u16.to_be(), ..entry };
    // Entries of services store the ports reversed.
    let (daddr, saddr) = (word([10, 96, 0, 1]), key.daddr);
    let (dport, sport, flags) = (key.sport, key.dport, tuple_flag::SERVICE);
    tcp.update(&CtTuple4 { daddr, saddr, dport, sport, flags, ..key }, &service).unwrap();
    let spec = MapSpec::new("cilium_ct_any6_global", MapType::LruHash, 38, 56, 16, MapFlags::NONE);
    let any: Map<CtTuple6, CtEntry> = Map::new(make(&sandbox, &spec)).unwrap();
    let words = |text: &str| {
        let octets = text.parse::<std::net::Ipv6Addr>().unwrap().octets();
        std::array::from_fn(|at| u32::from_ne_bytes(octets[at * 4..at * 4 + 4].try_into().unwrap()))
    };
    let ping = CtTuple6 {
        daddr: words("fd00::9"),
        saddr: words("fd00::8"),
        nexthdr: 58,
        flags: tuple_flag::IN | tuple_flag::RELATED,
        ..CtTuple6::default()
    };
    any.update(&ping, &CtEntry { lifetime: 60, ..CtEntry::default() }).unwrap();

    let listed = run(&sandbox, "bpf ct list global");
    let mut lines: Vec<&str> = listed.lines().filter(|line| line.contains("expires")).collect();
    lines.sort_unstable();
    insta::assert_snapshot!("bpf-ct-list", lines.join("\n"));
    let ktime = "bpf ct list global -d --time-diff-clocksource-mode ktime -o jsonpath={[*].Value.Lifetime}";
    assert!(run(&sandbox, ktime).contains("8021"));
    let left = run(&sandbox, "bpf ct list global --time-diff --time-diff-clocksource-mode ktime");
    assert!(left.contains("expires=60 (remaining: -"), "{left}");

    let spec = MapSpec::new("cilium_lxc", MapType::Hash, 20, 48, 16, MapFlags::NO_PREALLOC);
    let lxc: Map<EndpointKey, EndpointInfo> = Map::new(make(&sandbox, &spec)).unwrap();
    lxc.update(
        &EndpointKey::v4(Ipv4Addr::new(10, 0, 0, 6)),
        &EndpointInfo { lxc_id: 9, ..EndpointInfo::default() },
    )
    .unwrap();
    for words in ["9", "endpoint 9"] {
        let own = run(&sandbox, &format!("bpf ct list {words}"));
        assert_eq!(own.matches("expires=").count(), 1, "{own}");
        assert!(own.contains("TCP OUT 10.0.0.5:40000 -> 10.0.0.6:80 expires=8021 "), "{own}");
    }
    assert!(run(&sandbox, "bpf ct list 10").contains("Error: there is no endpoint 10"));
    assert!(run(&sandbox, "bpf ct list everything").contains("unknown type everything"));
}

#[test]
fn translations_are_listed_and_flushed() {
    test_kit::require_root!();
    let sandbox = Sandbox::new().unwrap();
    let missing = run(&sandbox, "bpf nat list");
    assert!(missing.starts_with("Error: there is no map of translations"), "{missing}");
    assert!(run(&sandbox, "bpf nat flush").ends_with("[exit code 1]\n"));
    let spec = MapSpec::new("cilium_snat_v4_external", MapType::LruHash, 14, 40, 16, MapFlags::NONE);
    let ipv4: Map<CtTuple4, NatEntry4> = Map::new(make(&sandbox, &spec)).unwrap();
    let word = |octets: [u8; 4]| u32::from_ne_bytes(octets);
    let (pod, node, world) = (word([10, 0, 0, 5]), word([192, 0, 2, 1]), word([198, 51, 100, 7]));
    let (port, chosen, web) = (40_000_u16.to_be(), 50_000_u16.to_be(), 80_u16.to_be());
    let entry =
        |address, port| NatEntry4 { created: 77, needs_ct: 0, pad1: 0, pad2: 0, address, port, pad: [0; 2] };
    let out =
        CtTuple4 { saddr: pod, daddr: world, sport: port, dport: web, nexthdr: 6, flags: tuple_flag::OUT };
    ipv4.update(&out, &entry(node, chosen)).unwrap();
    let reply =
        CtTuple4 { saddr: world, daddr: node, sport: web, dport: chosen, nexthdr: 6, flags: tuple_flag::IN };
    ipv4.update(&reply, &entry(pod, port)).unwrap();
    let spec = MapSpec::new("cilium_snat_v6_external", MapType::LruHash, 38, 56, 16, MapFlags::NONE);
    let ipv6: Map<CtTuple6, NatEntry6> = Map::new(make(&sandbox, &spec)).unwrap();
    let words = |text: &str| ipv6_words(text.parse().unwrap());
    let host = CtTuple6 {
        saddr: words("2001:db8::1"),
        daddr: words("2001:db8::2"),
        sport: port,
        dport: 53_u16.to_be(),
        nexthdr: 17,
        flags: tuple_flag::OUT,
    };
    let own = NatEntry6 {
        created: 78,
        needs_ct: 1,
        pad1: 0,
        pad2: 0,
        address: words("2001:db8::1"),
        port,
        pad: [0; 6],
    };
    ipv6.update(&host, &own).unwrap();
    let listed = run(&sandbox, "bpf nat list");
    let mut lines: Vec<&str> = listed.lines().collect();
    lines.sort_unstable();
    // Without an agent the clock of the entries is unknown.
    assert_eq!(
        lines,
        [
            "TCP IN 198.51.100.7:80 -> 192.0.2.1:50000 XLATE_DST 10.0.0.5:40000 Created=77 NeedsCT=0",
            "TCP OUT 10.0.0.5:40000 -> 198.51.100.7:80 XLATE_SRC 192.0.2.1:50000 Created=77 NeedsCT=0",
            "UDP OUT [2001:db8::1]:40000 -> [2001:db8::2]:53 XLATE_SRC [2001:db8::1]:40000 Created=78 NeedsCT=1",
        ]
    );
    let json: serde_json::Value = serde_json::from_str(&run(&sandbox, "bpf nat list -o json")).unwrap();
    let rows = json.as_array().unwrap();
    let row = rows.iter().find(|row| row["Key"]["Flags"] == 0 && row["Key"]["NextHeader"] == 6).unwrap();
    assert_eq!(row["Key"]["SourceAddr"], serde_json::json!([10, 0, 0, 5]));
    assert_eq!(
        row["Value"],
        serde_json::json!({"Created": 77, "NeedsCT": 0, "Addr": [192, 0, 2, 1], "Port": chosen})
    );
    assert_eq!(
        run(&sandbox, "bpf nat flush"),
        "Flushed 2 entries from cilium_snat_v4_external\nFlushed 1 entries from cilium_snat_v6_external\n"
    );
    assert_eq!(run(&sandbox, "bpf nat list"), "");
    assert_eq!(run(&sandbox, "bpf nat list -o json"), "[]\n");
}

#[test]
fn ranges_that_are_not_masqueraded() {
    test_kit::require_root!();
    let sandbox = Sandbox::new().unwrap();
    let missing = run(&sandbox, "bpf ipmasq list");
    assert!(missing.starts_with("No entries found: an agent has ranges with"), "{missing}");
    let spec = MapSpec::new("cilium_ipmasq_v4", MapType::LpmTrie, 8, 1, 16, MapFlags::NO_PREALLOC);
    let ipv4: Map<IpMasqKey4, u8> = Map::new(make(&sandbox, &spec)).unwrap();
    assert_eq!(run(&sandbox, "bpf ipmasq list").trim_end(), "IP PREFIX/ADDRESS");
    for (address, prefixlen) in [([10, 0, 0, 0], 8), ([169, 254, 0, 0], 16)] {
        ipv4.update(&IpMasqKey4 { prefixlen, address: u32::from_ne_bytes(address) }, &0).unwrap();
    }
    let spec = MapSpec::new("cilium_ipmasq_v6", MapType::LpmTrie, 20, 1, 16, MapFlags::NO_PREALLOC);
    let ipv6: Map<IpMasqKey6, u8> = Map::new(make(&sandbox, &spec)).unwrap();
    ipv6.update(&IpMasqKey6 { prefixlen: 10, address: ipv6_words("fe80::".parse().unwrap()) }, &0).unwrap();
    let listed = run(&sandbox, "bpf ipmasq list");
    let lines: Vec<&str> = listed.lines().map(str::trim_end).collect();
    assert_eq!(lines, ["IP PREFIX/ADDRESS", "10.0.0.0/8", "169.254.0.0/16", "fe80::/10"]);
    let json: serde_json::Value = serde_json::from_str(&run(&sandbox, "bpf ipmasq list -o json")).unwrap();
    assert_eq!(json["10.0.0.0/8"], serde_json::json!([""]));
}

#[test]
fn identities_that_have_authenticated() {
    test_kit::require_root!();
    let sandbox = Sandbox::new().unwrap();
    let missing = run(&sandbox, "bpf auth list");
    assert!(
        missing.starts_with("Error: cannot open map /sys/fs/bpf/tc/globals/cilium_auth_map"),
        "{missing}"
    );
    let spec = MapSpec::new("cilium_auth_map", MapType::Hash, 12, 8, 16, MapFlags::NO_PREALLOC);
    let map: Map<AuthKey, AuthEntry> = Map::new(make(&sandbox, &spec)).unwrap();
    assert_eq!(run(&sandbox, "bpf auth list"), "No entries found.\n");
    let key = AuthKey { local_identity: 1000, remote_identity: 20_000, remote_node: 7, auth_type: 1, pad: 0 };
    // 2026-11-29 18:34:30.499999744, a multiple of the unit of 512 ns.
    let expiration = 1_795_977_270_500_000_000 >> 9;
    map.update(&key, &AuthEntry { expiration }).unwrap();
    map.update(&AuthKey { remote_node: 0, auth_type: 3, ..key }, &AuthEntry { expiration: u64::MAX })
        .unwrap();
    let listed = run(&sandbox, "bpf auth list");
    let lines: Vec<&str> = listed.lines().map(str::trim_end).collect();
    assert_eq!(lines[0], "SRC IDENTITY   DST IDENTITY   REMOTE NODE ID   AUTH TYPE             EXPIRATION");
    assert!(
        lines[1].starts_with("1000           20000          0                Unknown-auth-type-3   9999-"),
        "{listed}"
    );
    let end = "2026-11-29 18:34:30.499999744 +0000 UTC";
    assert_eq!(
        lines[2],
        format!("1000           20000          7                spire                 {end}")
    );
    let json: serde_json::Value = serde_json::from_str(&run(&sandbox, "bpf auth list -o json")).unwrap();
    assert_eq!(
        json[1],
        serde_json::json!({
            "LocalIdentity": 1000, "RemoteIdentity": 20_000, "RemoteNodeID": 7, "AuthType": 1,
            "Expiration": "2026-11-29T18:34:30.499999744Z",
        })
    );
    assert_eq!(run(&sandbox, "bpf auth flush"), "Flushed 2 entries\n");
    assert!(map.keys().unwrap().is_empty());
}

#[test]
fn load_balancer_maps() {
    test_kit::require_root!();
    let sandbox = Sandbox::new().unwrap();
    let missing = run(&sandbox, "bpf lb list");
    assert!(
        missing.starts_with("Error: cannot open map /sys/fs/bpf/tc/globals/cilium_lb4_services_v2"),
        "{missing}"
    );

    let map = |name: &'static str, map_type, key, value| {
        make(&sandbox, &MapSpec::new(name, map_type, key, value, 16, MapFlags::NO_PREALLOC))
    };
    let (vip, pod) = (ipv4_word(Ipv4Addr::new(10, 96, 0, 1)), ipv4_word(Ipv4Addr::new(10, 0, 0, 7)));
    let services: Map<LbServiceKey4, LbService> =
        Map::new(map("cilium_lb4_services_v2", MapType::Hash, 12, 12)).unwrap();
    let key = LbServiceKey4 { address: vip, dport: 80u16.to_be(), proto: 6, ..LbServiceKey4::default() };
    let row =
        LbService { rev_nat_index: 3u16.to_be(), flags: lb_flag::SESSION_AFFINITY, ..LbService::default() };
    services.update(&key, &LbService { count: 2, backend_id: 10, ..row }).unwrap();
    services.update(&LbServiceKey4 { backend_slot: 1, ..key }, &LbService { backend_id: 5, ..row }).unwrap();
    services.update(&LbServiceKey4 { backend_slot: 2, ..key }, &LbService { backend_id: 6, ..row }).unwrap();
    let backends: Map<u32, LbBackend4> =
        Map::new(map("cilium_lb4_backends_v3", MapType::Hash, 4, 12)).unwrap();
    let backend = LbBackend4 { address: pod, port: 8080u16.to_be(), proto: 6, ..LbBackend4::default() };
    backends.update(&5, &backend).unwrap();
    let reverse: Map<u16, LbReverseNat4> =
        Map::new(map("cilium_lb4_reverse_nat", MapType::Hash, 2, 6)).unwrap();
    reverse.update(&3u16.to_be(), &LbReverseNat4 { address: vip, port: 80u16.to_be() }).unwrap();
    let ranges: Map<LbSourceRange4, u8> =
        Map::new(map("cilium_lb4_source_range", MapType::LpmTrie, 12, 1)).unwrap();
    ranges
        .update(&LbSourceRange4 { prefixlen: 40, rev_nat_id: 3u16.to_be(), pad: 0, address: 10 }, &1)
        .unwrap();

    insta::assert_snapshot!("bpf-lb-list", run(&sandbox, "bpf lb list"));
    insta::assert_snapshot!("bpf-lb-list-frontends", run(&sandbox, "bpf lb list --frontends"));
    insta::assert_snapshot!("bpf-lb-list-backends", run(&sandbox, "bpf lb list --backends"));
    insta::assert_snapshot!("bpf-lb-list-revnat", run(&sandbox, "bpf lb list --revnat"));
    insta::assert_snapshot!("bpf-lb-list-source-ranges", run(&sandbox, "bpf lb list --source-ranges"));
    insta::assert_snapshot!("bpf-lb-list-json", run(&sandbox, "bpf lb list -o json"));
    assert!(run(&sandbox, "bpf lb list --revnat --backends").contains("cannot be used with"));
    let port = LbServiceKey4 { address: 0, dport: 30_080u16.to_be(), ..key };
    let row = LbService { flags: lb_flag::NODE_PORT, count: 0, ..row };
    services.update(&port, &row).unwrap();
    for line in ["bpf lb list", "bpf lb list --frontends"] {
        let listed = run(&sandbox, line);
        assert!(listed.contains("0.0.0.0:30080/TCP (0)"), "{listed}");
    }
    let proxied = LbService {
        flags: lb_flag::LOAD_BALANCER | lb_flag::ROUTABLE,
        flags2: lb_flag2::L7_LOAD_BALANCER | lb_flag2::LOOPBACK | lb_flag2::QUARANTINED_OR_DENY,
        backend_id: 10_000u16.to_be().into(),
        ..row
    };
    services.update(&LbServiceKey4 { scope: 1, ..key }, &proxied).unwrap();
    let listed = run(&sandbox, "bpf lb list --frontends");
    let words = "l7-load-balancer, delegate-if-local, quarantined] (L7LB Proxy Port: 10000)\n";
    let line = format!("10.96.0.1:80/TCP/i (0)   0.0.0.0:0 (3) (0) [LoadBalancer, {words}");
    assert!(listed.contains(&line), "{listed}");
    assert!(!run(&sandbox, "bpf lb list -o json").contains("Note: "));
    assert!(!run(&sandbox, "bpf lb list --revnat").contains("Note: "));
}

#[test]
fn lookup_tables_of_maglev() {
    test_kit::require_root!();
    let sandbox = Sandbox::new().unwrap();
    // Without maps there are no tables.
    assert_eq!(run(&sandbox, "bpf lb maglev list"), "SVC ID   LOOKUP TABLE\n");
    let inner = Layout {
        map_type: MapType::Array,
        key_size: 4,
        value_size: 20,
        max_entries: 1,
        flags: MapFlags::NONE,
    };
    let table = |backends: [u32; 5]| {
        let map =
            RawMap::create(&MapSpec { name: "maglev_inner".into(), layout: inner, inner: None }).unwrap();
        map.update(bytes_of(&[0_u32]), bytes_of(&backends), UpdateMode::Any).unwrap();
        map
    };
    for (name, ids) in [("cilium_lb4_maglev", &[3_u16, 7][..]), ("cilium_lb6_maglev", &[9])] {
        let spec = MapSpec::new(name, MapType::HashOfMaps, 2, 4, 16, MapFlags::NONE).with_inner(inner);
        let outer = make(&sandbox, &spec);
        for id in ids {
            let table = table([u32::from(*id), 1, 70_000, 1, 2]);
            let fd = [table.as_fd().as_raw_fd() as u32];
            outer.update(bytes_of(&[id.to_be()]), bytes_of(&fd), UpdateMode::Any).unwrap();
        }
    }
    let all = "SVC ID   LOOKUP TABLE\n[3]/v4   [3 1 70000 1 2]\n[7]/v4   [7 1 70000 1 2]\n[9]/v6   [9 1 70000 1 2]\n";
    assert_eq!(run(&sandbox, "bpf lb maglev list"), all);
    assert_eq!(run(&sandbox, "bpf lb maglev get 9"), "SVC ID   LOOKUP TABLE\n[9]/v6   [9 1 70000 1 2]\n");
    let json = run(&sandbox, "bpf lb maglev get 3 -o json");
    assert_eq!(json, "{\n  \"[3]/v4\": [\n    \"[3 1 70000 1 2]\"\n  ]\n}\n");
    assert_eq!(
        run(&sandbox, "bpf lb maglev get 4"),
        "Error: service 4 has no Maglev lookup table; `bpf lb maglev list` shows those that there are\n[exit code 1]\n"
    );
    assert!(run(&sandbox, "bpf lb maglev get x").contains("invalid value 'x'"));
}

#[test]
fn translated_sockets_values_for_programs_and_mounts() {
    test_kit::require_root!();
    let sandbox = Sandbox::new().unwrap();
    assert_eq!(run(&sandbox, "bpf socknat list"), "Socket Cookie   Backend -> Frontend\n");
    let spec = MapSpec::new("cilium_lb4_reverse_sk", MapType::LruHash, 16, 8, 16, MapFlags::NONE);
    let sockets: Map<LbReverseSkKey4, LbReverseSk4> = Map::new(make(&sandbox, &spec)).unwrap();
    let word = |address: &str| ipv4_word(address.parse().unwrap());
    let key = LbReverseSkKey4 { cookie: 77, address: word("10.0.0.9"), port: 8080_u16.to_be(), pad: 0 };
    let value =
        LbReverseSk4 { address: word("10.96.0.1"), port: 80_u16.to_be(), rev_nat_index: 3_u16.to_be() };
    sockets.update(&key, &value).unwrap();
    let listed = run(&sandbox, "bpf socknat list");
    assert!(listed.ends_with("\n77              10.0.0.9:8080 -> 10.96.0.1:80 (revnat=3)\n"), "{listed}");
    let json = run(&sandbox, "bpf socknat list -o jsonpath={[0].frontend}/{[0].rev-nat-id}");
    assert_eq!(json.trim_end(), "10.96.0.1:80/3");

    assert!(run(&sandbox, "bpf config list").contains("cilium_runtime_config"), "a map that is missing");
    let spec = MapSpec::new("cilium_runtime_config", MapType::Array, 4, 8, 256, MapFlags(128));
    let values: Map<u32, u64> = Map::new(make(&sandbox, &spec)).unwrap();
    values.update(&runtime_config::AGENT_LIVENESS, &12_345).unwrap();
    assert_eq!(
        run(&sandbox, "bpf config list"),
        "KEY             VALUE\nAgentLiveness   12345\nUTimeOffset     0\n"
    );

    let mounts = run(&sandbox, "bpf fs show");
    assert!(mounts.contains("MountPoint:       /sys/fs/bpf\n"), "{mounts}");
    assert!(mounts.contains("FilesystemType:   bpf\n"), "{mounts}");
    for (line, feature) in [
        ("bpf egress list", "egress gateway"),
        ("bpf bandwidth list -o json", "bandwidth manager"),
        ("bpf multicast group list", "multicast"),
        ("bpf srv6 policy list", "SRv6"),
        ("bpf vtep list", "VTEP"),
        ("bpf sha list", "templates"),
    ] {
        let refused = run(&sandbox, line);
        assert!(refused.starts_with(&format!("Error: {feature}: this agent ")), "{line}: {refused}");
        assert!(refused.ends_with("[exit code 1]\n"), "{line}: {refused}");
    }
}
