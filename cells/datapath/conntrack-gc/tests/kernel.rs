//! Garbage collection in real maps.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bpf::{Clock, Map, MapFlags, MapSpec, MapType, UpdateMode};
use conntrack_gc::{Orphans, Pace, collect, collect_with, forget, purge_orphans};
use datapath_abi::{CtEntry, CtTuple4, CtTuple6, NatEntry4, NatEntry6, ipv4_word, ipv6_words, tuple_flag};
use hive::prelude::*;
use maps::Maps;
use metrics::Metrics;
use test_kit::{Sandbox, require_root};

type Connections = Map<CtTuple4, CtEntry>;

fn map(entries: u32) -> Connections {
    Map::create(&MapSpec::new("ct", MapType::LruHash, 14, 56, entries, MapFlags::NONE)).unwrap()
}

fn key(number: u32) -> CtTuple4 {
    CtTuple4 { daddr: number, saddr: 1, dport: 2, sport: 3, nexthdr: 6, flags: 0 }
}

fn row(lifetime: u32) -> CtEntry {
    CtEntry { lifetime, ..CtEntry::default() }
}

fn go_on() -> bool {
    true
}

#[test]
fn rows_that_ended_go_and_the_others_stay() {
    require_root!();
    let connections = map(200_000);
    let now = Clock::Seconds.now().unwrap();
    // Every third has expired; an entry that expires this second is alive.
    let lifetime = |number: u32| match number % 3 {
        0 => now - 1,
        1 => now + 100,
        _ => now + 1,
    };
    let rows: Vec<_> = (0..30_000).map(|number| (key(number), row(lifetime(number)))).collect();
    connections.update_batch(&rows).unwrap();
    let found = collect(connections.raw(), &Clock::Seconds, Duration::ZERO, go_on).unwrap();
    assert_eq!((found.alive, found.deleted, found.saved), (20_000, 10_000, 0));
    let left = connections.entries().unwrap();
    assert_eq!(left.len(), 20_000);
    assert!(left.iter().all(|(_, row)| row.lifetime >= now));
    // The pass ends early when requested.
    let mut chunks = 0;
    let found = collect(connections.raw(), &Clock::Seconds, Duration::ZERO, || {
        chunks += 1;
        false
    });
    assert!(found.unwrap().alive < 20_000 && chunks > 0);
}

/// Translations end with their connections, and only they.
#[test]
fn translations_go_with_their_connections() {
    require_root!();
    const NODE: u32 = 99;
    let connections = map(1000);
    let nat: Map<CtTuple4, NatEntry4> =
        Map::create(&MapSpec::new("nat", MapType::LruHash, 14, 40, 1000, MapFlags::NONE)).unwrap();
    let now = Clock::Seconds.now().unwrap();
    let entry =
        |address, port| NatEntry4 { created: 0, needs_ct: 0, pad1: 0, pad2: 0, address, port, pad: [0; 2] };
    // A connection of a pod, and the pair of its translation to the node's port.
    let out =
        |pod, sport| CtTuple4 { saddr: pod, daddr: 1, sport, dport: 2, nexthdr: 6, flags: tuple_flag::OUT };
    let reply =
        |port| CtTuple4 { saddr: 1, daddr: NODE, sport: 2, dport: port, nexthdr: 6, flags: tuple_flag::IN };
    let add = |pod, sport, port, lifetime, flags| {
        let connection = CtTuple4 { saddr: 1, daddr: pod, flags, ..out(pod, sport) };
        connections.update(&connection, &row(lifetime)).unwrap();
        nat.update(&out(pod, sport), &entry(NODE, port)).unwrap();
        nat.update(&reply(port), &entry(pod, sport)).unwrap();
    };
    add(10, 5, 1005, now - 1, tuple_flag::OUT);
    add(11, 6, 1006, now + 100, tuple_flag::OUT);
    add(12, 7, 1007, now - 1, tuple_flag::IN);
    // The port of an ended connection is another one's by now.
    add(13, 8, 1008, now - 1, tuple_flag::OUT);
    add(14, 9, 1008, now + 100, tuple_flag::OUT);
    let clock = Clock::Seconds;
    let found = collect_with(connections.raw(), Some(nat.raw()), &clock, Duration::ZERO, go_on).unwrap();
    assert_eq!((found.alive, found.deleted), (2, 3));
    let has = |key: &CtTuple4| nat.lookup(key).unwrap().is_some();
    assert!(!has(&out(10, 5)) && !has(&reply(1005)), "the pair of an ended connection");
    assert!(has(&out(11, 6)) && has(&reply(1006)), "that of a living one");
    assert!(has(&out(12, 7)) && has(&reply(1007)), "rows of incoming connections have none");
    assert!(!has(&out(13, 8)) && has(&out(14, 9)) && has(&reply(1008)), "the port's new owner");
}

