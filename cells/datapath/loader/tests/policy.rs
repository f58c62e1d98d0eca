//! Policy maps of endpoints in the real kernel: in place, swapped, full, and against concurrent calls.

mod kit;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bpf::{Map, RawMap};
use datapath_abi::{PolicyEntry, PolicyKey, ep_flag};
use datapath_api::{Datapath, DatapathError, PolicyWrite};
use kit::{maps, pod, start};
use loader::{KernelDatapath, KernelOptions, QUARANTINE};
use maps::{FamilyConfig, Maps, MapsConfig, policy_name};
use test_kit::{Sandbox, require_root};

fn key(peer: u32) -> PolicyKey {
    PolicyKey { sec_label: peer, ..PolicyKey::any(false) }
}

fn allow(peer: u32) -> (PolicyKey, PolicyEntry) {
    (key(peer), PolicyEntry::allow(0))
}

fn peers(datapath: &dyn Datapath, id: u16) -> Vec<u32> {
    let mut peers: Vec<u32> =
        datapath.policy_rows(id).unwrap().iter().map(|(key, _)| key.sec_label).collect();
    peers.sort_unstable();
    peers
}

/// Kernel ids of the map in the endpoint's slot and of the pinned one.
fn numbers(maps: &Maps, id: u16) -> (Option<u32>, u32) {
    let slot = maps.ep_config().lookup(&id.into()).unwrap().unwrap().policy_slot;
    let pinned = RawMap::open(&maps.path(&policy_name(id))).unwrap().info().unwrap().id;
    (maps.ep_policies().id(slot).unwrap(), pinned)
}

#[test]
fn rows_change_in_place_in_order_or_by_another_map() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    let endpoint = pod(&sandbox, 7);
    assert!(matches!(datapath.policy_rows(7), Err(DatapathError::NotAttached { id: 7 })));
    datapath.attach(&endpoint).unwrap();
    let (first, _) = numbers(&maps, 7);

    let set = |peer| PolicyWrite::Set(key(peer), PolicyEntry::allow(0));
    let writes = [set(1), set(2), set(3), PolicyWrite::Delete(key(2)), PolicyWrite::Delete(key(99)), set(4)];
    datapath.write_policy(7, &writes).unwrap();
    assert_eq!(peers(&datapath, 7), [1, 3, 4]);
    assert_eq!(numbers(&maps, 7), (first, first.unwrap()), "in place");
    // A later write of the same key wins: order is kept between writes of different kinds.
    datapath.write_policy(7, &[set(5), PolicyWrite::Delete(key(5)), set(5)]).unwrap();
    assert_eq!(peers(&datapath, 7), [1, 3, 4, 5]);

    let old: Map<PolicyKey, PolicyEntry> = Map::open(&maps.path(&policy_name(7))).unwrap();
    datapath.swap_policy(7, &[allow(8), allow(9)]).unwrap();
    let (second, pinned) = numbers(&maps, 7);
    assert_ne!(second, first);
    assert_eq!(second, Some(pinned), "the pin follows");
    assert_eq!(peers(&datapath, 7), [8, 9]);
    assert_eq!(old.entries().unwrap().len(), 4, "packets under way still find the old rows");
    std::thread::sleep(Duration::from_millis(1050));
    datapath.pool().tend().unwrap();
    assert!(old.entries().unwrap().is_empty(), "and the map is ready for the next endpoint");
    // A start finds the new map.
    drop(datapath);
    let datapath = start(&maps);
    assert_eq!(peers(&datapath, 7), [8, 9]);
    datapath.swap_policy(7, &[]).unwrap();
    assert!(peers(&datapath, 7).is_empty());
    // The host's rows allow everything without the host firewall.
    datapath.attach_host(500, 0).unwrap();
    assert_eq!(datapath.policy_rows(500).unwrap().len(), 2);
    // Entries that a map of the previous run lacks are added.
    let slot = maps.ep_config().lookup(&500).unwrap().unwrap().policy_slot;
    maps.ep_policies().unset(slot).unwrap();
    assert_eq!(start(&maps).policy_rows(500).unwrap().len(), 2);
}

/// Policy of the host stays in force over a restart, and goes when the host firewall is switched off.
#[test]
fn the_hosts_entries_stay_with_the_host_firewall() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let start_with = |host_firewall| {
        let datapath = KernelDatapath::new(maps.clone(), KernelOptions { host_firewall, ..kit::OPTIONS });
        loader::restore(&datapath).unwrap();
        datapath.pool().tend().unwrap();
        datapath
    };
    let first = start_with(true);
    first.attach_host(500, ep_flag::POLICY_AUDIT | ep_flag::LIVE).unwrap();
    assert_eq!(peers(&first, 500), [0, 0], "all are allowed before policies are known");
    let flags = maps.ep_config().lookup(&500).unwrap().unwrap().flags;
    assert_eq!(flags, ep_flag::POLICY_AUDIT, "no interface is the host's");
    first.swap_policy(500, &[allow(8)]).unwrap();
    first.attach_host(500, 0).unwrap();
    assert_eq!(peers(&first, 500), [8]);
    drop(first);
    let second = start_with(true);
    second.attach_host(500, 0).unwrap();
    assert_eq!(peers(&second, 500), [8]);
    // A policy that allows nothing has no entries.
    second.swap_policy(500, &[]).unwrap();
    second.attach_host(500, 0).unwrap();
    assert!(peers(&second, 500).is_empty());
    drop(second);
    let second = start_with(true);
    second.attach_host(500, 0).unwrap();
    assert!(peers(&second, 500).is_empty());
    drop(second);
    let third = start_with(false);
    third.attach_host(500, 0).unwrap();
    assert_eq!(peers(&third, 500), [0, 0]);
}

