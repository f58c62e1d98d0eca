//! The cell with the allocator, the node's row and a fake API server in a hive, in virtual time. The test is the user and the
//! operator.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use hive::prelude::*;
use ipam::{Address, Family, Ipam, NodeOwner, Restored, RestoredAddress};
use k8s_fake_apiserver::{Domain, Gvr, Tracker};
use k8s_types::cilium::CiliumNode;
use k8s_types::{Answer, Api, ApiError, Key, Kind, Patch, Preconditions, Source};
use local_node::{LocalNode, LocalNodeStore, NodeName};
use serde_json::{Value, json};
use statedb::{Db, Table};
use tokio::time::{Instant, sleep};

const NODE: &str = "n1";
/// Longer than the interval of writes.
const LONG: Duration = Duration::from_secs(40);

/// The API server, which may be away, and whose object may change between read and write. Watches go on.
#[derive(Clone)]
struct Server {
    tracker: Arc<Tracker>,
    is_away: Arc<AtomicBool>,
    /// How many writes of the status find an object that has changed.
    conflicts: Arc<AtomicUsize>,
    writes: Arc<AtomicUsize>,
}

impl Server {
    fn new() -> Server {
        Server {
            tracker: Arc::new(Tracker::new(&Db::new().table().unwrap())),
            is_away: Arc::default(),
            conflicts: Arc::default(),
            writes: Arc::default(),
        }
    }

    fn answer<T: Send + 'static>(&self, request: impl FnOnce(&Tracker) -> Answer<T>) -> Answer<T> {
        let error = ApiError::Unavailable { message: "connection refused".into(), retry_after: None };
        match self.is_away.load(Ordering::Relaxed) {
            true => ready(Err(error)).boxed(),
            false => request(&self.tracker),
        }
    }

    fn object(&self) -> Value {
        let objects = self.tracker.list(Domain::Any, &Gvr::from(Kind::CiliumNode), None);
        objects.first().map(|object| object.value().clone()).unwrap_or_default()
    }

    fn ipam_status(&self) -> Value {
        self.object()["status"]["ipam"].clone()
    }

    /// Edits the object as another client.
    fn edit(&self, edit: impl FnOnce(&mut Value)) {
        let mut object = self.object();
        edit(&mut object);
        self.tracker.update(&object.to_string(), false).unwrap();
    }

    fn mark(&self, address: &str, state: &str) {
        self.edit(|object| object["status"]["ipam"]["release-ips"][address] = state.into());
    }

    fn state(&self, address: &str) -> Value {
        self.ipam_status()["release-ips"][address].clone()
    }

    fn remove(&self, address: &str) {
        self.edit(|object| drop(object["spec"]["ipam"]["pool"].as_object_mut().unwrap().remove(address)));
    }
}

impl Api for Server {
    fn get(&self, kind: Kind, key: &Key) -> Answer<Bytes> {
        self.answer(|tracker| Api::get(tracker, kind, key))
    }

    fn create(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.answer(|tracker| tracker.create(kind, object))
    }

    fn update(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.answer(|tracker| Api::update(tracker, kind, object))
    }

    fn update_status(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        let left = self.conflicts.load(Ordering::Relaxed);
        if left > 0 {
            self.conflicts.store(left - 1, Ordering::Relaxed);
            self.edit(|object| object["spec"]["bootid"] = left.to_string().into());
        }
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.answer(|tracker| tracker.update_status(kind, object))
    }

    fn patch(&self, kind: Kind, key: &Key, status: bool, patch: Patch) -> Answer<Bytes> {
        self.answer(|tracker| tracker.patch(kind, key, status, patch))
    }

    fn delete(&self, kind: Kind, key: &Key, only_if: Preconditions) -> Answer<()> {
        self.answer(|tracker| Api::delete(tracker, kind, key, only_if))
    }
}

fn object(pool: &[(&str, &str)], status: &Value) -> Value {
    let pool: serde_json::Map<String, Value> = pool
        .iter()
        .map(|(address, owner)| match owner.is_empty() {
            true => ((*address).to_owned(), json!({"resource": "eth1"})),
            false => ((*address).to_owned(), json!({"owner": owner})),
        })
        .collect();
    json!({"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": NODE},
           "spec": {"ipam": {"pool": pool}}, "status": {"ipam": status}})
}

struct Agent {
    hive: TestHive,
    server: Server,
}

type Previous = &'static [(&'static str, &'static str)];

