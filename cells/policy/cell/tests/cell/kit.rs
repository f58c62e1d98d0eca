//! The cell in a hive, with its dependencies in memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use api::{Page, Route};
use datapath_api::testing::FakeDatapath;
use datapath_api::{Datapath, EndpointDatapath};
use hive::prelude::*;
use identity::{Identities, Identity, Prefixes};
use ipcache::IpcacheWriter;
use ipcache::testing::FakeMap;
use k8s_tables::cilium::CiliumCIDRGroup;
use k8s_tables::core::{ClusterNetworkPolicy, NetworkPolicy};
use k8s_tables::{PolicyKind, PolicyObject, Row, decode};
use labels::{LabelArray, Labels};
use loadbalancer::{Backend, Service};
use local_node::{LocalNodeConfig, StateConfig};
use maps::FamilyConfig;
use metrics::Metrics;
use runtime_options::RuntimeOption;
use serde_json::{Value, json};
use statedb::{Db, Initializer, RwTable, Table};

use policy::{EndpointPolicy, NamedPorts, Policies, PolicyLog, PolicyStatus, Rows, Subject};

pub(crate) const TCP: u32 = 6 << 16;

/// The dependencies of the cell.
pub(crate) struct World {
    pub(crate) db: Arc<Db>,
    pub(crate) datapath: Arc<dyn Datapath>,
    pub(crate) fake: Arc<FakeDatapath>,
    pub(crate) ipcache: Arc<FakeMap>,
    pub(crate) identities: Identities,
    pub(crate) prefixes: Arc<Prefixes>,
    folder: Arc<RwTable<PolicyObject>>,
    initializer: Option<Initializer<PolicyObject>>,
    pub(crate) options: RwTable<RuntimeOption>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) identity_table: Arc<Table<Identity>>,
    pub(crate) objects: Arc<Table<PolicyObject>>,
    network_policies: RwTable<Row<NetworkPolicy>>,
    cluster_network_policies: RwTable<Row<ClusterNetworkPolicy>>,
    cidr_groups: RwTable<Row<CiliumCIDRGroup>>,
    pub(crate) services: RwTable<Service>,
    pub(crate) backends: RwTable<Backend>,
}

impl World {
    pub(crate) fn new() -> World {
        let fake = Arc::new(FakeDatapath::new());
        World { fake: fake.clone(), ..World::of(fake) }
    }

    /// Returns a world with another datapath than the one in memory.
    pub(crate) fn of(datapath: Arc<dyn Datapath>) -> World {
        World::with(datapath, None)
    }

    /// Returns a world with identities of prefixes in a file of this folder.
    pub(crate) fn with(datapath: Arc<dyn Datapath>, folder: Option<&std::path::Path>) -> World {
        let db = Arc::new(Db::new());
        let (identities, prefixes, identity_table) = identity::testing::of(&db, folder);
        let policies = Arc::new(db.table::<PolicyObject>().unwrap());
        let (initializer, _) = policies.transact(|w| w.register_initializer("cluster-folder"));
        World {
            datapath,
            fake: Arc::default(),
            ipcache: Arc::new(FakeMap::default()),
            identities,
            prefixes: Arc::new(prefixes),
            folder: policies.clone(),
            initializer: Some(initializer),
            options: db.table().unwrap(),
            network_policies: db.table().unwrap(),
            cluster_network_policies: db.table().unwrap(),
            cidr_groups: db.table().unwrap(),
            services: db.table().unwrap(),
            backends: db.table().unwrap(),
            metrics: Arc::new(Metrics::default()),
            identity_table: Arc::new(identity_table),
            objects: Arc::new(policies.reader()),
            db,
        }
    }

    /// Starts the cell with these dependencies.
    pub(crate) async fn start(&self) -> Agent {
        self.start_with(&[]).await
    }

