//! Pools and nodes in any order.

use std::collections::BTreeSet;

use k8s_types::decode;
use proptest::prelude::*;

use super::*;

fn pool(name: &str, cidrs: &[&str], mask: u8) -> CiliumPodIPPool {
    let spec = json!({"ipv4": {"cidrs": cidrs, "maskSize": mask}});
    decode(json!({"metadata": {"name": name}, "spec": spec}).to_string().as_bytes()).unwrap()
}

fn pools(pools: &Value) -> IpamPools {
    serde_json::from_value(pools.clone()).unwrap()
}

fn with(definitions: &[CiliumPodIPPool]) -> MultiPool {
    let mut multi_pool = MultiPool::new(true, false);
    definitions.iter().for_each(|object| multi_pool.define(object));
    multi_pool
}

/// The object's fields with this request and these ranges.
fn fields(pool: &str, needed: u64, cidrs: &[&str]) -> Value {
    let mut fields = json!({"requested": [{"pool": pool, "needed": {"ipv4-addrs": needed}}]});
    if !cidrs.is_empty() {
        fields["allocated"] = json!([{"pool": pool, "cidrs": cidrs}]);
    }
    fields
}

fn sync(multi_pool: &mut MultiPool, node: &str, fields: &Value) -> (Option<Value>, String) {
    let desired = multi_pool.sync(&node.into(), &pools(fields));
    (desired.allocated, desired.error)
}

fn gets(pool: &str, cidrs: &[&str]) -> (Option<Value>, String) {
    (Some(json!([{"pool": pool, "cidrs": cidrs}])), String::new())
}

const NOTHING: (Option<Value>, String) = (None, String::new());

#[test]
fn nodes_get_as_many_ranges_as_they_request_and_give_them_back() {
    let mut all = with(&[pool("a", &["10.0.0.0/27"], 29)]);
    assert_eq!(sync(&mut all, "n1", &fields("a", 7, &[])), gets("a", &["10.0.0.0/29", "10.0.0.8/29"]));
    assert_eq!(
        sync(&mut all, "n1", &fields("a", 7, &[])),
        gets("a", &["10.0.0.0/29", "10.0.0.8/29"]),
        "the same until they are written"
    );
    assert_eq!(sync(&mut all, "n1", &fields("a", 12, &["10.0.0.8/29", "10.0.0.0/29"])), NOTHING);
    let (given, error) = sync(&mut all, "n2", &fields("a", 20, &[]));
    assert_eq!(given, gets("a", &["10.0.0.16/29", "10.0.0.24/29"]).0, "the rest is given");
    let exhausted =
        "ipam-multi-pool-sync allocation failed: ipv4 pool a is exhausted: the node has 12 of 20 addresses";
    assert_eq!(error, exhausted);

    // The first node gives one back.
    let desired = all.sync(&"n1".into(), &pools(&fields("a", 1, &["10.0.0.0/29"])));
    assert_eq!((desired.allocated, desired.error.as_str(), desired.has_freed), (None, "", true));
    let before = ["10.0.0.16/29", "10.0.0.24/29"];
    let after = ["10.0.0.16/29", "10.0.0.24/29", "10.0.0.8/29"];
    assert_eq!(sync(&mut all, "n2", &fields("a", 18, &before)), gets("a", &after));
    assert!(all.remove("n1") && !all.remove("n1"));
    assert_eq!(sync(&mut all, "n3", &fields("a", 1, &[])), gets("a", &["10.0.0.0/29"]));
    assert_eq!(all.summary(), "2 nodes have ranges; by pool a: 4");
}