/// Rows of translations whose connection is missing go, alone or in pairs; those of connections stay.
#[test]
fn translations_without_a_connection_are_purged() {
    require_root!();
    const NODE: u32 = 99;
    let (tcp, any) = (map(1000), map(1000));
    let nat: Map<CtTuple4, NatEntry4> =
        Map::create(&MapSpec::new("nat", MapType::LruHash, 14, 40, 1000, MapFlags::NONE)).unwrap();
    let entry =
        |address, port| NatEntry4 { created: 0, needs_ct: 0, pad1: 0, pad2: 0, address, port, pad: [0; 2] };
    let out = |pod, sport, nexthdr| CtTuple4 {
        saddr: pod,
        daddr: 1,
        sport,
        dport: 2,
        nexthdr,
        flags: tuple_flag::OUT,
    };
    let reply = |port, nexthdr| CtTuple4 {
        saddr: 1,
        daddr: NODE,
        sport: 2,
        dport: port,
        nexthdr,
        flags: tuple_flag::IN,
    };
    // Keys of connections have the addresses reversed.
    let connection = |pod, sport, nexthdr| CtTuple4 { saddr: 1, daddr: pod, ..out(pod, sport, nexthdr) };
    let pair = |pod, sport, port, nexthdr| {
        nat.update(&out(pod, sport, nexthdr), &entry(NODE, port)).unwrap();
        nat.update(&reply(port, nexthdr), &entry(pod, sport)).unwrap();
    };
    pair(10, 5, 1005, 6);
    tcp.update(&connection(10, 5, 6), &row(0)).unwrap();
    pair(10, 5, 1005, 17);
    any.update(&connection(10, 5, 17), &row(0)).unwrap();
    pair(11, 6, 1006, 6);
    // An entry of incoming packets, and one of another protocol, own nothing.
    tcp.update(&CtTuple4 { flags: tuple_flag::IN, ..connection(11, 6, 6) }, &row(0)).unwrap();
    any.update(&connection(11, 6, 17), &row(0)).unwrap();
    // A crash between two rows has left a row of replies; the flow has another port by now.
    pair(12, 7, 1007, 6);
    nat.delete(&out(12, 7, 6)).unwrap();
    // A connection of direct server return: its addresses are those of the row.
    nat.update(&out(13, 8, 6), &entry(NODE, 80)).unwrap();
    tcp.update(&CtTuple4 { sport: 2, dport: 8, ..out(13, 8, 6) }, &row(0)).unwrap();
    // A row of another agent's kind.
    let foreign = CtTuple4 { flags: 0x80, ..out(14, 9, 6) };
    nat.update(&foreign, &entry(NODE, 81)).unwrap();
    let connections = [tcp.raw().try_clone().unwrap(), any.raw().try_clone().unwrap()];
    let purge = || purge_orphans(nat.raw(), &connections, Duration::ZERO, go_on).unwrap();
    assert_eq!(purge(), Orphans { owned: 6, deleted: 3 });
    let has = |key: &CtTuple4| nat.lookup(key).unwrap().is_some();
    assert!(has(&out(10, 5, 6)) && has(&reply(1005, 6)) && has(&out(10, 5, 17)) && has(&reply(1005, 17)));
    assert!(!has(&out(11, 6, 6)) && !has(&reply(1006, 6)) && !has(&reply(1007, 6)));
    assert!(has(&out(13, 8, 6)) && has(&foreign));
    assert_eq!(purge(), Orphans { owned: 6, deleted: 0 });

    // The other family.
    let nat: Map<CtTuple6, NatEntry6> =
        Map::create(&MapSpec::new("nat", MapType::LruHash, 38, 56, 1000, MapFlags::NONE)).unwrap();
    let connections: Map<CtTuple6, CtEntry> =
        Map::create(&MapSpec::new("ct", MapType::LruHash, 38, 56, 1000, MapFlags::NONE)).unwrap();
    let words = |text: &str| ipv6_words(text.parse().unwrap());
    let (world, node) = (words("2001:db8::2"), words("2001:db8::1"));
    for (pod, lives) in [(words("fd00::1"), true), (words("fd00::2"), false)] {
        let port = u16::from(lives);
        let out =
            CtTuple6 { saddr: pod, daddr: world, sport: 5, dport: 2, nexthdr: 17, flags: tuple_flag::OUT };
        let reply =
            CtTuple6 { saddr: world, daddr: node, sport: 2, dport: port, nexthdr: 17, flags: tuple_flag::IN };
        let entry = NatEntry6 { created: 0, needs_ct: 0, pad1: 0, pad2: 0, address: node, port, pad: [0; 6] };
        nat.update(&out, &entry).unwrap();
        nat.update(&reply, &NatEntry6 { address: pod, port: 5, ..entry }).unwrap();
        if lives {
            connections.update(&CtTuple6 { saddr: world, daddr: pod, ..out }, &row(0)).unwrap();
        }
    }
    let all = [connections.raw().try_clone().unwrap()];
    let purged = purge_orphans(nat.raw(), &all, Duration::ZERO, go_on).unwrap();
    assert_eq!(purged, Orphans { owned: 2, deleted: 2 });
    // The pass ends early when requested.
    assert_eq!(purge_orphans(nat.raw(), &all, Duration::ZERO, || false).unwrap().owned, 2);
}

