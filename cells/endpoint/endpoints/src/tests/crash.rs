//! An agent that is killed at every step of creating and removing an endpoint, and the start after that.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use datapath_abi::{PolicyEntry, PolicyKey, PolicyStatsKey, PolicyStatsValue};
use datapath_api::{DatapathError, EndpointDatapath, PolicyWrite, Pruned};
use futures::future::BoxFuture;

use super::*;
use crate::model::id::Name;

/// Where the agent stops: before or after the n-th call.
#[derive(Debug, Clone, Copy)]
struct Stop {
    call: usize,
    after: bool,
}

/// A datapath that no longer answers from a certain point on, as if the agent had been killed there.
struct Fused {
    inner: Arc<FakeDatapath>,
    stop: Stop,
    calls: AtomicUsize,
}

impl Fused {
    fn step<T>(&self, work: impl FnOnce() -> Result<T, DatapathError>) -> Result<T, DatapathError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if call < self.stop.call {
            return work();
        }
        if call == self.stop.call && self.stop.after {
            work()?;
        }
        Err(DatapathError::NotReady)
    }
}

impl Datapath for Fused {
    fn ready(&self) -> BoxFuture<'static, ()> {
        self.inner.ready()
    }

    fn attach(&self, endpoint: &EndpointDatapath) -> Result<(), DatapathError> {
        self.step(|| self.inner.attach(endpoint))
    }

    fn up(&self, endpoint: &EndpointDatapath) -> Result<(), DatapathError> {
        self.step(|| self.inner.up(endpoint))
    }

    fn detach(&self, id: u16) -> Result<bool, DatapathError> {
        self.step(|| self.inner.detach(id))
    }

    fn expect_host(&self, id: u16) {
        self.inner.expect_host(id);
    }

    fn attach_host(&self, id: u16, flags: u32) -> Result<(), DatapathError> {
        self.inner.attach_host(id, flags)
    }

    fn policy_rows(&self, id: u16) -> Result<Vec<(PolicyKey, PolicyEntry)>, DatapathError> {
        self.inner.policy_rows(id)
    }

    fn policy_counts(&self) -> Result<Vec<(PolicyStatsKey, PolicyStatsValue)>, DatapathError> {
        self.inner.policy_counts()
    }

    fn write_policy(&self, id: u16, writes: &[PolicyWrite]) -> Result<(), DatapathError> {
        self.inner.write_policy(id, writes)
    }

    fn swap_policy(&self, id: u16, rows: &[(PolicyKey, PolicyEntry)]) -> Result<(), DatapathError> {
        self.inner.swap_policy(id, rows)
    }

    fn policy_capacity(&self) -> usize {
        self.inner.policy_capacity()
    }

    fn icmp_rules(&self) -> bool {
        self.inner.icmp_rules()
    }

    fn host_firewall(&self) -> bool {
        self.inner.host_firewall()
    }

    fn restored(&self) -> Result<Vec<EndpointDatapath>, DatapathError> {
        self.inner.restored()
    }

    fn prune(&self, known: &BTreeSet<u16>) -> Result<Pruned, DatapathError> {
        self.inner.prune(known)
    }
}

fn stops() -> impl Iterator<Item = Stop> {
    (0..3).flat_map(|call| [false, true].map(|after| Stop { call, after }))
}

