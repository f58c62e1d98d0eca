//! The objects of own pods: the cell with tables of endpoints and pods and a fake API server in a hive. Time is virtual.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use endpoints::{CiliumEndpointUids, Endpoint, EndpointId, Record, SecurityLabel, State, StateFolder};
use futures::FutureExt;
use hive::prelude::*;
use ipcache::testing::FakeMap;
use ipcache::{Entry, IpcacheWriter};
use k8s_fake_apiserver::{Domain, Gvr, Tracker};
use k8s_tables::core::Pod;
use k8s_types::{Answer, Api, ApiError, Key, Kind, Patch, Preconditions, Source};
use labels::Labels;
use local_node::{LocalNode, LocalNodeStore, NodeName};
use parking_lot::Mutex;
use serde_json::{Value, json};
use statedb::{Db, RwTable, Table};
use tokio::time::{Instant, sleep};

const KIND: Kind = Kind::CiliumEndpoint;

/// The API server, which may be unreachable and counts requests. Watches go on.
#[derive(Clone)]
struct Server {
    tracker: Arc<Tracker>,
    is_away: Arc<AtomicBool>,
    made: Arc<Mutex<Vec<(&'static str, String)>>>,
}

impl Default for Server {
    fn default() -> Server {
        let tracker = Arc::new(Tracker::new(&Db::new().table().unwrap()));
        Server { tracker, is_away: Arc::default(), made: Arc::default() }
    }
}

impl Server {
    fn away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::Relaxed);
    }

    fn request<T: Send + 'static>(
        &self,
        verb: &'static str,
        name: &str,
        request: impl FnOnce(&Tracker) -> Answer<T>,
    ) -> Answer<T> {
        self.made.lock().push((verb, name.to_owned()));
        let error = ApiError::Unavailable { message: "connection refused".into(), retry_after: None };
        match self.is_away.load(Ordering::Relaxed) {
            true => std::future::ready(Err(error)).boxed(),
            false => request(&self.tracker),
        }
    }

    /// The requests since the last call.
    fn made(&self) -> Vec<(&'static str, String)> {
        std::mem::take(&mut self.made.lock())
    }

    /// The requests since the last call, by their objects.
    fn verbs(&self) -> BTreeMap<String, Vec<&'static str>> {
        let mut verbs: BTreeMap<String, Vec<&'static str>> = BTreeMap::new();
        for (verb, name) in self.made() {
            verbs.entry(name).or_default().push(verb);
        }
        verbs
    }

    fn objects(&self) -> BTreeMap<String, Value> {
        let objects = self.tracker.list(Domain::Any, &Gvr::from(KIND), None);
        objects.iter().map(|object| (object.name().name.to_string(), object.value().clone())).collect()
    }

    fn object(&self, name: &str) -> Option<Value> {
        self.objects().remove(name)
    }

    fn uid(&self, name: &str) -> String {
        self.object(name).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Another client creates or replaces an object.
    fn put(&self, mut object: Value) {
        object["apiVersion"] = KIND.api_version().into();
        object["kind"] = KIND.name().into();
        object["metadata"]["namespace"] = "shop".into();
        self.tracker.add(&object.to_string()).unwrap();
    }

    /// Another client deletes an object.
    fn delete(&self, name: &str) {
        let key = Key::new("shop", name);
        let deleted = Api::delete(&*self.tracker, KIND, &key, Preconditions::default());
        deleted.now_or_never().unwrap().unwrap();
    }
}

