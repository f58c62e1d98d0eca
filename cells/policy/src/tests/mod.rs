//! The cell in a hive, its neighbours in memory.

mod life;
mod prefixes;
mod surfaces;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::{Page, Route};
use hive::prelude::*;
use identity::{Identities, Identity, Prefixes};
use ipcache::IpcacheWriter;
use ipcache::testing::FakeMap;
use k8s::{Change, Namespace, Object, Objects, Pod, PolicyKind, PolicyObject, SourceWriter};
use labels::{LabelArray, Labels};
use loader::testing::FakeDatapath;
use loader::{Datapath, EndpointDatapath, LoaderConfig};
use local_node::LocalNodeConfig;
use maps::FamilyConfig;
use metrics::Metrics;
use runtime_options::RuntimeOption;
use serde_json::{Value, json};
use statedb::{Db, RwTable, Table};

use crate::endpoint::EndpointPolicy;
use crate::object::PolicyStatus;
use crate::rows::{Rows, Verdict};
use crate::{NamedPorts, Policies, Subject};

const TCP: u32 = 6 << 16;

/// The neighbours of the cell.
struct World {
    db: Arc<Db>,
    datapath: Arc<FakeDatapath>,
    ipcache: Arc<FakeMap>,
    identities: Identities,
    prefixes: Arc<Prefixes>,
    folder: SourceWriter,
    options: RwTable<RuntimeOption>,
    metrics: Arc<Metrics>,
    identity_table: Arc<Table<Identity>>,
    objects: Arc<Table<PolicyObject>>,
}

impl World {
    fn new() -> World {
        let db = Arc::new(Db::new());
        let (identities, prefixes, identity_table) = identity::testing::of(&db, None);
        let policies = Arc::new(db.table::<PolicyObject>().unwrap());
        let objects = Objects::new(
            Arc::new(db.table::<Namespace>().unwrap()),
            Arc::new(db.table::<Pod>().unwrap()),
            policies.clone(),
        );
        World {
            datapath: Arc::new(FakeDatapath::new()),
            ipcache: Arc::new(FakeMap::default()),
            identities,
            prefixes: Arc::new(prefixes),
            folder: objects.source("cluster-folder"),
            options: db.table().unwrap(),
            metrics: Arc::new(Metrics::default()),
            identity_table: Arc::new(identity_table),
            objects: Arc::new(policies.reader()),
            db,
        }
    }

    /// The cell among these neighbours, started.
    async fn start(&self) -> Agent {
        let ipcache_map: Arc<dyn ipcache::IpcacheMap> = self.ipcache.clone();
        let datapath: Arc<dyn Datapath> = self.datapath.clone();
        let options = Arc::new(self.options.reader());
        let entries = self.db.table().unwrap();
        let make_ipcache = move |jobs: JobGroup| {
            let (writer, table, reconciler) = ipcache::testing::ipcache(entries.clone(), ipcache_map.clone());
            jobs.one_shot("ipcache", move |cx: JobCx| async move {
                reconciler.run_until(async move { cx.cancelled().await }).await;
                Ok(())
            });
            (Arc::new(writer), Arc::new(table))
        };
        let surfaces = Arc::new(Mutex::new((Vec::new(), Vec::new())));
        let keep = surfaces.clone();
        let neighbours = vec![
            supply(self.db.clone()),
            supply(self.metrics.clone()),
            supply(datapath),
            supply(options),
            supply(self.prefixes.clone()),
            supply(self.identity_table.clone()),
            supply(self.objects.clone()),
            config::<LocalNodeConfig>(),
            config::<FamilyConfig>(),
            config::<LoaderConfig>(),
            module("ipcache", "An ipcache", [provide(make_ipcache)]),
            crate::cell(),
            invoke(|_: Arc<Policies>, _: Arc<IpcacheWriter>, _: Arc<Table<ipcache::Entry>>| ()),
            invoke(|_: Arc<Table<EndpointPolicy>>, _: Arc<Table<PolicyStatus>>| ()),
            invoke(move |routes: Group<Route>, pages: Group<Page>| {
                *keep.lock().unwrap() = (routes.to_vec(), pages.to_vec());
            }),
        ];
        let mut hive = TestHive::new(neighbours);
        hive.start().await;
        let policies = (*hive.get::<Policies>()).clone();
        Agent { hive, policies, surfaces }
    }

