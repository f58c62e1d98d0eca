//! The node's maps in a real bpf file system.

use std::time::Instant;

use bpf::{Map, RawMap};
use datapath_abi::{EndpointInfo, EndpointKey};
use maps::{FamilyConfig, Maps, MapsConfig, OWN_MAPS, Specs};
use test_kit::{Sandbox, require_root};

/// Pins of a running Cilium 1.20 agent (IPv4, preallocation on, no kube-proxy replacement, two CPUs): name, type, bytes
/// of key and value, entries, flags.
#[rustfmt::skip]
const CILIUM: &[(&str, &str, u32, u32, u32, u32)] = &[
    ("cilium_auth_map", "hash", 12, 8, 524288, 129),
    ("cilium_call_policy", "prog_array", 4, 4, 65535, 0),
    ("cilium_ct4_global", "lru_hash", 14, 56, 221723, 0),
    ("cilium_ct_any4_global", "lru_hash", 14, 56, 110861, 0),
    ("cilium_devices", "hash", 4, 16, 512, 0),
    ("cilium_egresscall_policy", "prog_array", 4, 4, 65535, 0),
    ("cilium_events", "perf_event_array", 4, 4, 2, 0),
    ("cilium_ipcache_v2", "lpm_trie", 24, 24, 512000, 129),
    ("cilium_ipv4_frag_datagrams", "lru_hash", 12, 4, 8192, 0),
    ("cilium_l2_responder_v4", "hash", 8, 8, 4096, 1),
    ("cilium_lb4_affinity", "lru_hash", 16, 16, 65536, 0),
    ("cilium_lb4_backends_v3", "hash", 4, 12, 65536, 0),
    ("cilium_lb4_reverse_nat", "hash", 2, 6, 65536, 0),
    ("cilium_lb4_reverse_sk", "lru_hash", 16, 8, 110861, 0),
    ("cilium_lb4_services_v2", "hash", 12, 12, 65536, 128),
    ("cilium_lb4_source_range", "lpm_trie", 12, 1, 65536, 129),
    ("cilium_lb_affinity_match", "hash", 8, 1, 65536, 128),
    ("cilium_lxc", "hash", 20, 48, 65535, 128),
    ("cilium_metrics", "percpu_hash", 8, 16, 1024, 0),
    ("cilium_node_map_v2", "hash", 20, 4, 16384, 129),
    ("cilium_percpu_trace_id", "percpu_array", 4, 8, 1, 0),
    ("cilium_policystats", "lru_percpu_hash", 12, 16, 65536, 2),
    ("cilium_ratelimit", "lru_hash", 8, 16, 1024, 0),
    ("cilium_ratelimit_metrics", "hash", 4, 8, 64, 0),
    ("cilium_runtime_config", "array", 4, 8, 256, 128),
    ("cilium_signals", "perf_event_array", 4, 4, 2, 0),
    ("cilium_skip_lb4", "hash", 16, 1, 100, 129),
];

fn config(sandbox: &Sandbox) -> MapsConfig {
    MapsConfig { bpf_root: sandbox.bpf_root().to_str().unwrap().to_owned(), ..MapsConfig::default() }
}

#[test]
fn pins_equal_those_of_a_cilium_agent() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    // The sizes that the agent computed from its machine's memory.
    let config = MapsConfig {
        bpf_ct_global_tcp_max: 221_723,
        bpf_ct_global_any_max: 110_861,
        bpf_sock_rev_map_max: 110_861,
        ..config(&sandbox)
    };
    let maps = Maps::new(config, FamilyConfig { enable_ipv4: true, enable_ipv6: false });
    maps.open().unwrap();
    maps.open_rest(2).unwrap();
    let mut pinned = maps.pinned().unwrap();
    for name in OWN_MAPS {
        assert!(pinned.remove(name).is_some(), "{name}");
    }
    for &(name, map_type, key, value, entries, flags) in CILIUM {
        let (_, found) = pinned.remove(name).unwrap_or_else(|| panic!("no pin {name}"));
        let entries = if map_type == "perf_event_array" { bpf::possible_cpus() as u32 } else { entries };
        let flags = if name == "cilium_devices" { 1 } else { flags };
        let found =
            (found.map_type.to_string(), found.key_size, found.value_size, found.max_entries, found.flags.0);
        assert_eq!(found, (map_type.to_owned(), key, value, entries, flags), "{name}");
    }
    assert!(pinned.is_empty(), "pins that Cilium does not have: {pinned:?}");
}

