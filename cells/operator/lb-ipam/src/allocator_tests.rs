//! Pools and services in any order, against a model that looks at all addresses.

use k8s_types::cilium::LoadBalancerIpPoolSpec;
use k8s_types::decode;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::objects::LbService;

const BOTH: [Family; 2] = [Family::V4, Family::V6];

fn pool(created: i64, spec: &Value) -> Pool {
    let spec: LoadBalancerIpPoolSpec = serde_json::from_value(spec.clone()).unwrap();
    Pool::new(created, &spec)
}

/// Reads a service of namespace and name, with fields of its specification and annotations without their prefix.
fn request(key: &Key, spec: &Value, annotations: &Value) -> Request {
    let annotations: serde_json::Map<String, Value> = annotations
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| (format!("lbipam.cilium.io/{name}"), value.clone()))
        .collect();
    let metadata = json!({"namespace": key.namespace, "name": key.name, "annotations": annotations,
        "labels": {"colour": &key.name[..1]}});
    let object = json!({"metadata": metadata, "spec": spec});
    Request::of(&decode::<LbService>(object.to_string().as_bytes()).unwrap(), &BOTH)
}

fn key(name: &str) -> Key {
    Key::new("default", name)
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// An allocator with pools by name, the first one the oldest.
fn with(pools: &[(&str, Value)]) -> Allocator {
    let mut allocator = Allocator::default();
    for (created, (name, spec)) in pools.iter().enumerate() {
        allocator.define((*name).into(), pool(created as i64, spec));
    }
    allocator.pools_changed();
    allocator
}

fn blocks(cidrs: &[&str]) -> Value {
    json!({"blocks": cidrs.iter().map(|cidr| json!({"cidr": cidr})).collect::<Vec<_>>()})
}

/// Takes note of a service and serves it; returns its addresses and the reason why some are missing.
fn sync(
    allocator: &mut Allocator,
    name: &str,
    spec: &Value,
    annotations: &Value,
    present: &[&str],
) -> (Vec<String>, &'static str) {
    let key = key(name);
    allocator.upsert(&key, request(&key, spec, annotations), &ips(present));
    allocator.satisfy(&[key].into());
    outcome(allocator, name)
}

fn outcome(allocator: &Allocator, name: &str) -> (Vec<String>, &'static str) {
    let (held, failure) = allocator.outcome(&key(name)).unwrap();
    (held.iter().map(ToString::to_string).collect(), failure.map_or("", Failure::reason))
}

fn gets(ips: &[&str]) -> (Vec<String>, &'static str) {
    (ips.iter().map(|ip| (*ip).to_owned()).collect(), "")
}

fn lacks(reason: &'static str) -> (Vec<String>, &'static str) {
    (vec![], reason)
}

#[test]
fn services_get_addresses_of_their_families_until_the_pools_are_used_up() {
    let mut all = with(&[("a", blocks(&["10.0.0.0/31"])), ("b", blocks(&["fd00::/127"]))]);
    let none = json!({});
    assert_eq!(sync(&mut all, "w1", &none, &none, &[]), gets(&["10.0.0.0"]));
    let dual = json!({"ipFamilyPolicy": "RequireDualStack"});
    assert_eq!(sync(&mut all, "w2", &dual, &none, &[]), gets(&["10.0.0.1", "fd00::"]));
    let six = json!({"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6", "IPv4"]});
    assert_eq!(sync(&mut all, "w3", &six, &none, &[]), gets(&["fd00::1"]));
    assert_eq!(sync(&mut all, "w4", &dual, &none, &[]), lacks("out_of_ips"));
    assert_eq!(all.counts(), (4, 1, 4));

    // A freed address serves the service that waits, as far as it goes.
    assert_eq!(all.remove(&key("w1")), Some(ips(&["10.0.0.0"])));
    assert_eq!(all.satisfy_all(), [key("w4")].into());
    assert_eq!(outcome(&all, "w4"), (vec!["10.0.0.0".to_owned()], "out_of_ips"));
    let prefers = json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6"]});
    assert_eq!(sync(&mut all, "w4", &prefers, &none, &["10.0.0.0"]), lacks("out_of_ips"));
    assert_eq!(all.satisfy_all(), [].into());
    let mut only_four = with(&[("a", blocks(&["10.0.0.0/31"]))]);
    assert_eq!(sync(&mut only_four, "w1", &dual, &none, &[]), (vec!["10.0.0.0".to_owned()], "no_pool"));
}

