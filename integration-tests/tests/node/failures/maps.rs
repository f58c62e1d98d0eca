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
    // A map that another CPU changes at the same moment refuses now and then what it has room for, so it is full only when
    // it goes on to refuse.
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

/// With a map full a pod is refused and says why, others go on, and the next is made once there is room.
fn a_full_map_refuses(name: &str, key: impl Fn(u32) -> Vec<u8>) {
    // The watchdog would remove the rows that fill the map, with whatever it looks for next.
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
    // Whole keys of another cluster, which are not this agent's to remove.
    a_full_map_refuses("cilium_ipcache_v2", |n| {
        let mut key = vec![0u8; 24];
        key[..4].copy_from_slice(&64u32.to_ne_bytes());
        key[4..6].copy_from_slice(&0xffffu16.to_ne_bytes());
        key[7] = 1;
        key[8..12].copy_from_slice(&n.to_be_bytes());
        key
    });
}
