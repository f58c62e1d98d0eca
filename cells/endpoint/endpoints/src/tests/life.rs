//! The life cycle of an endpoint: created, changed, removed, restored.

use ipam::Family;

use super::*;
use crate::gc::Sweep;
use crate::model::error::Invalid;
use crate::model::id::{EndpointId, Name};
use crate::model::op_labels::OpLabels;
use crate::model::record::{Record, SecurityLabel};
use crate::model::state::State;
use crate::requests::service::Refused;
use crate::restore::finish::drain;
use crate::restore::queue::DeletionQueue;

fn pod(n: u16) -> Name {
    Name::Pod(format!("default/p{n}"))
}

fn ipv4(endpoint: &Endpoint) -> String {
    format!("{}/32", endpoint.record.ipv4.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_endpoint_is_ready_and_everywhere() {
    let world = World::new();
    let agent = Agent::start(&world).await;
    let endpoint = agent.endpoints.create(&agent.request(1)).await.unwrap();
    let id = endpoint.record.id;
    assert_eq!(endpoint.state, State::Ready);
    assert_eq!(endpoint.record.identity(), 5);
    assert!(world.datapath.is_up(id));
    assert_eq!(world.datapath.endpoint(id).unwrap().ipv4, endpoint.record.ipv4);
    assert_eq!(world.map.identity(&ipv4(&endpoint)), Some(5));
    assert_eq!(world.files().len(), 1);
    let calls = world.datapath.calls();
    let mine: Vec<_> =
        calls.iter().filter(|call| !matches!(call, Call::AttachHost(_) | Call::Prune(_))).collect();
    assert_eq!(mine, [&Call::Attach(id), &Call::Up(id)]);
    let messages: Vec<_> = endpoint.log.newest_first().map(|change| change.message.to_string()).collect();
    let expected = [
        "Successfully regenerated endpoint program (Reason: LabelsUpdate)",
        "Completed endpoint regeneration with no pending regeneration requests",
        "Regenerating endpoint: LabelsUpdate",
        "Triggering endpoint regeneration due to LabelsUpdate: updated security labels",
        "Set identity for this endpoint",
        "Endpoint creation",
    ];
    assert_eq!(messages, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_endpoint_is_nowhere_and_can_come_again_at_once() {
    let world = World::new();
    let agent = Agent::start(&world).await;
    let request = agent.request(1);
    for _ in 0..3 {
        let mut again = agent.request(1);
        again.container_id.clone_from(&request.container_id);
        let endpoint = agent.endpoints.create(&again).await.unwrap();
        let allocated = agent.ipam.endpoint_addresses(endpoint.record.id).len();
        assert_eq!(allocated, 2);
        assert_eq!(agent.endpoints.delete_container(&request.container_id).await.unwrap(), 0);
        assert!(matches!(
            agent.endpoints.delete_container(&request.container_id).await,
            Err(Refused::NotFound)
        ));
        assert!(world.datapath.endpoint(endpoint.record.id).is_none());
        assert!(agent.ipam.endpoint_addresses(endpoint.record.id).is_empty());
        assert!(world.files().is_empty() && agent.rows().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removals_at_once_all_end() {
    let world = World::new();
    let agent = Agent::start(&world).await;
    for _ in 0..200 {
        let endpoint = agent.endpoints.create(&agent.request(1)).await.unwrap();
        let remove = || {
            let (endpoints, id) = (agent.endpoints.clone(), endpoint.id());
            #[expect(clippy::disallowed_methods, reason = "a test without a hive")]
            tokio::spawn(async move { endpoints.remove(id).await })
        };
        let all = futures::future::join_all([remove(), remove(), remove()]);
        let removed = tokio::time::timeout(Duration::from_secs(10), all).await.expect("no removal hangs");
        assert!(removed.into_iter().all(|removed| removed.unwrap()));
        assert!(agent.rows().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_during_a_creation_leaves_no_address() {
    let world = World::new();
    let agent = Agent::start(&world).await;
    for _ in 0..200 {
        let request = agent.request(1);
        let (endpoints, container) = (agent.endpoints.clone(), request.container_id.clone());
        #[expect(clippy::disallowed_methods, reason = "a test without a hive")]
        let removal = tokio::spawn(async move {
            while endpoints.delete_container(&container).await.is_err() {
                tokio::task::yield_now().await;
            }
        });
        let both = async { drop((agent.endpoints.create(&request).await, removal.await.unwrap())) };
        tokio::time::timeout(Duration::from_secs(10), both).await.expect("nothing hangs");
        assert!(agent.rows().is_empty());
        assert_eq!((agent.ipam.count(ipam::Family::V4), agent.ipam.count(ipam::Family::V6)), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_creation_leaves_nothing() {
    let world = World::new();
    let agent = Agent::start(&world).await;
    let mut request = agent.request(1);
    request.id = 77;
    world.datapath.fail_attach(77);
    let error = agent.endpoints.create(&request).await.unwrap_err();
    let expected = "unable to regenerate endpoint: endpoint 77: there is no interface 101 (lxc1)";
    assert_eq!(error.to_string(), expected);
    assert!(world.files().is_empty() && agent.rows().is_empty() && world.map.prefixes().is_empty());

    let mut request = agent.request(2);
    request.addressing.as_mut().unwrap().ipv4_expiration_uuid = "wrong".into();
    let error = agent.endpoints.create(&request).await.unwrap_err();
    assert_eq!(error.to_string(), "UUID mismatch, not stopping expiration timer");
    assert!(world.files().is_empty() && agent.rows().is_empty());
    let allocated = [ipam::Family::V4, ipam::Family::V6].map(|family| agent.ipam.count(family));
    assert_eq!(allocated, [1, 1], "still of the request that has the token");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_creations_at_once_for_one_pod_one_fails_and_leaves_nothing() {
    let world = World::new();
    let agent = Agent::start(&world).await;
    for round in 0..100 {
        let mut request = agent.request(1);
        // With an id of the request, and with two of the agent's.
        request.id = if round % 2 == 0 { 77 } else { 0 };
        let (endpoints, same) = (agent.endpoints.clone(), request.clone());
        #[expect(clippy::disallowed_methods, reason = "a test without a hive")]
        let other = tokio::spawn(async move { endpoints.create(&same).await });
        let both = [agent.endpoints.create(&request).await, other.await.unwrap()];
        let [created] = &both.iter().filter_map(|created| created.as_ref().ok()).collect::<Vec<_>>()[..]
        else {
            panic!("{both:?}");
        };
        assert_eq!((agent.rows().len(), agent.ipam.endpoint_addresses(created.record.id).len()), (1, 2));
        assert!(agent.endpoints.remove(created.id()).await);
        assert!(agent.rows().is_empty() && world.files().is_empty());
        assert_eq!((agent.ipam.count(ipam::Family::V4), agent.ipam.count(ipam::Family::V6)), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_waiting_a_failure_shows_in_the_log_and_heals() {
    let world = World::new();
    let agent = Agent::start(&world).await;
    let mut request = agent.request(1);
    (request.id, request.sync_build_endpoint) = (77, false);
    world.datapath.fail_attach(77);
    agent.endpoints.create(&request).await.unwrap();
    let table = agent.endpoints.table();
    let failing = table.wait_for(Endpoint::by_id(EndpointId(77)), |e| e.is_failing()).await;
    assert_eq!(failing.state, State::Ready, "as in the original");
    world.datapath.heal(77);
    let healed = table.wait_for(Endpoint::by_id(EndpointId(77)), |e| e.status.is_done()).await;
    assert!(!healed.is_failing());
    assert!(world.datapath.is_up(77));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_addresses_and_labels_outlive_the_agent() {
    let world = World::new();
    let (rows, files) = {
        let agent = Agent::start(&world).await;
        for n in 1..=5 {
            let mut request = agent.request(n);
            request.labels = vec![format!("k8s:app=p{n}")];
            agent.endpoints.create(&request).await.unwrap();
        }
        (agent.rows(), world.files())
    };
    let agent = Agent::start(&world).await;
    assert_eq!(agent.rows(), rows);
    assert_eq!(world.files(), files);
    assert_eq!(agent.outcome.restored, 6, "the host's endpoint, too");
    for n in 1..=5 {
        let endpoint = agent.endpoints.find(&pod(n)).unwrap();
        let owner = agent.ipam.status(true).allocations[&endpoint.record.ipv4.unwrap().to_string()].clone();
        assert_eq!(owner, format!("default/p{n} [restored]"));
    }
    let new = agent.endpoints.create(&agent.request(6)).await.unwrap();
    assert_eq!(agent.rows().len(), 6);
    assert!(!rows.iter().any(|row| row.contains(&format!("\"ID\":{},", new.record.id))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_without_its_interface_is_cleaned_up() {
    let mut world = World::new();
    {
        let agent = Agent::start(&world).await;
        agent.endpoints.create(&agent.request(1)).await.unwrap();
        agent.endpoints.create(&agent.request(2)).await.unwrap();
    }
    world.links.remove("lxc1");
    let agent = Agent::start(&world).await;
    assert_eq!((agent.outcome.restored, agent.outcome.failed), (2, 1));
    assert!(agent.endpoints.find(&pod(1)).is_none());
    assert!(agent.endpoints.find(&pod(2)).is_some());
    assert_eq!(world.files().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interfaces_that_stay_away_end_their_endpoints() {
    let mut world = World::new();
    let agent = Agent::start(&world).await;
    agent.endpoints.create(&agent.request(1)).await.unwrap();
    agent.endpoints.create(&agent.request(2)).await.unwrap();
    world.links.remove("lxc1");
    let mut sweep = Sweep::default();
    sweep.run(&agent.endpoints, &world.links).await;
    assert_eq!(agent.rows().len(), 2, "the plugin may be about to say so itself");
    sweep.run(&agent.endpoints, &world.links).await;
    assert_eq!(agent.rows().len(), 1);
    assert!(agent.endpoints.find(&pod(2)).is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_deletions_are_served() {
    let world = World::new();
    let agent = Agent::start(&world).await;
    for n in 1..=3 {
        agent.endpoints.create(&agent.request(n)).await.unwrap();
    }
    let run = tempfile::tempdir().unwrap();
    let folder = run.path().join("deleteQueue");
    std::fs::create_dir(&folder).unwrap();
    let second = agent.endpoints.find(&pod(2)).unwrap().record.id;
    for (name, text) in [
        ("a.delete", r#"{"container-id":"cid-p1"}"#.to_owned()),
        ("b.delete", second.to_string()),
        ("c.delete", r#"{"container-id":"nobody"}"#.to_owned()),
        ("d.delete", "{broken".to_owned()),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let queue = DeletionQueue::new(run.path());
    assert_eq!(drain(&agent.endpoints, &queue).await.unwrap(), 4);
    assert!(queue.read().unwrap().is_empty());
    assert_eq!(agent.rows().len(), 1);
    assert!(agent.endpoints.find(&pod(3)).is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_at_once() {
    let world = World::new();
    let agent = Agent::start(&world).await;
    let requests: Vec<_> = (1..=50).map(|n| agent.request(n)).collect();
    let made =
        futures::future::join_all(requests.iter().map(|request| agent.endpoints.create(request))).await;
    let mut ids: Vec<u16> = made.into_iter().map(|endpoint| endpoint.unwrap().record.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 50);
    assert_eq!(world.files().len(), 50);
    assert_eq!(world.map.prefixes().len(), 100);
    assert!(ids.iter().all(|&id| world.datapath.is_up(id)));
}

#[test]
fn the_datapath_gets_what_the_record_says() {
    let record: Record = serde_json::from_str(include_str!("../../tests/samples/ep_config.json")).unwrap();
    let endpoint = crate::reconcile::targets::datapath(&record);
    assert_eq!((endpoint.id, endpoint.ifindex, endpoint.identity), (2386, 9, 6592));
    assert_eq!(endpoint.node_mac, [0xbe, 0x5e, 0x28, 0x23, 0xab, 0xa6]);
    assert_eq!(endpoint.flags, 0);
    let mut checked = record.clone();
    checked.options.map = checked.options.map.with("SourceIPVerification", true);
    assert_eq!(crate::reconcile::targets::datapath(&checked).flags, datapath_abi::ep_flag::SOURCE_CHECK);
}

/// Returns the record of the health endpoint on `lxc9`, with addresses that the allocator has given to it.
fn health(agent: &Agent, before: &[IpAddr]) -> Record {
    let mut record = Record {
        if_name: "lxc9".into(),
        if_index: 109,
        sec_label: Some(SecurityLabel::reserved(4, "health")),
        op_labels: OpLabels {
            orchestration_identity: SecurityLabel::reserved(4, "health").labels,
            ..OpLabels::default()
        },
        ..Record::default()
    };
    for family in [Family::V4, Family::V6] {
        let before = before.iter().copied().find(|address| Family::of(*address) == family);
        match agent.ipam.allocate_own("health", family, before).unwrap() {
            IpAddr::V4(address) => record.ipv4 = Some(address),
            IpAddr::V6(address) => record.ipv6 = Some(address),
        }
    }
    record
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_health_endpoint_is_created_again_with_its_addresses() {
    let world = World::new();
    let agent = Agent::start(&world).await;
    let wanted = health(&agent, &[]);
    let addresses: Vec<IpAddr> = wanted.addresses().collect();
    let endpoint = agent.endpoints.create_own(wanted).await.unwrap();
    assert_eq!((endpoint.state, endpoint.applied_identity), (State::Ready, 4));
    assert!(world.datapath.is_up(endpoint.record.id));
    assert_eq!(world.map.identity(&ipv4(&endpoint)), Some(4));
    let owners = |agent: &Agent| agent.ipam.status(true).allocations.values().cloned().collect::<Vec<_>>();
    assert_eq!(owners(&agent), ["health", "health"]);
    let local = Name::Local(endpoint.id());
    assert!(matches!(agent.endpoints.delete(&local).await, Err(Refused::Invalid(Invalid::Reserved))));
    assert!(agent.ipam.release(addresses[0], "default").is_err(), "the endpoint has it");

    // Killed: the next start discards the record, and knows the addresses.
    drop(agent);
    let agent = Agent::start(&world).await;
    assert!(agent.rows().is_empty() && world.files().is_empty() && owners(&agent).is_empty());
    assert!(world.datapath.endpoint(endpoint.record.id).is_none(), "pruned");
    assert_eq!((&agent.outcome.health, agent.outcome.failed), (&addresses, 0));
    let again = agent.endpoints.create_own(health(&agent, &addresses)).await.unwrap();
    assert_eq!(again.record.addresses().collect::<Vec<_>>(), addresses);

    assert!(agent.endpoints.remove_own(again.id()).await);
    assert!(agent.rows().is_empty() && world.files().is_empty() && owners(&agent).is_empty());
    assert!(world.datapath.endpoint(again.record.id).is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_health_endpoint_that_cannot_be_created_leaves_nothing() {
    let world = World::new();
    let agent = Agent::start(&world).await;
    let pod = agent.endpoints.create(&agent.request(9)).await.unwrap();
    // The interface is the pod's.
    assert!(agent.endpoints.create_own(health(&agent, &[])).await.is_err());
    let allocations = agent.ipam.status(true).allocations;
    assert!(
        allocations.len() == 2 && allocations.values().all(|owner| owner == "default/p9"),
        "{allocations:?}"
    );
    // The address is the pod's.
    let stolen = Record { if_index: 110, ipv4: pod.record.ipv4, ..health(&agent, &[]) };
    assert!(agent.endpoints.create_own(stolen).await.is_err());
    assert_eq!(agent.ipam.endpoint_addresses(pod.record.id).len(), 2, "the pod keeps its addresses");
    assert_eq!(agent.rows().len(), 1);
}