#[test]
fn requested_addresses_are_given_or_the_reason_is_named() {
    let mut of_blue = blocks(&["10.1.0.0/24"]);
    of_blue["serviceSelector"] = json!({"matchLabels": {"colour": "b"}});
    let mut off = blocks(&["10.2.0.0/24"]);
    off["disabled"] = json!(true);
    let mut all = with(&[("a", blocks(&["10.0.0.0/24", "fd00::/112"])), ("b", of_blue), ("c", off)]);
    let none = json!({});
    let wants = |ip: &str| json!({"ips": ip});
    assert_eq!(
        sync(&mut all, "w1", &none, &wants("10.0.0.7, 10.0.0.9"), &[]),
        gets(&["10.0.0.7", "10.0.0.9"])
    );
    assert_eq!(sync(&mut all, "w2", &json!({"loadBalancerIP": "10.0.0.8"}), &none, &[]), gets(&["10.0.0.8"]));
    assert_eq!(sync(&mut all, "w3", &none, &wants("10.0.0.7"), &[]), lacks("already_allocated"));
    assert_eq!(sync(&mut all, "w4", &none, &wants("10.9.0.1"), &[]), lacks("no_pool"));
    assert_eq!(sync(&mut all, "w5", &none, &wants("10.1.0.1"), &[]), lacks("pool_selector_mismatch"));
    assert_eq!(sync(&mut all, "b5", &none, &wants("10.1.0.1"), &[]), gets(&["10.1.0.1"]));
    assert_eq!(sync(&mut all, "w6", &none, &wants("10.2.0.1"), &[]), lacks("no_pool"));
    assert_eq!(sync(&mut all, "w7", &none, &wants("fd00::7"), &[]), lacks("no_pool"));
    assert_eq!(
        sync(&mut all, "w8", &none, &wants("10.0.0.x"), &["10.0.0.99"]),
        (vec!["10.0.0.99".into()], "no_pool")
    );
    assert_eq!(
        sync(&mut all, "w9", &none, &wants("10.0.0.20,10.0.0.7"), &[]),
        (vec!["10.0.0.20".into()], "already_allocated"),
        "the other one is given"
    );
    let message = all.outcome(&key("w3")).unwrap().1.unwrap().message();
    assert_eq!(message, "The IP '10.0.0.7' is already allocated to another service");

    // A request that changes moves the service, and frees what it had.
    assert_eq!(
        sync(&mut all, "w1", &none, &wants("10.0.0.30"), &["10.0.0.7", "10.0.0.9"]),
        gets(&["10.0.0.30"])
    );
    assert_eq!(all.satisfy_all(), [key("w3")].into());
    assert_eq!(outcome(&all, "w3"), gets(&["10.0.0.7"]), "it waited longer");
    // Without a request it keeps what it has.
    assert_eq!(sync(&mut all, "w1", &none, &none, &["10.0.0.30"]), gets(&["10.0.0.30"]));
}

