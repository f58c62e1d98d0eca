//! The wrapper against the real kernel, in a sandbox of its own.

use bpf::perf::{Record, Rings, Wakeups};
use bpf::tc::Tc;
use bpf::{
    BpfFs, Clock, Direction, Error, Layout, Link, Map, MapFlags, MapSpec, MapType, ObjectMap, Origin,
    PerCpuMap, Program, RawMap, UpdateMode, Usage, unpin,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use test_kit::{Sandbox, require_root};

const HASH: MapSpec = MapSpec::new("test_hash", MapType::Hash, 4, 8, 1000, MapFlags::NO_PREALLOC);

fn sandbox() -> (Sandbox, BpfFs) {
    let sandbox = Sandbox::new().unwrap();
    let fs = BpfFs::open(sandbox.bpf_root()).unwrap();
    (sandbox, fs)
}

/// `mov r0, verdict; exit`.
fn returns(verdict: u8) -> Program {
    let mov = u64::from_le_bytes([0xb7, 0, 0, 0, verdict, 0, 0, 0]);
    Program::from_instructions("test_verdict", &[mov, 0x95]).unwrap()
}

fn ifindex(sandbox: &Sandbox, name: &str) -> u32 {
    let line = sandbox.host().ip(&format!("-o link show dev {name}")).unwrap();
    line.split(':').next().unwrap().trim().parse().unwrap()
}

#[test]
fn typed_maps_hold_what_is_written() {
    require_root!();
    let map: Map<u32, u64> = Map::create(&HASH).unwrap();
    assert_eq!(map.lookup(&7).unwrap(), None);
    map.update(&7, &70).unwrap();
    assert_eq!(map.lookup(&7).unwrap(), Some(70));
    assert!(map.update_mode(&7, &71, bpf::UpdateMode::Create).is_err());
    assert!(map.delete(&7).unwrap());
    assert!(!map.delete(&7).unwrap());
    assert_eq!(map.raw().info().unwrap().name, "test_hash");
    assert!(map.raw().memory().unwrap() > 0);
}

#[test]
fn memory_is_that_of_what_is_open_and_pinned_each_once() {
    require_root!();
    let (_sandbox, fs) = sandbox();
    let (open, _) = fs.open_or_create(&HASH).unwrap();
    let closed = MapSpec::new("test_closed", MapType::Array, 4, 8, 5000, MapFlags::NONE);
    let closed_memory = fs.open_or_create(&closed).unwrap().0.memory().unwrap();
    let _program = returns(0);
    let mut pinned = Usage::default();
    pinned.add_pinned_maps(&fs.globals()).unwrap();
    assert_eq!((pinned.maps, pinned.map_bytes), (2, open.memory().unwrap() + closed_memory));
    assert_eq!(pinned.programs, 0);
    // Other tests of this process have maps and programs open, too.
    let mut usage = Usage::default();
    usage.add_descriptors().unwrap();
    assert!(usage.maps >= 1 && usage.map_bytes >= open.memory().unwrap(), "{usage:?}");
    assert!(usage.programs >= 1 && usage.program_bytes >= 4096, "{usage:?}");
    let before = (usage.maps, usage.map_bytes);
    for _ in 0..2 {
        usage.add_pinned_maps(&fs.globals()).unwrap();
        assert_eq!((usage.maps - before.0, usage.map_bytes - before.1), (1, closed_memory));
    }
    usage.add_pinned_maps(&fs.globals().join("none")).unwrap();
}

#[test]
fn calls_are_observed_while_they_are_wanted() {
    require_root!();
    let (wanted, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(BTreeMap::new())));
    let counted = calls.clone();
    let count = move |operation, success, _: Duration| {
        *counted.lock().unwrap().entry((operation, success)).or_insert(0) += 1;
    };
    assert!(bpf::observe_calls(wanted.clone(), count));
    assert!(!bpf::observe_calls(wanted.clone(), |_, _, _| ()), "a process has one observer");
    let map: Map<u32, u64> = Map::create(&HASH).unwrap();
    assert!(calls.lock().unwrap().is_empty());
    wanted.store(true, Ordering::Relaxed);
    map.update(&7, &70).unwrap();
    assert_eq!(map.lookup(&8).unwrap(), None);
    wanted.store(false, Ordering::Relaxed);
    let calls = calls.lock().unwrap();
    assert!(calls[&("update", true)] >= 1 && calls[&("lookup", false)] >= 1, "{calls:?}");
}

