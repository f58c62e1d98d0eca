//! The controller: from objects, services and the answers of Envoy to resources, redirects and the rows of the tables.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use envoy_api::Types;
use envoy_proxy::{Envoy, Kind, Value};
use hive::JobCx;
use hive::health::{SHOWN, summarize};
use k8s_tables::Row;
use k8s_types::cilium::{CiliumClusterwideEnvoyConfig, CiliumEnvoyConfig};
use k8s_types::selector::LabelRequirements;
use loadbalancer::{Backend, Initializers, Service, ServiceName, ServicesWriter};
use local_node::LocalNode;
use proxy_ports::Proxies;
use reconciler::Status;
use statedb::{Query, RwTable, Snapshot, Table};
use tokio::time::{Instant, sleep, sleep_until};

use crate::backends::{assignment, clusters};
use crate::config::ConfigsConfig;
use crate::model::{ClusterAddresses, EnvoyConfig, EnvoyResource};
use crate::objects::Objects;
use crate::parse::{IngressAddresses, Parsed, Settings};
use crate::progress::{Phase, Progress, Set};
use crate::redirects::{Assigned, assign};
use crate::world::View;

/// Changes within this time are taken together.
const DEBOUNCE_INTERVAL: Duration = Duration::from_millis(20);
/// The interval at which waiting configurations are looked at without a change.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The types of resources that configurations have.
const KINDS: [Kind; 5] = [Kind::Secrets, Kind::Endpoints, Kind::Clusters, Kind::Routes, Kind::Listeners];

/// The wanted ports of a service, and the configurations that refer to it.
type References = (BTreeSet<String>, Vec<Arc<str>>);

/// The tables that the controller reads and writes.
#[derive(Clone)]
pub(crate) struct Tables {
    pub(crate) objects: Table<Row<CiliumEnvoyConfig>>,
    pub(crate) clusterwide: Table<Row<CiliumClusterwideEnvoyConfig>>,
    pub(crate) node: Table<LocalNode>,
    pub(crate) configs: RwTable<EnvoyConfig>,
    pub(crate) resources: RwTable<EnvoyResource>,
}

/// The controller.
pub(crate) struct Controller {
    pub(crate) tables: Tables,
    pub(crate) envoy: Envoy,
    pub(crate) proxies: Arc<Proxies>,
    pub(crate) writer: ServicesWriter,
    pub(crate) settings: Settings,
    pub(crate) options: ConfigsConfig,
    pub(crate) types: Arc<Types>,
    pub(crate) objects: Objects,
    pub(crate) progress: BTreeMap<Arc<str>, Progress>,
    /// The services that are redirected.
    pub(crate) redirected: BTreeSet<ServiceName>,
    pub(crate) conflicts: BTreeMap<Arc<str>, String>,
    /// Keeps the load balancer from writing services of the previous run before their redirects are known.
    pub(crate) initializers: Option<Initializers>,
}