/// Connections come back while the rows of their translations are purged: none of them loses its rows.
#[test]
fn a_connection_that_comes_back_keeps_its_translation() {
    require_root!();
    const ROWS: u32 = 10_000;
    let connections = map(4 * ROWS);
    let nat: Map<CtTuple4, NatEntry4> =
        Map::create(&MapSpec::new("nat", MapType::LruHash, 14, 40, 4 * ROWS, MapFlags::NONE)).unwrap();
    let out = |pod| CtTuple4 { saddr: pod, daddr: 1, sport: 3, dport: 2, nexthdr: 6, flags: tuple_flag::OUT };
    let entry = NatEntry4 { created: 0, needs_ct: 0, pad1: 0, pad2: 0, address: 99, port: 9, pad: [0; 2] };
    nat.update_batch(&(100..100 + ROWS).map(|pod| (out(pod), entry)).collect::<Vec<_>>()).unwrap();
    let all = [connections.raw().try_clone().unwrap()];
    std::thread::scope(|scope| {
        let packets = scope.spawn(|| {
            for pod in (100..100 + ROWS).step_by(2) {
                // As the programs do: the connection first, then the row if there is none.
                connections.update(&CtTuple4 { saddr: 1, daddr: pod, ..out(pod) }, &row(1)).unwrap();
                let _ = nat.update_mode(&out(pod), &entry, UpdateMode::Create);
            }
        });
        purge_orphans(nat.raw(), &all, Duration::ZERO, go_on).unwrap();
        packets.join().unwrap();
    });
    let missing =
        (100..100 + ROWS).step_by(2).filter(|pod| nat.lookup(&out(*pod)).unwrap().is_none()).count();
    assert_eq!(missing, 0);
}

#[test]
fn connections_of_an_address_are_forgotten() {
    require_root!();
    let (gone, stays) = (Ipv4Addr::new(10, 0, 0, 7), Ipv4Addr::new(10, 0, 0, 8));
    let connections = map(1000);
    let tuple = |daddr, saddr, sport| CtTuple4 {
        daddr: ipv4_word(daddr),
        saddr: ipv4_word(saddr),
        sport,
        ..CtTuple4::default()
    };
    let keys = [tuple(gone, stays, 1), tuple(stays, gone, 2), tuple(stays, stays, 3)];
    for key in keys {
        connections.update(&key, &row(u32::MAX)).unwrap();
    }
    assert_eq!(forget(connections.raw(), &[gone.into()].into()).unwrap(), 2);
    assert_eq!(connections.keys().unwrap(), keys[2..]);
    // The same bytes are no address of the other family.
    let spec = MapSpec::new("ct", MapType::LruHash, 38, 56, 1000, MapFlags::NONE);
    let connections: Map<CtTuple6, CtEntry> = Map::create(&spec).unwrap();
    let (gone, stays) = ("fd00::7".parse().unwrap(), "fd00::8".parse().unwrap());
    for (daddr, saddr) in [(gone, stays), (stays, gone), (stays, stays)] {
        let (daddr, saddr) = (ipv6_words(daddr), ipv6_words(saddr));
        connections.update(&CtTuple6 { daddr, saddr, ..CtTuple6::default() }, &row(u32::MAX)).unwrap();
    }
    assert_eq!(forget(connections.raw(), &[Ipv4Addr::new(0xfd, 0, 0, 0).into()].into()).unwrap(), 0);
    assert_eq!(forget(connections.raw(), &[gone.into()].into()).unwrap(), 2);
    assert_eq!(connections.keys().unwrap().len(), 1);
}

