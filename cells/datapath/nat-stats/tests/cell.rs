//! The cell in a hive, with real maps of translations.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use bpf::Map;
use datapath_abi::{CtTuple4, CtTuple6, NatEntry4, NatEntry6, Pod, ipv4_word, ipv6_words, tuple_flag};
use hive::prelude::*;
use loadbalancer::ServicesConfig;
use maps::Maps;
use metrics::Metrics;
use nat_stats::NatStats;
use statedb::{Table, TableDisplay as _};
use test_kit::{Sandbox, require_root};

const TCP: u8 = 6;
const UDP: u8 = 17;
const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const A: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const B: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);

fn hive(sandbox: &Sandbox, options: &[(&str, &str)]) -> TestHive {
    let cells = [
        statedb::cell(),
        metrics::cell(),
        maps::cell(),
        tunnel::cell(),
        masquerade::cell(),
        config::<ServicesConfig>(),
        nat_stats::cell(),
    ];
    let hive = TestHive::needing::<Table<NatStats>>(cells)
        .set("bpf-root", sandbox.bpf_root().display())
        .set("bpf-map-dynamic-size-ratio", "0")
        .set("preallocate-bpf-maps", "false")
        .set("nat-map-stats-interval", "20ms");
    options.iter().fold(hive, |hive, (key, value)| hive.set(key, value))
}

fn map<K: Pod, V: Pod>(hive: &TestHive, name: &str) -> Map<K, V> {
    let maps: Arc<Maps> = hive.get();
    Map::new(maps.shared(name).unwrap().unwrap()).unwrap()
}

fn reply(remote: Ipv4Addr, remote_port: u16, port: u16, nexthdr: u8) -> CtTuple4 {
    CtTuple4 {
        daddr: ipv4_word(NODE),
        saddr: ipv4_word(remote),
        dport: port.to_be(),
        sport: remote_port.to_be(),
        nexthdr,
        flags: tuple_flag::IN,
    }
}

fn rows(hive: &TestHive) -> Vec<String> {
    let table: Arc<Table<NatStats>> = hive.get();
    let snapshot = table.snapshot();
    let mut rows: Vec<String> = table.all(&snapshot).map(|row| row.row().join(" ")).collect();
    rows.sort_unstable();
    rows
}

async fn until_rows(hive: &TestHive, desired: &[&str]) {
    hive.until(&format!("the rows {desired:?}"), || rows(hive) == desired).await;
}

fn gauge(hive: &TestHive, family: &str) -> f64 {
    let metrics: Arc<Metrics> = hive.get();
    let (text, name) = (metrics.text(), format!("nat_endpoint_max_connection{{family=\"{family}\"}} "));
    text.lines().find_map(|line| line.strip_prefix("cilium_")?.strip_prefix(&name)?.parse().ok()).unwrap()
}

#[test]
fn the_destinations_with_the_most_translations_are_listed() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let options =
            [("enable-bpf-masquerade", "true"), ("nat-map-stats-entries", "2"), ("enable-ipv6", "true")];
        let mut hive = hive(&sandbox, &options);
        hive.start().await;
        let nat: Map<CtTuple4, NatEntry4> = map(&hive, "cilium_snat_v4_external");
        let value = NatEntry4 { created: 0, needs_ct: 0, pad1: 0, pad2: 0, address: 1, port: 2, pad: [0; 2] };
        let add = |key: CtTuple4| nat.update(&key, &value).unwrap();
        for port in 40_000..40_300 {
            add(reply(A, 443, port, TCP));
            // The entry of the packet itself, and entries of protocols without ports, are not counted.
            add(CtTuple4 { flags: tuple_flag::OUT, ..reply(A, 443, port, TCP) });
            add(reply(A, 443, port, 132));
        }
        for port in 40_000..40_200 {
            add(reply(A, 443, port, UDP));
        }
        // Echos count by address, the identifiers are the ports. The third of the list is left out.
        (0..199).for_each(|id| add(reply(B, id, id, 1)));
        until_rows(
            &hive,
            &["ipv4 TCP 192.0.2.1 198.51.100.1:443 300", "ipv4 UDP 192.0.2.1 198.51.100.1:443 200"],
        )
        .await;
        let share = 300.0 / f64::from(65_535 - 32_768);
        assert!((gauge(&hive, "ipv4") - share).abs() < 1e-9);
        assert_eq!(gauge(&hive, "ipv6"), 0.0);

        (0..300).for_each(|id| add(reply(B, 1000 + id, 1000 + id, 1)));
        assert!((40_000..40_300).all(|port| nat.delete(&reply(A, 443, port, TCP)).unwrap()));
        until_rows(
            &hive,
            &["ipv4 ICMP 192.0.2.1 198.51.100.2 499", "ipv4 UDP 192.0.2.1 198.51.100.1:443 200"],
        )
        .await;

        // The families have lists of their own.
        let nat6: Map<CtTuple6, NatEntry6> = map(&hive, "cilium_snat_v6_external");
        let words = |text: &str| ipv6_words(text.parse::<Ipv6Addr>().unwrap());
        let key = CtTuple6 {
            daddr: words("2001:db8::1"),
            saddr: words("2001:db8::2"),
            dport: 5,
            sport: 53_u16.to_be(),
            nexthdr: UDP,
            flags: tuple_flag::IN,
        };
        let value =
            NatEntry6 { created: 0, needs_ct: 0, pad1: 0, pad2: 0, address: [0; 4], port: 2, pad: [0; 6] };
        nat6.update(&key, &value).unwrap();
        hive.until("the row of IPv6", || rows(&hive).len() == 3).await;
        assert_eq!(rows(&hive)[2], "ipv6 UDP [2001:db8::1] [2001:db8::2]:53 1");
        hive.stop().await;
    });
}

#[test]
fn without_translations_there_is_nothing_to_do() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        for (option, message) in [
            (("nat-map-stats-interval", "20ms"), "no translations of sources on this node"),
            (("nat-map-stats-interval", "0s"), "off: nat-map-stats-interval=0s"),
        ] {
            let mut hive = hive(&sandbox, &[option]);
            hive.start().await;
            let health = || hive.hive().health().at("nat-stats.job-count");
            hive.until(message, || health().is_some_and(|status| status.message.contains(message))).await;
            assert_eq!((rows(&hive).len(), gauge(&hive, "ipv4")), (0, 0.0));
            hive.stop().await;
        }
    });
}
