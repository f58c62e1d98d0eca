//! Endpoints whose identities are a cluster's: they wait in a state, and go on with what they have.

use std::time::Duration;

use k8s_tables::core::Pod;
use labels::Labels;

use super::*;
use crate::model::id::{EndpointId, Name};
use crate::model::state::State;
use crate::requests::service::Refused;

const OF_POD: [&str; 3] = [
    "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=default",
    "k8s:io.cilium.k8s.policy.cluster=default",
    "k8s:io.kubernetes.pod.namespace=default",
];

fn labels(app: &str) -> Labels {
    Labels::parse(OF_POD.into_iter().chain([app]))
}

fn object(app: &str) -> Row<Pod> {
    let mut pod = Pod::default();
    pod.metadata.namespace = "default".into();
    pod.metadata.name = "p1".into();
    pod.metadata.labels = [("app", app)].into_iter().collect();
    Row::of(pod)
}

struct Stage {
    world: World,
    agent: Agent,
    cluster: FakeCluster,
}

impl Stage {
    /// With the pod `web`, and an identity for it.
    async fn new() -> Stage {
        Stage::with_jitter(Duration::ZERO).await
    }

    async fn with_jitter(identity_max_jitter: Duration) -> Stage {
        let world = World { in_cluster: true, identity_max_jitter, ..World::new() };
        let agent = Agent::start(&world).await;
        let (initializer, _) = agent.pods.transact(|w| w.register_initializer("test"));
        agent.pods.transact(|w| {
            w.insert(object("web"));
            initializer.done(w);
        });
        let cluster = agent.cluster.clone().unwrap();
        Stage { world, agent, cluster }
    }

    fn row(&self) -> Option<Obj<Endpoint>> {
        let table = self.agent.endpoints.table();
        let snapshot = table.snapshot();
        table.list(&snapshot, Endpoint::by_pod("default/p1")).next().cloned()
    }

    async fn until(&self, what: &str, is_so: impl Fn(&Endpoint) -> bool) -> Obj<Endpoint> {
        self.agent.jobs.until(what, || self.row().is_some_and(|row| is_so(&row))).await;
        self.row().unwrap()
    }

    fn in_kernel(&self) -> Option<u32> {
        let address = self.row()?.record.ipv4?;
        self.world.map.identity(&format!("{address}/32"))
    }

