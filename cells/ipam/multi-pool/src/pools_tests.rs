//! Pools of a node against a model of the operator.

use k8s_types::decode;
use proptest::prelude::*;

use super::*;

fn settings(pre_allocation: &[(&str, u64)]) -> Settings {
    let pre_allocation = pre_allocation.iter().map(|(pool, count)| ((*pool).to_owned(), *count)).collect();
    Settings { default_pool: "default".into(), pre_allocation, families: vec![Family::V4] }
}

fn object(pools: &Value) -> CiliumNode {
    let object = json!({"metadata": {"name": "n1"}, "spec": {"ipam": {"pools": pools}}});
    decode(object.to_string().as_bytes()).unwrap()
}

fn cidr(text: &str) -> IpNetwork {
    text.parse().unwrap()
}

/// Addresses in use of a pool, and requests that wait.
fn usage(pool: &str, addresses: &[&str], waiting: u64) -> Usage {
    let allocated: BTreeSet<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
    let needed = BTreeMap::from([((pool.into(), Family::V4), allocated.len() as u64 + waiting)]);
    Usage { allocated, needed, ..Usage::default() }
}

#[test]
fn the_demand_is_that_of_cilium() {
    for (needed, pre_allocation, expected) in [
        (0, 16, 16),
        (1, 16, 32),
        (15, 16, 32),
        (16, 16, 32),
        (17, 16, 48),
        (0, 8, 8),
        (3, 0, 3),
        (0, 0, 0),
        (5, 1, 6),
    ] {
        assert_eq!(demand(needed, pre_allocation), expected, "{needed} {pre_allocation}");
    }
}

#[test]
fn what_is_needed_is_requested_in_order_and_nothing_else() {
    let settings = settings(&[("default", 8), ("b", 2), ("zero", 0)]);
    let mut pools = NodePools::default();
    let plan = pools.plan(&settings, &usage("a", &[], 3));
    let expected = json!({"requested": [
        {"pool": "a", "needed": {"ipv4-addrs": 3}}, {"pool": "b", "needed": {"ipv4-addrs": 2}},
        {"pool": "default", "needed": {"ipv4-addrs": 8}},
    ]});
    assert_eq!(plan.desired, expected);
    assert_eq!(in_order(&object(&plan.desired).spec.ipam.pools), plan.desired, "nothing is written twice");
}

#[test]
fn ranges_are_given_back_from_the_last_one_and_taken_back_until_a_write_is_sent() {
    let settings = settings(&[]);
    let mut pools = NodePools::default();
    // 6 addresses each.
    let held = json!({"allocated": [{"pool": "a", "cidrs": ["10.0.0.0/29", "10.0.0.8/29", "10.0.0.16/29", "10.0.0.24/29"]}]});
    pools.observe(&settings, &object(&held));
    let plan = pools.plan(&settings, &usage("a", &["10.0.0.1", "10.0.0.17"], 0));
    assert_eq!(plan.released, [cidr("10.0.0.24/29"), cidr("10.0.0.8/29")]);
    assert_eq!(plan.desired["allocated"], json!([{"pool": "a", "cidrs": ["10.0.0.0/29", "10.0.0.16/29"]}]));
    assert_eq!(plan.pools[0].cidrs, [cidr("10.0.0.0/29"), cidr("10.0.0.16/29")]);

    // Needed again before the write.
    let plan = pools.plan(&settings, &usage("a", &["10.0.0.1", "10.0.0.17"], 11));
    assert_eq!(plan.desired["allocated"][0]["cidrs"].as_array().unwrap().len(), 3);
    pools.plan(&settings, &usage("a", &["10.0.0.1"], 0));
    pools.sent();
    let plan = pools.plan(&settings, &usage("a", &["10.0.0.1"], 20));
    assert_eq!(plan.pools[0].cidrs, [cidr("10.0.0.0/29")], "the write may have happened");
    // It has not: another client has changed the object.
    pools.written(&settings, &object(&held));
    let plan = pools.plan(&settings, &usage("a", &["10.0.0.1"], 20));
    assert_eq!(plan.pools[0].cidrs.len(), 4);

    let mut resting = usage("a", &[], 0);
    resting.resting.insert("10.0.0.25".parse().unwrap());
    let plan = pools.plan(&settings, &resting);
    assert_eq!(plan.pools[0].cidrs, [cidr("10.0.0.24/29")], "packets for the previous owner may still come");
    pools.keep(cidr("10.0.0.0/29"));
    let plan = pools.plan(&settings, &usage("a", &["10.0.0.1", "10.0.0.26"], 0));
    assert_eq!(plan.pools[0].cidrs, [cidr("10.0.0.0/29"), cidr("10.0.0.24/29")]);
}

