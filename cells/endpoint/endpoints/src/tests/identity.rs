//! Labels and identities: from objects, from requests, over changes and restarts; and the order in which packets come
//! to carry a new one.

use ::identity::Identity;
use k8s_tables::core::{Container, ContainerPort};
use policy::EndpointPolicy;

use super::*;
use crate::model::id::{EndpointId, Name};
use crate::model::record::{Record, SecurityLabel};
use crate::model::regeneration::Step;
use crate::model::state::State;
use labels::Labels;

fn pod(n: u16) -> Name {
    Name::Pod(format!("default/p{n}"))
}

fn object(n: u16, app: &str) -> Row<Pod> {
    let mut pod = Pod::default();
    pod.metadata.namespace = "default".into();
    pod.metadata.name = format!("p{n}").into();
    pod.metadata.labels = [("app", app)].into_iter().collect();
    Row::of(pod)
}

impl Agent {
    /// Inserts pods and completes all sources of objects.
    fn objects(&self, pods: impl IntoIterator<Item = Row<Pod>>) {
        let (initializer, _) = self.pods.transact(|w| w.register_initializer("test"));
        self.pods.transact(|w| {
            pods.into_iter().for_each(|pod| drop(w.insert(pod)));
            initializer.done(w);
        });
    }

    async fn until(&self, id: EndpointId, what: impl Fn(&Endpoint) -> bool) -> Endpoint {
        let table = self.endpoints.table();
        let waited = table.wait_for(Endpoint::by_id(id), |row| row.status.is_done() && what(row));
        let row = tokio::time::timeout(Duration::from_secs(10), waited).await.expect("it comes to that");
        (*row).clone()
    }

    fn users(&self, id: u32) -> Option<Vec<String>> {
        let snapshot = self.numbers.snapshot();
        let row = self.numbers.get(&snapshot, Identity::by_id(id))?;
        Some(row.users.names().map(ToString::to_string).collect())
    }

    fn subject(&self, id: EndpointId) -> (u32, Vec<String>) {
        let table = self.policies.policies().table();
        let snapshot = table.snapshot();
        let subject = &table.get(&snapshot, EndpointPolicy::by_endpoint(id.0)).unwrap().subject;
        (subject.identity, subject.labels.texts())
    }
}