    /// Starts the cell with these options.
    pub(crate) async fn start_with(&self, options: &[(&str, &str)]) -> Agent {
        let settings = options;
        let ipcache_map: Arc<dyn ipcache::IpcacheMap> = self.ipcache.clone();
        let datapath = self.datapath.clone();
        let options = Arc::new(self.options.reader());
        let entries = self.db.table().unwrap();
        let make_ipcache = move |jobs: JobGroup| {
            let (writer, table, reconciler) = ipcache::testing::ipcache(entries.clone(), ipcache_map.clone());
            jobs.one_shot("ipcache", move |cx: JobCx| async move {
                reconciler.run_until(async move { cx.cancelled().await }).await;
                Ok(())
            })
            .add();
            (Arc::new(writer), Arc::new(table))
        };
        let surfaces = Arc::new(Mutex::new((Vec::new(), Vec::new())));
        let keep = surfaces.clone();
        let state_config = settings.iter().any(|(key, _)| *key == "state-dir").then(config::<StateConfig>);
        let mut neighbours = vec![
            supply(self.db.clone()),
            supply(self.metrics.clone()),
            supply(datapath),
            supply(options),
            supply(self.prefixes.clone()),
            supply(self.identity_table.clone()),
            supply(self.objects.clone()),
            supply(Arc::new(self.network_policies.reader())),
            supply(Arc::new(self.cluster_network_policies.reader())),
            supply(Arc::new(self.cidr_groups.reader())),
            supply(Arc::new(self.services.reader())),
            supply(Arc::new(self.backends.reader())),
            config::<LocalNodeConfig>(),
            config::<FamilyConfig>(),
            module("ipcache", "An ipcache", [provide(make_ipcache)]),
            proxy_ports::cell(),
            hive_script::cell(),
            policy::cell(),
            invoke(|_: Arc<Policies>, _: Arc<IpcacheWriter>, _: Arc<Table<ipcache::Entry>>| ()),
            invoke(|_: Arc<Table<EndpointPolicy>>, _: Arc<Table<PolicyStatus>>, _: Arc<Table<PolicyLog>>| ()),
            invoke(|_: Arc<hive::HealthTree>, _: Arc<hive_script::Engine>| ()),
            invoke(move |routes: Group<Route>, pages: Group<Page>| {
                *keep.lock().unwrap() = (routes.to_vec(), pages.to_vec());
            }),
        ];
        neighbours.extend(state_config);
        let mut hive = TestHive::new(neighbours);
        for (key, value) in settings {
            hive = hive.set(key, value);
        }
        hive.start().await;
        let policies = (*hive.get::<Policies>()).clone();
        Agent { hive, policies, surfaces }
    }

    /// Writes policies by name and spec; `Null` deletes. `complete`: the folder has been read once.
    pub(crate) fn write(&mut self, policies: &[(&str, Value)], complete: bool) {
        let named: Vec<(String, Value)> =
            policies.iter().map(|(name, spec)| (format!("shop/{name}"), spec.clone())).collect();
        self.write_all(&named);
        if let Some(initializer) = self.initializer.take_if(|_| complete) {
            self.folder.transact(|w| initializer.done(w));
        }
    }