impl Agent {
    async fn start(server: &Server) -> Agent {
        Agent::with(server, &[("enable-ipv6", "false")], LocalNode::default(), &[]).await
    }

    async fn with(server: &Server, options: &[(&str, &str)], row: LocalNode, restored: Previous) -> Agent {
        let api: Arc<dyn Api> = Arc::new(server.clone());
        let source: Arc<dyn Source> = server.tracker.clone();
        let remembered = provide(move || {
            Member(Restored::new(move || {
                let one = |(at, (address, owner)): (usize, &(&str, &str))| RestoredAddress {
                    address: address.parse().unwrap(),
                    endpoint: at as u16 + 1,
                    owner: (*owner).to_owned(),
                };
                Ok(restored.iter().enumerate().map(one).collect())
            }))
        });
        let mut hive = TestHive::new([
            statedb::cell(),
            metrics::cell(),
            supply(api),
            supply(Member(source)),
            k8s_writer::cell(),
            config::<maps::FamilyConfig>(),
            local_node::testing::row(LocalNode { name: NODE.into(), ..row }),
            module("tables", "Tables", [k8s_tables::table::<CiliumNode>()]),
            ipam::cell(),
            provide(|| Member(NodeOwner("health"))),
            remembered,
            ipam_crd::cell(),
            invoke(|_: Arc<Ipam>, _: Arc<LocalNodeStore>, _: Arc<Table<Address>>, _: Arc<NodeName>| ()),
        ])
        .set("ipam", "crd");
        for (key, value) in options {
            hive = hive.set(key, value);
        }
        hive.start().await;
        Agent { hive, server: server.clone() }
    }

    fn allocate(&self, owner: &str) -> Result<String, String> {
        let given = self.hive.get::<Ipam>().allocate(owner, Some(Family::V4), false);
        given.map(|given| given[0].address.to_string()).map_err(|error| error.to_string())
    }

    fn release(&self, address: &str) {
        self.hive.get::<Ipam>().release(address.parse().unwrap(), "default").unwrap();
    }

    fn health(&self, path: &str) -> String {
        self.hive.hive().health().at(path).map(|row| row.error).unwrap_or_default()
    }

    async fn until_router(&self) -> String {
        let store = self.hive.get::<LocalNodeStore>();
        let router = || store.node().unwrap().router_ipv4;
        self.hive
            .until("the router has an address", || {
                router().is_some_and(|router| {
                    self.hive.get::<Ipam>().status(true).allocations.contains_key(&router.to_string())
                })
            })
            .await;
        router().unwrap().to_string()
    }

    async fn until_used(&self, expected: Value) {
        self.hive
            .until(&format!("{expected} is used"), || {
                let used = &self.server.ipam_status()["used"];
                let owners = used.as_object().into_iter().flatten();
                let owners: serde_json::Map<String, Value> =
                    owners.map(|(key, object)| (key.clone(), object["owner"].clone())).collect();
                Value::Object(owners) == expected
            })
            .await;
    }

    async fn until_state(&self, address: &str, state: &str) {
        self.hive.until(&format!("{address} is {state}"), || self.server.state(address) == state).await;
    }

