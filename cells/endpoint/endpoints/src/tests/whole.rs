//! The cell with its dependencies in a hive, called through its routes as by the server.

use api::{Operation, Request, Route};
use bytes::Bytes;
use devices::NodeAddress;
use hive::prelude::*;
use ipcache::IpcacheMap;
use local_node::{LocalNode, LocalNodeStore, StateConfig};
use serde_json::{Value, json};

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::model::state::State;

struct Routes(Vec<Route>);

impl Routes {
    async fn call(&self, operation: Operation, id: &str, body: &str) -> (u16, String) {
        let mut request = Request::new(operation, &[("id", id), ("ip", id)]);
        request.body = Bytes::copy_from_slice(body.as_bytes());
        if operation == Operation::PostIpam {
            request.headers.insert("expiration", "true".parse().unwrap());
            request.query.push(("owner".into(), body.to_owned()));
        }
        let route = self.0.iter().find(|route| route.operation() == operation).unwrap();
        let response = route.call(request).await;
        let status = response.status().as_u16();
        (status, String::from_utf8(response.body().await.to_vec()).unwrap())
    }

    /// Makes the calls of the CNI plugin for one pod.
    async fn add(&self, n: u16) -> Value {
        let (status, given) = self.call(Operation::PostIpam, "", &format!("default/p{n}")).await;
        assert_eq!(status, 201, "{given}");
        let given: Value = serde_json::from_str(&given).unwrap();
        let mut addressing = given["address"].clone();
        addressing["ipv4-expiration-uuid"] = given["ipv4"]["expiration-uuid"].clone();
        addressing["ipv6-expiration-uuid"] = given["ipv6"]["expiration-uuid"].clone();
        let body = json!({
            "addressing": addressing, "container-id": format!("cid-p{n}"), "container-interface-name": "eth0",
            "interface-name": format!("lxc{n}"), "interface-index": 100 + n, "k8s-pod-name": format!("p{n}"),
            "k8s-namespace": "default", "state": "waiting-for-identity", "sync-build-endpoint": true,
        });
        let path = format!("cni-attachment-id:cid-p{n}:eth0");
        let (status, made) = self.call(Operation::PutEndpointID, &path, &body.to_string()).await;
        assert_eq!(status, 201, "{made}");
        serde_json::from_str(&made).unwrap()
    }
}

/// The option by which the allocator gives the node ingress addresses.
#[derive(hive::Config)]
struct EnvoyConfigs {
    /// Follow Envoy configurations
    #[flag(default = false)]
    #[expect(dead_code, reason = "read by its name")]
    enable_envoy_config: bool,
}

fn node(ingress_ipv4: Option<Ipv4Addr>) -> Cell {
    let node = local_node::testing::given(LocalNode {
        ingress_ipv4,
        name: "node".into(),
        ipv4: Some([10, 99, 0, 1].into()),
        ipv4_alloc_cidr: Some("10.244.0.0/24".parse().unwrap()),
        ipv6_alloc_cidr: Some("fd00::/96".parse().unwrap()),
        ..LocalNode::default()
    });
    bundle([
        node,
        config::<StateConfig>(),
        config::<local_node::LocalNodeConfig>(),
        config::<maps::FamilyConfig>(),
        statedb::table::<NodeAddress>(),
    ])
}

async fn start(world: &World) -> TestHive {
    let links = world.links.clone();
    start_with(world, crate::testing::links(links)).await
}

async fn start_with(world: &World, links: Arc<crate::testing::LinkSource>) -> TestHive {
    start_on(world, links, node(None), false).await
}