    /// Writes policies by `namespace/name`, clusterwide ones by `/name`, and spec; `Null` deletes.
    pub(crate) fn write_all(&self, policies: &[(String, Value)]) {
        self.folder.transact(|w| {
            for (full_name, spec) in policies {
                let (namespace, name) = full_name.split_once('/').unwrap();
                let kind = match namespace {
                    "" => PolicyKind::CiliumClusterwideNetworkPolicy,
                    _ => PolicyKind::CiliumNetworkPolicy,
                };
                if spec.is_null() {
                    w.delete(PolicyObject::by_name("cluster-folder", kind, namespace, name));
                    continue;
                }
                let manifest = json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec});
                let object = PolicyObject::decode(kind, &manifest).unwrap();
                let (source, origin) = ("cluster-folder".into(), format!("{name}.yaml, document 1"));
                w.insert(PolicyObject { source, origin, ..object });
            }
        });
    }

    /// Allocates an identity.
    pub(crate) fn allocate(&self, labels: &Labels, user: &str) -> u32 {
        self.identities.allocate(labels, user).unwrap()
    }

    /// Writes a NetworkPolicy of a source; `Null` deletes.
    pub(crate) fn write_network_policy(&self, source: &str, name: &str, spec: &Value) {
        self.network_policies.transact(|w| {
            if spec.is_null() {
                w.delete(Row::by_name("shop", name));
                return;
            }
            let manifest = json!({"metadata": {"name": name, "namespace": "shop"}, "spec": spec});
            let object: NetworkPolicy = decode(manifest.to_string().as_bytes()).unwrap();
            w.insert(Row {
                source: source.into(),
                origin: format!("{name}.yaml, document 1").into(),
                ..Row::of(object)
            });
        });
    }

    /// Writes a ClusterNetworkPolicy; `Null` deletes.
    pub(crate) fn write_cluster_network_policy(&self, name: &str, spec: &Value) {
        self.cluster_network_policies.transact(|w| {
            if spec.is_null() {
                w.delete(Row::by_name("", name));
                return;
            }
            let manifest = json!({"metadata": {"name": name}, "spec": spec});
            let object: ClusterNetworkPolicy = decode(manifest.to_string().as_bytes()).unwrap();
            w.insert(Row { source: "cluster-folder".into(), ..Row::of(object) });
        });
    }

    /// Writes a CIDR group with a label `kind`; one without prefixes is deleted.
    pub(crate) fn write_cidr_group(&self, name: &str, kind: &str, prefixes: &[&str]) {
        self.cidr_groups.transact(|w| {
            if prefixes.is_empty() {
                w.delete(Row::by_name("", name));
                return;
            }
            let manifest = json!({
                "metadata": {"name": name, "labels": {"kind": kind}},
                "spec": {"externalCIDRs": prefixes},
            });
            w.insert(Row::of(decode::<CiliumCIDRGroup>(manifest.to_string().as_bytes()).unwrap()));
        });
    }

    /// Attaches a pod to the datapath; returns its subject.
    pub(crate) fn pod(&self, endpoint: u16, app: &str) -> Subject {
        let attached =
            EndpointDatapath { id: endpoint, ifindex: endpoint.into(), ..EndpointDatapath::default() };
        self.datapath.attach(&attached).unwrap();
        self.subject(endpoint, app)
    }

    pub(crate) fn subject(&self, endpoint: u16, app: &str) -> Subject {
        let labels = labels(app);
        let identity = self.allocate(&labels, &format!("endpoint/{endpoint}"));
        let labels = LabelArray::from(&labels);
        Subject { endpoint, identity, labels, named_ports: NamedPorts::default() }
    }

    pub(crate) fn rows(&self, endpoint: u16) -> Rows {
        self.datapath.policy_rows(endpoint).unwrap().into_iter().collect()
    }

    /// Returns the map's verdict about a packet to the endpoint from a peer.
    pub(crate) fn ingress(&self, endpoint: u16, peer: u32, l4: u32) -> bool {
        self.rows(endpoint).verdict(false, peer, l4).passes()
    }
}

/// The running cell.
pub(crate) struct Agent {
    pub(crate) hive: TestHive,
    pub(crate) policies: Policies,
    pub(crate) surfaces: Arc<Mutex<(Vec<Route>, Vec<Page>)>>,
}

impl Agent {
    pub(crate) async fn end(mut self) {
        self.hive.stop().await;
    }

    pub(crate) fn row(&self, endpoint: u16) -> EndpointPolicy {
        let table = self.policies.table();
        let snapshot = table.snapshot();
        (**table.get(&snapshot, EndpointPolicy::by_endpoint(endpoint)).unwrap()).clone()
    }

    pub(crate) fn statuses(&self) -> Vec<PolicyStatus> {
        let table = self.hive.get::<Table<PolicyStatus>>();
        let snapshot = table.snapshot();
        table.all(&snapshot).map(|row| (**row).clone()).collect()
    }
}

pub(crate) fn labels(app: &str) -> Labels {
    let namespace = "k8s:io.kubernetes.pod.namespace=shop";
    Labels::parse([&*format!("k8s:app={app}"), namespace, "k8s:io.cilium.k8s.policy.cluster=default"])
}

/// Returns a policy for pods of an app that allows pods of another on a port.
pub(crate) fn allow(to: &str, from: &str, port: u16) -> Value {
    json!({
        "endpointSelector": {"matchLabels": {"app": to}},
        "ingress": [{
            "fromEndpoints": [{"matchLabels": {"app": from}}],
            "toPorts": [{"ports": [{"port": port.to_string(), "protocol": "TCP"}]}],
        }],
    })
}

/// Returns a policy for pods of an app that allows prefixes.
pub(crate) fn allow_cidr(to: &str, prefixes: &[&str]) -> Value {
    json!({"endpointSelector": {"matchLabels": {"app": to}}, "ingress": [{"fromCIDR": prefixes}]})
}

/// A flag that ends a thread of a test, even if the test fails.
#[derive(Default)]
pub(crate) struct Done(AtomicBool);

pub(crate) struct Ended<'a>(&'a Done);

impl Done {
    pub(crate) fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn at_the_end(&self) -> Ended<'_> {
        Ended(self)
    }
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}