/// Packets arrive for entries that have just expired, while they are collected: an entry that a packet has refreshed
/// always exists afterwards. The control: entries without such a packet do not.
#[test]
fn a_live_connection_keeps_its_row() {
    require_root!();
    const ROWS: u32 = 20_000;
    for round in 0..5 {
        let connections = map(4 * ROWS);
        let now = Clock::Seconds.now().unwrap();
        let rows: Vec<_> = (0..ROWS).map(|number| (key(number), row(now - 1))).collect();
        connections.update_batch(&rows).unwrap();
        let start = AtomicBool::new(false);
        let refreshed = std::thread::scope(|scope| {
            let packets = scope.spawn(|| {
                while !start.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                let mut refreshed = Vec::new();
                for number in (0..ROWS).filter(|number| number % 2 == round % 2) {
                    // As a packet does: it only refreshes an existing entry.
                    if connections.update_mode(&key(number), &row(now + 1000), UpdateMode::Replace).is_ok() {
                        refreshed.push(number);
                    }
                }
                refreshed
            });
            start.store(true, Ordering::Release);
            let found = collect(connections.raw(), &Clock::Seconds, Duration::ZERO, go_on).unwrap();
            assert!(found.deleted >= ROWS as usize / 2);
            packets.join().unwrap()
        });
        let missing =
            refreshed.iter().filter(|number| connections.lookup(&key(**number)).unwrap().is_none()).count();
        assert_eq!(missing, 0, "of {} refreshed rows", refreshed.len());
        assert_eq!(connections.entries().unwrap().len(), refreshed.len());
    }
}

#[test]
fn the_cell_collects_and_counts() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let all = [statedb::cell(), metrics::cell(), maps::cell(), signals::cell(), conntrack_gc::cell()];
        let mut hive = TestHive::new(all)
            .set("bpf-root", sandbox.bpf_root().display())
            .set("enable-ipv6", "false")
            .set("bpf-map-dynamic-size-ratio", "0")
            .set("bpf-ct-global-tcp-max", "4096")
            .set("bpf-ct-global-any-max", "4096")
            .set("conntrack-gc-interval", "1s");
        hive.start().await;
        let maps: Arc<Maps> = hive.get();
        let connections = Connections::new(maps.shared("cilium_ct4_global").unwrap().unwrap()).unwrap();
        let now = Clock::Seconds.now().unwrap();
        connections.update(&key(1), &row(now + 1000)).unwrap();
        connections.update(&key(2), &row(now - 1)).unwrap();
        hive.until("the collection", || connections.lookup(&key(2)).unwrap().is_none()).await;
        assert!(connections.lookup(&key(1)).unwrap().is_some());
        let metrics: Arc<Metrics> = hive.get();
        let deleted = "_gc_entries{family=\"ipv4\",protocol=\"TCP\",status=\"deleted\"} 1";
        hive.until("the collection to be counted", || metrics.text().contains(deleted)).await;
        let text = metrics.text();
        for line in [
            "cilium_datapath_conntrack_gc_interval_seconds{global=\"global\"} 1",
            "cilium_datapath_conntrack_gc_key_fallbacks_total{family=\"ipv4\",protocol=\"non-TCP\"} 0",
            "cilium_datapath_conntrack_dump_resets_total{area=\"conntrack\",name=\"dump_interrupts\",family=\"ipv4\"} 0",
            "cilium_datapath_conntrack_gc_entries{family=\"ipv4\",protocol=\"TCP\",status=\"alive\"} 1",
            "cilium_datapath_conntrack_gc_runs_total{family=\"ipv4\",protocol=\"TCP\",status=\"completed\"}",
            "cilium_datapath_conntrack_gc_duration_seconds_count{family=\"ipv4\",protocol=\"TCP\",status=\"completed\"}",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
        assert!(!text.contains("ipv6"), "a family that is off");
        hive.stop().await;
    });
}

/// A pass works 1/20 of its time at most, until it is late.
#[test]
fn a_pass_rests_by_its_work() {
    const WORK: Duration = Duration::from_millis(2);
    let rested = |pace: &mut Pace, is_over| {
        let begin = Instant::now();
        pace.rest(|| is_over);
        begin.elapsed()
    };
    let mut pace = Pace::regular(Duration::from_secs(3600));
    std::thread::sleep(WORK);
    assert!(rested(&mut pace, false) >= 19 * WORK);
    std::thread::sleep(WORK);
    assert!(rested(&mut pace, true) < 19 * WORK, "it is over");
    for mut late in [Pace::urgent(), Pace::regular(WORK)] {
        std::thread::sleep(2 * WORK);
        assert!(rested(&mut late, false) >= Duration::from_millis(3));
    }
}