#[test]
fn services_of_one_key_share_an_address_unless_they_collide() {
    let mut all = with(&[("a", blocks(&["10.0.0.0/24"]))]);
    let port = |port: u16, protocol: &str| json!({"ports": [{"port": port, "protocol": protocol}]});
    let shared = json!({"sharing-key": "k"});
    assert_eq!(sync(&mut all, "s1", &port(80, "TCP"), &shared, &[]), gets(&["10.0.0.0"]));
    assert_eq!(sync(&mut all, "s2", &port(80, "UDP"), &shared, &[]), gets(&["10.0.0.0"]));
    assert_eq!(sync(&mut all, "s3", &port(80, ""), &shared, &[]), gets(&["10.0.0.1"]), "TCP by default");
    let wants = json!({"sharing-key": "k", "ips": "10.0.0.0"});
    assert_eq!(
        sync(&mut all, "s4", &port(80, "UDP"), &wants, &[]),
        lacks("already_allocated_incompatible_service")
    );
    assert_eq!(
        sync(&mut all, "s5", &port(443, "TCP"), &json!({"sharing-key": "l", "ips": "10.0.0.0"}), &[]),
        lacks("already_allocated_incompatible_service")
    );
    assert_eq!(
        sync(&mut all, "s6", &port(443, "TCP"), &json!({"ips": "10.0.0.0"}), &[]),
        lacks("already_allocated")
    );

    // Policies of external traffic, and selectors with Local.
    let local = |number: u16, app: &str| json!({"externalTrafficPolicy": "Local", "selector": {"app": app}, "ports": [{"port": number}]});
    let local_key = json!({"sharing-key": "local"});
    assert_eq!(sync(&mut all, "l1", &local(1, "x"), &local_key, &[]), gets(&["10.0.0.2"]));
    assert_eq!(sync(&mut all, "l2", &local(2, "x"), &local_key, &[]), gets(&["10.0.0.2"]));
    assert_eq!(sync(&mut all, "l3", &local(3, "y"), &local_key, &[]), gets(&["10.0.0.3"]));
    assert_eq!(sync(&mut all, "l4", &port(4, "TCP"), &local_key, &[]), gets(&["10.0.0.4"]));

    // Across namespaces both have to allow it.
    let spread = |name: &str, namespaces: &str, number: u16, all: &mut Allocator| {
        let key = Key::new(format!("ns-{name}"), name);
        let annotations = json!({"sharing-key": "n", "sharing-cross-namespace": namespaces});
        all.upsert(&key, request(&key, &port(number, "TCP"), &annotations), &[]);
        all.satisfy(&[key.clone()].into());
        all.outcome(&key).unwrap().0.to_vec()
    };
    assert_eq!(spread("a", "ns-b, ns-d", 1, &mut all), ips(&["10.0.0.5"]));
    assert_eq!(spread("b", "*", 2, &mut all), ips(&["10.0.0.5"]));
    assert_eq!(spread("c", "*", 3, &mut all), ips(&["10.0.0.6"]));
    assert_eq!(spread("d", "", 4, &mut all), ips(&["10.0.0.7"]));

    // A service that begins to collide moves, and the address stays with the other one.
    assert_eq!(sync(&mut all, "s2", &port(80, "TCP"), &shared, &["10.0.0.0"]), gets(&["10.0.0.8"]));
    assert_eq!(outcome(&all, "s1"), gets(&["10.0.0.0"]));
}

#[test]
fn an_address_that_can_be_shared_serves_services_that_waited_before() {
    let mut all = with(&[("a", blocks(&["10.0.0.0/32"]))]);
    let (none, shared) = (json!({}), json!({"sharing-key": "k"}));
    assert_eq!(sync(&mut all, "other", &none, &none, &[]), gets(&["10.0.0.0"]));
    let port = |port: u16| json!({"ports": [{"port": port}]});
    for (name, number) in [("a", 1), ("b", 2), ("c", 2)] {
        assert_eq!(sync(&mut all, name, &port(number), &shared, &[]), lacks("out_of_ips"));
    }
    all.remove(&key("other"));
    assert_eq!(all.satisfy_all(), [key("a"), key("b")].into());
    assert_eq!(outcome(&all, "c"), lacks("out_of_ips"));
}

#[test]
fn pools_that_are_disabled_or_in_conflict_give_nothing_new_and_take_nothing_away() {
    let none = json!({});
    let mut off = blocks(&["10.0.0.0/24"]);
    off["disabled"] = json!(true);
    let mut all = with(&[("a", blocks(&["10.0.0.0/24"]))]);
    assert_eq!(sync(&mut all, "w1", &none, &none, &[]), gets(&["10.0.0.0"]));
    let resync = |all: &mut Allocator, name: &str, present: &[&str]| {
        all.pools_changed();
        sync(all, name, &json!({}), &json!({}), present)
    };
    assert!(all.define("a".into(), pool(0, &off)));
    assert!(!all.define("a".into(), pool(0, &off)), "as before");
    assert_eq!(resync(&mut all, "w1", &["10.0.0.0"]), gets(&["10.0.0.0"]));
    assert_eq!(sync(&mut all, "w2", &none, &none, &[]), lacks("no_pool"));
    assert_eq!(sync(&mut all, "w3", &none, &none, &["10.0.0.5"]), gets(&["10.0.0.5"]), "imported");

    // The younger pool is in conflict; without the older one it is not.
    all.define("b".into(), pool(1, &json!({"blocks": [{"start": "10.0.0.250", "stop": "10.0.1.9"}]})));
    all.pools_changed();
    let conflicts =
        |all: &Allocator| -> Vec<String> { all.pools().map(|(_, counts, _)| counts.conflict).collect() };
    let expected = "Pool conflicts since range '10.0.0.250 - 10.0.1.9' overlaps range '10.0.0.0 - 10.0.0.255' from IP Pool 'a'";
    assert_eq!(conflicts(&all), ["", expected]);
    assert_eq!(sync(&mut all, "w2", &none, &none, &[]), lacks("no_pool"));
    assert!(all.undefine("a") && !all.undefine("a"));
    assert_eq!(resync(&mut all, "w2", &[]), gets(&["10.0.0.250"]));
    assert_eq!(resync(&mut all, "w1", &["10.0.0.0"]), gets(&["10.0.0.251"]), "its address has no pool");
    assert_eq!(conflicts(&all), [""]);
    let own = with(&[("c", blocks(&["10.0.0.0/24", "10.0.0.128/25"]))]);
    assert!(conflicts(&own)[0].ends_with("from IP Pool 'c'"));
    let (_, counts, _) = own.pools().next().unwrap();
    assert_eq!((counts.total, counts.used), (256, 0), "each address counts once");
}