impl Controller {
    /// Follows the tables and Envoy until the agent stops.
    pub(crate) async fn follow(mut self, cx: JobCx) -> anyhow::Result<()> {
        let mut answers = self.envoy.subscribe();
        loop {
            answers.mark_unchanged();
            let snapshot = self.tables.objects.snapshot();
            let working = cx.working();
            let round = hive::blocking(move || {
                self.round(&snapshot);
                (self, snapshot)
            });
            let snapshot;
            (self, snapshot) = round.await;
            drop(working);
            self.report(&cx);
            let deadline = self.deadline();
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                // The sender is that of `envoy`.
                _ = answers.changed() => {}
                () = self.changed(snapshot) => {
                    tokio::select! {
                        () = cx.cancelled() => return Ok(()),
                        () = sleep(DEBOUNCE_INTERVAL) => {}
                    }
                }
                () = sleep_until(deadline) => {}
            }
        }
    }

    /// Waits for a relevant change since the snapshot.
    async fn changed(&self, since: Snapshot) {
        let snapshot = &since;
        let Tables { objects, clusterwide, node, .. } = &self.tables;
        // Without configurations other tables are irrelevant.
        let follows = !self.progress.is_empty() || !self.redirected.is_empty();
        let is_waiting = self.is_waiting();
        let ports = self.proxies.ports();
        let (services, backends, frontends) =
            (self.writer.services(), self.writer.backends(), self.writer.frontends());
        let (object_watch, clusterwide_watch, node_watch) =
            (objects.watch(snapshot), clusterwide.watch(snapshot), node.watch(snapshot));
        let (service_watch, backend_watch, frontend_watch, port_watch) = (
            services.watch(snapshot),
            backends.watch(snapshot),
            frontends.watch(snapshot),
            ports.watch(snapshot),
        );
        drop(since);
        tokio::select! {
            () = object_watch.changed() => {}
            () = clusterwide_watch.changed() => {}
            () = node_watch.changed(), if !self.objects.is_empty() => {}
            () = service_watch.changed(), if follows => {}
            () = backend_watch.changed(), if follows => {}
            () = frontend_watch.changed(), if is_waiting => {}
            () = port_watch.changed(), if is_waiting => {}
        }
    }

    fn is_waiting(&self) -> bool {
        self.progress.values().any(|one| !matches!(one.phase, Phase::Done | Phase::Failed(_)))
    }

    /// Returns the time of the next look without a change.
    fn deadline(&self) -> Instant {
        let now = Instant::now();
        let retry = self.progress.values().filter(|one| matches!(one.phase, Phase::Failed(_)));
        let retry = retry.map(|one| one.since + self.options.envoy_config_retry_interval).min();
        let check = match self.initializers {
            // No watch reports that an empty table is complete.
            Some(_) => Some(now + DEBOUNCE_INTERVAL),
            None => self.is_waiting().then(|| now + CHECK_INTERVAL),
        };
        let far = now + Duration::from_secs(3600);
        [retry, check].into_iter().flatten().min().map_or(far, |next| next.max(now + DEBOUNCE_INTERVAL))
    }

    /// Brings everything to the state of the objects of a snapshot, as far as Envoy has answered.
    pub(crate) fn round(&mut self, snapshot: &Snapshot) {
        let Tables { objects, clusterwide, .. } = &self.tables;
        if !objects.initialized(snapshot) || !clusterwide.initialized(snapshot) {
            return;
        }
        self.objects.read(&self.tables, snapshot, &self.settings, &self.types);
        let is_first = self.initializers.is_some();
        let has_moved = self.read_ingress(snapshot);
        self.select(snapshot, is_first);
        if has_moved && !is_first {
            self.encode_again();
        }
        loop {
            self.publish();
            self.redirect();
            let view = View::new(self);
            let mut has_advanced = false;
            // The view is of the fields that progress does not change.
            let mut progress = std::mem::take(&mut self.progress);
            for one in progress.values_mut() {
                has_advanced |= one.advance(&view);
            }
            drop(view);
            progress.retain(|_, one| !one.has_left());
            self.progress = progress;
            if !has_advanced {
                break;
            }
        }
        KINDS.iter().for_each(|kind| self.envoy.hold(*kind, false));
        self.write_rows();
        if let Some(initializers) = self.initializers.take() {
            self.writer.complete(initializers);
        }
    }

    /// Reads the node's ingress addresses. Returns whether they have changed.
    fn read_ingress(&mut self, snapshot: &Snapshot) -> bool {
        let node = self.tables.node.get(snapshot, LocalNode::query());
        let of = |node: &LocalNode| IngressAddresses { ipv4: node.ingress_ipv4, ipv6: node.ingress_ipv6 };
        let ingress = node.map(|node| of(node)).unwrap_or_default();
        std::mem::replace(&mut self.settings.ingress, ingress) != ingress
    }

    /// Gives Envoy all listeners with the settings of now.
    fn encode_again(&mut self) {
        let mut progress = std::mem::take(&mut self.progress);
        let view = View::new(self);
        for one in progress.values_mut().filter(|one| !one.is_leaving()) {
            one.update(one.parsed.clone(), &view);
        }
        drop(view);
        self.progress = progress;
    }

    /// Begins, changes and ends configurations, by the objects and the node's labels.
    fn select(&mut self, snapshot: &Snapshot, restores: bool) {
        let node = self.tables.node.get(snapshot, LocalNode::query());
        let label = |key: &str| node.as_ref().and_then(|node| node.labels.get(key)).map(String::as_str);
        let is_selected =
            |selector: &Option<LabelRequirements>| selector.as_ref().is_none_or(|one| one.matches(label));
        let selected: BTreeMap<Arc<str>, Arc<Parsed>> = self
            .objects
            .valid()
            .filter(|(_, parsed)| is_selected(&parsed.selector))
            .map(|(name, parsed)| (name.clone(), parsed.clone()))
            .collect();
        let retry = self.options.envoy_config_retry_interval;
        let mut progress = std::mem::take(&mut self.progress);
        let view = View::new(self);
        for (name, one) in &mut progress {
            match selected.get(name) {
                None => one.leave(),
                Some(parsed) if !Arc::ptr_eq(parsed, &one.parsed) || one.is_leaving() => {
                    one.update(parsed.clone(), &view);
                }
                Some(_) if matches!(one.phase, Phase::Failed(_)) && one.since.elapsed() >= retry => {
                    one.retry(&view);
                }
                Some(_) => {}
            }
        }
        for (name, parsed) in &selected {
            if !progress.contains_key(name) {
                let one = Progress::begin(parsed.clone(), restores, &view);
                progress.insert(name.clone(), one);
            }
        }
        drop(view);
        self.objects.set_selected(selected.into_keys().collect());
        self.progress = progress;
    }

    /// Publishes the resources of all configurations and the backends of their services.
    fn publish(&mut self) {
        let mut all = Set::new();
        for one in self.progress.values() {
            all.extend(one.published());
        }
        for clusters in self.backends().into_values() {
            all.extend(clusters.iter().map(|cluster| {
                let (name, value) = assignment(cluster);
                ((Kind::Endpoints, name), value)
            }));
        }
        for kind in KINDS {
            let of_kind = all.iter().filter(|((of, _), _)| *of == kind);
            let resources: BTreeMap<Arc<str>, Value> =
                of_kind.map(|((_, name), value)| (name.clone(), value.clone())).collect();
            let version = self.envoy.replace(kind, resources);
            self.progress.values_mut().for_each(|one| one.note(kind, version));
        }
    }

    /// Returns the services with backends that Envoy gets, their ports, and the configurations that refer to them.
    fn references(&self) -> BTreeMap<ServiceName, References> {
        let mut found: BTreeMap<ServiceName, References> = BTreeMap::new();
        let mut whole = BTreeSet::new();
        for (name, one) in self.progress.iter().filter(|(_, one)| !one.is_leaving()) {
            for (service, ports) in &one.parsed.backends {
                let (all, references) = found.entry(service.clone()).or_default();
                all.extend(ports.iter().cloned());
                if ports.is_empty() {
                    whole.insert(service.clone());
                }
                references.push(name.clone());
            }
        }
        for service in whole {
            // The empty text stands for all ports.
            found.entry(service).or_default().0.insert(String::new());
        }
        found
    }

    fn backends(&self) -> BTreeMap<ServiceName, Vec<ClusterAddresses>> {
        let (services, backends) = (self.writer.services(), self.writer.backends());
        let snapshot = services.snapshot();
        let node = self.tables.node.get(&snapshot, LocalNode::query());
        let node = node.as_ref().map(|node| node.name.as_str()).unwrap_or_default();
        let of = |(name, (mut ports, _)): (ServiceName, References)| {
            let Some(service) = services.get(&snapshot, Service::by_name(&name)) else {
                return (name, Vec::new());
            };
            let rows: Vec<_> = backends.prefix(&snapshot, Backend::of_service(&name)).collect();
            let of_ports =
                |ports: &BTreeSet<String>| clusters(service, rows.iter().map(|row| &***row), ports, node);
            let mut found = match ports.remove("") {
                true => of_ports(&BTreeSet::new()),
                false => Vec::new(),
            };
            if !ports.is_empty() {
                found.extend(of_ports(&ports));
            }
            (name, found)
        };
        self.references().into_iter().map(of).collect()
    }

    /// Redirects the services of configurations that Envoy has.
    fn redirect(&mut self) {
        let mut order: Vec<(&Arc<str>, &Progress)> = self.progress.iter().collect();
        order.sort_by_key(|(name, _)| (self.objects.created(name), *name));
        let redirects = order.into_iter().map(|(name, one)| (name, one.redirects.as_slice()));
        let Assigned { services, conflicts } = assign(redirects);
        for (name, conflict) in &conflicts {
            if self.conflicts.get(name) != Some(conflict) {
                tracing::warn!(config = %name, %conflict, "A service is not redirected");
            }
        }
        self.conflicts = conflicts;
        let table = self.writer.services();
        let snapshot = table.snapshot();
        let mut changes = Vec::new();
        let former = self.redirected.iter().filter(|name| !services.contains_key(*name));
        let former = former.map(|name| (name, &[][..]));
        let wanted = services.iter().map(|(name, redirects)| (name, redirects.as_slice()));
        for (name, redirects) in former.chain(wanted) {
            let row = table.get(&snapshot, Service::by_name(name));
            if row.is_some_and(|row| *row.proxy_redirects != *redirects) {
                changes.push((name.clone(), redirects.to_vec()));
            }
        }
        if !changes.is_empty() {
            let mut txn = self.writer.write();
            for (name, redirects) in changes {
                txn.set_proxy_redirects(&name, redirects);
            }
            txn.commit();
        }
        self.redirected = services.into_keys().collect();
        self.progress.values_mut().for_each(Progress::written);
    }

    fn write_rows(&self) {
        let configs = self.objects.rows(&self.progress);
        let known = self.tables.configs.snapshot();
        let is_known = |row: &EnvoyConfig| {
            self.tables.configs.get(&known, Query::primary(&*row.name)).is_some_and(|old| **old == *row)
        };
        let is_equal = configs.iter().all(is_known) && self.tables.configs.len(&known) == configs.len();
        if !is_equal {
            self.tables.configs.transact(|txn| {
                txn.retain(|row| configs.iter().any(|config| config.name == row.name));
                for row in configs {
                    txn.insert(row);
                }
            });
        }
        let rows = self.resource_rows();
        let known = self.tables.resources.snapshot();
        let old = |row: &EnvoyResource| self.tables.resources.get(&known, Query::primary(row.name.as_str()));
        let changed: Vec<EnvoyResource> =
            rows.iter().filter(|row| old(row).is_none_or(|old| !old.is_same(row))).cloned().collect();
        let is_gone = |row: &EnvoyResource| !rows.iter().any(|other| other.name == row.name);
        let any_gone = self.tables.resources.all(&known).any(|row| is_gone(row));
        if any_gone || !changed.is_empty() {
            self.tables.resources.transact(|txn| {
                txn.retain(|row| !is_gone(row));
                for row in changed {
                    txn.insert(row);
                }
            });
        }
    }

    fn resource_rows(&self) -> Vec<EnvoyResource> {
        let backends = self.backends();
        let references = self.references().into_iter().map(|(service, (_, references))| EnvoyResource {
            name: format!("backendsync:{service}"),
            listeners: Vec::new(),
            endpoints: backends.get(&service).cloned().unwrap_or_default(),
            references,
            status: Status::done(),
        });
        let configs = self.progress.iter().map(|(name, one)| EnvoyResource {
            name: format!("cec:{name}"),
            listeners: one.parsed.listeners.keys().cloned().collect(),
            endpoints: Vec::new(),
            references: Vec::new(),
            status: self.status(name, one),
        });
        references.chain(configs).collect()
    }

    fn status(&self, name: &Arc<str>, one: &Progress) -> Status {
        match self.fault(name, one) {
            Some(fault) => Status::failed(fault),
            None if one.phase == Phase::Done => Status::done(),
            None => Status::pending(),
        }
    }

    /// Returns why a configuration is not in force.
    fn fault(&self, name: &Arc<str>, one: &Progress) -> Option<String> {
        let limit = self.options.envoy_config_timeout;
        match &one.phase {
            Phase::Failed(error) => Some(error.clone()),
            Phase::Done => self.conflicts.get(name).cloned(),
            _ if one.since.elapsed() < limit => None,
            _ if !self.envoy.has_clients(Kind::Listeners) => Some("Envoy is not connected".to_owned()),
            Phase::Rules => Some("no rule of iptables leads to its listeners".to_owned()),
            Phase::Clusters | Phase::Listeners | Phase::Draining => {
                Some(format!("Envoy has not answered within {} s", limit.as_secs()))
            }
        }
    }

    fn report(&self, cx: &JobCx) {
        if self.initializers.is_some() {
            cx.health.ok("Waiting for the objects");
            return;
        }
        let invalid = self.objects.faults().map(|(name, fault)| format!("{name}: {fault}"));
        let faults = self
            .progress
            .iter()
            .filter_map(|(name, one)| self.fault(name, one).map(|fault| format!("{name}: {fault}")));
        let error = summarize(invalid.chain(faults), SHOWN, "\n");
        let is_connected = self.envoy.has_clients(Kind::Listeners);
        match error.is_empty() {
            false => cx.health.degraded("Envoy configurations are not in force", error),
            true if !self.envoy.is_served() && !self.progress.is_empty() => cx.health.degraded(
                "There is no Envoy for the configurations",
                "set enable-l7-proxy=true, and external-envoy-proxy=true with one that runs, or envoy-binary to its path",
            ),
            true if !is_connected && !self.progress.is_empty() => {
                cx.health.degraded("Envoy is not connected: services are not redirected to it", "");
            }
            true => cx.health.ok(format_args!("{} configurations", self.progress.len())),
        }
    }
}