    fn relabel(&self, app: &str) {
        self.agent.pods.transact(|w| w.insert(object(app)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_endpoint_waits_for_its_identity_and_is_ready_then() {
    let stage = Stage::new().await;
    let request = stage.agent.request(1);
    let created = stage.agent.endpoints.create(&request);
    let later = async {
        let requests = stage.agent.endpoints.context.identities.requests().unwrap();
        stage.agent.jobs.until("it is requested", || requests.len(&requests.snapshot()) == 1).await;
        let row = stage.row().unwrap();
        assert_eq!((row.state, row.record.identity()), (State::WaitingForIdentity, 0));
        assert_eq!(stage.in_kernel(), None);
        stage.cluster.create(7000, &labels("k8s:app=web"));
    };
    let (created, ()) = tokio::join!(created, later);
    let created = created.unwrap();
    assert_eq!((created.state, created.record.identity()), (State::Ready, 7000));
    assert_eq!(stage.in_kernel(), Some(7000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_labels_wait_while_the_endpoint_keeps_its_identity() {
    let stage = Stage::new().await;
    stage.cluster.create(7000, &labels("k8s:app=web"));
    stage.agent.endpoints.create(&stage.agent.request(1)).await.unwrap();
    stage.relabel("db");
    let waiting = stage.until("it waits", |row| row.state == State::WaitingForIdentity).await;
    assert_eq!(waiting.record.identity(), 7000);
    assert!(waiting.record.op_labels.identity().texts().contains(&"k8s:app=db".to_owned()));
    assert_eq!(stage.in_kernel(), Some(7000), "packets keep their verdicts");
    stage.cluster.create(7001, &labels("k8s:app=db"));
    stage.until("it is ready", |row| row.state == State::Ready && row.applied_identity == 7001).await;
    assert_eq!(stage.in_kernel(), Some(7001));

    // Labels that go back need no answer any more.
    stage.relabel("other");
    stage.until("it waits", |row| row.state == State::WaitingForIdentity).await;
    stage.relabel("db");
    stage.until("it is ready", |row| row.state == State::Ready && row.status.is_done()).await;
    let requests = stage.agent.endpoints.context.identities.requests().unwrap();
    stage.agent.jobs.until("nothing is requested", || requests.is_empty(&requests.snapshot())).await;
    assert_eq!(stage.in_kernel(), Some(7001));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_whose_identity_the_cluster_gives_to_others_gets_another_one() {
    let stage = Stage::new().await;
    stage.cluster.create(7000, &labels("k8s:app=web"));
    stage.agent.endpoints.create(&stage.agent.request(1)).await.unwrap();
    stage.cluster.create(7000, &labels("k8s:app=others"));
    stage.until("it waits", |row| row.state == State::WaitingForIdentity).await;
    stage.cluster.create(7002, &labels("k8s:app=web"));
    stage.until("it is ready", |row| row.state == State::Ready && row.applied_identity == 7002).await;
    assert_eq!(stage.in_kernel(), Some(7002));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_endpoint_waits_for_nothing() {
    let stage = Stage::new().await;
    stage.cluster.create(7000, &labels("k8s:app=web"));
    let id: EndpointId = stage.agent.endpoints.create(&stage.agent.request(1)).await.unwrap().id();
    stage.relabel("db");
    stage.until("it waits", |row| row.state == State::WaitingForIdentity).await;
    stage.agent.endpoints.delete(&Name::Local(id)).await.unwrap();
    let requests = stage.agent.endpoints.context.identities.requests().unwrap();
    assert!(requests.is_empty(&requests.snapshot()));
    assert!(stage.row().is_none());
}

/// The job that follows pods reads a snapshot, and its request for an identity may come after the deletion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_comes_after_the_deletion_is_withdrawn() {
    let stage = Stage::new().await;
    stage.cluster.create(7000, &labels("k8s:app=web"));
    let id: EndpointId = stage.agent.endpoints.create(&stage.agent.request(1)).await.unwrap().id();
    stage.relabel("db");
    stage.until("it waits", |row| row.state == State::WaitingForIdentity).await;
    let before = stage.agent.endpoints.table().snapshot();
    stage.agent.endpoints.delete(&Name::Local(id)).await.unwrap();
    let identities = stage.agent.endpoints.context.identities.clone();
    let requests = identities.requests().unwrap();
    identities.withdraw(&Endpoint::user(id.0));
    let late = stage.agent.endpoints.describe_all(&[id], &before);
    assert!(matches!(late[..], [Err(Refused::NotFound)]), "{late:?}");
    assert!(requests.is_empty(&requests.snapshot()));
    // Labels with an identity: it is not held for an endpoint that is gone.
    stage.cluster.create(7001, &labels("k8s:app=db"));
    let late = stage.agent.endpoints.describe_all(&[id], &before);
    assert!(matches!(late[..], [Err(Refused::NotFound)]), "{late:?}");
    assert!(identities.has_lost(7001, &Endpoint::user(id.0)), "it has no such user");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_labels_are_requested_after_a_delay_and_those_of_a_new_endpoint_at_once() {
    let stage = Stage::with_jitter(Duration::from_secs(1 << 30)).await;
    let requests = stage.agent.endpoints.context.identities.requests().unwrap();
    let delay = || {
        let snapshot = requests.snapshot();
        // The request that has ended may still have its row.
        requests.all(&snapshot).map(|row| row.due.saturating_duration_since(row.since)).max()
    };
    let request = stage.agent.request(1);
    let created = stage.agent.endpoints.create(&request);
    let later = async {
        stage.agent.jobs.until("it is requested", || delay().is_some()).await;
        assert_eq!(delay(), Some(Duration::ZERO));
        stage.cluster.create(7000, &labels("k8s:app=web"));
    };
    let (created, ()) = tokio::join!(created, later);
    created.unwrap();
    stage.relabel("db");
    stage.until("it waits", |row| row.state == State::WaitingForIdentity).await;
    assert!(delay().unwrap() > Duration::ZERO);
    // Another node creates the identity in the meantime.
    stage.cluster.create(7001, &labels("k8s:app=db"));
    stage.until("it is ready", |row| row.state == State::Ready && row.applied_identity == 7001).await;
}