#[test]
fn ranges_of_two_nodes_never_overlap() {
    let mut all = with(&[pool("a", &["10.0.0.0/24"], 28), pool("b", &["10.0.0.0/24"], 26)]);
    assert_eq!(sync(&mut all, "n1", &fields("a", 1, &["10.0.0.0/28"])), NOTHING);
    let (given, error) = sync(&mut all, "n2", &fields("b", 1, &["10.0.0.0/26"]));
    assert_eq!(given, gets("b", &["10.0.0.64/26"]).0, "it gets another one");
    assert!(error.ends_with("CIDR 10.0.0.0/26 of pool b overlaps 10.0.0.0/28 of node n1"), "{error}");
    assert_eq!(sync(&mut all, "n3", &fields("a", 1, &[])), gets("a", &["10.0.0.16/28"]));
    let twice = json!({"allocated": [{"pool": "a", "cidrs": ["10.0.0.128/28", "10.0.0.128/29"]}]});
    let (given, error) = sync(&mut all, "n4", &twice);
    assert_eq!(given, gets("a", &["10.0.0.128/28"]).0);
    assert!(error.ends_with("overlaps 10.0.0.128/28 of the same node"), "{error}");
    let odd = json!({"allocated": [{"pool": "a", "cidrs": ["nonsense"]}]});
    let (given, error) = sync(&mut all, "n5", &odd);
    assert_eq!(given, None, "it is left as it is");
    assert!(error.contains("unable to parse CIDR nonsense of pool a"), "{error}");
}

#[test]
fn a_pool_that_is_gone_or_smaller_leaves_its_ranges_with_the_nodes() {
    let mut first = pool("a", &["10.0.0.0/24", "10.1.0.0/24"], 28);
    first.spec.allow_first_ip = true;
    let mut all = with(std::slice::from_ref(&first));
    let with_flag = |cidrs: &[&str]| json!([{"pool": "a", "cidrs": cidrs, "allowFirstIP": true}]);
    assert_eq!(
        sync(&mut all, "n1", &fields("a", 15, &[])),
        (Some(with_flag(&["10.0.0.0/28"])), String::new())
    );
    let held =
        json!({"requested": fields("a", 15, &[])["requested"], "allocated": with_flag(&["10.0.0.0/28"])});
    first.spec.ipv4.as_mut().unwrap().cidrs.remove(0);
    all.define(&first);
    assert_eq!(sync(&mut all, "n1", &held), NOTHING);
    assert_eq!(all.problems(), ["node n1: 10.0.0.0/28 is not of pool a any more"]);
    all.undefine("a");
    assert_eq!(sync(&mut all, "n1", &held), NOTHING, "the flags of the object stay");
    let (given, error) = sync(&mut all, "n2", &fields("a", 1, &[]));
    assert_eq!(given, None);
    assert!(error.ends_with("cannot allocate from non-existing pool: a"), "{error}");

    // Made again with another size: ranges in use were counted by the first one only while the pool is there.
    all.define(&pool("a", &["10.2.0.0/24"], 26));
    all.define(&pool("a", &["10.2.0.0/24"], 27));
    assert!(
        all.problems()[0].contains("the mask size must not change from 26 to 27"),
        "{:?}",
        all.problems()
    );
    assert_eq!(sync(&mut all, "n2", &fields("a", 1, &[])), gets("a", &["10.2.0.0/26"]));
}

#[test]
fn pools_that_cannot_be_used_are_named() {
    let all = with(&[
        pool("a", &["10.0.0.0/24", "10.0.0.128/25", "fd00::/64", "x"], 28),
        pool("b", &["10.9.0.0/24"], 8),
    ]);
    let problems = all.problems().join("\n");
    for expected in [
        "10.0.0.128/25 overlaps 10.0.0.0/24",
        "fd00::/64 is no CIDR of IPv4",
        "x is no CIDR of IPv4",
        "maskSize: mask size 8 is wrong for 10.9.0.0/24",
    ] {
        assert!(problems.contains(expected), "{problems}");
    }
    let mut all = with(&[pool("a", &["10.0.0.0/24"], 28)]);
    let six = json!({"requested": [{"pool": "a", "needed": {"ipv6-addrs": 1}}]});
    assert!(sync(&mut all, "n1", &six).1.contains("it is off by enable-ipv6"));
}