#[test]
fn of_two_services_with_one_address_the_first_one_keeps_it() {
    let mut all = with(&[("a", blocks(&["10.0.0.0/24"]))]);
    let none = json!({});
    for (name, present) in [("w1", "10.0.0.5"), ("w2", "10.0.0.5"), ("w3", "10.9.0.1"), ("w4", "10.0.0.0")] {
        let key = key(name);
        all.upsert(&key, request(&key, &none, &none), &ips(&[present]));
    }
    all.satisfy_all();
    let found = ["w1", "w2", "w3", "w4"].map(|name| outcome(&all, name).0.remove(0));
    assert_eq!(found, ["10.0.0.5", "10.0.0.1", "10.0.0.2", "10.0.0.0"]);
    assert_eq!(sync(&mut all, "w1", &none, &none, &[]), gets(&["10.0.0.5"]), "also if it leaves the status");
}

#[test]
fn a_pool_with_wrong_parts_names_them_and_gives_the_rest() {
    let mut spec =
        json!({"blocks": [{"cidr": "10.0.0.0/33"}, {"cidr": "10.0.0.0/30"}], "allowFirstLastIPs": "No"});
    let mut all = with(&[("a", spec.clone())]);
    assert_eq!(sync(&mut all, "w1", &json!({}), &json!({}), &["10.0.0.0"]), gets(&["10.0.0.1"]));
    spec["serviceSelector"] = json!({"matchExpressions": [{"key": "x", "operator": "Like"}]});
    all.define("a".into(), pool(0, &spec));
    all.pools_changed();
    assert_eq!(sync(&mut all, "w1", &json!({}), &json!({}), &["10.0.0.1"]), lacks("no_pool"));
    let (_, counts, problems) = all.pools().next().unwrap();
    assert_eq!(counts.total, 2);
    assert_eq!(problems[0], "spec.blocks[0]: \"10.0.0.0/33\" is no CIDR");
    assert!(problems[1].starts_with("spec.serviceSelector: "), "{problems:?}");
}

#[test]
fn five_thousand_services_come_and_go() {
    let mut all = with(&[("a", blocks(&["10.0.0.0/20", "fd00::/64"]))]);
    let keys: Vec<Key> = (0..5000).map(|i| key(&format!("s{i}"))).collect();
    let none = json!({});
    for key in &keys {
        all.upsert(key, request(key, &json!({"ipFamilyPolicy": "RequireDualStack"}), &none), &[]);
    }
    all.satisfy_all();
    assert_eq!(all.counts(), (5000, 5000 - 4096, 4096 + 5000));
    for key in keys
        .iter()
        .filter(|key| all.outcome(key).unwrap().1.is_none())
        .take(1000)
        .cloned()
        .collect::<Vec<_>>()
    {
        assert_eq!(all.remove(&key).unwrap().len(), 2);
    }
    all.satisfy_all();
    assert_eq!(all.counts(), (4000, 0, 8000));
}

/// A change of the cluster.
#[derive(Clone, Debug)]
enum Event {
    Pool {
        name: usize,
        spec: usize,
    },
    NoPool {
        name: usize,
    },
    Service {
        name: usize,
        spec: usize,
        annotations: usize,
    },
    NoService {
        name: usize,
    },
    /// A status that the service has not: of a client, or of another leader.
    Status {
        name: usize,
        ip: usize,
    },
    Restart,
}

const POOLS: [&str; 3] = ["p", "q", "r"];
const SERVICES: [&str; 8] = ["b1", "b2", "b3", "b4", "g1", "g2", "g3", "g4"];
const STATUSES: [&str; 5] = ["10.0.0.0", "10.0.0.2", "10.0.0.5", "fd00::1", "192.0.2.1"];