fn address(endpoint: &Endpoint) -> String {
    format!("{}/32", endpoint.record.ipv4.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_has_the_labels_of_its_object_and_follows_it() {
    let world = World::new();
    let agent = Agent::start(&world).await;
    agent.objects([object(1, "web")]);
    let endpoint = agent.endpoints.create(&agent.request(1)).await.unwrap();
    let (id, first) = (endpoint.id(), endpoint.record.identity());
    let expected = [
        "k8s:app=web",
        "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=default",
        "k8s:io.cilium.k8s.policy.cluster=default",
        "k8s:io.kubernetes.pod.namespace=default",
    ];
    assert_eq!(endpoint.record.sec_label.as_ref().unwrap().labels.texts(), expected);
    assert!((256..65_536).contains(&first));
    assert_eq!(agent.subject(id), (first, expected.map(String::from).to_vec()));
    assert_eq!(agent.users(first), Some(vec![format!("endpoint/{id}")]));
    assert_eq!(world.map.identity(&address(&endpoint)), Some(first));

    // A pod without an object waits for one, and is `init` until then.
    let second = agent.endpoints.create(&agent.request(2)).await.unwrap();
    assert_eq!((second.record.identity(), second.applied_identity), (5, 5));
    agent.pods.transact(|w| w.insert(object(2, "web")));
    let second = agent.until(second.id(), |row| row.applied_identity == first).await;
    let snapshot = agent.numbers.snapshot();
    assert_eq!(agent.numbers.get(&snapshot, Identity::by_id(first)).unwrap().users.names().count(), 2);
    assert_eq!(world.map.identity(&address(&second)), Some(first));
    assert_eq!(agent.users(5), Some(vec![]), "no endpoint is init any more");

    // The namespace's labels are part of the identity as well.
    let mut namespace = Namespace::default();
    namespace.metadata.name = "default".into();
    namespace.metadata.labels = [("team", "a")].into_iter().collect();
    agent.namespaces.transact(|w| w.insert(Row::of(namespace)));
    let moved = agent.until(id, |row| row.applied_identity != first).await;
    assert!(
        moved
            .record
            .op_labels
            .identity()
            .texts()
            .contains(&"k8s:io.cilium.k8s.namespace.labels.team=a".into())
    );
    agent.until(second.id(), |row| row.applied_identity == moved.applied_identity).await;
    assert_eq!(agent.users(first), Some(vec![]), "the old number waits with its labels");

    // A pod keeps its labels when its object is deleted; the runtime removes the pod.
    agent.pods.transact(|w| w.delete_all());
    assert_eq!(agent.endpoints.delete_container("cid-p1").await.unwrap(), 0);
    assert_eq!(agent.endpoints.find(&pod(2)).unwrap().record.identity(), moved.applied_identity);
    assert_eq!(agent.users(moved.applied_identity), Some(vec![format!("endpoint/{}", second.id())]));
    let table = agent.policies.policies().table();
    assert!(table.get(&table.snapshot(), EndpointPolicy::by_endpoint(id.0)).is_none(), "forgotten");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packets_carry_a_new_identity_only_when_policy_knows_it() {
    let world = World::new();
    let agent = Agent::start_by(&world, world.datapath.clone(), FakePolicies::new).await;
    agent.objects([object(1, "web")]);
    let mut request = agent.request(1);
    (request.id, request.sync_build_endpoint) = (77, false);
    agent.endpoints.create(&request).await.unwrap();
    let id = EndpointId(77);
    let soon = || tokio::time::sleep(Duration::from_millis(50));
    soon().await;
    assert!(world.datapath.endpoint(77).is_some() && !world.datapath.is_up(77), "attached, not up");
    let row = agent.endpoints.find(&pod(1)).unwrap();
    assert_eq!(world.map.identity(&address(&row)), None);
    agent.policies.realize(77);
    let first = agent.until(id, |row| row.applied_identity != 0).await.applied_identity;
    assert!(world.datapath.is_up(77));
    assert_eq!(world.map.identity(&address(&row)), Some(first));

    agent.pods.transact(|w| w.insert(object(1, "db")));
    soon().await;
    let row = agent.endpoints.find(&pod(1)).unwrap();
    let second = row.record.identity();
    assert_ne!(first, second);
    assert_eq!(agent.subject(id).0, second, "policy is asked for");
    assert_eq!(world.datapath.endpoint(77).unwrap().identity, first, "packets carry the old number");
    assert_eq!(world.map.identity(&address(&row)), Some(first));
    assert!(world.files()["77"].contains(&format!("\"id\":{first},")), "as the record says");
    let user = || vec!["endpoint/77".to_owned()];
    assert_eq!((agent.users(first), agent.users(second)), (Some(user()), Some(user())), "both are held");

    agent.policies.realize(77);
    agent.until(id, |row| row.applied_identity == second).await;
    assert_eq!(world.datapath.endpoint(77).unwrap().identity, second);
    assert_eq!(world.map.identity(&address(&row)), Some(second));
    assert_eq!((agent.users(first), agent.users(second)), (Some(vec![]), Some(user())));
}

/// Policy for an identity in use is in all maps: the address need not wait for the policy of the endpoint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_with_an_identity_of_others_does_not_wait_for_policy() {
    let world = World::new();
    let agent = Agent::start_by(&world, world.datapath.clone(), FakePolicies::new).await;
    agent.objects([object(1, "web"), object(2, "web"), object(3, "db")]);
    let create = async |n, id: u16| {
        let mut request = agent.request(n);
        (request.id, request.sync_build_endpoint) = (id.into(), false);
        let row = agent.endpoints.create(&request).await.unwrap();
        let waits = |row: &Endpoint| row.regeneration.is_some();
        agent.endpoints.table().wait_for(Endpoint::by_id(EndpointId(id)), |row| waits(row)).await;
        address(&row)
    };
    create(1, 77).await;
    agent.policies.realize(77);
    let identity = agent.until(EndpointId(77), |row| row.applied_identity != 0).await.applied_identity;

    let (known, new) = (create(2, 78).await, create(3, 79).await);
    agent.jobs.until("the ipcache", || world.map.identity(&known) == Some(identity)).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(world.map.identity(&new), None, "another identity waits for policy");
    assert!(!world.datapath.is_up(78) && !world.datapath.is_up(79), "nothing passes either");
    agent.policies.realize(78);
    agent.until(EndpointId(78), |row| row.applied_identity == identity).await;
    assert!(world.datapath.is_up(78));
    assert_eq!(agent.endpoints.delete(&pod(2)).await.unwrap(), 0);
    agent.jobs.until("the address to go", || world.map.identity(&known).is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_keeps_identities_and_waits_for_sources() {
    let world = World::new();
    let (first, row) = {
        let agent = Agent::start(&world).await;
        agent.objects([object(1, "web")]);
        let row = agent.endpoints.create(&agent.request(1)).await.unwrap();
        (row.record.identity(), row)
    };
    // The file of identities is lost and replaced by another one: the record takes precedence.
    let lost = [
        format!(
            "{{\"version\":1,\"identities\":[{{\"id\":{first},\"labels\":{{\"x\":{{\"key\":\"x\",\"source\":\"k8s\"}}}}}}]}}"
        ),
        "{".to_owned(),
    ];
    for file in lost {
        std::fs::write(world.state().join("identities.json"), file).unwrap();
        let agent = Agent::start_by(&world, world.datapath.clone(), FakePolicies::new).await;
        let again = agent.until(row.id(), |row| row.builds > 0).await;
        assert_eq!((again.record.identity(), again.applied_identity), (first, first));
        assert_eq!(world.map.identity(&address(&row)), Some(first));
        assert_eq!(agent.subject(row.id()).0, first);
        assert_eq!(agent.users(first), Some(vec![format!("endpoint/{}", row.id())]));
    }
    // The labels have changed while no agent ran: updated once all sources are complete.
    let agent = Agent::start(&world).await;
    assert_eq!(agent.until(row.id(), |row| row.builds > 0).await.applied_identity, first);
    agent.objects([object(1, "db")]);
    let moved = agent.until(row.id(), |row| row.applied_identity != first).await;
    assert_eq!(world.map.identity(&address(&row)), Some(moved.record.identity()));
}

/// The agent was killed after the record of another identity was on disk and before the kernel had it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_amid_a_change_of_identity_is_finished_in_order() {
    let world = World::new();
    let mut record: Record = {
        let agent = Agent::start(&world).await;
        agent.objects([object(1, "web")]);
        (*agent.endpoints.create(&agent.request(1)).await.unwrap().record).clone()
    };
    let (id, first) = (EndpointId(record.id), record.identity());
    let labels = Labels::parse(["k8s:app=db"]);
    record.op_labels.orchestration_identity = labels.clone();
    record.sec_label = Some(SecurityLabel { id: 4711, labels });
    StateFolder::new(world.state()).save(&record).unwrap();

    let policies = |db: &Db| FakePolicies::new(db);
    let start = Agent::start_by(&world, world.datapath.clone(), policies);
    let mut start = std::pin::pin!(start);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut start).await;
    assert!(early.is_err(), "the start waits for policy");
    assert_eq!(world.datapath.endpoint(id.0).unwrap().identity, first, "packets carry what they carried");
    drop(early);
    let agent = Agent::start(&world).await;
    let row = agent.until(id, |row| row.applied_identity == 4711).await;
    assert_eq!(world.map.identity(&address(&row)), Some(4711));
    assert_eq!(agent.users(first), Some(vec![]), "still known, without a user");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn labels_by_request_change_the_identity() {
    let world = World::new();
    let agent = Agent::start(&world).await;
    let endpoint = agent.endpoints.create(&agent.request(1)).await.unwrap();
    assert_eq!(endpoint.record.identity(), 5);
    agent.endpoints.relabel(&pod(1), &["k8s:app=p1".to_owned()]).await.unwrap();
    let row = agent.endpoints.find(&pod(1)).unwrap();
    let first = row.record.identity();
    assert_eq!((row.state, row.applied_identity), (State::Ready, first));
    assert_eq!(row.record.sec_label.as_ref().unwrap().labels.texts(), ["k8s:app=p1"]);
    assert_eq!(world.map.identity(&address(&row)), Some(first));
    let messages: Vec<_> = row.log.newest_first().take(6).map(|change| change.message.to_string()).collect();
    let expected = [
        "Successfully regenerated endpoint program (Reason: LabelsUpdate)",
        "Completed endpoint regeneration with no pending regeneration requests",
        "Regenerating endpoint: LabelsUpdate",
        "Triggering endpoint regeneration due to LabelsUpdate: updated security labels",
        "Set identity for this endpoint",
        "Triggering identity resolution due to updated identity labels",
    ];
    assert_eq!(messages, expected);
    agent.endpoints.relabel(&pod(1), &[]).await.unwrap();
    let row = agent.endpoints.find(&pod(1)).unwrap();
    assert_eq!(row.record.identity(), 5, "without labels it waits for some again");
    agent.endpoints.relabel(&pod(1), &["k8s:app=p1".to_owned()]).await.unwrap();
    assert_eq!(
        agent.endpoints.find(&pod(1)).unwrap().record.identity(),
        first,
        "the same labels, the same number"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_cannot_be_written_fails_the_creation() {
    let world = World::new();
    let agent = Agent::start_by(&world, world.datapath.clone(), FakePolicies::new).await;
    let mut request = agent.request(1);
    request.id = 77;
    let table = agent.policies.policies().table();
    let made = agent.endpoints.create(&request);
    let failing = async {
        table.wait_for(EndpointPolicy::by_endpoint(77), |_| true).await;
        agent.policies.fail(77, "no memory");
    };
    let (made, ()) = tokio::join!(made, failing);
    let error = made.unwrap_err().to_string();
    assert_eq!(error, "unable to regenerate endpoint: unable to write the policy of endpoint 77: no memory");
    assert!(world.files().is_empty() && agent.rows().is_empty() && world.map.prefixes().is_empty());
    assert_eq!(agent.users(5), Some(vec![]));
}

fn object_with_port(n: u16, app: &str, port: u16) -> Row<Pod> {
    let mut pod = object(n, app);
    let port = ContainerPort { name: "http".into(), container_port: port, ..ContainerPort::default() };
    pod.object.spec.containers = vec![Container { ports: vec![port], ..Container::default() }];
    pod
}

/// Two versions of a workload with different named ports: with one identity no rule could resolve the name for either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_whose_named_ports_differ_have_identities_of_their_own() {
    let world = World::new();
    let ports_of = |agent: &Agent, id: u32| {
        let snapshot = agent.numbers.snapshot();
        agent.numbers.get(&snapshot, Identity::by_id(id)).unwrap().named_ports().port("http", 6)
    };
    let (old, new, third) = {
        let agent = Agent::start(&world).await;
        agent.objects([object_with_port(1, "web", 8080), object_with_port(2, "web", 9090), object(3, "web")]);
        let old = agent.endpoints.create(&agent.request(1)).await.unwrap();
        let new = agent.endpoints.create(&agent.request(2)).await.unwrap();
        let third = agent.endpoints.create(&agent.request(3)).await.unwrap();
        let ids = [&old, &new, &third].map(|row| row.record.identity());
        assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "{ids:?}");
        assert_eq!((ports_of(&agent, ids[0]), ports_of(&agent, ids[1])), (Some(8080), Some(9090)));
        let labels = &old.record.sec_label.as_ref().unwrap().labels;
        assert!(
            labels.texts().contains(&"gen:io.cilium.k8s.named-ports=http.TCP.8080".to_owned()),
            "{labels}"
        );
        // A changed port of a pod leads to the other identity.
        agent.pods.transact(|w| w.insert(object_with_port(1, "web", 9090)));
        agent.until(old.id(), |row| row.applied_identity == ids[1]).await;
        agent.pods.transact(|w| w.insert(object_with_port(1, "web", 8080)));
        agent.until(old.id(), |row| row.applied_identity == ids[0]).await;
        (old, new, third)
    };
    // Rules may name ports before the sources of pods have been read again.
    let agent = Agent::start(&world).await;
    for (before, port) in [(&old, Some(8080)), (&new, Some(9090)), (&third, None)] {
        let row = agent.until(before.id(), |row| row.builds > 0).await;
        assert_eq!(
            (row.applied_identity, row.record.identity()),
            (before.record.identity(), row.applied_identity)
        );
        assert_eq!((row.named_ports.port("http", 6), ports_of(&agent, row.record.identity())), (port, port));
    }
    // A client cannot set such labels.
    let refused =
        agent.endpoints.relabel(&pod(3), &["gen:io.cilium.k8s.named-ports=x.TCP.1".to_owned()]).await;
    assert!(refused.unwrap_err().to_string().starts_with("not allowed to add generated labels: "));
}

/// A new identity is written to a file under a lock, which would block the single thread of this runtime.
#[tokio::test(flavor = "current_thread")]
async fn identities_are_allocated_off_the_async_workers() {
    let world = World::new();
    let agent = Agent::start(&world).await;
    agent.objects([object(1, "web")]);
    let endpoint = agent.endpoints.create(&agent.request(1)).await.unwrap();
    agent.pods.transact(|w| w.insert(object(1, "db")));
    agent.until(endpoint.id(), |row| row.record.op_labels.identity().0["app"].value == "db").await;
    let here = std::thread::current().id();
    let elsewhere = || std::mem::take(&mut *world.describers.lock()).iter().filter(|id| **id != here).count();
    assert!(elsewhere() > 0);
    // An identity in use needs no write, and so no other thread.
    agent.objects([object(2, "db")]);
    let other = agent.endpoints.create(&agent.request(2)).await.unwrap();
    assert_eq!(elsewhere(), 0);
    let changed = agent.until(endpoint.id(), |row| row.status.is_done()).await;
    assert_eq!(other.record.identity(), changed.record.identity());
}

/// An endpoint that waits for policy is a row: other endpoints are created, changed and removed meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_waits_for_policy_holds_up_nobody() {
    let world = World::new();
    let agent = Agent::start_by(&world, world.datapath.clone(), FakePolicies::new).await;
    agent.objects([object(1, "web"), object(2, "web")]);
    for (n, id) in [(1, 77), (2, 78)] {
        let mut request = agent.request(n);
        (request.id, request.sync_build_endpoint) = (id, false);
        agent.endpoints.create(&request).await.unwrap();
    }
    let table = agent.endpoints.table();
    let waits = |row: &Endpoint| row.regeneration.as_ref().is_some_and(|at| at.step == Step::Policy);
    for id in [77, 78] {
        let row = table.wait_for(Endpoint::by_id(EndpointId(id)), |row| waits(row)).await;
        assert_eq!((row.state, row.status.is_pending()), (State::Regenerating, true));
    }
    agent.policies.realize(78);
    agent.until(EndpointId(78), |row| row.applied_identity != 0).await;
    assert!(world.datapath.is_up(78) && !world.datapath.is_up(77));
    assert_eq!(agent.endpoints.delete(&pod(2)).await.unwrap(), 0);

    // An endpoint that is removed while it waits leaves no state, and the awaited policy has no effect.
    assert_eq!(agent.endpoints.delete(&pod(1)).await.unwrap(), 0);
    agent.policies.realize(77);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(world.datapath.endpoint(77).is_none() && !world.datapath.is_up(77));
    assert!(!world.files().contains_key("77"));
}

/// Policy has no verdict for the old identity of one endpoint and the new one of another, unless they change together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn separate_changes_of_identity_are_serialized() {
    let world = World::new();
    let agent = Agent::start_by(&world, world.datapath.clone(), FakePolicies::new).await;
    agent.objects([object(1, "web"), object(2, "web")]);
    for (n, id) in [(1, 77), (2, 78)] {
        let mut request = agent.request(n);
        (request.id, request.sync_build_endpoint) = (id, false);
        agent.endpoints.create(&request).await.unwrap();
        let table = agent.endpoints.table();
        let id = u16::try_from(id).unwrap();
        table.wait_for(Endpoint::by_id(EndpointId(id)), |row| row.regeneration.is_some()).await;
        agent.policies.realize(id);
        agent.until(EndpointId(id), |row| row.applied_identity != 0).await;
    }
    let old = agent.subject(EndpointId(78)).0;
    let soon = || tokio::time::sleep(Duration::from_millis(50));
    agent.pods.transact(|w| w.insert(object(1, "db")));
    soon().await;
    assert_ne!(agent.subject(EndpointId(77)).0, old, "the first is announced");
    agent.pods.transact(|w| w.insert(object(2, "db")));
    soon().await;
    assert_eq!(
        agent.subject(EndpointId(78)).0,
        old,
        "the second is not, before the first one's packets carry it"
    );
    agent.policies.realize(77);
    let first = agent.until(EndpointId(77), |row| row.applied_identity != old).await;
    soon().await;
    assert_eq!(agent.subject(EndpointId(78)).0, first.applied_identity);
    agent.policies.realize(78);
    agent.until(EndpointId(78), |row| row.applied_identity == first.applied_identity).await;
}

/// Returns an agent with two endpoints of one identity, and the identity; the test realizes their policies.
async fn two_of_one_identity(world: &World) -> (Agent, u32) {
    let agent = Agent::start_by(world, world.datapath.clone(), FakePolicies::new).await;
    agent.objects([object(1, "web"), object(2, "web")]);
    for (n, id) in [(1, 77), (2, 78)] {
        let mut request = agent.request(n);
        (request.id, request.sync_build_endpoint) = (i64::from(id), false);
        agent.endpoints.create(&request).await.unwrap();
        let table = agent.endpoints.table();
        table.wait_for(Endpoint::by_id(EndpointId(id)), |row| row.regeneration.is_some()).await;
        agent.policies.realize(id);
        agent.until(EndpointId(id), |row| row.applied_identity != 0).await;
    }
    let identity = agent.subject(EndpointId(77)).0;
    (agent, identity)
}

/// Changes the labels of both pods at once.
fn relabel_both(agent: &Agent) {
    agent.pods.transact(|w| {
        for pod in [object(1, "db"), object(2, "db")] {
            w.insert(pod);
        }
    });
}

fn is_in_transition(agent: &Agent, id: u16) -> bool {
    let table = agent.policies.policies().table();
    let snapshot = table.snapshot();
    table.get(&snapshot, EndpointPolicy::by_endpoint(id)).unwrap().transition.is_some()
}

fn is_at(row: &Endpoint, step: Step) -> bool {
    row.regeneration.as_ref().is_some_and(|regeneration| regeneration.step == step)
}

/// Of several endpoints that change together, none carries its new identity before all policy maps have it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_that_change_together_go_on_together() {
    let world = World::new();
    let (agent, old) = two_of_one_identity(&world).await;
    relabel_both(&agent);
    let table = agent.endpoints.table();
    for id in [77, 78] {
        table.wait_for(Endpoint::by_id(EndpointId(id)), |row| is_at(row, Step::Policy)).await;
        assert!(is_in_transition(&agent, id));
    }
    agent.policies.realize(77);
    tokio::time::sleep(Duration::from_millis(50)).await;
    for id in [77, 78] {
        let carried = world.datapath.endpoint(id).unwrap().identity;
        assert_eq!(carried, old, "the map of 78 says nothing of the new identity");
        assert!(is_in_transition(&agent, id));
    }
    agent.policies.realize(78);
    for id in [77, 78] {
        agent.until(EndpointId(id), |row| row.applied_identity != old).await;
        assert!(!is_in_transition(&agent, id));
    }
}

/// If an endpoint's address cannot be written, both policy rows are kept until it can; its peers proceed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_fails_holds_up_none_that_change_with_it() {
    let world = World::new();
    let (agent, old) = two_of_one_identity(&world).await;
    let table = agent.endpoints.table();
    let row = table.wait_for(Endpoint::by_id(EndpointId(78)), |_| true).await;
    world.map.refuse(Some(address(&row).parse().unwrap()));
    relabel_both(&agent);
    for id in [77, 78] {
        table.wait_for(Endpoint::by_id(EndpointId(id)), |row| is_at(row, Step::Policy)).await;
        agent.policies.realize(id);
    }
    agent.until(EndpointId(77), |row| row.applied_identity != old).await;
    let failing = table.wait_for(Endpoint::by_id(EndpointId(78)), |row| row.is_failing()).await;
    assert_eq!(failing.applied_identity, old);
    world.map.refuse(None);
    // It is announced again, alone.
    let healed = async { agent.until(EndpointId(78), |row| row.applied_identity != old).await };
    let realizing = async {
        loop {
            agent.policies.realize(78);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        row = healed => assert_eq!(world.map.identity(&address(&row)), Some(row.applied_identity)),
        () = realizing => {}
    }
}