#[test]
fn a_range_that_is_lost_in_use_is_written_again_once_and_gives_nothing() {
    let settings = settings(&[]);
    let mut pools = NodePools::default();
    pools.observe(&settings, &object(&json!({})));
    let mut used = usage("a", &["10.0.0.1"], 0);
    used.lost = vec![("a".into(), cidr("10.0.0.0/29"))];
    let plan = pools.plan(&settings, &used);
    assert_eq!(plan.desired["allocated"], json!([{"pool": "a", "cidrs": ["10.0.0.0/29"]}]));
    pools.sent();
    pools.written(&settings, &object(&plan.desired));
    used.lost.clear();
    let plan = pools.plan(&settings, &used);
    assert_eq!(plan.pools, [], "another node may have got it meanwhile");
    assert_eq!(plan.desired["requested"][0]["needed"]["ipv4-addrs"], 6, "its free addresses are of no use");
    assert_eq!(pools.reclaimed(), ["10.0.0.0/29 of pool a"]);

    // The operator takes it away.
    pools.observe(&settings, &object(&json!({})));
    used.lost = vec![("a".into(), cidr("10.0.0.0/29"))];
    let plan = pools.plan(&settings, &used);
    assert_eq!(plan.desired.get("allocated"), None, "once is enough");
    // Or it is accepted, and its last address is released.
    pools.observe(&settings, &object(&json!({"allocated": [{"pool": "a", "cidrs": ["10.0.0.0/29"]}]})));
    let plan = pools.plan(&settings, &usage("a", &[], 0));
    assert_eq!((plan.desired, pools.reclaimed()), (json!({}), Vec::new()));
}

#[test]
fn ranges_that_cannot_be_used_stay_and_are_named() {
    let settings = settings(&[]);
    let mut pools = NodePools::default();
    let odd = json!({"allocated": [
        {"pool": "a", "cidrs": ["10.0.0.0/24", "10.0.0.0", "fd00::/112"], "allowFirstIP": true},
        {"pool": "b", "cidrs": ["10.0.0.128/25", "nonsense"]},
    ]});
    pools.observe(&settings, &object(&odd));
    let plan = pools.plan(&settings, &usage("a", &["10.0.0.0"], 0));
    let expected = [
        ("a", "10.0.0.0", "is no CIDR"),
        ("b", "10.0.0.128/25", "overlaps 10.0.0.0/24"),
        ("b", "nonsense", "is no CIDR"),
    ];
    assert_eq!(pools.problems.len(), 3, "{:?}", pools.problems);
    for ((pool, text, reason), problem) in expected.iter().zip(&pools.problems) {
        assert!(problem.contains(&format!("pool {pool}: {text} {reason}")), "{problem}");
    }
    assert_eq!(plan.pools.len(), 1);
    assert!(plan.pools[0].allow_first_ip);
    let allocated = plan.desired["allocated"].as_array().unwrap();
    assert_eq!(allocated[0]["cidrs"].as_array().unwrap().len(), 3);
    assert_eq!(allocated[1]["cidrs"].as_array().unwrap().len(), 2);
}