/// Asserts that after a start all state of endpoints is consistent: rows, files, kernel, ipcache, addresses.
fn check(world: &World, agent: &Agent, stop: Stop) {
    let table = agent.endpoints.table();
    let snapshot = table.snapshot();
    let rows: Vec<_> = table.all(&snapshot).filter(|row| !row.record.is_host()).collect();
    assert_eq!(world.files().len(), rows.len(), "{stop:?}");
    for row in &rows {
        assert!(row.status.is_done(), "{stop:?}: {row:?}");
        assert!(world.datapath.is_up(row.record.id), "{stop:?}");
        for address in row.record.addresses() {
            let prefix = ipnetwork::IpNetwork::from(address).to_string();
            assert_eq!(world.map.identity(&prefix), Some(5), "{stop:?}");
        }
        assert_eq!(agent.ipam.endpoint_addresses(row.record.id).len(), 2, "{stop:?}");
    }
    let known: BTreeSet<u16> = rows.iter().map(|row| row.record.id).collect();
    let kernel: BTreeSet<u16> = world.datapath.restored().unwrap().into_iter().map(|e| e.id).collect();
    assert_eq!(kernel, known, "{stop:?}: the kernel has no endpoint without a record");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_while_making() {
    for stop in stops() {
        let world = World::new();
        {
            let agent = Agent::start(&world).await;
            agent.endpoints.create(&agent.request(1)).await.unwrap();
        }
        let fused = Fused {
            inner: world.datapath.clone(),
            stop: Stop { call: stop.call + 2, ..stop },
            calls: AtomicUsize::new(0),
        };
        {
            let agent = Agent::start_with(&world, Arc::new(fused)).await;
            let mut request = agent.request(2);
            request.sync_build_endpoint = false;
            let id = agent.endpoints.create(&request).await.unwrap().id();
            let table = agent.endpoints.table();
            table.wait_for(Endpoint::by_id(id), |endpoint| !endpoint.status.is_pending()).await;
        }
        let agent = Agent::start(&world).await;
        check(&world, &agent, stop);
        assert_eq!(agent.rows().len(), 2, "{stop:?}: what was asked for is finished");
        // The plugin got no response, so the runtime deletes and retries.
        assert_eq!(agent.endpoints.delete_container("cid-p2").await.unwrap(), 0);
        agent.endpoints.create(&agent.request(2)).await.unwrap();
        check(&world, &agent, stop);
    }
}

/// Killed before and after the settings entry with another identity is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_while_changing_the_identity() {
    for after in [false, true] {
        let stop = Stop { call: 2, after };
        let world = World::new();
        let first = {
            let agent = Agent::start(&world).await;
            let endpoint = agent.endpoints.create(&agent.request(1)).await.unwrap();
            agent
                .endpoints
                .relabel(&"pod-name:default/p1".parse().unwrap(), &["k8s:app=a".into()])
                .await
                .unwrap();
            agent.endpoints.find(&Name::Local(endpoint.id())).unwrap()
        };
        let (id, old) = (first.id(), first.record.identity());
        let fused = Fused { inner: world.datapath.clone(), stop, calls: AtomicUsize::new(0) };
        let new = {
            let agent = Agent::start_with(&world, Arc::new(fused)).await;
            let failed = agent.endpoints.relabel(&Name::Local(id), &["k8s:app=b".into()]).await;
            assert!(failed.is_err(), "{stop:?}");
            agent.endpoints.find(&Name::Local(id)).unwrap().record.identity()
        };
        assert_ne!(old, new);
        let packets = world.datapath.endpoint(id.0).unwrap().identity;
        assert_eq!(packets, if after { new } else { old }, "{stop:?}");
        let agent = Agent::start(&world).await;
        let table = agent.endpoints.table();
        let row = table.wait_for(Endpoint::by_id(id), |row| row.status.is_done()).await;
        assert_eq!(
            (row.record.identity(), row.applied_identity),
            (new, new),
            "{stop:?}: what is on disk is finished"
        );
        assert_eq!(world.datapath.endpoint(id.0).unwrap().identity, new);
        let prefix = ipnetwork::IpNetwork::from(row.record.addresses().next().unwrap()).to_string();
        assert_eq!(world.map.identity(&prefix), Some(new));
        let snapshot = agent.numbers.snapshot();
        let held =
            |id| agent.numbers.get(&snapshot, Identity::by_id(id)).map(|row| row.users.names().count());
        assert_eq!(
            (held(old), held(new)),
            (Some(0), Some(1)),
            "{stop:?}: the old number waits with its labels"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_while_removing() {
    for after in [false, true] {
        let stop = Stop { call: 4, after };
        let world = World::new();
        {
            let agent = Agent::start(&world).await;
            agent.endpoints.create(&agent.request(1)).await.unwrap();
            agent.endpoints.create(&agent.request(2)).await.unwrap();
        }
        let before = world.files();
        let fused = Fused { inner: world.datapath.clone(), stop, calls: AtomicUsize::new(0) };
        {
            let agent = Agent::start_with(&world, Arc::new(fused)).await;
            let name: Name = "pod-name:default/p2".parse().unwrap();
            assert_eq!(agent.endpoints.delete(&name).await.unwrap(), 1, "one step failed");
        }
        let agent = Agent::start(&world).await;
        check(&world, &agent, stop);
        assert_eq!(world.files(), before, "{stop:?}: no deletion was confirmed, so the endpoint exists");
        assert_eq!(agent.endpoints.delete_container("cid-p2").await.unwrap(), 0);
        check(&world, &agent, stop);
        assert_eq!(agent.rows().len(), 1);
    }
}
