//! Maps that are full.

use bpf::{RawMap, UpdateMode};
use integration_tests::{Node, Pod, pod_manifest};
use test_kit::{UdpFlow, require_root};

use super::kit::{health, logged, node, until, until_well};

/// Fills a pinned map with entries that are never looked up; returns their keys.
fn fill(node: &Node, name: &str, key: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    let map = RawMap::open(&node.pin(name)).unwrap();
    let entries = map.layout().max_entries;
    let value = vec![0u8; map.value_len()];
    let mut keys = Vec::new();
    // In one call as far as it goes, the last ones one by one.
    const BATCH: u32 = 4096;
    let mut n = 0;
    while n < entries {
        let count = BATCH.min(entries - n);
        let batch: Vec<u8> = (n..n + count).flat_map(&key).collect();
        match map.update_batch(&batch, &value.repeat(count as usize)) {
            Ok(()) => keys.extend(batch),
            Err(_) => {
                for row in (n..n + count).map(&key) {
                    if map.update(&row, &value, UpdateMode::Any).is_ok() {
                        keys.extend(row);
                    }
                }
            }
        }
        n += count;
    }
    // A map that another CPU changes concurrently may refuse an entry despite free capacity, so it counts as full only
    // after repeated refusals.
    let mut refused = 0;
    while refused < 100 {
        if map.update(&key(n), &value, UpdateMode::Any).is_ok() {
            keys.extend(key(n));
            refused = 0;
        } else {
            refused += 1;
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        n += 1;
        assert!(n < 2 * entries, "{name} has no end");
    }
    keys
}

fn make_room(node: &Node, name: &str, keys: &[u8]) {
    RawMap::open(&node.pin(name)).unwrap().delete_batch(keys).unwrap();
}

fn add(node: &Node, name: &str) -> Result<Pod, String> {
    node.apply(&format!("pod-{name}.yaml"), &pod_manifest("default", name, &[("name", name)]));
    let ns = node.sandbox().netns(name).unwrap();
    Pod::add(node, "default", name, &ns)
}

/// With a full map a pod is refused with the reason, others are unaffected, and the next is created once there is
/// capacity.
fn a_full_map_refuses(name: &str, key: impl Fn(u32) -> Vec<u8>) {
    // Disable the watchdog, which would remove the entries that fill the map.
    let mut node = node("0s");
    node.start();
    let [a, b] = ["a", "b"].map(|name| node.add_pod(name));
    until_well(&node);
    let before = node.endpoints();
    let flow = UdpFlow::start(&a.ns, &b.ns, b.ipv4).unwrap();
    let keys = fill(&node, name, key);
    let refused = add(&node, "c").expect_err("there is no room");
    let reported = format!("map {name} is full");
    assert!(refused.contains(&reported) && refused.contains("its size is fixed"), "{refused}");
    until(&node, "nothing is left of it", || node.endpoints() == before);
    make_room(&node, name, &keys);
    until_well(&node);
    let d = node.add_pod("d");
    let late = UdpFlow::start(&d.ns, &a.ns, a.ipv4).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    for flow in [flow, late] {
        let report = flow.stop();
        assert!(report.is_perfect(), "{report:?}\n{}", node.log());
    }
    assert!(logged(&node, &reported) <= 6, "a flood: {}", node.log());
    assert!(health(&node).starts_with("Ok "));
}

#[test]
fn a_full_endpoint_map_refuses_pods_by_name_and_recovers() {
    require_root!();
    // Addresses of no family.
    a_full_map_refuses("cilium_lxc", |n| {
        let mut key = vec![0u8; 20];
        key[..4].copy_from_slice(&n.to_ne_bytes());
        key[16] = 0xff;
        key
    });
}

#[test]
fn a_full_ipcache_refuses_pods_by_name_and_recovers() {
    require_root!();
    // Full keys of another cluster, which this agent does not remove.
    a_full_map_refuses("cilium_ipcache_v2", |n| {
        let mut key = vec![0u8; 24];
        key[..4].copy_from_slice(&64u32.to_ne_bytes());
        key[4..6].copy_from_slice(&0xffffu16.to_ne_bytes());
        key[7] = 1;
        key[8..12].copy_from_slice(&n.to_be_bytes());
        key
    });
}
