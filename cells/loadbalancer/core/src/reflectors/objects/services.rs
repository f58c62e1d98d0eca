//! Services and endpoint slices: each round processes all changes since the previous one, in one transaction.

use hive::health::{SHOWN, summarize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hive::JobCx;
use k8s_tables::core::{Endpoint, EndpointSlice, Service as Manifest};
use k8s_tables::selector::LabelRequirements;
use k8s_tables::{ObjectMeta, Row, SmolStr};
use local_node::LocalNode;
use statedb::{Changes, Table, TableSpec, Watch};

use crate::model::annotations;
use crate::model::error::Refused;
use crate::model::families::Families;
use crate::model::name::ServiceName;
use crate::model::service::Service;
use crate::model::shared::Names;
use crate::model::source::Source;
use crate::reflectors::convert;
use crate::reflectors::objects::invalid_fields::{InvalidFields, of_service, of_slice};
use crate::writer::freed::{any_freed, freed};
use crate::writer::services_writer::{Initializers, ServicesWriter};
use crate::writer::txn::ServicesTxn;

use super::slices::{Affected, Slices};

/// The label of objects for a specific proxy.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// The controller that copies slices of other clusters; these backends arrive by the cluster mesh.
const MESH_CONTROLLER: &str = "endpointslice-mesh-controller.cilium.io";
/// The maximum number of a table's changes in one transaction.
const BATCH: usize = 500;

type Labels = BTreeMap<String, String>;

/// The reflector of services and backends of source `k8s`.
pub(crate) struct Reflector {
    writer: ServicesWriter,
    services: Table<Row<Manifest>>,
    slices: Table<Row<EndpointSlice>>,
    service_changes: Changes<Row<Manifest>>,
    slice_changes: Changes<Row<EndpointSlice>>,
    families: Families,
    names: Names,
    /// The name of this proxy in [`PROXY_NAME`]; empty for the proxy of all objects without that label.
    proxy_name: String,
    /// Labels of this node: the current ones, then those of the last round.
    labels: Box<dyn Fn() -> Labels + Send + Sync>,
    last_labels: Labels,
    of_services: Slices,
    /// Refused services; they are retried with the next change.
    refused: BTreeMap<SmolStr, Refused>,
    invalid_fields: InvalidFields,
    /// Held until both tables contain their whole initial lists.
    initializers: Vec<Initializers>,
}

/// The delay in which related changes join a transaction: a service and its slices arrive one after the other.
const COALESCE_INTERVAL: Duration = Duration::from_millis(20);

/// The maximum delay of a start to wait for the lists of both kinds: a service alone would first be written without
/// backends.
const LISTS_TIMEOUT: Duration = Duration::from_millis(500);

impl Reflector {
    pub(crate) fn new(
        writer: ServicesWriter,
        (services, slices): (Table<Row<Manifest>>, Table<Row<EndpointSlice>>),
        families: Families,
        proxy_name: String,
        labels: impl Fn() -> Labels + Send + Sync + 'static,
    ) -> Reflector {
        Reflector {
            initializers: vec![writer.register("k8s-services"), writer.register("k8s-endpoints")],
            writer,
            service_changes: services.changes().named("loadbalancer-reflector").limit(BATCH),
            slice_changes: slices.changes().named("loadbalancer-reflector").limit(BATCH),
            services,
            slices,
            families,
            names: Names::default(),
            proxy_name,
            labels: Box::new(labels),
            last_labels: Labels::new(),
            of_services: Slices::new(families),
            refused: BTreeMap::new(),
            invalid_fields: InvalidFields::default(),
        }
    }

    /// Follows the objects until the agent stops. A change after a quiet time is processed almost at once, with related
    /// ones; further changes within the wait are coalesced.
    pub(crate) async fn follow(
        mut self,
        wait: Duration,
        node: Arc<Table<LocalNode>>,
        cx: JobCx,
    ) -> anyhow::Result<()> {
        cx.health.ok("Running");
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            () = self.initialized() => tokio::time::sleep(wait.min(COALESCE_INTERVAL)).await,
            () = tokio::time::sleep(LISTS_TIMEOUT) => {}
        }
        loop {
            // Services may be restricted to nodes with certain labels.
            let node = node.watch(&node.snapshot());
            let round = hive::blocking(move || {
                let round = self.round();
                (self, round)
            });
            let (this, round) = round.await;
            self = this;
            if round.changed {
                self.report(&cx);
            }
            if round.more {
                continue;
            }
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = round.services.changed() => {}
                () = round.slices.changed() => {}
                () = node.changed() => {}
                () = self.initialized(), if !self.initializers.is_empty() => continue,
                () = freed(self.refused.values(), &self.writer), if !self.refused.is_empty() => {}
            }
            let wait = if round.changed { wait } else { wait.min(COALESCE_INTERVAL) };
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn initialized(&self) {
        tokio::join!(self.services.wait_initialized(), self.slices.wait_initialized());
    }

    fn report(&mut self, cx: &JobCx) {
        self.invalid_fields.report(&cx.health);
        if self.refused.is_empty() {
            cx.health.ok("Running");
            return;
        }
        let error = summarize(self.refused.values(), SHOWN, "\n");
        if cx.health.degraded_anew("Failure processing services", &error) {
            tracing::error!(error, "Services of the cluster are refused");
        }
    }

    /// Processes the pending changes in one transaction.
    pub(crate) fn round(&mut self) -> Round {
        let snapshot = self.services.snapshot();
        // Read before the changes: all objects of a complete table are then among them.
        let complete = self.services.initialized(&snapshot) && self.slices.initialized(&snapshot);
        let (services, service_watch) = self.service_changes.read(&snapshot, BATCH);
        let (slices, slice_watch) = self.slice_changes.read(&snapshot, BATCH);
        let more = services.len() == BATCH || slices.len() == BATCH;
        let labels = (self.labels)();
        let mut again: BTreeSet<SmolStr> = match labels == self.last_labels {
            true => BTreeSet::new(),
            false => self.for_certain_nodes(&snapshot),
        };
        self.last_labels = labels.clone();
        let is_freed = any_freed(self.refused.values(), &self.writer, &self.writer.frontends().snapshot());
        let changed = !services.is_empty() || !slices.is_empty() || !again.is_empty() || is_freed;
        if changed {
            let writer = self.writer.clone();
            let mut txn = writer.write();
            // Backends first: frontends are written with the existing ones.
            let mut affected = Affected::default();
            for change in slices.iter() {
                let slice = (!change.deleted).then_some(&*change.object);
                let service = slice.and_then(|slice| service_of(slice, &self.proxy_name));
                if let Some(slice) = slice.filter(|_| service.is_some()) {
                    let ending = |endpoint: &&Endpoint| endpoint.conditions.terminating == Some(true);
                    self.writer.events.count_terminating(slice.endpoints.iter().filter(ending).count());
                }
                let problems = slice.filter(|_| service.is_some()).map(|slice| of_slice(slice));
                if !self.invalid_fields.is_empty() || problems.as_ref().is_some_and(|all| !all.is_empty()) {
                    let key: SmolStr = change.object.key().into();
                    self.invalid_fields.note("EndpointSlice", &key, &problems.unwrap_or_default());
                }
                let proxy_name = &self.proxy_name;
                let before = |slice: &EndpointSlice| service_of(slice, proxy_name);
                self.of_services.take(&change.object, service, before, &mut affected);
            }
            self.of_services.write(affected, &mut txn);
            again.extend(self.refused.keys().cloned());
            for change in services.iter() {
                let key: SmolStr = change.object.key().into();
                again.remove(&key);
                let object = (!change.deleted).then_some(&*change.object);
                self.take_service(&mut txn, key, object.map(|row| &**row), &labels);
            }
            // The owners of their addresses may have been deleted.
            for key in again {
                let row = self.services.get(&snapshot, statedb::Query::primary(key.to_string())).cloned();
                self.take_service(&mut txn, key, row.as_ref().map(|row| &***row), &labels);
            }
            txn.commit();
        }
        if complete && !more {
            for initializers in self.initializers.drain(..) {
                self.writer.complete(initializers);
            }
        }
        Round { changed, more, services: service_watch, slices: slice_watch }
    }

    fn take_service(
        &mut self,
        txn: &mut ServicesTxn<'_>,
        key: SmolStr,
        object: Option<&Manifest>,
        labels: &Labels,
    ) {
        self.refused.remove(&key);
        let object = object.filter(|object| is_for(&object.metadata, &self.proxy_name));
        let problems = object.map(of_service).unwrap_or_default();
        let object = object.filter(|object| is_exposed(object, labels));
        self.invalid_fields.note("Service", &key, &problems);
        let Some(object) = object else {
            let name = ServiceName::of_key(&key);
            if txn.service(&name).is_some_and(|service| service.source == Source::Kubernetes) {
                txn.delete_service(&name);
            }
            return;
        };
        let (families, names) = (self.families, &mut self.names);
        let (mut service, frontends): (Service, _) =
            convert::service(object, Source::Kubernetes, families, names);
        service.name = self.of_services.same_name(service.name);
        if let Err(error) = txn.upsert_service(service, frontends) {
            self.refused.insert(key, error);
        }
    }

    /// Returns the services that are restricted to nodes with certain labels.
    fn for_certain_nodes(&self, snapshot: &statedb::Snapshot) -> BTreeSet<SmolStr> {
        let certain = |service: &&statedb::Obj<Row<Manifest>>| {
            let annotations = &service.metadata.annotations;
            annotations.get(annotations::NODE).is_some()
                || annotations.get(annotations::NODE_SELECTOR).is_some()
        };
        self.services.all(snapshot).filter(certain).map(|service| service.key().into()).collect()
    }
}

/// Whether an object is for the proxy of this name.
fn is_for(metadata: &ObjectMeta, proxy_name: &str) -> bool {
    metadata.labels.get(PROXY_NAME).map_or("", SmolStr::as_str) == proxy_name
}

/// Returns the service that a slice belongs to; none for slices of other proxies, of other clusters and of host names.
fn service_of(slice: &EndpointSlice, proxy_name: &str) -> Option<ServiceName> {
    let labels = &slice.metadata.labels;
    if !is_for(&slice.metadata, proxy_name)
        || labels.get(MANAGED_BY).is_some_and(|manager| manager == MESH_CONTROLLER)
        || !matches!(slice.address_type.as_str(), "IPv4" | "IPv6")
    {
        return None;
    }
    Some(ServiceName::new(&slice.metadata.namespace, labels.get(k8s_tables::SERVICE_NAME)?))
}

#[cfg(test)]
impl Reflector {
    pub(crate) fn is_empty(&self) -> bool {
        self.of_services.is_empty()
    }

    pub(crate) fn invalid_fields(&self) -> Vec<String> {
        self.invalid_fields.errors()
    }

    pub(crate) fn errors(&self) -> Vec<String> {
        self.refused.values().map(ToString::to_string).collect()
    }
}

/// The outcome of a round, and the next event to wait for.
pub(crate) struct Round {
    pub(crate) changed: bool,
    /// Whether more changes are pending.
    pub(crate) more: bool,
    services: Watch,
    slices: Watch,
}

/// Whether the service is for this node.
fn is_exposed(service: &Manifest, labels: &Labels) -> bool {
    let annotations = &service.metadata.annotations;
    if let Some(selector) = annotations.get(annotations::NODE_SELECTOR) {
        // A selector that cannot be parsed selects all nodes; it is reported with other invalid fields.
        return selector
            .parse::<LabelRequirements>()
            .map_or(true, |selector| selector.matches(|key| labels.get(key).map(String::as_str)));
    }
    let wanted = annotations.get(annotations::NODE);
    wanted.is_none_or(|wanted| labels.get(annotations::NODE).is_some_and(|label| label == wanted.as_str()))
}