#[test]
fn batches_write_read_and_delete_every_row() {
    require_root!();
    let shapes = [
        (MapType::Hash, MapFlags::NO_PREALLOC),
        (MapType::LruHash, MapFlags::NONE),
        (MapType::Array, MapFlags::NONE),
    ];
    for (map_type, flags) in shapes {
        let spec = MapSpec::new("test_batch", map_type, 4, 8, 10_000, flags);
        let map: Map<u32, u64> = Map::create(&spec).unwrap();
        let rows: Vec<(u32, u64)> = (0..10_000).map(|i| (i, u64::from(i) * 3)).collect();
        map.update_batch(&rows).unwrap();
        let mut found = map.entries().unwrap();
        found.sort_unstable();
        if map_type == MapType::LruHash {
            assert!(found.len() > 5_000 && found.iter().all(|(k, v)| *v == u64::from(*k) * 3));
            continue;
        }
        assert_eq!(found, rows, "{map_type}");
        if map_type == MapType::Hash {
            // A missing key in the middle of the batch is skipped.
            map.delete(&5_000).unwrap();
            map.delete_batch(&(10..10_000).collect::<Vec<u32>>()).unwrap();
            assert_eq!(map.keys().unwrap().len(), 10);
            map.clear().unwrap();
            assert!(map.entries().unwrap().is_empty());
        }
    }
}

#[test]
fn longest_prefix_tries_have_batches_too() {
    require_root!();
    let spec = MapSpec::new("test_lpm", MapType::LpmTrie, 8, 4, 100, MapFlags::NO_PREALLOC);
    let map: Map<[u8; 8], u32> = Map::create(&spec).unwrap();
    let key = |bits: u8, a: u8| [bits, 0, 0, 0, 10, a, 0, 0];
    map.update_batch(&[(key(8, 0), 1), (key(16, 1), 2), (key(16, 2), 3)]).unwrap();
    assert_eq!(map.lookup(&[32, 0, 0, 0, 10, 2, 3, 4]).unwrap(), Some(3));
    assert_eq!(map.lookup(&[32, 0, 0, 0, 10, 9, 9, 9]).unwrap(), Some(1));
    assert_eq!(map.entries().unwrap().len(), 3);
    assert!(!map.raw().is_empty().unwrap());
    map.clear().unwrap();
    assert!(map.raw().is_empty().unwrap() && map.entries().unwrap().is_empty());
}

#[test]
fn per_cpu_values_come_one_for_each_cpu() {
    require_root!();
    let spec = MapSpec::new("test_cpu", MapType::PerCpuHash, 4, 4, 16, MapFlags::NONE);
    let map: PerCpuMap<u32, u32> = PerCpuMap::new(RawMap::create(&spec).unwrap()).unwrap();
    let values: Vec<u32> = (0..bpf::possible_cpus() as u32).map(|cpu| 100 + cpu).collect();
    map.update(&1, &values).unwrap();
    assert_eq!(map.lookup(&1).unwrap().unwrap(), values);
    assert_eq!(map.entries().unwrap(), vec![(1, values)]);
    assert!(Map::<u32, u32>::new(RawMap::create(&spec).unwrap()).is_err());
}