fn name_of(object: &Bytes) -> String {
    let object: Value = serde_json::from_slice(object).unwrap();
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

impl Api for Server {
    fn get(&self, kind: Kind, key: &Key) -> Answer<Bytes> {
        self.request("get", &key.name, |tracker| Api::get(tracker, kind, key))
    }

    fn create(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.request("create", &name_of(&object), |tracker| tracker.create(kind, object))
    }

    fn update(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.request("update", &name_of(&object), |tracker| Api::update(tracker, kind, object))
    }

    fn update_status(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.request("update_status", &name_of(&object), |tracker| tracker.update_status(kind, object))
    }

    fn patch(&self, kind: Kind, key: &Key, status: bool, patch: Patch) -> Answer<Bytes> {
        self.request("patch", &key.name, |tracker| tracker.patch(kind, key, status, patch))
    }

    fn delete(&self, kind: Kind, key: &Key, only_if: Preconditions) -> Answer<()> {
        self.request("delete", &key.name, |tracker| Api::delete(tracker, kind, key, only_if))
    }
}

/// A run of an agent, with the endpoints of the previous one.
struct Agent {
    hive: TestHive,
    endpoints: RwTable<Endpoint>,
    ipcache: Table<Entry>,
    server: Server,
    /// The state folder, of agents that share it with no other.
    state: Option<tempfile::TempDir>,
}

/// Lends the table's writer to the test.
struct Rows(RwTable<Endpoint>);

impl Agent {
    async fn start(server: &Server) -> Agent {
        let state = tempfile::tempdir().unwrap();
        let agent = Agent::with(server, &state, &[], Vec::new()).await;
        Agent { state: Some(state), ..agent }
    }

    async fn with(
        server: &Server,
        state: &tempfile::TempDir,
        options: &[(&str, &str)],
        restored: Vec<Endpoint>,
    ) -> Agent {
        Agent::on(1, server, state, options, restored).await
    }

    /// On one of several nodes.
    async fn on(
        node: u8,
        server: &Server,
        state: &tempfile::TempDir,
        options: &[(&str, &str)],
        restored: Vec<Endpoint>,
    ) -> Agent {
        let api: Arc<dyn Api> = Arc::new(server.clone());
        let source: Arc<dyn Source> = server.tracker.clone();
        let ipv4 = Some([10, 99, 0, node].into());
        let node = LocalNode { name: format!("n{node}"), ipv4, ..LocalNode::default() };
        let (ipcache, entries, _) =
            ipcache::testing::ipcache(Db::new().table().unwrap(), Arc::new(FakeMap::default()));
        let files = StateFolder::new(state.path());
        let mut hive = TestHive::new([
            statedb::cell(),
            metrics::cell(),
            config::<maps::FamilyConfig>(),
            local_node::testing::row(node),
            supply(api),
            supply(Member(source)),
            supply(Arc::new(ipcache)),
            supply(Arc::new(entries.clone())),
            module(
                "tables",
                "Tables",
                [
                    k8s_tables::table::<Pod>(),
                    statedb::table::<Endpoint>(),
                    provide(|table: Arc<RwTable<Endpoint>>| Arc::new(Rows((*table).clone()))),
                    provide(move |table: Arc<RwTable<Endpoint>>| {
                        table.transact(|w| restored.iter().for_each(|row| drop(w.insert(row.clone()))));
                        Arc::new(CiliumEndpointUids::new((*table).clone(), files.clone()))
                    }),
                ],
            ),
            k8s_writer::cell(),
            ciliumendpoint::cell(),
            invoke(|_: Arc<Rows>, _: Arc<IpcacheWriter>, _: Arc<CiliumEndpointUids>| ()),
            invoke(|_: Arc<LocalNodeStore>, _: Arc<NodeName>| ()),
        ])
        .set("enable-ipv6", false);
        for (key, value) in options {
            hive = hive.set(key, value);
        }
        hive.start().await;
        let (endpoints, server) = (hive.get::<Rows>().0.clone(), server.clone());
        Agent { ipcache: entries, endpoints, hive, server, state: None }
    }

    /// Inserts an endpoint.
    fn put(&self, endpoint: Endpoint) {
        self.endpoints.transact(|w| w.insert(endpoint));
    }

    /// Removes an endpoint as the reconciler does.
    fn remove(&self, id: u16) {
        let row = self.row(id).unwrap();
        self.put(Endpoint { state: State::Disconnecting, ..row });
        self.endpoints.transact(|w| w.delete(Endpoint::by_id(EndpointId(id))));
    }

    fn row(&self, id: u16) -> Option<Endpoint> {
        let table = self.endpoints.reader();
        table.get(&table.snapshot(), Endpoint::by_id(EndpointId(id))).map(|row| (**row).clone())
    }

    async fn until(&self, what: &str, is_so: impl FnMut() -> bool) {
        self.hive.until(what, is_so).await;
    }

    fn health(&self, row: &str) -> Option<String> {
        self.hive.hive().health().at(&format!("ciliumendpoint.{row}")).map(|row| row.error)
    }

    /// The identity of an address in the ipcache.
    fn identity(&self, address: &str) -> Option<u32> {
        let prefix = format!("{address}/32").parse().unwrap();
        let entry = self.ipcache.get(&self.ipcache.snapshot(), Entry::by_prefix(prefix)).cloned();
        entry.map(|entry| entry.winner().mapping.identity)
    }

    async fn finish(self) {
        // The folder goes after the hive, which writes to it.
        let Agent { hive, endpoints, server, state: _state, .. } = self;
        drop((endpoints, server));
        hive.finish().await;
    }
}

/// The endpoint with an id, of the pod `web-ID`.
fn endpoint(id: u16) -> Endpoint {
    let record = Record {
        id,
        container_id: format!("cid-{id}"),
        container_if_name: "eth0".into(),
        k8s_pod_name: format!("web-{id}"),
        k8s_namespace: "shop".into(),
        k8s_uid: format!("pod-{id}"),
        ipv4: Some([10, 0, (id >> 8) as u8, id as u8].into()),
        sec_label: Some(SecurityLabel { id: 7000, labels: Labels::parse(["k8s:app=web"]) }),
        ..Record::default()
    };
    Endpoint { state: State::Ready, ..Endpoint::created(record, SystemTime::UNIX_EPOCH) }
}

fn with_identity(id: u16, identity: u32) -> Endpoint {
    let mut record = (*endpoint(id).record).clone();
    record.sec_label = Some(SecurityLabel { id: identity, labels: Labels::parse(["k8s:app=db"]) });
    endpoint(id).with_record(record)
}

fn pod(id: u16, uid: &str, host_ip: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("web-{id}"), "namespace": "shop", "uid": uid, "labels": {"app": "web"}},
        "spec": {"nodeName": "n1", "containers": []}, "status": {"hostIP": host_ip},
    })
}