#[test]
fn a_full_map_is_named_and_the_old_rows_stay_after_a_swap_that_failed() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let config = MapsConfig {
        bpf_root: sandbox.bpf_root().to_str().unwrap().to_owned(),
        preallocate_bpf_maps: false,
        bpf_policy_map_max: 256,
        ..MapsConfig::default()
    };
    let maps = std::sync::Arc::new(Maps::new(config, FamilyConfig::default()));
    maps.open().unwrap();
    let datapath = start(&maps);
    assert_eq!(datapath.policy_capacity(), 256);
    datapath.attach(&pod(&sandbox, 7)).unwrap();
    datapath.swap_policy(7, &[allow(1)]).unwrap();
    let many: Vec<_> = (1..=257).map(allow).collect();
    let full = datapath.swap_policy(7, &many).unwrap_err();
    assert!(matches!(full, DatapathError::PolicyFull { id: 7, capacity: 256 }), "{full}");
    assert!(full.to_string().contains("bpf-policy-map-max"), "{full}");
    assert_eq!(peers(&datapath, 7), [1]);
    let writes: Vec<_> = many.iter().map(|(key, entry)| PolicyWrite::Set(*key, *entry)).collect();
    let full = datapath.write_policy(7, &writes).unwrap_err();
    assert!(matches!(full, DatapathError::PolicyFull { id: 7, capacity: 256 }), "{full}");
    assert_eq!(peers(&datapath, 7).len(), 256);
    datapath.swap_policy(7, &many[..256]).unwrap();
    assert_eq!(peers(&datapath, 7).len(), 256);
    // Whether a full map takes another value for one of its keys depends on the kernel (Linux 6.13); it deletes on all.
    datapath.write_policy(7, &[PolicyWrite::Delete(key(1))]).unwrap();
    let deny = PolicyEntry { flags: 1, ..PolicyEntry::allow(0) };
    datapath.write_policy(7, &[PolicyWrite::Set(key(2), deny)]).unwrap();
}

/// Frozen settings refuse the write that switches the endpoint to the filled map.
#[test]
fn a_swap_that_failed_leaves_the_names_of_the_map_in_force() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    datapath.attach(&pod(&sandbox, 7)).unwrap();
    datapath.swap_policy(7, &[allow(1)]).unwrap();
    let slot = maps.ep_config().lookup(&7).unwrap().unwrap().policy_slot;
    let (in_slot, pinned) = numbers(&maps, 7);
    assert_eq!((in_slot, maps.ep_ids().lookup(&7).unwrap()), (Some(pinned), Some(slot)));

    maps.ep_config().raw().freeze().unwrap();
    let error = datapath.swap_policy(7, &[allow(2)]).unwrap_err();
    assert!(error.to_string().contains("switch to another policy map"), "{error}");
    assert_eq!(maps.ep_ids().lookup(&7).unwrap(), Some(slot));
    assert_eq!(numbers(&maps, 7), (in_slot, pinned), "the pin is the map of the settings row");
    let map: Map<PolicyKey, PolicyEntry> = Map::open(&maps.path(&policy_name(7))).unwrap();
    assert_eq!(map.entries().unwrap(), [allow(1)]);
    assert_eq!(peers(&datapath, 7), [1]);

    // An endpoint that cannot be created keeps no slot, either.
    let ready = datapath.pool().ready();
    let other = pod(&sandbox, 8);
    for _ in 0..3 {
        datapath.attach(&other).unwrap_err();
        datapath.attach_host(500, 0).unwrap_err();
    }
    std::thread::sleep(QUARANTINE + Duration::from_millis(50));
    datapath.pool().tend().unwrap();
    assert_eq!(datapath.pool().ready(), ready + 2, "with those of both swaps");
}

#[test]
fn attaching_again_while_maps_are_swapped_never_goes_back_to_an_old_map() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath: KernelDatapath = start(&maps);
    let endpoint = pod(&sandbox, 7);
    datapath.attach(&endpoint).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                datapath.attach(&endpoint).unwrap();
            }
        });
        for peer in 1..=300 {
            datapath.swap_policy(7, &[allow(peer)]).unwrap();
            assert_eq!(peers(&datapath, 7), [peer]);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(peers(&datapath, 7), [300]);
    let (slot, pinned) = numbers(&maps, 7);
    assert_eq!(slot, Some(pinned));
}