#[test]
fn maps_of_maps_take_a_batch_and_tell_ids() {
    require_root!();
    let inner = Layout {
        map_type: MapType::LpmTrie,
        key_size: 12,
        value_size: 12,
        max_entries: 64,
        flags: MapFlags(0x81),
    };
    let spec = MapSpec::new("test_outer", MapType::ArrayOfMaps, 4, 4, 512, MapFlags::NONE).with_inner(inner);
    let outer = ObjectMap::new(RawMap::create(&spec).unwrap()).unwrap();
    let maps: Vec<RawMap> = (0..256)
        .map(|_| RawMap::create(&MapSpec { name: "test_inner".into(), layout: inner, inner: None }).unwrap())
        .collect();
    let started = std::time::Instant::now();
    outer.set_batch(maps.iter().enumerate().map(|(i, m)| (i as u32, std::os::fd::AsFd::as_fd(m)))).unwrap();
    let took = started.elapsed();
    assert_eq!(outer.id(255).unwrap(), Some(maps[255].info().unwrap().id));
    assert_eq!(outer.id(256).unwrap(), None);
    // A grace period for each map would take 2 s.
    assert!(took.as_millis() < 500, "{took:?}");
}

#[test]
fn a_pin_is_created_reused_and_migrated() {
    require_root!();
    let (_sandbox, fs) = sandbox();
    let (raw, origin) = fs.open_or_create(&HASH).unwrap();
    assert_eq!(origin, Origin::Created);
    let id = raw.info().unwrap().id;
    let map: Map<u32, u64> = Map::new(raw).unwrap();
    let rows: Vec<(u32, u64)> = (0..900).map(|i| (i, u64::from(i))).collect();
    map.update_batch(&rows).unwrap();

    let (raw, origin) = fs.open_or_create(&HASH).unwrap();
    assert_eq!((origin, raw.info().unwrap().id), (Origin::Reused, id));

    // Read-only for programs is desired, the pin lacks it: reused.
    let mut wanted = HASH;
    wanted.layout.flags = wanted.layout.flags.with(MapFlags::READ_ONLY_PROG);
    let (raw, origin) = fs.open_or_create(&wanted).unwrap();
    assert_eq!((origin, raw.info().unwrap().id), (Origin::Reused, id));

    // Larger: entries are migrated. A leftover of an earlier crash is no obstacle.
    map.raw().pin(&fs.map("test_hash_pending")).unwrap();
    let mut larger = wanted.clone();
    larger.layout.max_entries = 2000;
    let (raw, origin) = fs.open_or_create(&larger).unwrap();
    assert_eq!(origin, Origin::Migrated { entries: 900 });
    assert_ne!(raw.info().unwrap().id, id);
    let mut moved = Map::<u32, u64>::new(raw).unwrap().entries().unwrap();
    moved.sort_unstable();
    assert_eq!(moved, rows);
    assert_eq!(fs.map_names().unwrap(), ["test_hash"]);

    // Read-only is not desired any more, the pin has it: migrated as well.
    let mut plain = larger.clone();
    plain.layout.flags = MapFlags::NO_PREALLOC;
    let (raw, origin) = fs.open_or_create(&plain).unwrap();
    assert_eq!(origin, Origin::Migrated { entries: 900 });
    assert_eq!(raw.layout(), plain.layout);
}