#[derive(Clone, Debug)]
enum Event {
    /// Pods of one of two pools start.
    Start(u8, u8),
    /// Pods stop, those of the highest or of the lowest addresses.
    Stop(u8, bool),
    /// The operator serves what the object requests.
    Serve,
    /// The agent plans; the write is lost, or succeeds and the answer is lost, or all goes well.
    Round(u8),
    /// The agent starts again.
    Restart,
    /// The operator takes a range away.
    Strip(u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..2u8, 1..9u8).prop_map(|(pool, count)| Event::Start(pool, count)),
        4 => (1..9u8, any::<bool>()).prop_map(|(count, highest)| Event::Stop(count, highest)),
        6 => Just(Event::Serve),
        8 => (0..6u8).prop_map(Event::Round),
        1 => Just(Event::Restart),
        1 => any::<u8>().prop_map(Event::Strip),
    ]
}

/// An agent, and an operator that gives ranges of 6 addresses and never gives one twice.
struct World {
    settings: Settings,
    agent: NodePools,
    object: Value,
    /// Ranges that the operator counts as the node's.
    given: BTreeMap<IpNetwork, String>,
    next: u32,
    pods: BTreeMap<IpAddr, String>,
    waiting: BTreeMap<String, u64>,
    usable: Vec<NodePool>,
    withdrawn: BTreeMap<IpNetwork, String>,
    stripped: BTreeSet<IpNetwork>,
}

impl World {
    fn allocated(&self) -> BTreeMap<IpNetwork, String> {
        let pools = self.object["allocated"].as_array().cloned().unwrap_or_default();
        let of = |pool: &Value| {
            let name = pool["pool"].as_str().unwrap().to_owned();
            let cidrs = pool["cidrs"].as_array().unwrap().clone();
            cidrs
                .into_iter()
                .map(move |text| (cidr(text.as_str().unwrap()), name.clone()))
                .collect::<Vec<_>>()
        };
        pools.iter().flat_map(of).collect()
    }

    fn serve(&mut self) {
        // Ranges that have left the object are free, and those that the agent adds again are its own.
        self.given = self.allocated();
        for request in self.object["requested"].as_array().cloned().unwrap_or_default() {
            let pool = request["pool"].as_str().unwrap();
            let needed = request["needed"]["ipv4-addrs"].as_u64().unwrap();
            while 6 * (self.given.values().filter(|of| *of == pool).count() as u64) < needed {
                let address = std::net::Ipv4Addr::from(0x0a00_0000 + 8 * self.next);
                self.given.insert(cidr(&format!("{address}/29")), pool.to_owned());
                self.next += 1;
            }
        }
        self.write_given();
    }

    fn write_given(&mut self) {
        let mut pools: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (cidr, pool) in &self.given {
            pools.entry(pool).or_default().push(cidr.to_string());
        }
        let pools = pools.into_iter().map(|(pool, cidrs)| json!({"pool": pool, "cidrs": cidrs}));
        self.object["allocated"] = pools.collect();
    }

    fn usage(&self) -> Usage {
        let mut usage = Usage { allocated: self.pods.keys().copied().collect(), ..Usage::default() };
        for pool in self.pods.values() {
            *usage.needed.entry((pool.as_str().into(), Family::V4)).or_default() += 1;
        }
        for (pool, count) in &self.waiting {
            *usage.needed.entry((pool.as_str().into(), Family::V4)).or_default() += count;
        }
        let is_used = |cidr: &IpNetwork| self.pods.keys().any(|address| cidr.contains(*address));
        usage.lost =
            self.withdrawn.iter().filter(|(cidr, _)| is_used(cidr)).map(|(c, p)| (p.clone(), *c)).collect();
        usage
    }