fn pool_specs() -> Vec<Value> {
    let mut specs = vec![
        blocks(&["10.0.0.0/30"]),
        blocks(&["10.0.0.0/31", "fd00::/127"]),
        blocks(&["10.0.0.4/31"]),
        blocks(&["fd00::/126"]),
        json!({"blocks": [{"start": "10.0.0.3", "stop": "10.0.0.5"}]}),
    ];
    specs.push(specs[0].clone());
    specs[5]["disabled"] = json!(true);
    specs.push(specs[1].clone());
    specs[6]["serviceSelector"] = json!({"matchLabels": {"colour": "b"}});
    specs.push(specs[2].clone());
    specs[7]["serviceSelector"] = json!({"matchLabels": {"io.kubernetes.service.name": "g1"}});
    specs
}

fn service_specs() -> Vec<Value> {
    vec![
        json!({"ports": [{"port": 80}]}),
        json!({"ports": [{"port": 81}]}),
        json!({"ports": [{"port": 80}], "ipFamilyPolicy": "RequireDualStack"}),
        json!({"ports": [{"port": 82}], "ipFamilies": ["IPv6"]}),
        json!({"ports": [{"port": 83}], "externalTrafficPolicy": "Local", "selector": {"a": "b"}}),
    ]
}

fn annotations() -> Vec<Value> {
    vec![
        json!({}),
        json!({"sharing-key": "k"}),
        json!({"sharing-key": "l"}),
        json!({"ips": "10.0.0.2"}),
        json!({"ips": "10.0.0.2,fd00::1", "sharing-key": "k"}),
        json!({"ips": "10.0.0.5"}),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => (0..POOLS.len(), 0..8usize).prop_map(|(name, spec)| Event::Pool { name, spec }),
        1 => (0..POOLS.len()).prop_map(|name| Event::NoPool { name }),
        6 => (0..SERVICES.len(), 0..5usize, 0..6usize)
            .prop_map(|(name, spec, annotations)| Event::Service { name, spec, annotations }),
        2 => (0..SERVICES.len()).prop_map(|name| Event::NoService { name }),
        1 => (0..SERVICES.len(), 0..STATUSES.len()).prop_map(|(name, ip)| Event::Status { name, ip }),
        1 => Just(Event::Restart),
    ]
}

/// The objects of the cluster; the model decides by them alone, and looks at all addresses.
#[derive(Default)]
struct Cluster {
    pools: BTreeMap<usize, Value>,
    services: BTreeMap<Key, (Request, Vec<IpAddr>)>,
}

impl Cluster {
    fn allocator(&self) -> Allocator {
        let mut allocator = Allocator::default();
        for (name, spec) in &self.pools {
            allocator.define(POOLS[*name].into(), pool(*name as i64, spec));
        }
        allocator.pools_changed();
        allocator
    }

    /// Has the allocator take note of all services, and serve them.
    fn resync(&mut self, allocator: &mut Allocator) {
        for (key, (request, present)) in &self.services {
            allocator.upsert(key, request.clone(), present);
        }
        allocator.satisfy_all();
    }

    /// Statuses are written at once.
    fn write(&mut self, allocator: &Allocator) {
        for (key, (_, present)) in &mut self.services {
            *present = allocator.outcome(key).map_or(Vec::new(), |(held, _)| held.to_vec());
        }
    }

    /// Returns the pools of an address that select a service, each with whether it gives new addresses.
    fn pools_of(&self, request: &Request, ip: IpAddr) -> Vec<bool> {
        let mut all: BTreeMap<SmolStr, Pool> = BTreeMap::new();
        for (name, spec) in &self.pools {
            all.insert(POOLS[*name].into(), pool(*name as i64, spec));
        }
        find_conflicts(&mut all);
        let of = all.values().filter(|pool| pool.contains(ip) && pool.selects(request));
        of.map(Pool::gives_new).collect()
    }

    /// Whether the service could have the address beside what others have.
    fn is_shareable(&self, key: &Key, ip: IpAddr) -> bool {
        let request = &self.services[key].0;
        let others = self.services.iter().filter(|(other, (_, held))| *other != key && held.contains(&ip));
        others.into_iter().all(|(_, (other, _))| request.conflict(other).is_none())
    }

