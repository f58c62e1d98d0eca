//! The pool of policy maps in the real kernel: the map of a slot can always be opened by its pin.

mod kit;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bpf::{Map, RawMap, unpin};
use datapath_abi::{PolicyEntry, PolicyKey};
use datapath_api::Datapath;
use kit::{maps, pod, start};
use loader::{KernelDatapath, QUARANTINE, READY, READY_FIRST, SHRINK_INTERVAL};
use maps::{Maps, policy_name};
use test_kit::{Sandbox, require_root};

fn pin(maps: &Maps, slot: u32) -> PathBuf {
    maps.fs().policy_maps().join(format!("slot_{slot:05}"))
}

/// The kernel ids of the maps in slots, each of which has its pin.
fn slots(maps: &Maps) -> BTreeMap<u32, u32> {
    let id = |slot| Some((slot, maps.ep_policies().id(slot).unwrap()?));
    let slots: BTreeMap<u32, u32> = (1..1024).filter_map(id).collect();
    for (slot, id) in &slots {
        assert_eq!(RawMap::open(&pin(maps, *slot)).unwrap().id(), *id, "slot {slot}");
    }
    let pins = std::fs::read_dir(maps.fs().policy_maps()).unwrap().count();
    assert_eq!(pins, slots.len(), "and no slot without a map has one");
    slots
}

fn slot_of(maps: &Maps, id: u16) -> u32 {
    maps.ep_config().lookup(&id.into()).unwrap().unwrap().policy_slot
}

fn allow(datapath: &KernelDatapath, id: u16) {
    datapath.swap_policy(id, &[(PolicyKey::any(false), PolicyEntry::allow(0))]).unwrap();
}

#[test]
fn a_start_finds_every_map_again_by_its_pin() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    for id in [7, 8, 9] {
        datapath.attach(&pod(&sandbox, id)).unwrap();
        allow(&datapath, id);
    }
    drop(datapath);
    let before = slots(&maps);
    assert!(before.len() >= READY_FIRST);

    // A kill between the pin of a swapped map and the settings row; pins that another process has removed.
    let spare = *before.keys().rev().find(|slot| **slot != slot_of(&maps, 7)).unwrap();
    let path = maps.path(&policy_name(7));
    unpin(&path).unwrap();
    RawMap::open(&pin(&maps, spare)).unwrap().pin(&path).unwrap();
    unpin(&maps.path(&policy_name(8))).unwrap();
    unpin(&pin(&maps, slot_of(&maps, 9))).unwrap();
    let datapath = start(&maps);
    assert_eq!(slots(&maps), before, "all by what is left of their pins");
    for id in [7, 8, 9] {
        assert_eq!(datapath.policy_rows(id).unwrap().len(), 1);
        let pinned = RawMap::open(&maps.path(&policy_name(id))).unwrap().id();
        assert_eq!(Some(&pinned), before.get(&slot_of(&maps, id)), "the endpoint's pin follows its slot");
    }
    drop(datapath);

    // A kill between the pin of a slot and the map that it is for, in a slot with another map and in one without.
    let last = *before.keys().next_back().unwrap();
    for slot in [spare, last + 1] {
        let _ = unpin(&pin(&maps, slot));
        RawMap::create(&maps.policy_spec(0)).unwrap().pin(&pin(&maps, slot)).unwrap();
    }
    let datapath = start(&maps);
    let after = slots(&maps);
    assert_ne!(after.get(&spare), before.get(&spare), "created again, as the previous one cannot be opened");
    assert!(after.iter().all(|(slot, id)| *slot == spare || before.get(slot) == Some(id)));

    // Both pins are gone: the endpoint gets another map, which denies everything, and the others keep theirs.
    drop(datapath);
    let slot = slot_of(&maps, 9);
    unpin(&pin(&maps, slot)).unwrap();
    unpin(&maps.path(&policy_name(9))).unwrap();
    let datapath = start(&maps);
    assert_ne!(slot_of(&maps, 9), slot);
    assert!(datapath.policy_rows(9).unwrap().is_empty());
    assert_eq!(datapath.policy_rows(8).unwrap().len(), 1);
}

#[test]
fn maps_of_a_run_before_the_pins_are_taken_over_by_their_endpoints_pins() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    datapath.attach(&pod(&sandbox, 7)).unwrap();
    allow(&datapath, 7);
    drop(datapath);
    let before = slots(&maps);
    for entry in std::fs::read_dir(maps.fs().policy_maps()).unwrap() {
        unpin(&entry.unwrap().path()).unwrap();
    }
    let datapath = start(&maps);
    let after = slots(&maps);
    let slot = slot_of(&maps, 7);
    assert_eq!(after.get(&slot), before.get(&slot));
    assert_eq!(datapath.policy_rows(7).unwrap().len(), 1);
    assert_eq!(after.len(), before.len(), "those in reserve are replaced");
}

#[test]
fn an_endpoint_keeps_its_map_while_all_pins_are_gone() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    datapath.attach(&pod(&sandbox, 7)).unwrap();
    for entry in std::fs::read_dir(maps.fs().policy_maps()).unwrap() {
        unpin(&entry.unwrap().path()).unwrap();
    }
    unpin(&maps.path(&policy_name(7))).unwrap();
    datapath
        .write_policy(7, &[datapath_api::PolicyWrite::Set(PolicyKey::any(true), PolicyEntry::allow(0))])
        .unwrap();
    assert_eq!(datapath.policy_rows(7).unwrap().len(), 1);
    // A map of the reserve that cannot be opened is replaced when it is taken.
    datapath.attach(&pod(&sandbox, 8)).unwrap();
    let map: Map<PolicyKey, PolicyEntry> = Map::open(&maps.path(&policy_name(8))).unwrap();
    assert_eq!(Some(map.raw().id()), maps.ep_policies().id(slot_of(&maps, 8)).unwrap());
}

#[test]
fn the_reserve_grows_once_pods_come() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    let pool = datapath.pool();
    assert_eq!(pool.ready(), READY_FIRST);
    for _ in 0..=READY_FIRST / 2 {
        pool.take().unwrap();
    }
    assert_eq!(pool.tend().unwrap(), READY);
    assert_eq!(slots(&maps).len(), READY + READY_FIRST / 2 + 1);
}

#[test]
fn the_pool_shrinks_after_many_endpoints_have_gone() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    let pool = datapath.pool();
    let taken: Vec<u32> = (0..600).map(|_| pool.take().unwrap().0).collect();
    let begin = Instant::now();
    pool.tend_at(begin).unwrap();
    let peak = slots(&maps).len();
    assert!(peak >= 600 + READY / 2, "{peak}");
    for slot in taken {
        pool.give_back(slot);
    }
    let mut now = begin + QUARANTINE + Duration::from_secs(1);
    pool.tend_at(now).unwrap();
    assert_eq!(slots(&maps).len(), peak, "the next wave finds them");
    // One interval in which the slots were used, one in which they were not needed.
    now += 2 * SHRINK_INTERVAL;
    pool.tend_at(now).unwrap();
    now += SHRINK_INTERVAL;
    for _ in 0..peak / 32 + 1 {
        pool.tend_at(now).unwrap();
    }
    assert_eq!((pool.ready(), slots(&maps).len()), (READY, READY));

    // Their ids are reused.
    let again: Vec<u32> = (0..400).map(|_| pool.take().unwrap().0).collect();
    assert!(again.iter().all(|slot| *slot as usize <= peak), "{again:?}");
    slots(&maps);
}