/// Entries of programs are migrated even if they are written after the copy, or the migration is interrupted.
#[test]
fn a_map_that_programs_write_into_is_migrated_when_they_are_replaced() {
    require_root!();
    let (_sandbox, fs) = sandbox();
    const SMALL: MapSpec = MapSpec::new("test_lru", MapType::LruHash, 4, 4, 4096, MapFlags::NONE);
    let larger = |max_entries| MapSpec { layout: Layout { max_entries, ..SMALL.layout }, ..SMALL };
    let rows = |map: RawMap| -> Vec<(u32, u32)> {
        let mut rows = Map::new(map).unwrap().entries().unwrap();
        rows.sort_unstable();
        rows
    };
    let write = |map: &RawMap, key: u32, value: u32| {
        map.update(&key.to_ne_bytes(), &value.to_ne_bytes(), UpdateMode::Any).unwrap();
    };
    let pinned = || RawMap::open(&fs.map("test_lru")).unwrap();

    let (old, _) = fs.open_or_create(&SMALL).unwrap();
    write(&old, 1, 10);
    let (new, origin) = fs.open_or_create(&larger(8192)).unwrap();
    assert_eq!(origin, Origin::Moving { entries: 1 });
    assert_eq!(pinned().layout().max_entries, 4096, "programs still use the old one");
    write(&old, 2, 20);
    let moves = fs.moves().unwrap();
    assert_eq!(moves[0].copy().unwrap(), 2);
    // Programs of both loads: entries of the new ones are not overwritten.
    write(&new, 1, 11);
    write(&old, 3, 30);
    for moving in moves {
        assert_eq!(moving.finish().unwrap(), 1);
    }
    assert_eq!(pinned().info().unwrap().id, new.info().unwrap().id);
    assert_eq!(rows(pinned()), [(1, 11), (2, 20), (3, 30)]);
    assert!(fs.moves().unwrap().is_empty());

    // Interrupted, then repeated.
    let (begun, _) = fs.open_or_create(&larger(2048)).unwrap();
    write(&begun, 4, 40);
    write(&pinned(), 5, 50);
    let (again, origin) = fs.open_or_create(&larger(2048)).unwrap();
    assert_eq!((again.info().unwrap().id, origin), (begun.info().unwrap().id, Origin::Moving { entries: 1 }));
    // Interrupted again, then back to the previous size: programs may have written into either map.
    let before = pinned().info().unwrap().id;
    let (back, origin) = fs.open_or_create(&larger(8192)).unwrap();
    assert_eq!((back.info().unwrap().id, origin), (before, Origin::Moving { entries: 1 }));
    assert_eq!(pinned().info().unwrap().id, begun.info().unwrap().id, "the roles have changed");
    write(&begun, 6, 60);
    // Interrupted a third time, then a third size.
    let (third, _) = fs.open_or_create(&larger(16384)).unwrap();
    for moving in fs.moves().unwrap() {
        moving.finish().unwrap();
    }
    let keys: Vec<u32> = rows(third).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, [1, 2, 3, 4, 5, 6]);

    // Entries that do not fit stay in the old map.
    for key in 0..3000 {
        write(&pinned(), key, key);
    }
    let (kept, origin) = fs.open_or_create(&larger(1024)).unwrap();
    assert_eq!((kept.layout().max_entries, origin), (16384, Origin::Kept { entries: 3000 }));
}