    fn check(&self, allocator: &Allocator) {
        let all: Vec<IpAddr> =
            (0..8u32).flat_map(|i| ips(&[&format!("10.0.0.{i}"), &format!("fd00::{i}")])).collect();
        for (key, (request, held)) in &self.services {
            for ip in held {
                assert!(request.accepts(*ip), "{key} does not ask for {ip}");
                assert!(!self.pools_of(request, *ip).is_empty(), "{ip} of {key} has no pool");
                assert!(self.is_shareable(key, *ip), "{ip} of {key} is another's");
            }
            let could =
                |ip: &IpAddr| self.pools_of(request, *ip).contains(&true) && self.is_shareable(key, *ip);
            let failure = allocator.outcome(key).unwrap().1;
            let lacks: Vec<IpAddr> = match request.ips.as_slice() {
                [] => {
                    let missing = request
                        .families
                        .iter()
                        .filter(|family| !held.iter().any(|ip| Family::of(*ip) == **family));
                    missing
                        .flat_map(|family| all.iter().filter(|ip| Family::of(**ip) == *family))
                        .copied()
                        .collect()
                }
                ips => ips.iter().filter(|ip| !held.contains(ip) && request.accepts(**ip)).copied().collect(),
            };
            let given = lacks.iter().find(|ip| could(ip));
            assert_eq!(given, None, "{key} could have it, and has {held:?}: {failure:?}");
            let is_complete = match request.ips.as_slice() {
                [] => request.families.iter().all(|family| held.iter().any(|ip| Family::of(*ip) == *family)),
                ips => ips.iter().all(|ip| held.contains(ip)),
            };
            assert_eq!(failure.is_none(), is_complete, "{key} has {held:?}: {failure:?}");
        }
        for (name, counts, _) in allocator.pools() {
            let pool = &self.allocator().pools[name];
            let held: BTreeSet<IpAddr> = self.services.values().flat_map(|(_, held)| held.clone()).collect();
            assert_eq!(counts.used, held.iter().filter(|ip| pool.contains(**ip)).count() as u128, "{name}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_order_of_events_gives_nothing_twice_and_leaves_no_service_behind(
        events in proptest::collection::vec(event(), 1..40),
    ) {
        let mut cluster = Cluster::default();
        let mut allocator = Allocator::default();
        for event in events {
            let before: BTreeMap<Key, Vec<IpAddr>> =
                cluster.services.iter().map(|(key, (_, held))| (key.clone(), held.clone())).collect();
            let mut touched = None;
            let mut pools_change = false;
            match event {
                Event::Pool { name, spec } => {
                    let spec = pool_specs()[spec].clone();
                    allocator.define(POOLS[name].into(), pool(name as i64, &spec));
                    cluster.pools.insert(name, spec);
                    pools_change = true;
                }
                Event::NoPool { name } => {
                    allocator.undefine(POOLS[name]);
                    cluster.pools.remove(&name);
                    pools_change = true;
                }
                Event::Service { name, spec, annotations: of } => {
                    let key = key(SERVICES[name]);
                    let request = request(&key, &service_specs()[spec], &annotations()[of]);
                    let present = cluster.services.get(&key).map_or(Vec::new(), |(_, held)| held.clone());
                    cluster.services.insert(key.clone(), (request, present));
                    touched = Some(key);
                }
                Event::NoService { name } => {
                    let key = key(SERVICES[name]);
                    cluster.services.remove(&key);
                    if allocator.remove(&key).is_some() {
                        allocator.satisfy_all();
                    }
                }
                Event::Status { name, ip } => {
                    let key = key(SERVICES[name]);
                    if let Some((_, present)) = cluster.services.get_mut(&key) {
                        *present = ips(&[STATUSES[ip]]);
                        touched = Some(key);
                    }
                }
                Event::Restart => {
                    allocator = cluster.allocator();
                    cluster.resync(&mut allocator);
                }
            }
            if pools_change {
                allocator.pools_changed();
                cluster.resync(&mut allocator);
            }
            if let Some(key) = &touched {
                let (request, present) = cluster.services[key].clone();
                match allocator.upsert(key, request, &present) {
                    true => drop(allocator.satisfy_all()),
                    false => drop(allocator.satisfy(&[key.clone()].into())),
                }
            }
            cluster.write(&allocator);
            cluster.check(&allocator);
            if !pools_change {
                // Whatever happens to one service, the others keep what they have.
                for (key, held) in before.iter().filter(|(key, _)| touched.as_ref() != Some(key)) {
                    if let Some((_, now)) = cluster.services.get(key) {
                        prop_assert!(held.iter().all(|ip| now.contains(ip)), "{key} had {held:?}, has {now:?}");
                    }
                }
            }
        }
    }
}
