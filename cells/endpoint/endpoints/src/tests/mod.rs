//! Endpoints with fakes of datapath and ipcache, outside of a hive.

mod cluster;
mod crash;
mod identity;
mod life;
mod recreated;
mod whole;
mod wire;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use ::identity::Identity;
use ::identity::testing::FakeCluster;
use api_models::{AddressPair, EndpointChangeRequest};
use datapath_api::Datapath;
use datapath_api::testing::{Call, FakeDatapath};
use hive::prelude::*;
use ipam::{Ipam, Node};
use ipcache::testing::FakeMap;
use k8s_tables::Row;
use k8s_tables::core::{Namespace, Pod};
use policy::testing::FakePolicies;
use statedb::{Db, Obj, RwTable, Table};

use crate::Endpoint;
use crate::links::{Link, Links};
use crate::metrics::Counts;
use crate::model::options::{Defaults, Options};
use crate::pod_metadata::Objects;
use crate::reconcile::regeneration::{Regenerator, builder};
use crate::reconcile::targets::Targets;
use crate::requests::fence::fence;
use crate::requests::service::{Context, Endpoints};
use crate::restore::files::StateFolder;
use crate::restore::finish::regenerate;
use crate::restore::host;
use crate::restore::start::{Outcome, PreviousRun};
use labels::Filter;

/// State that survives an agent: files, kernel, links.
struct World {
    folder: tempfile::TempDir,
    datapath: Arc<FakeDatapath>,
    map: Arc<FakeMap>,
    links: Links,
    /// Threads on which endpoints were described.
    describers: Arc<parking_lot::Mutex<HashSet<ThreadId>>>,
    /// The API server.
    api: Option<Arc<dyn k8s_tables::Api>>,
    /// Whether identities are a cluster's.
    in_cluster: bool,
    /// The longest delay of identities of changed labels.
    identity_max_jitter: Duration,
    counts: Counts,
}

impl World {
    fn new() -> World {
        let links = (1..=60).map(|n| (format!("lxc{n}"), Link { index: 100 + n, ..Link::default() }));
        let host = Link { index: 2, mac: "0a:00:00:00:00:02".parse().ok(), peer: 3 };
        World {
            folder: tempfile::tempdir().unwrap(),
            datapath: Arc::new(FakeDatapath::new()),
            map: Arc::new(FakeMap::default()),
            links: links.chain([("cilium_host".to_owned(), host)]).collect(),
            describers: Arc::default(),
            api: None,
            in_cluster: false,
            identity_max_jitter: Duration::ZERO,
            counts: Counts::default(),
        }
    }

    fn state(&self) -> &Path {
        self.folder.path()
    }

    /// Returns every file of the state folder with its content, except for the host's endpoint.
    fn files(&self) -> HashMap<String, String> {
        let mut files = HashMap::new();
        for found in StateFolder::new(self.state()).scan().unwrap() {
            if let Some(Ok(record)) = &found.record
                && !record.is_host()
            {
                files.insert(found.directory, serde_json::to_string(record).unwrap());
            }
        }
        files
    }
}

/// The running endpoint cells of an agent.
struct Agent {
    endpoints: Endpoints,
    ipam: Ipam,
    numbers: Table<Identity>,
    /// The cluster, if identities are one's.
    cluster: Option<FakeCluster>,
    policies: FakePolicies,
    pods: RwTable<Row<Pod>>,
    namespaces: RwTable<Row<Namespace>>,
    outcome: Outcome,
    jobs: Jobs,
}

/// The hive of an agent's jobs. It ends like a killed agent: only state on disk and in the kernel survives.
struct Jobs(Option<TestHive>);

impl Jobs {
    async fn start() -> (Jobs, JobGroup) {
        let (give, take) = std::sync::mpsc::channel();
        let lends = invoke(move |jobs: JobGroup| drop(give.send(jobs)));
        let mut hive = TestHive::new(module("endpoints", "Lends its jobs", [lends]));
        hive.start().await;
        (Jobs(Some(hive)), take.recv().unwrap())
    }

    async fn until(&self, what: &str, is_so: impl FnMut() -> bool) {
        self.0.as_ref().unwrap().until(what, is_so).await;
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        if let Some(hive) = self.0.take() {
            hive.kill();
        }
    }
}

impl Agent {
    async fn start(world: &World) -> Agent {
        Agent::start_with(world, world.datapath.clone()).await
    }

    async fn start_with(world: &World, datapath: Arc<dyn Datapath>) -> Agent {
        Agent::start_by(world, datapath, FakePolicies::realizing).await
    }

