//! The cell in a hive, with the tables of its neighbours.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use endpoints::{Endpoint, Record};
use hive::prelude::*;
use identity::Identity;
use ipcache::Entry;
use k8s_types::Source;
use labels::{LabelArray, Labels};
use local_node::{LocalNode, StateConfig};
use maps::{FamilyConfig, MapsConfig};
use metrics::Metrics;
use monitor::Monitor;
use policy::{EndpointPolicy, PeerSelector, RealizationState, RowCounts, Subject};
use policy_engine::{Engine, Kind, NamedPorts, Settings, parse};
use proxy_ports::{Proxies, ProxyPort};
use serde_json::{Value, json};
use statedb::{Db, RwTable};
use tempfile::TempDir;

pub(crate) const HTTP_EGRESS: &str = "cilium-http-egress";

pub(crate) struct World {
    pub(crate) hive: TestHive,
    pub(crate) folder: TempDir,
    pub(crate) policies: RwTable<EndpointPolicy>,
    pub(crate) endpoints: RwTable<Endpoint>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) monitor: Arc<Monitor>,
}

impl World {
    /// Starts the cell with options; `before` prepares the run folder and the tables.
    pub(crate) async fn start(
        options: &[(&str, &str)],
        before: impl FnOnce(&Path, &RwTable<EndpointPolicy>, &RwTable<Endpoint>),
    ) -> World {
        World::start_with(None, options, before).await
    }

    /// As [`start`](World::start), with a source of secrets.
    pub(crate) async fn start_with(
        source: Option<Arc<dyn Source>>,
        options: &[(&str, &str)],
        before: impl FnOnce(&Path, &RwTable<EndpointPolicy>, &RwTable<Endpoint>),
    ) -> World {
        let folder = tempfile::tempdir().unwrap();
        let db = Arc::new(Db::new());
        let policies: RwTable<EndpointPolicy> = db.table().unwrap();
        let endpoints: RwTable<Endpoint> = db.table().unwrap();
        let selectors: RwTable<PeerSelector> = db.table().unwrap();
        let identities: RwTable<Identity> = db.table().unwrap();
        let ipcache: RwTable<Entry> = db.table().unwrap();
        before(folder.path(), &policies, &endpoints);
        let (metrics, monitor) = (Arc::new(Metrics::default()), Arc::new(Monitor::new(16)));
        let node: RwTable<LocalNode> = db.table().unwrap();
        let mut cells = vec![
            supply(db),
            supply(metrics.clone()),
            supply(monitor.clone()),
            supply(Arc::new(node.reader())),
            supply(Arc::new(policies.reader())),
            supply(Arc::new(endpoints.reader())),
            supply(Arc::new(selectors.reader())),
            supply(Arc::new(identities.reader())),
            supply(Arc::new(ipcache.reader())),
            config::<FamilyConfig>(),
            config::<MapsConfig>(),
            config::<StateConfig>(),
            proxy_ports::cell(),
            envoy_proxy::cell(),
            invoke(|_: Arc<Proxies>| ()),
        ];
        cells.extend(source.map(|source| provide(move || Member(source.clone()))));
        let mut hive = TestHive::new(cells)
            .set("state-dir", folder.path().display())
            .set("external-envoy-proxy", "true");
        for (name, value) in options {
            hive = hive.set(name, value);
        }
        hive.start().await;
        World { hive, folder, policies, endpoints, metrics, monitor }
    }

    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join("envoy/sockets").join(name)
    }

    /// Waits until the server listens, and returns its socket.
    pub(crate) async fn xds(&self) -> PathBuf {
        let path = self.socket("xds.sock");
        self.hive
            .until("the server listens", || std::os::unix::net::UnixStream::connect(&path).is_ok())
            .await;
        path
    }

    pub(crate) fn port(&self, name: &str) -> Option<ProxyPort> {
        let table = self.hive.get::<Proxies>().ports();
        table.get(&table.snapshot(), ProxyPort::by_name(name)).map(|row| ProxyPort::clone(row))
    }

    /// Sets the rules of an endpoint, and waits until a proxy has a port.
    pub(crate) async fn set_and_reserve(&self, endpoint: u16, rules: Value) {
        self.set(endpoint, rules);
        self.hive
            .until("a proxy has a port", || self.port(HTTP_EGRESS).is_some_and(|row| row.port != 0))
            .await;
    }

    /// Acts as rules of iptables do: leads packets to the port of a proxy.
    pub(crate) fn lead_to(&self, name: &str, port: u16) {
        self.hive.get::<Proxies>().set_reachable(&BTreeMap::from([(name.into(), port)]));
    }

    pub(crate) fn health(&self) -> (hive::health::Level, String) {
        let status = self.hive.health("envoy-proxy.job-listeners");
        (status.level, format!("{} {}", status.message, status.error))
    }

    pub(crate) fn set(&self, endpoint: u16, rules: Value) {
        insert(&self.policies, &self.endpoints, endpoint, 1, rules);
    }

    pub(crate) async fn end(mut self) {
        self.hive.stop().await;
    }
}