    /// Policies by name and spec; `Null` deletes. `complete`: the folder has been read once.
    fn write(&mut self, policies: &[(&str, Value)], complete: bool) {
        let change = |(name, spec): &(&str, Value)| {
            let manifest = json!({"metadata": {"name": name, "namespace": "shop"}, "spec": spec});
            match spec.is_null() {
                true => {
                    let manifest = json!({"metadata": {"name": name, "namespace": "shop"}, "spec": {}});
                    let object = PolicyObject::decode(PolicyKind::CiliumNetworkPolicy, &manifest).unwrap();
                    Change::Delete(Object::Policy(object).key())
                }
                false => {
                    let object = PolicyObject::decode(PolicyKind::CiliumNetworkPolicy, &manifest).unwrap();
                    let object = PolicyObject { origin: format!("{name}.yaml, document 1"), ..object };
                    Change::Set(Arc::new(Object::Policy(object)))
                }
            }
        };
        self.folder.apply(policies.iter().map(change).collect(), complete);
    }

    /// A pod that the datapath knows, as its identity and subject.
    fn pod(&self, endpoint: u16, app: &str) -> Subject {
        let attached =
            EndpointDatapath { id: endpoint, ifindex: endpoint.into(), ..EndpointDatapath::default() };
        self.datapath.attach(&attached).unwrap();
        self.subject(endpoint, app)
    }

    fn subject(&self, endpoint: u16, app: &str) -> Subject {
        let labels = labels(app);
        let identity = self.identities.allocate(&labels, &format!("endpoint/{endpoint}")).unwrap();
        let labels = LabelArray::from(&labels);
        Subject { endpoint, identity, labels, named_ports: NamedPorts::default() }
    }

    fn rows(&self, endpoint: u16) -> Rows {
        self.datapath.policy_rows(endpoint).unwrap().into_iter().collect()
    }

    /// What the map says of a packet to the endpoint from a peer.
    fn ingress(&self, endpoint: u16, peer: u32, l4: u32) -> bool {
        self.rows(endpoint).verdict(false, peer, l4).passes()
    }
}

/// The cell, running.
struct Agent {
    hive: TestHive,
    policies: Policies,
    surfaces: Arc<Mutex<(Vec<Route>, Vec<Page>)>>,
}

impl Agent {
    fn row(&self, endpoint: u16) -> EndpointPolicy {
        let table = self.policies.table();
        let snapshot = table.snapshot();
        (**table.get(&snapshot, EndpointPolicy::by_endpoint(endpoint)).unwrap()).clone()
    }

    fn statuses(&self) -> Vec<PolicyStatus> {
        let table = self.hive.get::<Table<PolicyStatus>>();
        let snapshot = table.snapshot();
        table.all(&snapshot).map(|row| (**row).clone()).collect()
    }
}

fn labels(app: &str) -> Labels {
    let namespace = "k8s:io.kubernetes.pod.namespace=shop";
    Labels::parse([&*format!("k8s:app={app}"), namespace, "k8s:io.cilium.k8s.policy.cluster=default"])
}

/// To pods of an app, from pods of another, on a port.
fn allow(to: &str, from: &str, port: u16) -> Value {
    json!({
        "endpointSelector": {"matchLabels": {"app": to}},
        "ingress": [{
            "fromEndpoints": [{"matchLabels": {"app": from}}],
            "toPorts": [{"ports": [{"port": port.to_string(), "protocol": "TCP"}]}],
        }],
    })
}

/// To pods of an app, from prefixes.
fn allow_cidr(to: &str, prefixes: &[&str]) -> Value {
    json!({"endpointSelector": {"matchLabels": {"app": to}}, "ingress": [{"fromCIDR": prefixes}]})
}

async fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(10), "waited for {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
