//! Objects of another pod with the same name: an older one, a newer one, and with a lagging watch or API server.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use k8s_tables::{Answer, Api, ApiError, Key, Kind, Patch, Preconditions};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;

/// The source of an API server, which has an object of each namespace.
const SERVER: &str = "daemon-k8s";

/// An API server that has one pod, or does not answer.
#[derive(Default)]
struct Server {
    pod: Mutex<Option<Value>>,
    is_away: AtomicBool,
    requests: AtomicUsize,
}

impl Server {
    fn has(&self, pod: &Value) {
        *self.pod.lock() = Some(pod.clone());
    }
}

impl Api for Server {
    fn get(&self, kind: Kind, key: &Key) -> Answer<Bytes> {
        assert_eq!(kind, Kind::Pod);
        self.requests.fetch_add(1, Ordering::Relaxed);
        let answer = match self.pod.lock().as_ref() {
            _ if self.is_away.load(Ordering::Relaxed) => {
                Err(ApiError::Unavailable { message: "away".to_owned(), retry_after: None })
            }
            Some(pod) if pod["metadata"]["name"] == key.name.as_str() => Ok(pod.to_string().into()),
            _ => Err(ApiError::NotFound(key.to_string())),
        };
        async { answer }.boxed()
    }

    fn create(&self, _: Kind, _: Bytes) -> Answer<Bytes> {
        unreachable!("endpoints write nothing")
    }

    fn update(&self, _: Kind, _: Bytes) -> Answer<Bytes> {
        unreachable!("endpoints write nothing")
    }

    fn update_status(&self, _: Kind, _: Bytes) -> Answer<Bytes> {
        unreachable!("endpoints write nothing")
    }

    fn patch(&self, _: Kind, _: &Key, _: bool, _: Patch) -> Answer<Bytes> {
        unreachable!("endpoints write nothing")
    }

    fn delete(&self, _: Kind, _: &Key, _: Preconditions) -> Answer<()> {
        unreachable!("endpoints write nothing")
    }
}

fn pod(uid: &str, app: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "default", "name": "p1", "uid": uid, "labels": {"app": app}},
        "spec": {"serviceAccountName": "default", "containers": [{"name": "c"}]},
    })
}

fn row(source: &str, pod: &Value) -> Row<Pod> {
    let object = k8s_tables::decode(pod.to_string().as_bytes()).unwrap();
    Row { source: source.into(), ..Row::of(object) }
}

fn namespace(labels: &[(&'static str, &'static str)]) -> Row<Namespace> {
    let mut namespace = Namespace::default();
    namespace.metadata.name = "default".into();
    namespace.metadata.labels = labels.iter().copied().collect();
    Row { source: SERVER.into(), ..Row::of(namespace) }
}

struct Stage {
    world: World,
    server: Arc<Server>,
    agent: Agent,
}

impl Stage {
    async fn new() -> Stage {
        let server = Arc::new(Server::default());
        let world = World { api: Some(server.clone()), ..World::new() };
        let agent = Agent::start(&world).await;
        agent.namespaces.transact(|w| w.insert(namespace(&[("team", "a")])));
        Stage { world, server, agent }
    }

    fn watched(&self, pod: &Value) {
        self.agent.pods.transact(|w| w.insert(row(SERVER, pod)));
    }

    /// Creates the endpoint of container `n` for the pod `default/p1` with this UID.
    async fn create(&self, n: u16, uid: &str) -> Obj<Endpoint> {
        let mut request = self.agent.request(n);
        (request.k8s_pod_name, request.k8s_uid) = ("p1".into(), uid.into());
        self.agent.endpoints.create(&request).await.unwrap()
    }

    fn app(&self, endpoint: &Endpoint) -> Option<String> {
        let table = self.agent.endpoints.table();
        let row = table.get(&table.snapshot(), Endpoint::by_id(endpoint.id())).cloned().unwrap();
        let labels = row.record.op_labels.identity();
        assert_eq!(row.record.sec_label.as_ref().unwrap().labels, labels);
        assert_eq!(labels.0.contains_key("init"), !labels.0.contains_key("app"), "{labels}");
        labels.0.get("app").map(|label| label.value.clone())
    }

    async fn until(&self, endpoint: &Endpoint, app: &str) {
        let is_so = || self.app(endpoint).as_deref() == Some(app);
        self.agent.jobs.until(&format!("endpoint has {app}"), is_so).await;
    }
}

