//! Skips of pods, from the tables to the maps.

use reconciler::{OpCx, Ops, StatusKind};
use statedb::TableDisplay;

use super::*;
use crate::skip_map::{SkipKey, SkipMaps, SkipMapsProvider, SkipOps};
use crate::testing::FakeSkipMaps;

fn skipping(mut spec: Value) -> Value {
    spec["skipRedirectFromBackend"] = json!(true);
    spec
}

fn spec(ip: &str) -> Value {
    skipping(at_address(ip, vec![port(53, "UDP", "")], vec![port(5300, "UDP", "")]))
}

fn columns(world: &World, pod: &str) -> Vec<String> {
    let snapshot = world.skips.snapshot();
    world.skips.get(&snapshot, DesiredSkip::by_pod(pod)).unwrap().row()[..5].to_vec()
}

#[test]
fn rows_wait_for_the_cookie_and_go_with_their_policy() {
    let mut world = World::new();
    world.pod("a", Some(pod("a", "a", "10.0.0.1", true)));
    world.policy("p", Some(spec("169.254.1.1")));
    world.settle();
    assert_eq!(columns(&world, "ns/a"), ["ns/a", "ns/p", "169.254.1.1:53/UDP", "<unset>", ""]);
    // Another policy of the same pod.
    world.policy("q", Some(spec("169.254.1.2")));
    world.settle();
    let both = "169.254.1.1:53/UDP, 169.254.1.2:53/UDP";
    assert_eq!(columns(&world, "ns/a"), ["ns/a", "ns/q", both, "<unset>", ""]);
    // In the format in which a script writes a row.
    let read = DesiredSkip::FROM_VALUE.unwrap();
    let mut written: Value = serde_json::from_str(
        &serde_json::to_string(
            &*world.skips.get(&world.skips.snapshot(), DesiredSkip::by_pod("ns/a")).unwrap().clone(),
        )
        .unwrap()
        .to_lowercase(),
    )
    .unwrap();
    written["netnscookie"] = json!(4711);
    written["status"]["kind"] = json!("Pending");
    // Lower-casing the whole text has made the addresses invalid (`53/udp`), so they are set again.
    written["skipredirectforfrontends"] = json!({"ns/p:local-redirect": ["169.254.1.1:53/UDP"]});
    world.skips.transact(|txn| txn.insert(read(written).unwrap()));
    world.settle();
    assert_eq!(columns(&world, "ns/a"), ["ns/a", "ns/q", both, "4711", "Pending"]);
    world.policy("q", None);
    world.settle();
    assert_eq!(columns(&world, "ns/a"), ["ns/a", "ns/p", "169.254.1.1:53/UDP", "4711", "Pending"]);
    world.policy("p", None);
    world.settle();
    assert_eq!(columns(&world, "ns/a"), ["ns/a", "ns/p", "", "4711", "Pending"]);
    assert!(read(json!({"status": {"kind": "Odd"}})).is_err());
    assert!(read(json!({"skipredirectforfrontends": {"ns/p": ["x"]}})).is_err());
}

#[test]
fn addresses_of_other_writers_in_a_row_are_kept() {
    let mut world = World::new();
    let read = DesiredSkip::FROM_VALUE.unwrap();
    let by_hand = json!({
        "podnamespacedname": "ns/a", "netnscookie": 5, "status": {"kind": "Pending"},
        "skipredirectforfrontends": {"ns/hand:local-redirect": ["192.0.2.1:53/UDP"]},
    });
    world.skips.transact(|txn| txn.insert(read(by_hand).unwrap()));
    world.pod("a", Some(pod("a", "a", "10.0.0.1", true)));
    world.policy("p", Some(spec("169.254.1.1")));
    world.settle();
    assert_eq!(columns(&world, "ns/a")[2..4], ["169.254.1.1:53/UDP, 192.0.2.1:53/UDP", "5"]);
    world.policy("p", None);
    world.settle();
    assert_eq!(columns(&world, "ns/a")[2..4], ["192.0.2.1:53/UDP", "5"]);
}