    async fn until_listed(&self, capacity: &str) {
        let ipam = self.hive.get::<Ipam>();
        self.hive
            .until(&format!("{capacity} are known"), || ipam.status(false).status.contains(capacity))
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn addresses_are_awaited_then_allocated_by_owner_and_reported() {
    let server = Server::new();
    let agent = Agent::start(&server).await;
    let job = "crd.job-pool";
    agent.hive.until("the object is missed", || agent.health(job) == "there is no CiliumNode n1 yet").await;
    assert_eq!(
        agent.allocate("shop/a").unwrap_err(),
        "no IPv4 address can be allocated yet: there is no CiliumNode n1 yet"
    );
    server.tracker.add(&object(&[("10.0.0.1", "")], &json!({})).to_string()).unwrap();
    let wait = "CiliumNode n1 has 1 of at least 2 addresses in spec.ipam.pool (the node's own addresses)";
    agent.hive.until("addresses are missed", || agent.health(job) == wait).await;
    assert_eq!(
        agent.allocate("shop/a").unwrap_err(),
        format!("no IPv4 address can be allocated yet: {wait}")
    );
    server.edit(|object| {
        object["spec"]["ipam"]["min-allocate"] = 4.into();
        object["spec"]["ipam"]["pre-allocate"] = 1.into();
        object["spec"]["ipam"]["pool"]["172.16.5.2"] = json!({"owner": "shop/a"});
    });
    let wait = "CiliumNode n1 has 2 of at least 4 addresses in spec.ipam.pool (spec.ipam.min-allocate)";
    agent.hive.until("more are missed", || agent.health(job) == wait).await;
    server.edit(|object| {
        object["spec"]["ipam"]["pool"]["10.0.0.3"] = json!({"resource": "eth1"});
        object["spec"]["ipam"]["pool"]["10.0.0.4"] = json!({"owner": "shop/d"});
        object["spec"]["ipam"]["pool"]["10.0.0"] = json!({});
    });
    let router = agent.until_router().await;
    assert_eq!(agent.health(job), "spec.ipam.pool: \"10.0.0\" is no IP address");
    agent.until_used(json!({router.as_str(): "router"})).await;

    assert_eq!(agent.allocate("shop/a").unwrap(), "172.16.5.2");
    let other = agent.allocate("shop/b").unwrap();
    assert!(["10.0.0.1", "10.0.0.3"].contains(&other.as_str()) && other != router, "{other}");
    let none = agent.allocate("shop/c").unwrap_err();
    assert!(
        none.starts_with(
            "no IPs currently available on the node, allocation will be retried once IPs are added to CiliumNode spec.ipam.pool"
        ) && none.ends_with("pool default has 4 IPv4 addresses on this node, namespace shop holds 2 of them"),
        "{none}"
    );
    let ipam = agent.hive.get::<Ipam>();
    let number = |address: &str, owner: &str| {
        ipam.allocate_ip(address.parse().unwrap(), owner, "default").map_err(|error| error.to_string())
    };
    assert_eq!(number("10.0.0.4", "shop/c"), Err("IP 10.0.0.4 is not available".to_owned()));
    assert_eq!(number("10.9.9.9", "shop/c"), Err("IP 10.9.9.9 is not available".to_owned()));
    assert_eq!(number(&router, "shop/c"), Err("IP already in use".to_owned()));
    assert_eq!(ipam.status(true).status, "IPv4: 3/4 allocated, ");
    agent
        .until_used(json!({router.as_str(): "router", "172.16.5.2": "shop/a", other.as_str(): "shop/b"}))
        .await;
    assert_eq!(server.ipam_status()["used"][&other]["resource"], "eth1");

    // A released address leaves the status.
    agent.release("172.16.5.2");
    agent.until_used(json!({router.as_str(): "router", other.as_str(): "shop/b"})).await;
    drop(ipam);
    agent.hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn writes_are_spaced() {
    let server = Server::new();
    server
        .tracker
        .add(&object(&[("10.0.0.1", ""), ("10.0.0.2", ""), ("10.0.0.3", "")], &json!({})).to_string())
        .unwrap();
    let agent = Agent::start(&server).await;
    let router = agent.until_router().await;
    agent.until_used(json!({router.as_str(): "router"})).await;
    let begin = Instant::now();
    let first = agent.allocate("shop/a").unwrap();
    sleep(Duration::from_secs(1)).await;
    let second = agent.allocate("shop/b").unwrap();
    agent
        .until_used(json!({router.as_str(): "router", first.as_str(): "shop/a", second.as_str(): "shop/b"}))
        .await;
    assert!(begin.elapsed() >= Duration::from_secs(13), "{:?}", begin.elapsed());
    sleep(10 * LONG).await;
    assert_eq!(server.writes.load(Ordering::Relaxed), 2, "nothing has changed since");
    agent.hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_release_is_refused_or_approved_and_ends_with_the_entry() {
    let server = Server::new();
    let pool = [("10.0.0.1", "router"), ("10.0.0.2", "shop/a"), ("10.0.0.3", ""), ("10.0.0.4", "shop/d")];
    server.tracker.add(&object(&pool, &json!({})).to_string()).unwrap();
    let agent = Agent::start(&server).await;
    assert_eq!(agent.until_router().await, "10.0.0.1");
    assert_eq!(agent.allocate("shop/a").unwrap(), "10.0.0.2");

    // One in use, a free one, one that is not listed.
    for address in ["10.0.0.2", "10.0.0.3", "10.0.0.9"] {
        server.mark(address, "marked-for-release");
    }
    agent.until_state("10.0.0.2", "do-not-release").await;
    agent.until_state("10.0.0.3", "ready-for-release").await;
    agent.until_state("10.0.0.9", "do-not-release").await;
    assert!(agent.allocate("shop/b").unwrap_err().starts_with("no IPs currently available"));
    let number = agent.hive.get::<Ipam>().allocate_ip("10.0.0.3".parse().unwrap(), "shop/b", "default");
    assert_eq!(number.unwrap_err().to_string(), "IP 10.0.0.3 is not available");

    // A refusal stays until the operator removes it, also when the address is free; the agent does not answer twice.
    agent.release("10.0.0.2");
    sleep(LONG).await;
    assert_eq!(server.state("10.0.0.2"), "do-not-release");
    agent.allocate("shop/a").unwrap_err();
    server.edit(|object| drop(object["status"]["ipam"].as_object_mut().unwrap().remove("release-ips")));
    sleep(LONG).await;
    assert_eq!(agent.allocate("shop/a").unwrap(), "10.0.0.2");

    // `released` counts once the address has left the pool.
    server.mark("10.0.0.3", "marked-for-release");
    agent.until_state("10.0.0.3", "ready-for-release").await;
    server.mark("10.0.0.3", "released");
    sleep(LONG).await;
    assert_eq!(server.state("10.0.0.3"), "released");
    server.remove("10.0.0.3");
    agent.hive.until("the entry is gone", || server.ipam_status()["release-ips"].is_null()).await;

    // A released address is not approved in its quarantine, which is measured in real time.
    agent.release("10.0.0.2");
    server.mark("10.0.0.2", "marked-for-release");
    sleep(LONG).await;
    assert_eq!(server.state("10.0.0.2"), "marked-for-release", "packets for it may still come");
    agent.allocate("shop/a").unwrap_err();
    agent.hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_address_that_is_lost_stays_with_its_owner_and_is_named() {
    let server = Server::new();
    let pool = [("10.0.0.1", "router"), ("10.0.0.2", ""), ("10.0.0.3", "")];
    server.tracker.add(&object(&pool, &json!({})).to_string()).unwrap();
    let agent = Agent::start(&server).await;
    agent.until_router().await;
    let (first, second) = (agent.allocate("shop/a").unwrap(), agent.allocate("shop/b").unwrap());
    let used = json!({"10.0.0.1": "router", first.as_str(): "shop/a", second.as_str(): "shop/b"});
    agent.until_used(used.clone()).await;
    server.edit(|object| object["spec"]["ipam"]["pool"] = json!({"10.0.0.7": {"owner": "shop/c"}}));
    let lost = || agent.health("crd.lost-addresses");
    let expected = format!(
        "pool default of CiliumNode n1: 3 addresses in use are not in spec.ipam.pool: 10.0.0.1 of router, 10.0.0.2 of {}, \
         10.0.0.3 of {} (held by shop 2, router 1); they stay valid until their owners are deleted",
        if first == "10.0.0.2" { "shop/a" } else { "shop/b" },
        if first == "10.0.0.2" { "shop/b" } else { "shop/a" },
    );
    agent.hive.until("health names them", || lost() == expected).await;
    sleep(LONG).await;
    agent.until_used(used).await;
    assert_eq!(server.ipam_status()["used"][&first]["resource"], "eth1", "of before");
    // A pool that has shrunk is no reason to begin again.
    assert_eq!(agent.allocate("shop/c").unwrap(), "10.0.0.7");
    assert!(agent.allocate("shop/d").unwrap_err().starts_with("no IPs currently available"));
    agent.release(&first);
    agent.release(&second);
    agent.hive.until("one is left", || lost().contains(": 1 addresses in use are not")).await;
    agent.allocate("shop/d").unwrap_err();
    server.edit(|object| object["spec"]["ipam"]["pool"]["10.0.0.1"] = json!({}));
    agent.hive.until("nothing is lost", || lost().is_empty()).await;
    // The object itself goes: the last list stays in force.
    let object = server.object();
    server.tracker.delete(&object.to_string()).unwrap();
    sleep(LONG).await;
    assert_eq!(agent.hive.get::<Ipam>().status(false).status, "IPv4: 2/2 allocated, ");
    agent.hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_conflict_or_an_outage_delays_the_status_and_no_address() {
    let server = Server::new();
    let pool = [("10.0.0.1", "router"), ("10.0.0.2", ""), ("10.0.0.3", ""), ("10.0.0.4", "")];
    server.tracker.add(&object(&pool, &json!({})).to_string()).unwrap();
    server.conflicts.store(2, Ordering::Relaxed);
    let agent = Agent::start(&server).await;
    agent.until_router().await;
    agent.until_used(json!({"10.0.0.1": "router"})).await;
    assert_eq!(server.writes.load(Ordering::Relaxed), 3);
    assert_eq!(server.object()["spec"]["bootid"], "1", "the other client's change is there");

    server.is_away.store(true, Ordering::Relaxed);
    let first = agent.allocate("shop/a").unwrap();
    sleep(LONG).await;
    // The write waits for the server, and knows at its next attempt what has happened meanwhile.
    agent.release(&first);
    let second = agent.allocate("shop/b").unwrap();
    let is_unused = |address: &&str| *address != first && *address != second;
    let unused = ["10.0.0.2", "10.0.0.3", "10.0.0.4"].into_iter().find(is_unused).unwrap();
    server.mark(unused, "marked-for-release");
    server.edit(|object| object["spec"]["ipam"]["pool"]["10.0.0.5"] = json!({}));
    agent.until_listed("/5 allocated").await;
    sleep(LONG).await;
    assert_eq!(server.state(unused), "marked-for-release");
    server.is_away.store(false, Ordering::Relaxed);
    agent.until_used(json!({"10.0.0.1": "router", second.as_str(): "shop/b"})).await;
    agent.until_state(unused, "ready-for-release").await;
    agent.hive.finish().await;
}

/// An operator that changes its mind while the approval is on its way.
#[tokio::test(start_paused = true)]
async fn an_address_whose_release_may_be_approved_already_is_not_allocated() {
    let server = Server::new();
    server.tracker.add(&object(&[("10.0.0.1", "router"), ("10.0.0.2", "")], &json!({})).to_string()).unwrap();
    let agent = Agent::start(&server).await;
    agent.until_router().await;
    agent.until_used(json!({"10.0.0.1": "router"})).await;
    sleep(LONG).await;
    server.is_away.store(true, Ordering::Relaxed);
    server.mark("10.0.0.2", "marked-for-release");
    sleep(LONG).await;
    agent.allocate("shop/a").unwrap_err();
    server.edit(|object| drop(object["status"]["ipam"].as_object_mut().unwrap().remove("release-ips")));
    sleep(LONG).await;
    agent.allocate("shop/a").unwrap_err();
    server.is_away.store(false, Ordering::Relaxed);
    let mut given = None;
    agent
        .hive
        .until("the write has ended without an approval", || {
            given = agent.allocate("shop/a").ok();
            given.is_some()
        })
        .await;
    assert_eq!(given.unwrap(), "10.0.0.2");
    agent.until_used(json!({"10.0.0.1": "router", "10.0.0.2": "shop/a"})).await;
    assert_eq!(server.ipam_status()["release-ips"], Value::Null);
    agent.hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_in_the_handshake_goes_on_with_it() {
    let server = Server::new();
    let pool = [("10.0.0.3", ""), ("10.0.0.4", ""), ("10.0.0.5", ""), ("10.0.0.6", ""), ("10.0.0.7", "")];
    let releases = json!({
        // Approved by the previous run; one of them is in use nevertheless.
        "10.0.0.4": "ready-for-release", "10.0.0.5": "ready-for-release",
        // Marked while no agent ran, in use and not.
        "10.0.0.6": "marked-for-release", "10.0.0.7": "marked-for-release",
        "10.0.0.8": "released",
    });
    let status = json!({
        "release-ips": releases,
        "used": {"10.0.0.9": {"owner": "shop/z", "resource": "eth2"}, "10.0.0.77": {"owner": "shop/gone"}},
    });
    server.tracker.add(&object(&pool, &status).to_string()).unwrap();
    server.is_away.store(true, Ordering::Relaxed);
    let row = LocalNode { router_ipv4: Some([10, 0, 0, 3].into()), ..LocalNode::default() };
    let restored = &[("10.0.0.5", "shop/a"), ("10.0.0.6", "shop/b"), ("10.0.0.9", "shop/z")];
    let agent = Agent::with(&server, &[("enable-ipv6", "false")], row, restored).await;
    assert_eq!(agent.until_router().await, "10.0.0.3", "that of the previous run");
    let lost = || agent.health("crd.lost-addresses");
    agent.hive.until("the lost one is named", || lost().contains("10.0.0.9 of shop/z [restored]")).await;
    // All that is left is being released.
    assert!(agent.allocate("shop/c").unwrap_err().starts_with("no IPs currently available"));
    server.is_away.store(false, Ordering::Relaxed);
    agent
        .until_used(json!({
            "10.0.0.3": "router", "10.0.0.5": "shop/a [restored]", "10.0.0.6": "shop/b [restored]",
            "10.0.0.9": "shop/z [restored]",
        }))
        .await;
    assert_eq!(server.ipam_status()["used"]["10.0.0.9"]["resource"], "eth2");
    let states = [
        ("10.0.0.4", "ready-for-release"),
        ("10.0.0.5", "do-not-release"),
        ("10.0.0.6", "do-not-release"),
        ("10.0.0.7", "ready-for-release"),
    ];
    for (address, state) in states {
        agent.until_state(address, state).await;
    }
    assert_eq!(server.state("10.0.0.8"), Value::Null);
    agent.hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn both_families_have_their_fields() {
    let server = Server::new();
    let mut node = object(&[("10.0.0.1", "router"), ("10.0.0.2", "")], &json!({}));
    server.tracker.add(&node.to_string()).unwrap();
    let agent = Agent::with(&server, &[], LocalNode::default(), &[]).await;
    assert_eq!(agent.until_router().await, "10.0.0.1");
    let wait = "CiliumNode n1 has no IPv6 address in spec.ipam.pool";
    agent.hive.until("a family is missed", || agent.health("crd.job-pool") == wait).await;
    // Of both families or of none.
    let ipam = agent.hive.get::<Ipam>();
    assert!(ipam.allocate("shop/a", None, false).unwrap_err().to_string().ends_with(wait));
    // As a client spells it, and one in the map of the other family.
    node["spec"]["ipam"]["ipv6-pool"] = json!({"FD00::0001": {"owner": "router"}});
    node["spec"]["ipam"]["pool"]["fd00::2"] = json!({});
    server.tracker.update(&node.to_string(), false).unwrap();
    let router = || agent.hive.get::<LocalNodeStore>().node().unwrap().router_ipv6;
    agent.hive.until("the router has both", || router().is_some()).await;
    assert_eq!(router(), Some("fd00::1".parse().unwrap()));
    let given = ipam.allocate("shop/a", None, false).unwrap();
    let given: Vec<String> = given.iter().map(|given| given.address.to_string()).collect();
    assert_eq!(given, ["fd00::2", "10.0.0.2"]);
    agent.until_used(json!({"10.0.0.1": "router", "10.0.0.2": "shop/a", "fd00::2": "shop/a"})).await;
    assert_eq!(server.ipam_status()["ipv6-used"], json!({"FD00::0001": {"owner": "router"}}));
    assert_eq!(ipam.status(false).status, "IPv4: 2/2 allocated, IPv6: 2/2 allocated, ");
    server
        .edit(|object| object["status"]["ipam"]["release-ipv6s"]["FD00::0001"] = "marked-for-release".into());
    agent
        .hive
        .until("it is refused", || server.ipam_status()["release-ipv6s"]["FD00::0001"] == "do-not-release")
        .await;
    drop(ipam);
    agent.hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_static_address_is_awaited() {
    let server = Server::new();
    let mut node = object(&[("10.0.0.1", ""), ("10.0.0.2", "")], &json!({}));
    node["spec"]["ipam"]["static-ip-tags"] = json!({"pool": "a"});
    server.tracker.add(&node.to_string()).unwrap();
    let agent =
        Agent::with(&server, &[("enable-ipv6", "false"), ("ipam", "azure")], LocalNode::default(), &[]).await;
    let wait = "CiliumNode n1 has no status.ipam.assigned-static-ip, which spec.ipam.static-ip-tags ask for";
    agent.hive.until("it is missed", || agent.health("crd.job-pool") == wait).await;
    server.edit(|object| object["status"]["ipam"]["assigned-static-ip"] = "192.0.2.1".into());
    agent.until_router().await;
    agent.allocate("shop/a").unwrap();
    let error = agent.allocate("shop/b").unwrap_err();
    assert!(error.contains("will be retried once Cilium Operator allocates more IPs"), "{error}");
    agent.hive.finish().await;
}

#[tokio::test]
async fn other_modes_have_their_ranges() {
    let server = Server::new();
    let row = LocalNode { ipv4_alloc_cidr: Some("10.1.0.0/24".parse().unwrap()), ..LocalNode::default() };
    let options = [("enable-ipv6", "false"), ("ipam", "kubernetes")];
    let agent = Agent::with(&server, &options, row, &[]).await;
    assert_eq!(agent.hive.health("crd").message, "Off: pod ranges by the option ipam");
    assert!(agent.allocate("shop/a").unwrap().starts_with("10.1.0."));
    agent.hive.finish().await;
}