async fn soon() {
    tokio::time::sleep(Duration::from_millis(300)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recreated_pod_has_its_own_labels_while_the_watch_lags() {
    let stage = Stage::new().await;
    let (old, new) = (pod("uid-1", "trusted"), pod("uid-2", "untrusted"));
    stage.watched(&old);
    stage.server.has(&new);
    let endpoint = stage.create(1, "uid-2").await;
    assert_eq!(stage.app(&endpoint).as_deref(), Some("untrusted"), "from the API server, within the ADD");
    // Events about the previous pod, which the watch still delivers, must not change this one.
    let mut terminating = pod("uid-1", "trusted");
    terminating["metadata"]["labels"]["phase"] = "ends".into();
    stage.watched(&terminating);
    soon().await;
    assert_eq!(stage.app(&endpoint).as_deref(), Some("untrusted"));
    // Its own object takes effect as soon as the watch delivers it.
    stage.watched(&pod("uid-2", "relabelled"));
    stage.until(&endpoint, "relabelled").await;
    // A pod whose object was there before its endpoint.
    stage.world.counts.event_lag(Duration::from_secs(9));
    stage.watched(&pod("uid-3", "next"));
    stage.create(2, "uid-3").await;
    assert_eq!(stage.world.counts.last_event_lag(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recreated_pod_is_init_while_the_api_server_is_away() {
    let stage = Stage::new().await;
    stage.watched(&pod("uid-1", "trusted"));
    stage.server.has(&pod("uid-2", "untrusted"));
    stage.server.is_away.store(true, Ordering::Relaxed);
    let endpoint = stage.create(1, "uid-2").await;
    assert_eq!((stage.app(&endpoint), endpoint.record.identity()), (None, 5), "reserved:init");
    assert!(stage.server.requests.load(Ordering::Relaxed) >= 3, "asked again with a growing delay");
    assert!(stage.world.counts.last_event_lag() >= 2, "the limit of the wait");
    // The API server is back, the watch still lags.
    stage.server.is_away.store(false, Ordering::Relaxed);
    stage.until(&endpoint, "untrusted").await;
    let asked = stage.server.requests.load(Ordering::Relaxed);
    soon().await;
    assert_eq!(stage.server.requests.load(Ordering::Relaxed), asked, "asked no more once it is known");
    assert_ne!(stage.world.datapath.endpoint(endpoint.record.id).unwrap().identity, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recreated_pod_gets_its_object_from_the_watch_without_an_answer() {
    let stage = Stage::new().await;
    stage.watched(&pod("uid-1", "trusted"));
    stage.server.is_away.store(true, Ordering::Relaxed);
    let late = async {
        soon().await;
        stage.watched(&pod("uid-2", "untrusted"));
    };
    let (endpoint, ()) = tokio::join!(stage.create(1, "uid-2"), late);
    assert_eq!(stage.app(&endpoint).as_deref(), Some("untrusted"), "the ADD waited for it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dying_pod_does_not_take_the_labels_of_the_next_one() {
    let stage = Stage::new().await;
    stage.watched(&pod("uid-1", "trusted"));
    let old = stage.create(1, "uid-1").await;
    let identity = old.record.identity();
    assert_eq!(stage.app(&old).as_deref(), Some("trusted"));
    // The runtime's DEL is late: the next pod of the StatefulSet exists before the container is removed.
    stage.watched(&pod("uid-2", "untrusted"));
    soon().await;
    assert_eq!(stage.app(&old).as_deref(), Some("trusted"));
    let new = stage.create(2, "uid-2").await;
    assert_eq!(stage.app(&new).as_deref(), Some("untrusted"));
    assert_eq!(stage.server.requests.load(Ordering::Relaxed), 0, "the table had it");
    // New labels of the namespace apply to both.
    stage.agent.namespaces.transact(|w| w.insert(namespace(&[("team", "b")])));
    soon().await;
    assert_eq!(stage.app(&old).as_deref(), Some("trusted"));
    let table = stage.agent.endpoints.table();
    let row = table.get(&table.snapshot(), Endpoint::by_id(old.id())).cloned().unwrap();
    assert_eq!(row.record.identity(), identity);
    assert_eq!(stage.app(&new).as_deref(), Some("untrusted"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_deletion_takes_nothing_from_the_next_pod() {
    let stage = Stage::new().await;
    stage.watched(&pod("uid-1", "trusted"));
    stage.server.has(&pod("uid-2", "untrusted"));
    let endpoint = stage.create(1, "uid-2").await;
    assert_eq!(stage.app(&endpoint).as_deref(), Some("untrusted"));
    stage.agent.pods.transact(|w| w.delete_all());
    soon().await;
    assert_eq!(stage.app(&endpoint).as_deref(), Some("untrusted"));
    stage.watched(&pod("uid-2", "untrusted"));
    soon().await;
    assert_eq!(stage.app(&endpoint).as_deref(), Some("untrusted"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn static_pods_and_sources_without_uids_go_by_their_names() {
    // The object of a static pod has a UID of its own, and that of the manifest as an annotation.
    let stage = Stage::new().await;
    let mut mirror = pod("uid-of-the-mirror", "static");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash-1"});
    stage.watched(&mirror);
    let endpoint = stage.create(1, "hash-1").await;
    assert_eq!(stage.app(&endpoint).as_deref(), Some("static"));
    // The object of another manifest belongs to another pod.
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash-2"});
    mirror["metadata"]["labels"]["app"] = "changed".into();
    stage.watched(&mirror);
    soon().await;
    assert_eq!(stage.app(&endpoint).as_deref(), Some("static"));

    // A plugin that does not report a UID.
    let stage = Stage::new().await;
    stage.watched(&pod("uid-1", "by-name"));
    let endpoint = stage.create(1, "").await;
    assert_eq!(stage.app(&endpoint).as_deref(), Some("by-name"));

    // A manifest without one.
    let stage = Stage::new().await;
    stage.watched(&pod("", "by-name"));
    let endpoint = stage.create(1, "uid-1").await;
    assert_eq!(stage.app(&endpoint).as_deref(), Some("by-name"));
    assert_eq!(stage.server.requests.load(Ordering::Relaxed), 0);
}

/// A pod of an API server with a namespace that the watch has not delivered yet, or may not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_without_the_object_of_its_namespace_is_init() {
    let stage = Stage::new().await;
    stage.agent.namespaces.transact(|w| w.delete_all());
    stage.watched(&pod("uid-1", "web"));
    let endpoint = stage.create(1, "uid-1").await;
    assert_eq!((stage.app(&endpoint), endpoint.record.identity()), (None, 5), "reserved:init");
    // The namespace of another pod has no effect.
    let mut other = namespace(&[]);
    other.object.metadata.name = "other".into();
    stage.agent.namespaces.transact(|w| w.insert(other));
    soon().await;
    assert_eq!(stage.app(&endpoint), None);

    stage.agent.namespaces.transact(|w| w.insert(namespace(&[("team", "a")])));
    stage.until(&endpoint, "web").await;
    let texts = || {
        let table = stage.agent.endpoints.table();
        let row = table.get(&table.snapshot(), Endpoint::by_id(endpoint.id())).cloned().unwrap();
        row.record.op_labels.identity().texts()
    };
    let of_namespace = "k8s:io.cilium.k8s.namespace.labels.team=a".to_owned();
    assert!(texts().contains(&of_namespace), "{:?}", texts());
    // A deleted namespace does not change its pods, which are deleted as well.
    stage.agent.namespaces.transact(|w| w.delete_all());
    stage.watched(&pod("uid-1", "relabelled"));
    soon().await;
    assert_eq!(stage.app(&endpoint).as_deref(), Some("web"));
    assert!(texts().contains(&of_namespace), "{:?}", texts());
}

/// The API server's response about a recreated pod does not suffice, either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetched_pod_without_the_object_of_its_namespace_is_init() {
    let stage = Stage::new().await;
    stage.agent.namespaces.transact(|w| w.delete_all());
    stage.watched(&pod("uid-1", "trusted"));
    stage.server.has(&pod("uid-2", "untrusted"));
    let endpoint = stage.create(1, "uid-2").await;
    assert_eq!(stage.app(&endpoint), None);
    stage.agent.namespaces.transact(|w| w.insert(namespace(&[("team", "a")])));
    stage.until(&endpoint, "untrusted").await;
}

/// A folder need not have objects of namespaces; if it has one, its labels apply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_of_a_folder_needs_no_object_of_its_namespace() {
    let stage = Stage::new().await;
    stage.agent.namespaces.transact(|w| w.delete_all());
    stage.agent.pods.transact(|w| w.insert(row("", &pod("", "web"))));
    let endpoint = stage.create(1, "").await;
    assert_eq!(stage.app(&endpoint).as_deref(), Some("web"));
}