#[test]
fn a_restart_finds_its_maps_and_what_is_in_them() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let key = EndpointKey::v4("10.0.0.7".parse().unwrap());
    let info = EndpointInfo { lxc_id: 7, ..EndpointInfo::default() };
    let first = {
        let maps = Maps::new(config(&sandbox), FamilyConfig::default());
        maps.open().unwrap();
        maps.open_rest(2).unwrap();
        maps.lxc().update(&key, &info).unwrap();
        maps.pinned().unwrap()
    };
    let maps = Maps::new(config(&sandbox), FamilyConfig::default());
    let started = Instant::now();
    maps.open().unwrap();
    let took = started.elapsed();
    maps.open_rest(2).unwrap();
    assert_eq!(maps.pinned().unwrap(), first, "same kernel objects");
    assert_eq!(maps.lxc().lookup(&key).unwrap(), Some(info));
    assert!(took.as_millis() < 100, "opening existing pins took {took:?}");

    // Another preallocation setting changes flags: the entry is migrated.
    let maps =
        Maps::new(MapsConfig { preallocate_bpf_maps: false, ..config(&sandbox) }, FamilyConfig::default());
    maps.open().unwrap();
    assert_ne!(maps.pinned().unwrap()["cilium_lxc"], first["cilium_lxc"]);
    assert_eq!(maps.lxc().lookup(&key).unwrap(), Some(info));
}

#[test]
fn the_kernel_needs_what_was_estimated() {
    require_root!();
    for budget in [1 << 30, 24 << 20] {
        let sandbox = Sandbox::new().unwrap();
        let (specs, _) = Specs::within(config(&sandbox), FamilyConfig::default(), budget);
        let maps = Maps::of(specs);
        maps.open().unwrap();
        maps.open_rest(2).unwrap();
        let names = maps.pinned().unwrap();
        let kernel: u64 =
            names.keys().map(|name| RawMap::open(&maps.path(name)).unwrap().memory().unwrap()).sum();
        let estimated = maps.specs().footprint();
        assert!(
            kernel.abs_diff(estimated) < estimated / 20,
            "{} maps: {kernel} bytes, estimated {estimated}",
            names.len()
        );
    }
}

#[test]
fn a_pin_of_another_layout_is_refused_and_kept() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = Maps::new(config(&sandbox), FamilyConfig::default());
    let fs = bpf::BpfFs::open(sandbox.bpf_root()).unwrap();
    let mut old = maps.spec("cilium_lxc").unwrap();
    old.layout.value_size = 40;
    let old: Map<EndpointKey, [u64; 5]> = Map::new(fs.open_or_create(&old).unwrap().0).unwrap();
    old.update(&EndpointKey::v4("10.0.0.7".parse().unwrap()), &[7; 5]).unwrap();
    let text = maps.open().unwrap_err().to_string().replace(sandbox.dir().to_str().unwrap(), "");
    assert_eq!(
        text,
        "what is pinned cannot be taken over, and nothing was changed: \
         pinned map /bpf/tc/globals/cilium_lxc is hash key 20 value 40 max 65535 flags 0x80, but hash key 20 value 48 \
         max 65535 flags 0x80 is wanted: the values differ in size. Go back to the agent or the options \
         that made it, or remove it, which interrupts the pods: agent cleanup --dry-run lists what, agent cleanup removes it"
    );
    let kept = RawMap::open(&fs.map("cilium_lxc")).unwrap();
    assert_eq!(kept.info().unwrap().id, old.raw().info().unwrap().id);
    assert_eq!(old.entries().unwrap().len(), 1);
}