    fn round(&mut self, outcome: u8) {
        self.agent.observe(&self.settings, &object(&self.object));
        let usage = self.usage();
        let plan = self.agent.plan(&self.settings, &usage);
        // As the node's row does it: ranges that leave are withdrawn as long as they are used.
        let now: BTreeMap<IpNetwork, String> = plan
            .pools
            .iter()
            .flat_map(|pool| pool.cidrs.iter().map(|cidr| (*cidr, pool.name.clone())))
            .collect();
        for pool in &self.usable {
            self.withdrawn.extend(pool.cidrs.iter().map(|cidr| (*cidr, pool.name.clone())));
        }
        let is_used = |cidr: &IpNetwork| self.pods.keys().any(|address| cidr.contains(*address));
        self.withdrawn.retain(|cidr, _| !now.contains_key(cidr) && is_used(cidr));
        self.usable = plan.pools;
        if in_order(&object(&self.object).spec.ipam.pools) == plan.desired {
            return;
        }
        self.agent.sent();
        match outcome {
            0 => {}
            1 => self.object = plan.desired,
            _ => {
                self.object = plan.desired;
                self.agent.written(&self.settings, &object(&self.object));
            }
        }
    }

    /// Starts pods that wait, in usable ranges.
    fn start_waiting(&mut self) {
        for pool in &self.usable {
            let Some(count) = self.waiting.get_mut(&pool.name) else { continue };
            for range in pool.cidrs.iter().map(|cidr| PodRange::new(*cidr)) {
                while *count > 0 {
                    let Some(address) = range.next_free(0, |address| self.pods.contains_key(&address)) else {
                        break;
                    };
                    self.pods.insert(address, pool.name.clone());
                    *count -= 1;
                }
            }
        }
    }
}

proptest! {
    /// In any order of events the ranges of pods are those that the operator counts as the node's, unless it took them away
    /// itself; and in the end every pod has its address, and nothing is held without need.
    #[test]
    fn the_node_and_the_operator_converge(events in prop::collection::vec(event(), 1..60)) {
        let mut world = World {
            settings: settings(&[("default", 8)]),
            agent: NodePools::default(),
            object: json!({}),
            given: BTreeMap::new(),
            next: 0,
            pods: BTreeMap::new(),
            waiting: BTreeMap::new(),
            usable: Vec::new(),
            withdrawn: BTreeMap::new(),
            stripped: BTreeSet::new(),
        };
        for event in events {
            match event {
                Event::Start(pool, count) => {
                    *world.waiting.entry(["default", "blue"][usize::from(pool)].to_owned()).or_default() += u64::from(count);
                    world.start_waiting();
                }
                Event::Stop(count, highest) => {
                    for _ in 0..count {
                        if highest { world.pods.pop_last() } else { world.pods.pop_first() };
                    }
                }
                Event::Serve => world.serve(),
                Event::Round(outcome) => {
                    world.round(outcome);
                    world.start_waiting();
                }
                Event::Restart => world.agent = NodePools::default(),
                Event::Strip(at) => {
                    let cidrs: Vec<IpNetwork> = world.allocated().into_keys().collect();
                    if !cidrs.is_empty() {
                        let cidr = cidrs[usize::from(at) % cidrs.len()];
                        world.given = world.allocated();
                        world.given.remove(&cidr);
                        world.stripped.insert(cidr);
                        world.write_given();
                    }
                }
            }
            let known = world.allocated();
            for address in world.pods.keys() {
                let is_held = known.keys().chain(world.given.keys()).chain(&world.stripped).any(|cidr| cidr.contains(*address));
                prop_assert!(is_held, "{address} is of no range of {known:?}");
            }
        }
        for _ in 0..8 {
            world.round(2);
            world.start_waiting();
            world.serve();
        }
        prop_assert_eq!(world.waiting.values().sum::<u64>(), 0, "{:?}", world.object);
        let before = world.object.clone();
        world.round(2);
        world.serve();
        prop_assert_eq!(&world.object, &before, "nothing is left to be done");
        if world.stripped.is_empty() {
            let (needed, held) = (world.pods.values().filter(|pool| *pool == "default").count() as u64, world.allocated());
            let vacant = held.iter().filter(|(cidr, pool)| *pool == "default" && !world.pods.keys().any(|address| cidr.contains(*address)));
            prop_assert!(6 * (vacant.count() as u64) <= demand(needed, 8) + 5, "{:?}", held);
        }
    }
}
