//! Map entries that other processes delete, overwrite or add while the agent runs.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use bpf::{RawMap, UpdateMode};
use integration_tests::{Node, ServiceFixture};
use serde_json::json;
use test_kit::{UdpFlow, require_root};

use super::kit::{logged, node, repairs, until, until_equal, until_well};

/// Maps of cells that repair their own entries, and the offset in a key to change for a foreign one.
const MAPS: [(&str, usize); 8] = [
    ("cilium_ipcache_v2", 11),
    ("cilium_lxc", 3),
    ("cilium_lb4_services_v2", 3),
    ("cilium_lb6_services_v2", 15),
    ("cilium_lb4_backends_v3", 1),
    ("cilium_lb4_reverse_nat", 0),
    ("cilium_lb_affinity_match", 0),
    ("cilium_node_map_v2", 7),
];

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(node: &Node, name: &str) -> RawMap {
    RawMap::open(&node.pin(name)).unwrap()
}

fn rows(node: &Node, name: &str) -> Rows {
    let map = open(node, name);
    let (keys, values) = map.entries().unwrap();
    let keys = keys.chunks(map.layout().key_size as usize).map(<[u8]>::to_vec);
    keys.zip(values.chunks(map.value_len()).map(<[u8]>::to_vec)).collect()
}

fn all(node: &Node) -> BTreeMap<&'static str, Rows> {
    let own = ["ep_ids", "cilium_devices"];
    MAPS.iter().map(|(name, _)| *name).chain(own).map(|name| (name, rows(node, name))).collect()
}

#[test]
fn rows_that_were_deleted_overwritten_or_added_are_as_before() {
    require_root!();
    let mut node = node("400ms");
    node.follow_services("lb.yaml");
    node.start();
    let [a, b] = ["a", "b"].map(|name| node.add_pod(name));
    let affinity = json!({"sessionAffinity": "ClientIP"});
    let backends = [b.ipv4.to_string(), b.ipv6.to_string()];
    let backends = [backends[0].as_str(), backends[1].as_str()];
    node.serve(&[
        ServiceFixture::new("web", &["10.96.0.1", "fd00:96::1"], &backends).with(affinity),
        ServiceFixture::new("other", &["10.96.0.2", "fd00:96::2"], &backends),
    ]);
    until_well(&node);
    // An entry that is correct already is no repair.
    sleep(Duration::from_secs(1));
    assert_eq!(repairs(&node, "row"), 0, "{}", node.log());
    let before = all(&node);

    for (name, at) in MAPS {
        let rows = &before[name];
        let map = open(&node, name);
        // A whole address, where rows are prefixes.
        let (key, value) = rows.iter().rfind(|(key, _)| name != "cilium_ipcache_v2" || key[0] == 64).unwrap();
        let repaired = repairs(&node, "row");
        map.delete(key).unwrap();
        until_equal(&node, &format!("{name}: a row was deleted"), &before, || all(&node));

        let mut stranger = key.clone();
        stranger[at] ^= 0x80;
        map.update(&stranger, value, UpdateMode::Any).unwrap();
        if name == "cilium_node_map_v2" {
            // The entry has the node's id, and is no address of the node.
            until_equal(&node, &format!("{name}: a row without an owner"), &before, || all(&node));
        } else if !matches!(name, "cilium_lb_affinity_match") {
            let mut wrong = value.clone();
            wrong[0] ^= 0x40;
            map.update(key, &wrong, UpdateMode::Any).unwrap();
        }
        until_equal(&node, &format!("{name}: a row was overwritten, one added"), &before, || all(&node));
        until(&node, "repairs are counted", || repairs(&node, "row") >= repaired + 2);
    }
    let reported = logged(&node, "Parts of the datapath were removed or changed");
    assert!((1..=2 * MAPS.len()).contains(&reported), "{reported} times: {}", node.log());
    until_well(&node);
    let service = UdpFlow::start(&a.ns, &b.ns, b.ipv4).unwrap();
    sleep(Duration::from_millis(100));
    let report = service.stop();
    assert!(report.is_perfect(), "{report:?}\n{}", node.log());

    // A restart finds nothing to repair.
    node.stop();
    node.start();
    sleep(Duration::from_secs(1));
    assert_eq!(repairs(&node, "row"), 0, "{}", node.log());
    assert_eq!(all(&node), before);
}