#[test]
fn callers_at_once_get_the_same_map() {
    require_root!();
    let (_sandbox, fs) = sandbox();
    let ids: Vec<u32> = std::thread::scope(|scope| {
        let open = || fs.open_or_create(&HASH).unwrap().0.info().unwrap().id;
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

#[test]
fn a_pin_of_another_shape_is_refused_and_left_alone() {
    require_root!();
    let (sandbox, fs) = sandbox();
    let (raw, _) = fs.open_or_create(&HASH).unwrap();
    let map: Map<u32, u64> = Map::new(raw).unwrap();
    map.update_batch(&[(1, 1), (2, 2), (3, 3)]).unwrap();
    let before = (map.raw().info().unwrap(), fs.map_names().unwrap());

    let text = |change: fn(&mut Layout)| {
        let mut wanted = HASH;
        change(&mut wanted.layout);
        let error = fs.open_or_create(&wanted).unwrap_err();
        assert!(matches!(error, Error::Layout { .. }));
        error.to_string().replace(sandbox.dir().to_str().unwrap(), "")
    };
    insta::assert_snapshot!(text(|l| l.map_type = MapType::LruHash), @"pinned map /bpf/tc/globals/test_hash is hash key 4 value 8 max 1000 flags 0x1, but lru_hash key 4 value 8 max 1000 flags 0x1 is wanted: the types differ");
    insta::assert_snapshot!(text(|l| l.key_size = 16), @"pinned map /bpf/tc/globals/test_hash is hash key 4 value 8 max 1000 flags 0x1, but hash key 16 value 8 max 1000 flags 0x1 is wanted: the keys differ in size");
    insta::assert_snapshot!(text(|l| l.value_size = 24), @"pinned map /bpf/tc/globals/test_hash is hash key 4 value 8 max 1000 flags 0x1, but hash key 4 value 24 max 1000 flags 0x1 is wanted: the values differ in size");
    insta::assert_snapshot!(text(|l| l.max_entries = 2), @"pinned map /bpf/tc/globals/test_hash is hash key 4 value 8 max 1000 flags 0x1, but hash key 4 value 8 max 2 flags 0x1 is wanted: it holds 3 entries");

    let after = RawMap::open(&fs.map("test_hash")).unwrap();
    assert_eq!((after.info().unwrap(), fs.map_names().unwrap()), before);
    assert_eq!(map.entries().unwrap().len(), 3);
}

#[test]
fn a_folder_that_is_no_bpf_file_system_is_named() {
    let error = BpfFs::open("/proc").unwrap_err();
    insta::assert_snapshot!(error, @"/proc is not on a bpf file system; mount one there: mount -t bpf bpf /proc");
}

#[test]
fn bpffs_is_mounted_when_absent() {
    require_root!();
    let (sandbox, _) = sandbox();
    let root = sandbox.dir().join("other");
    let fs = BpfFs::open_or_mount(&root).unwrap();
    assert!(bpf::is_bpffs(&root));
    assert_eq!(fs.map("x"), root.join("tc/globals/x"));
    assert_eq!(fs.device_links("eth0.5"), root.join("cilium/devices/eth0-5/links"));
    assert_eq!(fs.endpoint_links(135), root.join("cilium/endpoints/135/links"));
    BpfFs::open_or_mount(&root).unwrap();
    assert!(sandbox.host().exec(&format!("umount {}", root.display())).is_ok());
    assert!(!bpf::is_bpffs(&root), "mounted exactly once");
}

#[test]
fn a_pinned_tcx_link_gets_another_program_in_place() {
    require_root!();
    let (sandbox, fs) = sandbox();
    test_kit::require!(bpf::probe().unwrap().tcx, "needs tcx, Linux 6.6");
    sandbox.host().ip("link add one type veth peer name two").unwrap();
    let index = ifindex(&sandbox, "one");
    let (old, new) = (returns(0), returns(2));
    let path = fs.map("test_link");
    Link::tcx(&old, index, Direction::Ingress).unwrap().pin(&path).unwrap();
    drop(old);

    let link = Link::open(&path).unwrap();
    let before = link.info().unwrap();
    assert_eq!((before.ifindex, before.direction), (Some(index), Some(Direction::Ingress)));
    link.update(&new).unwrap();
    let after = link.info().unwrap();
    assert_eq!(after.id, before.id);
    assert_ne!(after.program, before.program);
    assert_eq!(after.program, new.info().unwrap().id);

    sandbox.host().ip("link del one").unwrap();
    assert_eq!(link.update(&new).unwrap_err().errno(), Some(libc_enolink()));
    assert_eq!(link.info().unwrap().ifindex, Some(0));
    assert!(unpin(&path).unwrap());
    assert!(!unpin(&path).unwrap());
}

fn libc_enolink() -> i32 {
    67
}

#[test]
fn filters_are_attached_listed_replaced_and_removed() {
    require_root!();
    let (sandbox, _fs) = sandbox();
    sandbox.host().ip("link add one type veth peer name two").unwrap();
    let index = ifindex(&sandbox, "one");
    let tc = Tc::new().unwrap();
    assert!(tc.filters(index, Direction::Ingress).unwrap().is_empty());
    let (old, new) = (returns(0), returns(2));
    tc.attach_with_clsact(index, Direction::Ingress, 1, "cil_from_container-one", &old).unwrap();
    let filters = tc.filters(index, Direction::Ingress).unwrap();
    assert_eq!(filters.len(), 1);
    assert_eq!((filters[0].priority, filters[0].handle), (1, 1));
    assert_eq!(filters[0].name, "cil_from_container-one");
    assert_eq!(filters[0].program, old.info().unwrap().id);
    let shown = sandbox.host().exec("tc filter show dev one ingress").unwrap();
    assert!(shown.contains("cil_from_container-one direct-action"), "{shown}");

    tc.attach_with_clsact(index, Direction::Ingress, 1, "cil_from_container-one", &new).unwrap();
    let filters = tc.filters(index, Direction::Ingress).unwrap();
    assert_eq!(filters.len(), 1);
    assert_eq!(filters[0].program, new.info().unwrap().id);
    assert!(tc.filters(index, Direction::Egress).unwrap().is_empty());

    assert!(tc.detach(index, Direction::Ingress, 1).unwrap());
    assert!(!tc.detach(index, Direction::Ingress, 1).unwrap());
    assert!(tc.remove_clsact(index).unwrap());
    let gone = tc.attach_with_clsact(9999, Direction::Ingress, 1, "x", &new).unwrap_err();
    assert!(gone.is_not_found(), "{gone}");
}

#[test]
fn programs_run_on_a_packet() {
    require_root!();
    let run = returns(2).test_run(&[0u8; 64], &[], 1).unwrap();
    assert_eq!((run.verdict, run.packet.len()), (2, 64));
    let refused = Program::from_instructions("test_refused", &[0x95]).unwrap_err();
    assert!(refused.to_string().contains("R0 !read_ok"), "{refused}");
}

#[test]
fn this_kernel_has_what_is_needed() {
    require_root!();
    bpf::probe().unwrap();
}

#[test]
fn jiffies_are_read_as_programs_read_them() {
    require_root!();
    let clock = Clock::probe();
    let Clock::Jiffies { hz, .. } = &clock else { panic!("no jiffies on this kernel") };
    let begin = clock.now().unwrap();
    let ticks = clock.ticks(Duration::from_secs(2));
    assert_eq!(ticks, 2 * hz / 256);
    std::thread::sleep(Duration::from_secs(2));
    let passed = clock.now().unwrap() - begin;
    assert!((ticks..=ticks + 1 + hz / 512).contains(&passed), "{passed} ticks, {ticks} expected");
}

#[test]
fn what_is_taken_is_given_and_gone() {
    require_root!();
    let map = RawMap::create(&MapSpec::new("taken", MapType::LruHash, 4, 8, 16, MapFlags::NONE)).unwrap();
    map.update(&[1, 0, 0, 0], &[7; 8], UpdateMode::Any).unwrap();
    let mut value = [0; 8];
    assert!(map.take(&[1, 0, 0, 0], &mut value).unwrap());
    assert_eq!(value, [7; 8]);
    assert!(!map.take(&[1, 0, 0, 0], &mut value).unwrap());
    assert!(!map.lookup(&[1, 0, 0, 0], &mut value).unwrap());
}

/// A ring in this process, and a program that writes a record of 8 bytes and its header, 24 bytes, into it.
fn ring_and_writer(pages: usize, wakeups: Wakeups) -> (Rings, Program) {
    let spec = MapSpec::new("test_events", MapType::PerfEventArray, 4, 4, 0, MapFlags::NONE);
    let map = RawMap::create(&spec).unwrap();
    let rings = Rings::open(RawMap::open_id(map.id()).unwrap(), pages, wakeups).unwrap();
    let of = |code: u8, registers: u8, offset: i16, value: i32| {
        let [low, high] = offset.to_le_bytes();
        let [a, b, c, d] = value.to_le_bytes();
        u64::from_le_bytes([code, registers, low, high, a, b, c, d])
    };
    const EVENT_OUTPUT: i32 = 25;
    let program = [
        of(0x7a, 10, -8, 7),                        // *(u64 *)(r10 - 8) = 7
        of(0x18, 0x12, 0, map.as_fd().as_raw_fd()), // r2 = map
        0,
        of(0xb4, 3, 0, -1),   // w3 = BPF_F_CURRENT_CPU
        of(0xbf, 0xa4, 0, 0), // r4 = r10
        of(0x07, 4, 0, -8),   // r4 += -8
        of(0xb7, 5, 0, 8),    // r5 = 8
        of(0x85, 0, 0, EVENT_OUTPUT),
        of(0xb7, 0, 0, 0), // return 0
        0x95,
    ];
    (rings, Program::from_instructions("test_writer", &program).unwrap())
}

/// Returns the number of samples and of lost records since the last call.
fn read(rings: &mut Rings) -> (u64, u64) {
    let (mut samples, mut lost) = (0, 0);
    let read = rings.read(|_, record| match record {
        Record::Sample { head, tail } => {
            let bytes = [head, tail].concat();
            assert_eq!(bytes[..8], 7_u64.to_ne_bytes(), "{bytes:?}");
            samples += 1;
        }
        Record::Lost { count } => lost += count,
    });
    read.unwrap();
    (samples, lost)
}

fn is_woken(rings: &Rings) -> bool {
    let mut polled: Vec<_> =
        rings.descriptors().map(|ring| PollFd::from_borrowed_fd(ring, PollFlags::IN)).collect();
    poll(&mut polled, Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn records_of_a_ring_are_delivered_or_counted() {
    require_root!();
    let (mut rings, writer) = ring_and_writer(2, Wakeups::EachRecord);
    let write = |records: u32| writer.test_run(&[0; 14], &[], records).unwrap();
    // Each round goes around the end of the ring at another place.
    for _ in 0..100 {
        write(100);
        assert_eq!(read(&mut rings), (100, 0));
    }
    // More than fit; what is lost is reported with the next record.
    write(5_000);
    let (samples, lost) = read(&mut rings);
    assert!(samples < 5_000 && lost == 0, "{samples} {lost}");
    write(1);
    assert_eq!(read(&mut rings), (1, 5_000 - samples));
    drop(rings);
    write(1);
}

#[test]
fn readers_are_woken_by_each_record_while_few_come() {
    require_root!();
    let (mut rings, writer) = ring_and_writer(4, Wakeups::Paced);
    let write = |records: u32| writer.test_run(&[0; 14], &[], records).unwrap();
    assert!(!is_woken(&rings) && !rings.are_polled());
    write(1);
    assert!(is_woken(&rings), "by one record");
    assert_eq!(read(&mut rings), (1, 0));
    assert!(!is_woken(&rings) && !rings.are_polled());
    // A ring with many is polled, and the kernel wakes its reader when half of it is full. The program may move to another
    // CPU between two runs, whose ring is then the one that wakes its reader.
    write(100);
    assert_eq!(read(&mut rings), (100, 0));
    assert!(rings.are_polled());
    let cpus = rings.len() as u32;
    for _ in 0..cpus {
        write(20);
        assert_eq!(read(&mut rings), (20, 0));
    }
    // All quiet intervals have passed: the next ones of a ring wake the reader again.
    while rings.are_polled() {
        std::thread::sleep(bpf::perf::POLL_INTERVAL);
        assert_eq!(read(&mut rings), (0, 0));
    }
    is_woken(&rings);
    write(1);
    assert!(is_woken(&rings));
    assert_eq!(read(&mut rings), (1, 0));
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_task_waits_for_records_whether_they_are_few_or_many() {
    require_root!();
    let (rings, writer) = ring_and_writer(4, Wakeups::Paced);
    let mut reader = bpf::perf::Reader::new(rings).unwrap();
    assert!(!reader.is_empty());
    for records in [1, 1, 100, 100, 1, 1] {
        writer.test_run(&[0; 14], &[], records).unwrap();
        let mut count = 0;
        // More than once for records of a polled ring, or of two CPUs.
        while count < records {
            reader.readable().await.unwrap();
            let sample = |_, record: Record<'_>| count += u32::from(matches!(record, Record::Sample { .. }));
            reader.read(sample).unwrap();
        }
        assert_eq!(count, records);
    }
    // The timer of polled rings ends when they are quiet: then nothing wakes the task.
    loop {
        let readable = tokio::time::timeout(Duration::from_millis(100), reader.readable()).await;
        let Ok(readable) = readable else { break };
        readable.unwrap();
        reader.read(|_, record| panic!("{record:?}")).unwrap();
    }
    writer.test_run(&[0; 14], &[], 1).unwrap();
    reader.readable().await.unwrap();
}