impl Server {
    fn put_pod(&self, id: u16) {
        self.tracker.add(&pod(id, &format!("pod-{id}"), "10.99.0.1").to_string()).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn two_hundred_pods_cost_two_requests_each() {
    let server = Server::default();
    let agent = Agent::start(&server).await;
    for id in 1..=200 {
        agent.put(Endpoint { state: State::WaitingToRegenerate, ..endpoint(id) });
        server.put_pod(id);
    }
    agent.until("all are there", || server.objects().len() == 200).await;
    for state in [State::Regenerating, State::Ready, State::WaitingToRegenerate, State::Ready] {
        for id in 1..=200 {
            let row = agent.row(id).unwrap();
            agent.put(Endpoint { state, builds: row.builds + 1, ..row });
        }
        sleep(Duration::from_secs(20)).await;
    }
    for id in 1..=200 {
        agent.remove(id);
    }
    agent.until("none is left", || server.objects().is_empty()).await;
    sleep(Duration::from_secs(60)).await;
    let verbs = server.verbs();
    assert_eq!(verbs.len(), 200);
    assert!(verbs.values().all(|verbs| *verbs == ["create", "delete"]), "{verbs:?}");
    agent.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_object_is_created_with_its_status_and_follows_identity_and_labels() {
    let (server, state) = (Server::default(), tempfile::tempdir().unwrap());
    let agent = Agent::with(&server, &state, &[], Vec::new()).await;
    agent.put(endpoint(7));
    sleep(Duration::from_secs(5)).await;
    assert_eq!(server.objects().len(), 0, "its pod is not known yet");
    server.put_pod(7);
    agent.until("it is there", || !server.objects().is_empty()).await;
    let object = server.object("web-7").unwrap();
    assert_eq!(object["status"]["identity"], json!({"id": 7000, "labels": ["k8s:app=web"]}));
    assert_eq!(object["status"]["networking"]["node"], "10.99.0.1");
    assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "pod-7");
    let uid = server.uid("web-7");
    agent.until("its uid is stored", || agent.row(7).unwrap().record.cilium_endpoint_uid == uid).await;
    let saved = StateFolder::new(state.path()).scan().unwrap();
    assert_eq!(saved[0].record.as_ref().unwrap().as_ref().unwrap().cilium_endpoint_uid, uid);

    agent.put(with_identity(7, 7001));
    agent
        .until("it has the other identity", || {
            server.object("web-7").unwrap()["status"]["identity"]["id"] == 7001
        })
        .await;
    let mut relabelled = pod(7, "pod-7", "10.99.0.1");
    relabelled["metadata"]["labels"] = json!({"app": "db"});
    server.tracker.add(&relabelled.to_string()).unwrap();
    agent
        .until("it has the labels", || server.object("web-7").unwrap()["metadata"]["labels"]["app"] == "db")
        .await;
    assert_eq!(server.uid("web-7"), uid);
    assert_eq!(server.verbs()["web-7"], ["create", "patch", "patch"]);
    assert_eq!((agent.health("other-writer"), agent.health("foreign-objects")), (None, None));

    // The pod's object goes first, and its owner takes the CiliumEndpoint along: none is made without a pod.
    let gone = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-7", "namespace": "shop"}});
    server.tracker.delete(&gone.to_string()).unwrap();
    server.delete("web-7");
    sleep(Duration::from_secs(60)).await;
    assert!(server.objects().is_empty());
    agent.remove(7);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(server.verbs()["web-7"], ["delete"], "a missing object is no error");
    agent.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_hour_without_a_server_loses_nothing_and_makes_nothing_that_is_gone() {
    let server = Server::default();
    let agent = Agent::start(&server).await;
    for id in 1..=3 {
        server.put_pod(id);
        agent.put(endpoint(id));
    }
    agent.until("all are there", || server.objects().len() == 3).await;
    server.away(true);
    agent.remove(1);
    agent.put(with_identity(2, 7001));
    server.put_pod(4);
    agent.put(endpoint(4));
    server.put_pod(5);
    agent.put(endpoint(5));
    sleep(Duration::from_secs(1800)).await;
    agent.remove(5);
    agent.put(with_identity(2, 7002));
    sleep(Duration::from_secs(1800)).await;
    server.away(false);
    agent
        .until("all is as it should be", || {
            let objects = server.objects();
            let identities: Vec<(&str, i64)> = objects
                .iter()
                .map(|(name, object)| (name.as_str(), object["status"]["identity"]["id"].as_i64().unwrap()))
                .collect();
            identities == [("web-2", 7002), ("web-3", 7000), ("web-4", 7000)]
        })
        .await;
    agent.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_another_client_deletes_or_edits_comes_back() {
    let server = Server::default();
    let agent = Agent::start(&server).await;
    server.put_pod(7);
    agent.put(endpoint(7));
    agent.until("it is there", || !server.objects().is_empty()).await;
    sleep(Duration::from_secs(1)).await;
    server.delete("web-7");
    agent.until("it is there again", || !server.objects().is_empty()).await;
    let error = agent.health("other-writer").unwrap();
    assert!(error.starts_with("shop/web-7: the object itself; they are written again."), "{error}");

    // Two writers do not fight.
    sleep(Duration::from_secs(20)).await;
    let (begin, mut edits) = (Instant::now(), 0);
    server.made();
    while begin.elapsed() < Duration::from_secs(150) {
        let mut edited = server.object("web-7").unwrap();
        if edited["status"]["identity"]["id"] == 7000 {
            edited["status"]["identity"]["id"] = 1.into();
            server.put(edited);
            edits += 1;
        }
        sleep(Duration::from_millis(500)).await;
    }
    assert!((9..=11).contains(&edits), "{edits} edits in 150 s");
    assert!(server.made().len() <= 22);
    agent
        .until("it is right at last", || server.object("web-7").unwrap()["status"]["identity"]["id"] == 7000)
        .await;
    sleep(Duration::from_secs(61)).await;
    agent.until("the report is over", || agent.health("other-writer").is_none()).await;
    agent.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_object_of_a_former_pod_is_replaced_and_that_of_another_node_is_not() {
    let server = Server::default();
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "web-7", "uid": "pod-0"}]);
    server
        .put(json!({"metadata": {"name": "web-7", "ownerReferences": owner}, "status": {"state": "ready"}}));
    server.put(json!({"metadata": {"name": "web-8"}, "status": {"networking": {"node": "10.99.0.9"}}}));
    let former = server.uid("web-7");
    let agent = Agent::start(&server).await;
    server.put_pod(7);
    server.tracker.add(&pod(8, "pod-8", "10.99.0.9").to_string()).unwrap();
    agent.put(endpoint(7));
    agent.put(endpoint(8));
    agent
        .until("it is replaced", || server.object("web-7").is_some_and(|object| object["status"]["id"] == 7))
        .await;
    assert_ne!(server.uid("web-7"), former);
    agent.until("it is reported", || agent.health("foreign-objects").is_some()).await;
    let error = agent.health("foreign-objects").unwrap();
    assert!(error.starts_with("shop/web-8: the object has uid "), "{error}");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(server.object("web-8").unwrap()["status"]["networking"]["node"], "10.99.0.9");

    // The pod's object shows this node after all.
    server.put_pod(8);
    agent
        .until("it is adopted", || server.object("web-8").is_some_and(|object| object["status"]["id"] == 8))
        .await;
    agent.until("nothing is reported", || agent.health("foreign-objects").is_none()).await;
    agent.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_adopts_without_a_request() {
    let (server, state) = (Server::default(), tempfile::tempdir().unwrap());
    let agent = Agent::with(&server, &state, &[], Vec::new()).await;
    for id in 1..=3 {
        server.put_pod(id);
        agent.put(endpoint(id));
    }
    agent.until("all are there", || server.objects().len() == 3).await;
    agent
        .until("the uids are stored", || {
            (1..=3).all(|id| !agent.row(id).unwrap().record.cilium_endpoint_uid.is_empty())
        })
        .await;
    let mut restored: Vec<Endpoint> = (1..=3).map(|id| agent.row(id).unwrap()).collect();
    agent.finish().await;
    server.made();

    // One is gone, one has another identity by now; the record of the first has lost the uid.
    server.delete("web-3");
    restored[0] = endpoint(1);
    restored[1] = with_identity(2, 7001);
    let agent = Agent::with(&server, &state, &[], restored).await;
    agent
        .until("all are as they should be", || {
            server.objects().len() == 3 && server.object("web-2").unwrap()["status"]["identity"]["id"] == 7001
        })
        .await;
    let uid = server.uid("web-1");
    agent.until("the uid is stored", || agent.row(1).unwrap().record.cilium_endpoint_uid == uid).await;
    let verbs = server.verbs();
    assert_eq!(
        (verbs.get("web-1"), &verbs["web-2"], &verbs["web-3"]),
        (None, &vec!["get", "patch"], &vec!["create"])
    );
    agent.finish().await;
}

#[tokio::test(start_paused = true)]
async fn without_the_option_nothing_is_written() {
    let (server, state) = (Server::default(), tempfile::tempdir().unwrap());
    let agent = Agent::with(&server, &state, &[("disable-endpoint-crd", "true")], Vec::new()).await;
    server.put_pod(7);
    agent.put(endpoint(7));
    sleep(Duration::from_secs(60)).await;
    assert_eq!((server.objects().len(), server.made().len()), (0, 0));
    agent.finish().await;
}

/// A kill between creation and deletion.
#[tokio::test(start_paused = true)]
async fn objects_that_a_killed_run_has_left_are_deleted_at_the_start() {
    let server = Server::default();
    let put = |name: &str, node: &str| {
        let networking = json!({"node": node, "addressing": [{"ipv4": "10.0.0.9"}]});
        server.put(json!({"metadata": {"name": name}, "status": {"networking": networking}}));
    };
    put("web-1", "10.99.0.1");
    put("stale", "10.99.0.1");
    put("elsewhere", "10.99.0.9");
    server.put(json!({"metadata": {"name": "unknown"}, "status": {}}));
    let names = || server.objects().into_keys().collect::<Vec<_>>();
    let state = tempfile::tempdir().unwrap();
    let off = [("enable-stale-cilium-endpoint-cleanup", "false")];
    let agent = Agent::with(&server, &state, &off, vec![endpoint(1)]).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(names(), ["elsewhere", "stale", "unknown", "web-1"]);
    agent.finish().await;

    server.away(true);
    let agent = Agent::with(&server, &state, &[], vec![endpoint(1)]).await;
    sleep(Duration::from_secs(3600)).await;
    server.away(false);
    // The longest delay of a watch.
    sleep(Duration::from_secs(60)).await;
    agent.until("it is deleted", || names() == ["elsewhere", "unknown", "web-1"]).await;
    // One that comes later may be of an endpoint that comes later.
    put("later", "10.99.0.1");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(names(), ["elsewhere", "later", "unknown", "web-1"]);
    agent.finish().await;
}

#[tokio::test(start_paused = true)]
async fn another_node_has_the_identity_of_a_pod_from_add_to_del() {
    let (server, state) = (Server::default(), tempfile::tempdir().unwrap());
    let agent = Agent::start(&server).await;
    let other = Agent::on(2, &server, &state, &[], Vec::new()).await;
    server.put_pod(7);
    agent.put(endpoint(7));
    other.until("it is known", || other.identity("10.0.0.7") == Some(7000)).await;
    agent.put(with_identity(7, 7001));
    other.until("it has another identity", || other.identity("10.0.0.7") == Some(7001)).await;
    assert_eq!(agent.identity("10.0.0.7"), None, "the endpoint itself claims it on its node");
    agent.remove(7);
    other.until("it is gone", || other.identity("10.0.0.7").is_none()).await;
    agent.finish().await;
    other.finish().await;
}

const SLICES: (&str, &str) = ("enable-cilium-endpoint-slice", "true");

/// A slice as the operator makes it, of pods with their identities on a node.
fn slice(name: &str, node: &str, pods: &[(&str, u32, &str)]) -> String {
    let endpoint = |(name, identity, address): &(&str, u32, &str)| {
        let networking = json!({"addressing": [{"ipv4": address}], "node": node});
        json!({"name": name, "id": identity, "networking": networking, "encryption": {}})
    };
    let endpoints: Vec<Value> = pods.iter().map(endpoint).collect();
    let slice = json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumEndpointSlice", "metadata": {"name": name},
        "namespace": "shop", "endpoints": endpoints,
    });
    slice.to_string()
}

#[tokio::test(start_paused = true)]
async fn with_slices_pods_of_other_nodes_come_from_them_and_own_objects_are_written_all_the_same() {
    let (server, state) = (Server::default(), tempfile::tempdir().unwrap());
    let agent = Agent::with(&server, &state, &[SLICES], Vec::new()).await;
    server.put_pod(7);
    agent.put(endpoint(7));
    agent.until("it is written", || server.object("web-7").is_some()).await;
    sleep(Duration::from_secs(25)).await;
    assert_eq!(agent.health("endpoint-slices"), None);
    agent.until("the lack is reported", || agent.health("endpoint-slices").is_some()).await;
    server.put(json!({"metadata": {"name": "far"}, "status": {"identity": {"id": 6999}, "networking": {
        "node": "10.99.0.9", "addressing": [{"ipv4": "10.0.9.9"}],
    }}}));
    let far = |name, identity| slice(name, "10.99.0.9", &[("far", identity, "10.0.9.9")]);
    server.tracker.add(&far("ces-a", 7000)).unwrap();
    agent.until("it is known", || agent.identity("10.0.9.9") == Some(7000)).await;
    agent.until("the report is over", || agent.health("endpoint-slices").is_none()).await;
    // The operator moves it.
    server.tracker.add(&far("ces-b", 7001)).unwrap();
    agent.until("the other slice counts", || agent.identity("10.0.9.9") == Some(7001)).await;
    server.tracker.delete(&far("ces-a", 7000)).unwrap();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(agent.identity("10.0.9.9"), Some(7001));
    server.tracker.delete(&far("ces-b", 7001)).unwrap();
    agent.until("it is gone", || agent.identity("10.0.9.9").is_none()).await;
    agent.until("its uid is stored", || !agent.row(7).unwrap().record.cilium_endpoint_uid.is_empty()).await;
    let verbs = server.verbs()["web-7"].clone();
    // It is read before if the endpoint was there when the job began, as one of the previous run is.
    assert!(verbs == ["create"] || verbs == ["get", "create"], "{verbs:?}");
    let restored = vec![agent.row(7).unwrap()];
    agent.finish().await;

    // The next run reads its own objects once, and deletes those that slices say it has left.
    for name in ["stale", "moved"] {
        server.put(json!({"metadata": {"name": name}, "status": {"networking": {"node": match name {
            "stale" => "10.99.0.1",
            _ => "10.99.0.9",
        }}}}));
    }
    let own = [("web-7", 7000, "10.0.0.7"), ("stale", 7000, "10.0.0.8"), ("moved", 7000, "10.0.0.9")];
    server.tracker.add(&slice("ces-c", "10.99.0.1", &own)).unwrap();
    let agent = Agent::with(&server, &state, &[SLICES], restored).await;
    agent.until("the stale one is deleted", || server.object("stale").is_none()).await;
    sleep(Duration::from_secs(30)).await;
    let verbs = server.verbs();
    let expected = [("moved", vec!["get"]), ("stale", vec!["get", "delete"]), ("web-7", vec!["get"])];
    assert_eq!(verbs, expected.map(|(name, verbs)| (name.to_owned(), verbs)).into());
    assert!(server.object("moved").is_some());
    agent.finish().await;
}