    async fn start_by(
        world: &World,
        datapath: Arc<dyn Datapath>,
        policies: fn(&Db) -> FakePolicies,
    ) -> Agent {
        let db = Db::new();
        let (identities, cluster, numbers) = match world.in_cluster {
            true => {
                let (identities, cluster, numbers) = ::identity::testing::of_cluster(&db);
                (identities, Some(cluster), numbers)
            }
            false => {
                let (identities, _, numbers) = ::identity::testing::of(&db, Some(world.state()));
                (identities, None, numbers)
            }
        };
        let policies = policies(&db);
        let (pods, namespaces): (RwTable<Row<Pod>>, RwTable<Row<Namespace>>) =
            (db.table().unwrap(), db.table().unwrap());
        let objects = Objects {
            pods: Arc::new(pods.reader()),
            namespaces: Arc::new(namespaces.reader()),
            sources: None,
            api: world.api.clone(),
            partial: Arc::new([String::new()].into()),
            cluster: Arc::new({
                let describers = world.describers.clone();
                move || {
                    describers.lock().insert(std::thread::current().id());
                    "default".to_owned()
                }
            }),
            counts: world.counts.clone(),
        };
        let filter = Arc::new(Filter::default());
        let (v4, v6) = ("10.244.0.0/24".parse().unwrap(), "fd00::/96".parse().unwrap());
        // The router is outside of the range, so that no test can get its address by chance.
        let node =
            Node { router_ipv4: Some([192, 0, 2, 200].into()), ..Node::with_ranges(Some(v4), Some(v6)) };
        let ipam = Ipam::new(db.table().unwrap(), move || node.clone());
        let (ipcache, _, mapper) = ipcache::testing::ipcache(db.table().unwrap(), world.map.clone());
        let table: RwTable<Endpoint> = db.table().unwrap();
        let (initializer, _) = table.transact(|txn| txn.register_initializer("restore"));
        let files = StateFolder::new(world.state());
        let previous = PreviousRun {
            table: table.clone(),
            files: files.clone(),
            ipam: ipam.clone(),
            identities: identities.clone(),
            filter: filter.clone(),
        };
        let outcome = previous.restore(&world.links, None, Vec::new).unwrap();
        let (gate, fence) = fence();
        let context = Context {
            identities: identities.clone(),
            policies: policies.policies(),
            datapath: datapath.clone(),
            filter,
            identity_max_jitter: world.identity_max_jitter,
            identity_allocation_timeout: Duration::from_secs(120),
            objects: Some(objects.clone()),
            memory: Arc::default(),
            uuids: Default::default(),
        };
        let endpoints = Endpoints::new(table.clone(), ipam.clone(), fence, Defaults::default(), context);
        let targets = Targets {
            datapath: datapath.clone(),
            ipcache,
            identities: identities.clone(),
            policies: policies.policies(),
            ipam: ipam.clone(),
            files,
            host_ip: Arc::new(|address: IpAddr| {
                address.is_ipv4().then_some(Ipv4Addr::new(10, 99, 0, 1).into())
            }),
        };
        let ops = Regenerator { table: table.reader(), targets, counts: Default::default() };
        let initializer_table = table.clone();
        let (_, reconciler) = builder(table, ops).build();
        let follower = endpoints.clone();
        let (running, jobs) = Jobs::start().await;
        jobs.one_shot("ipcache", |_| async {
            mapper.run().await;
            Ok(())
        })
        .add();
        jobs.one_shot("reconcile", |_| async {
            reconciler.run().await;
            Ok(())
        })
        .add();
        jobs.one_shot("pods", |_| async move {
            crate::requests::pods::follow(&follower, &objects).await;
            Ok(())
        })
        .add();
        host::upsert(&endpoints, &world.links, &Options::default());
        let applied =
            datapath.restored().unwrap().into_iter().map(|known| (known.id, known.identity)).collect();
        regenerate(&endpoints, &applied).await;
        let prunes = || world.datapath.calls().iter().filter(|call| matches!(call, Call::Prune(_))).count();
        let before = prunes();
        initializer_table.transact(|txn| initializer.done(txn));
        running.until("what is not known is removed", || prunes() > before).await;
        gate.open();
        Agent { endpoints, ipam, numbers, cluster, policies, pods, namespaces, outcome, jobs: running }
    }

    /// Returns the CNI plugin's request for pod `n`, with addresses from the allocator.
    fn request(&self, n: u16) -> EndpointChangeRequest {
        let owner = format!("default/p{n}");
        let response = self.ipam.allocate(&owner, None, true).unwrap();
        let mut addressing = AddressPair::default();
        for row in response {
            let ipam::Lease::Expiring { uuid, .. } = row.lease else { panic!("{row:?}") };
            let (address, uuid) = (row.address.to_string(), uuid.to_string());
            match row.address {
                IpAddr::V4(_) => (addressing.ipv4, addressing.ipv4_expiration_uuid) = (address, uuid),
                IpAddr::V6(_) => (addressing.ipv6, addressing.ipv6_expiration_uuid) = (address, uuid),
            }
        }
        (addressing.ipv4_pool_name, addressing.ipv6_pool_name) = ("default".into(), "default".into());
        EndpointChangeRequest {
            addressing: Some(addressing),
            container_id: format!("cid-p{n}"),
            container_interface_name: "eth0".into(),
            container_netns_path: format!("/var/run/cilium/netns/p{n}"),
            host_mac: "0a:00:00:00:00:01".into(),
            interface_index: 100 + i64::from(n),
            interface_name: format!("lxc{n}"),
            k8s_namespace: "default".into(),
            k8s_pod_name: format!("p{n}"),
            mac: "0a:00:00:00:00:02".into(),
            netns_cookie: "4325".into(),
            state: api_models::Required("waiting-for-identity".into()),
            sync_build_endpoint: true,
            ..EndpointChangeRequest::default()
        }
    }

    /// Returns all endpoints but the host's, as text without times.
    fn rows(&self) -> Vec<String> {
        let table = self.endpoints.table();
        let snapshot = table.snapshot();
        let rows = table.all(&snapshot).filter(|row| !row.record.is_host());
        rows.map(|row| format!("{} {}", row.state, serde_json::to_string(&row.record).unwrap())).collect()
    }
}