/// Starts on a node that has ingress addresses or none.
async fn start_on(
    world: &World,
    links: Arc<crate::testing::LinkSource>,
    node: Cell,
    has_ingress: bool,
) -> TestHive {
    let routes = provide(|routes: Group<Route>| Arc::new(Routes(routes.iter().cloned().collect())));
    let cells = [
        statedb::cell(),
        metrics::cell(),
        config::<EnvoyConfigs>(),
        node,
        ipam::cell(),
        ::identity::cell(),
        ipcache::cell(),
        provide(|db: Arc<Db>| Arc::new(FakePolicies::realizing(&db).policies())),
        crate::cell(),
        routes,
        supply(world.datapath.clone() as Arc<dyn Datapath>),
    ];
    let mut hive = TestHive::needing::<Routes>(cells)
        .replace::<dyn IpcacheMap>(world.map.clone())
        .replace(links)
        .set("enable-envoy-config", has_ingress)
        .set("state-dir", world.folder.path().display());
    hive.start().await;
    hive
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_keeps_endpoints_and_serves_queued_deletions() {
    let world = World::new();
    let mut hive = start(&world).await;
    let routes = hive.get::<Routes>();
    let (first, second) = (routes.add(1).await, routes.add(2).await);
    assert_eq!(first["status"]["state"], "ready");
    let router = hive.get::<LocalNodeStore>().node().unwrap().router_ipv4.unwrap();
    assert_eq!(world.map.identity(&format!("{router}/32")), Some(1), "the router is the host's");
    assert_eq!(world.map.identity("0.0.0.0/0"), Some(9));
    let text = hive.get::<metrics::Metrics>().text();
    for line in [
        "cilium_endpoint 3",
        "cilium_ip_addresses{family=\"ipv4\"} 3",
        "cilium_ipam_capacity{cidr=\"10.244.0.0/24\",family=\"ipv4\"} 254",
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\n{text}");
    }
    hive.stop().await;

    let queue = world.folder.path().join("deleteQueue");
    std::fs::write(queue.join("x.delete"), r#"{"container-id":"cid-p1"}"#).unwrap();
    let mut hive = start(&world).await;
    let routes = hive.get::<Routes>();
    // A request that changes endpoints waits until the previous run is restored.
    routes.add(3).await;
    let (status, gone) = routes.call(Operation::GetEndpointID, "container-id:cid-p1", "").await;
    assert_eq!((status, gone.as_str()), (404, ""));
    let (_, restored) = routes.call(Operation::GetEndpointID, &second["id"].to_string(), "").await;
    let restored: Value = serde_json::from_str(&restored).unwrap();
    for field in ["networking", "identity", "external-identifiers", "labels", "state"] {
        assert_eq!(restored["status"][field], second["status"][field], "{field}");
    }
    assert!(std::fs::read_dir(&queue).unwrap().all(|entry| entry.unwrap().file_name() == "lockfile"));
    hive.stop().await;
}

/// The host's endpoint has the labels of the node that count for identities, and the identity has them from the start on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_has_the_labels_of_its_node() {
    let world = World::new();
    world.datapath.set_host_firewall();
    let labels = |hive: &TestHive| {
        let identities = hive.get::<Table<Identity>>();
        let host = identities.get(&identities.snapshot(), Identity::by_id(1)).cloned();
        host.unwrap().labels.texts()
    };
    let expected = ["reserved:host", "k8s:role=infra"];
    let mut hive = start(&world).await;
    assert_eq!(labels(&hive), ["reserved:host"]);
    hive.get::<LocalNodeStore>().update(|node| {
        let labels = [("role", "infra"), ("kubernetes.io/hostname", "node")];
        node.labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    });
    hive.until("the labels are there", || labels(&hive) == expected).await;
    let policies = hive.get::<policy::Policies>().table();
    let subject = || policies.all(&policies.snapshot()).map(|row| row.subject.clone()).next();
    hive.until("policy has them", || {
        subject().is_some_and(|subject| subject.identity == 1 && subject.labels.texts() == expected)
    })
    .await;
    hive.stop().await;

    // The node's object is not known yet.
    let mut hive = start(&world).await;
    assert_eq!(labels(&hive), expected, "those of the previous run");
    let identities = hive.get::<Table<Identity>>();
    let query = Identity::by_labels(&labels::LabelArray::from(&labels::Labels::parse(expected)));
    let ids: Vec<_> = identities.list(&identities.snapshot(), query).map(|identity| identity.id).collect();
    assert_eq!(ids, [1], "no allocator gave them another identity");
    hive.stop().await;
}

/// Regression: a netlink socket that could not be opened once at the start blocked CNI requests until a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dumps_that_fail_at_a_start_are_retried() {
    let world = World::new();
    let mut hive = start(&world).await;
    let first = hive.get::<Routes>().add(1).await;
    hive.stop().await;

    // Fails twice in the hook that reads records, twice in the job behind it; then the other dump fails twice.
    let (links, calls) = (world.links.clone(), AtomicUsize::new(0));
    let no_descriptor = || devices::NetlinkError::Socket(std::io::Error::from_raw_os_error(24));
    let source = move || match calls.fetch_add(1, Ordering::Relaxed) {
        0 | 1 | 3 | 4 => Err(no_descriptor()),
        _ => Ok(links.clone()),
    };
    world.datapath.fail_restored(2);
    let mut hive = start_with(&world, Arc::new(crate::testing::LinkSource::new(source))).await;
    let routes = hive.get::<Routes>();
    routes.add(2).await;
    let (_, restored) = routes.call(Operation::GetEndpointID, &first["id"].to_string(), "").await;
    let restored: Value = serde_json::from_str(&restored).unwrap();
    assert_eq!(restored["status"]["state"], "ready");
    let health = |hive: &TestHive| hive.health("endpoints.job-finish-endpoint-restore");
    hive.until("health is well again", || health(&hive).level == Level::Stopped).await;
    assert_eq!(health(&hive).message, "Endpoints restored");
    hive.stop().await;
}