/// Returns a rule of HTTP on egress.
pub(crate) fn http(path: &str) -> Value {
    let rules = json!({"http": [{"path": path}]});
    json!([{"toPorts": [{"ports": [{"port": "80", "protocol": "TCP"}], "rules": rules}]}])
}

/// Inserts an endpoint with rules on egress, as they are computed at a revision.
pub(crate) fn insert(
    policies: &RwTable<EndpointPolicy>,
    endpoints: &RwTable<Endpoint>,
    endpoint: u16,
    revision: u64,
    egress: Value,
) {
    insert_of(policies, endpoints, 1000, endpoint, revision, egress);
}

/// Inserts an endpoint with this identity.
pub(crate) fn insert_of(
    policies: &RwTable<EndpointPolicy>,
    endpoints: &RwTable<Endpoint>,
    identity: u32,
    endpoint: u16,
    revision: u64,
    egress: Value,
) {
    let row = row(identity, endpoint, revision, egress);
    policies.transact(|txn| drop(txn.insert(row)));
    endpoints.transact(|txn| drop(txn.insert(described(endpoint))));
}

/// Returns the policy of an endpoint.
pub(crate) fn row(identity: u32, endpoint: u16, revision: u64, egress: Value) -> EndpointPolicy {
    let labels = LabelArray::from(&Labels::parse(["k8s:app=web", "k8s:io.kubernetes.pod.namespace=shop"]));
    let settings = Settings::default();
    let mut engine = Engine::new(settings.clone());
    engine.add_identity(1000, labels.clone(), NamedPorts::default());
    let spec = json!({"endpointSelector": {}, "egress": egress});
    let manifest = json!({"metadata": {"name": "p", "namespace": "shop"}, "spec": spec});
    engine.set(parse(Kind::CiliumNetworkPolicy, &manifest, &settings).unwrap());
    let filters = Arc::new(engine.filters(1000));
    let subject = Subject { endpoint, identity, labels, named_ports: NamedPorts::default() };
    EndpointPolicy {
        subject,
        transition: None,
        announced: endpoint.into(),
        generation: 1,
        revision,
        realized: revision,
        ingress_enforced: false,
        egress_enforced: true,
        ingress: RowCounts::default(),
        egress: RowCounts::default(),
        filters: filters.clone(),
        realized_filters: filters,
        decisions: Default::default(),
        missing_redirects: 0,
        state: RealizationState::Realized,
        error: None,
    }
}

/// Returns an endpoint with an address of its own.
pub(crate) fn described(endpoint: u16) -> Endpoint {
    let [high, low] = endpoint.to_be_bytes();
    let record = Record { id: endpoint, ipv4: Some([10, 0, high, low].into()), ..Record::default() };
    Endpoint::created(record, SystemTime::UNIX_EPOCH)
}