#[test]
fn redirected_frontends_of_services_are_skipped() {
    let mut world = World::new();
    world.service("s", "10.96.0.1", Some([true, true]));
    world.pod("a", Some(pod("a", "a", "10.0.0.1", true)));
    world
        .policy("p", Some(skipping(of_service("s", vec![port(53, "UDP", "")], vec![port(5300, "UDP", "")]))));
    world.settle();
    assert_eq!(columns(&world, "ns/a")[2], "10.96.0.1:53/UDP");
    world.pod("a", None);
    world.settle();
    assert!(world.skips().is_empty());
    let snapshot = world.skips.snapshot();
    let row = world.skips.get(&snapshot, DesiredSkip::by_pod("ns/a")).unwrap();
    assert_eq!(row.status.kind(), StatusKind::Pending, "the map is to be cleared");
}

fn wanted(pod: &str, cookie: Option<u64>, addresses: &[&str]) -> DesiredSkip {
    let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
    let skips = BTreeMap::from([(ServiceName::new("ns", "p:local-redirect"), addresses)]);
    let new = DesiredSkip::new(pod.to_owned());
    new.with(Some(ServiceName::new("ns", "p")), skips, cookie).unwrap()
}

/// Any changes of two pods, on maps in which a third of the operations fail, converge to the desired entries.
#[test]
fn maps_converge_despite_failures() {
    for _ in 0..50 {
        let maps = Arc::new(FakeSkipMaps::new(0.33));
        let of = maps.clone();
        let mut ops = SkipOps::new(Arc::new(SkipMapsProvider::new(move || Ok(of.clone()))));
        let stale = SkipKey { cookie: 1, ip: [1, 1, 1, 1].into(), port: 1 };
        while maps.put(&stale).is_err() {}
        let table: RwTable<DesiredSkip> = statedb::Db::new().table().unwrap();
        let steps: [(&str, Option<u64>, &[&str]); 6] = [
            ("ns/a", Some(7), &["169.254.1.1:53/UDP", "169.254.1.1:53/TCP", "[fd00::1]:53/UDP"]),
            ("ns/b", Some(8), &["169.254.1.1:53/UDP"]),
            ("ns/a", Some(7), &["169.254.1.1:53/TCP"]),
            ("ns/b", None, &["169.254.1.1:53/UDP"]),
            ("ns/a", Some(9), &["169.254.1.2:53/TCP"]),
            ("ns/b", Some(9), &["169.254.1.2:53/UDP"]),
        ];
        for (pod, cookie, addresses) in steps {
            table.transact(|txn| txn.insert(wanted(pod, cookie, addresses)));
            let snapshot = table.snapshot();
            let cx = OpCx::new(&snapshot, table.revision(&snapshot));
            let mut row = wanted(pod, cookie, addresses);
            // Sometimes the next change comes before the retry.
            let tries = if rand::random_bool(0.5) { 1 } else { 50 };
            for _ in 0..tries {
                if ops.update(&cx, &mut row).is_ok() {
                    break;
                }
            }
        }
        let snapshot = table.snapshot();
        let cx = OpCx::new(&snapshot, table.revision(&snapshot));
        for row in table.all(&snapshot) {
            let mut row = (**row).clone();
            while ops.update(&cx, &mut row).is_err() {}
            assert_eq!(row.reconciled, row.addresses());
        }
        while ops.prune(&cx, table.all(&snapshot)).is_err() {}
        let key = SkipKey { cookie: 9, ip: [169, 254, 1, 2].into(), port: 53 };
        assert_eq!(maps.rows().unwrap(), [key]);
        // The pods share a network namespace: the entry stays until both are deleted.
        for (pod, left) in [("ns/a", 1), ("ns/b", 0)] {
            let row = (**table.get(&snapshot, DesiredSkip::by_pod(pod)).unwrap()).clone();
            while ops.delete(&cx, &row).is_err() {}
            assert_eq!(maps.rows().unwrap().len(), left);
        }
    }
}
