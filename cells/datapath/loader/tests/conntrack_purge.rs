//! Leftovers of removed endpoints in the real kernel's maps.

use std::net::Ipv4Addr;

use bpf::Map;
use datapath_abi::{CtEntry, CtTuple4, PolicyStatsKey, PolicyStatsValue, ipv4_word};
use datapath_api::{Datapath, EndpointDatapath};
use loader::OwnAddresses;
use test_kit::{Sandbox, require_root};

mod kit;

use kit::{maps, pod, start};

/// The next owner of an address does not inherit connections; other connections stay.
#[test]
fn connections_of_an_endpoint_go_with_it() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    let connections: Map<CtTuple4, CtEntry> =
        Map::new(maps.shared("cilium_ct4_global").unwrap().unwrap()).unwrap();
    let endpoint = pod(&sandbox, 7);
    let own = ipv4_word(endpoint.ipv4.unwrap());
    let others = CtTuple4 { daddr: own + 1, saddr: own + 2, nexthdr: 6, ..CtTuple4::default() };
    let fill = || {
        for key in [CtTuple4 { daddr: own, ..others }, CtTuple4 { saddr: own, ..others }, others] {
            connections.update(&key, &CtEntry { lifetime: u32::MAX, ..CtEntry::default() }).unwrap();
        }
    };
    let left = || connections.keys().unwrap();
    fill();
    datapath.attach(&endpoint).unwrap();
    assert_eq!(left().len(), 3, "an endpoint that comes back after a restart keeps its connections");
    datapath.detach(7).unwrap();
    assert_eq!(left().len(), 3, "a deletion does not wait for it");
    // The next endpoint with the address purges them.
    datapath.attach(&endpoint).unwrap();
    assert_eq!(left(), [others]);
    fill();
    datapath.attach(&EndpointDatapath { ipv4: None, ..endpoint }).unwrap();
    assert_eq!(datapath.conntrack_purge().purge(&maps).unwrap(), 2);
    assert_eq!(left(), [others]);
    assert_eq!(datapath.conntrack_purge().purge(&maps).unwrap(), 0);
}

/// The next start purges entries of endpoints that a killed agent has left and that are unknown by now, before their
/// addresses are assigned again; other entries stay.
#[test]
fn connections_and_counts_without_an_endpoint_are_purged_at_the_start() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    let own =
        OwnAddresses { ranges: vec!["10.0.0.0/24".parse().unwrap()], routers: vec![[10, 0, 0, 200].into()] };
    datapath.conntrack_purge().set_own_addresses(own);
    let connections: Map<CtTuple4, CtEntry> =
        Map::new(maps.shared("cilium_ct4_global").unwrap().unwrap()).unwrap();
    let counts = maps.policy_stats().unwrap();
    let count_of = |endpoint_id| PolicyStatsKey { endpoint_id, ..PolicyStatsKey::default() };
    let (endpoint, next) = (pod(&sandbox, 7), pod(&sandbox, 8));
    let word = |last| ipv4_word(Ipv4Addr::new(10, 0, 0, last));
    let world = ipv4_word(Ipv4Addr::new(192, 0, 2, 1));
    let between = |saddr, daddr| CtTuple4 { saddr, daddr, nexthdr: 6, ..CtTuple4::default() };
    let known = ipv4_word(endpoint.ipv4.unwrap());
    let (kept, left) = ([between(known, world), between(word(200), world)], between(world, word(99)));
    datapath.attach(&endpoint).unwrap();
    let fill = || {
        for key in kept.iter().chain([&left]) {
            connections.update(key, &CtEntry { lifetime: u32::MAX, ..CtEntry::default() }).unwrap();
        }
        let zero = vec![PolicyStatsValue::default(); bpf::possible_cpus()];
        for id in [7, 9] {
            counts.update(&count_of(id), &zero).unwrap();
        }
    };
    let check = || {
        let mut rows = connections.keys().unwrap();
        rows.sort_by_key(|key| key.saddr != known);
        assert_eq!(rows, kept);
        assert_eq!(counts.lookup(&count_of(9)).unwrap(), None);
        assert!(counts.lookup(&count_of(7)).unwrap().is_some());
    };
    fill();
    datapath.prune(&[7].into()).unwrap();
    assert_eq!(datapath.conntrack_purge().purge(&maps).unwrap(), 2);
    check();
    assert_eq!(datapath.conntrack_purge().purge(&maps).unwrap(), 0);
    // An endpoint that is created before the scan triggers it.
    fill();
    datapath.prune(&[7].into()).unwrap();
    datapath.attach(&next).unwrap();
    check();
    // Counters are purged with their endpoint.
    datapath.detach(7).unwrap();
    datapath.conntrack_purge().purge(&maps).unwrap();
    assert_eq!(counts.lookup(&count_of(7)).unwrap(), None);
}