#[derive(Clone, Debug)]
enum Step {
    /// A node requests addresses of a pool.
    Request(u8, u8, u8),
    /// A node gives back one of its ranges.
    GiveBack(u8, u8),
    /// Something else writes a range into the object of a node.
    Claim(u8, u8),
    Delete(u8),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..6u8, 0..2u8, 0..40u8).prop_map(|(node, pool, needed)| Step::Request(node, pool, needed)),
        4 => (0..6u8, any::<u8>()).prop_map(|(node, at)| Step::GiveBack(node, at)),
        2 => (0..6u8, 0..32u8).prop_map(|(node, at)| Step::Claim(node, at)),
        2 => (0..6u8).prop_map(Step::Delete),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    /// In any order of events no address is of two nodes, a restart changes nothing, and a node gets what it requests or an error.
    #[test]
    fn no_address_is_given_twice(steps in prop::collection::vec(step(), 1..60)) {
        let definitions = [pool("a", &["10.0.0.0/25"], 29), pool("b", &["10.1.0.0/26", "10.2.0.0/27"], 28)];
        let mut all = with(&definitions);
        let mut objects: BTreeMap<u8, Value> = BTreeMap::new();
        let settle = |all: &mut MultiPool, objects: &mut BTreeMap<u8, Value>, node: u8| {
            let name = SmolStr::from(format!("n{node}"));
            loop {
                let object = objects.entry(node).or_insert_with(|| json!({}));
                let desired = all.sync(&name, &pools(object));
                match desired.allocated {
                    Some(allocated) => object["allocated"] = allocated,
                    None => return desired.error,
                }
            }
        };
        for step in steps {
            match step {
                Step::Request(node, pool, needed) => {
                    let request = json!([{"pool": (["a", "b"][usize::from(pool)]), "needed": {"ipv4-addrs": needed}}]);
                    objects.entry(node).or_insert_with(|| json!({}))["requested"] = request;
                    let error = settle(&mut all, &mut objects, node);
                    let held = objects[&node]["allocated"].as_array().into_iter().flatten()
                        .filter(|held| held["pool"] == ["a", "b"][usize::from(pool)])
                        .flat_map(|held| held["cidrs"].as_array().unwrap())
                        .map(|text| capacity(text.as_str().unwrap().parse().unwrap(), (false, false))).sum::<u128>();
                    prop_assert!(held >= u128::from(needed) || error.contains("is exhausted"), "{error}");
                }
                Step::GiveBack(node, at) => {
                    let Some(object) = objects.get_mut(&node) else { continue };
                    if let Some(list) = object["allocated"].as_array_mut().filter(|list| !list.is_empty()) {
                        let pool = usize::from(at) % list.len();
                        let cidrs = list[pool]["cidrs"].as_array_mut().unwrap();
                        cidrs.remove(usize::from(at) % cidrs.len());
                        if cidrs.is_empty() {
                            list.remove(pool);
                        }
                    }
                    settle(&mut all, &mut objects, node);
                }
                Step::Claim(node, at) => {
                    let object = objects.entry(node).or_insert_with(|| json!({}));
                    object["allocated"] = json!([{"pool": "a", "cidrs": [format!("10.0.0.{}/28", at / 2 * 16 % 128)]}]);
                    settle(&mut all, &mut objects, node);
                }
                Step::Delete(node) => {
                    objects.remove(&node);
                    all.remove(&format!("n{node}"));
                }
                Step::Restart => {
                    all = with(&definitions);
                    // As the job does it: what nodes have is taken before anything is allocated.
                    for (node, object) in &objects {
                        let mut held = pools(object);
                        held.requested.clear();
                        let desired = all.sync(&format!("n{node}").into(), &held);
                        prop_assert_eq!(desired.allocated, None, "a restart keeps ranges");
                    }
                }
            }
            let all_cidrs: Vec<IpNetwork> = objects.values()
                .flat_map(|object| object["allocated"].as_array().cloned().unwrap_or_default())
                .flat_map(|pool| pool["cidrs"].as_array().unwrap().clone())
                .map(|text| text.as_str().unwrap().parse().unwrap())
                .collect();
            for (at, one) in all_cidrs.iter().enumerate() {
                prop_assert!(!all_cidrs[at + 1..].iter().any(|other| overlap(*one, *other)), "{all_cidrs:?}");
            }
            let distinct: BTreeSet<&IpNetwork> = all_cidrs.iter().collect();
            prop_assert_eq!(distinct.len(), all_cidrs.len());
        }
    }
}