/// The ingress endpoint has the node's ingress addresses and their identity, neither an interface nor a policy map, and
/// a policy for Envoy. A restart keeps its id; it follows its addresses and goes with them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ingress_is_an_endpoint_while_the_node_has_its_addresses() {
    let world = World::new();
    let links = || crate::testing::links(world.links.clone());
    let ingress = |hive: &TestHive| {
        let table = hive.get::<Endpoints>().table();
        let snapshot = table.snapshot();
        table.all(&snapshot).find(|row| row.record.is_ingress()).cloned()
    };
    let is_ready =
        |hive: &TestHive| ingress(hive).is_some_and(|row| row.state == State::Ready && row.builds > 0);
    let prefix = |ip: Ipv4Addr| format!("{ip}/32");

    let mut hive = start_on(&world, links(), node(None), true).await;
    hive.get::<Routes>().add(1).await;
    hive.until("it is ready", || is_ready(&hive)).await;
    let address = hive.get::<LocalNodeStore>().node().unwrap().ingress_ipv4.unwrap();
    let row = ingress(&hive).unwrap();
    assert_eq!((row.applied_identity, row.record.ipv4), (8, Some(address)));
    assert_eq!(world.map.identity(&prefix(address)), Some(8));
    let id = row.record.id;
    let is_of_it = |call: &Call| matches!(call, Call::Attach(of) | Call::Up(of) if *of == id);
    assert!(!world.datapath.calls().iter().any(is_of_it), "it has no interface");
    let policies = hive.get::<policy::Policies>().table();
    let subject = policies.get(&policies.snapshot(), policy::EndpointPolicy::by_endpoint(id)).cloned();
    assert_eq!(subject.unwrap().subject.labels.texts(), ["reserved:ingress"]);
    let (status, made) = hive.get::<Routes>().call(Operation::GetEndpointID, &id.to_string(), "").await;
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!((status, &made["status"]["identity"]["id"]), (200, &json!(8)));
    hive.stop().await;

    // The address is the node's: no endpoint of the previous run has it.
    let mut hive = start_on(&world, links(), node(Some(address)), true).await;
    hive.get::<Routes>().add(2).await;
    hive.until("it is ready", || is_ready(&hive)).await;
    let row = ingress(&hive).unwrap();
    assert_eq!((row.record.id, row.record.ipv4), (id, Some(address)));
    let other = Ipv4Addr::new(10, 244, 3, 3);
    hive.get::<LocalNodeStore>().update(|node| node.ingress_ipv4 = Some(other));
    hive.until("it has moved", || world.map.identity(&prefix(other)) == Some(8)).await;
    hive.until("the former address is gone", || world.map.identity(&prefix(address)).is_none()).await;
    assert_eq!(ingress(&hive).unwrap().record.id, id);
    // A late end of the removal before, whose id it has.
    hive.get::<Endpoints>().forget(crate::EndpointId(id));
    assert_eq!(ingress(&hive).unwrap().record.id, id);
    hive.stop().await;

    let mut hive = start_on(&world, links(), node(Some(other)), false).await;
    hive.until("it is gone", || ingress(&hive).is_none()).await;
    hive.until("its address is gone", || world.map.identity(&prefix(other)).is_none()).await;
    hive.stop().await;
}
