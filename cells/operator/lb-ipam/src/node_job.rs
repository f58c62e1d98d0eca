//! The job that follows services, nodes and slices.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hive::JobCx;
use k8s_tables::{Row, SERVICE_NAME};
use k8s_types::core::{EndpointSlice, Node};
use k8s_types::selector::LabelRequirements;
use k8s_types::{Key, SmolStr};
use operator_status::StatusWriter;
use statedb::{Batch, Table};

use crate::node_addresses::{NodeAddresses, ingress, with_endpoints};
use crate::objects::LbService;
use crate::range::Family;
use crate::request::families;
use crate::status;

/// The annotation that selects the nodes of a service by their labels.
const MATCH_NODE_LABELS: &str = "io.cilium.nodeipam/match-node-labels";

/// Problems that health names at most.
const MAX_REPORTED_PROBLEMS: usize = 5;

/// Gives services addresses of nodes.
pub(crate) struct NodeIpam {
    pub(crate) services: Arc<Table<Row<LbService>>>,
    pub(crate) nodes: Arc<Table<Row<Node>>>,
    pub(crate) slices: Arc<Table<Row<EndpointSlice>>>,
    pub(crate) write: StatusWriter,
    pub(crate) families: Vec<Family>,
    /// The classes that are served; none is a load balancer without a class.
    pub(crate) classes: Vec<Option<&'static str>>,
    /// The nodes that may receive traffic, by name.
    pub(crate) receivers: BTreeMap<SmolStr, NodeAddresses>,
    /// The slices of services.
    pub(crate) slices_of: BTreeMap<Key, BTreeSet<SmolStr>>,
    /// The errors of services.
    pub(crate) problems: BTreeMap<Key, String>,
}

impl NodeIpam {
    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        cx.health.ok("Waits for the lists of services, nodes and slices");
        let (services, nodes, slices) = (self.services.clone(), self.nodes.clone(), self.slices.clone());
        let listed = async {
            services.wait_initialized().await;
            nodes.wait_initialized().await;
            slices.wait_initialized().await;
        };
        if cx.token().run_until_cancelled(listed).await.is_none() {
            return Ok(());
        }
        let (mut service_changes, mut node_changes, mut slice_changes) =
            (services.changes(), nodes.changes(), slices.changes());
        // Nodes and endpoints before the first service.
        self.follow_nodes(&node_changes.try_next());
        drop(self.follow_slices(&slice_changes.try_next()));
        loop {
            let affected: BTreeSet<Key> = tokio::select! {
                () = cx.cancelled() => return Ok(()),
                batch = slice_changes.next() => self.follow_slices(&batch),
                batch = node_changes.next() => match self.follow_nodes(&batch) {
                    true => services.all(&services.snapshot()).map(|row| key_of(row)).collect(),
                    // Nodes also change with their heartbeats.
                    false => continue,
                },
                batch = service_changes.next() => batch.iter().map(|change| key_of(&change.object)).collect(),
            };
            for key in &affected {
                self.sync(key);
            }
            self.report(&cx);
        }
    }

    /// Takes over changes of nodes. Returns whether services may get other addresses.
    fn follow_nodes(&mut self, batch: &Batch<Row<Node>>) -> bool {
        let mut has_changed = false;
        for change in batch.iter() {
            let name = &change.object.metadata.name;
            let addresses = if change.deleted { None } else { NodeAddresses::of(&change.object) };
            has_changed |= self.receivers.get(name) != addresses.as_ref();
            match addresses {
                Some(addresses) => drop(self.receivers.insert(name.clone(), addresses)),
                None => drop(self.receivers.remove(name)),
            }
        }
        has_changed
    }

    /// Takes over changes of slices. Returns their services.
    fn follow_slices(&mut self, batch: &Batch<Row<EndpointSlice>>) -> BTreeSet<Key> {
        let mut affected = BTreeSet::new();
        for change in batch.iter() {
            let metadata = &change.object.metadata;
            let Some(service) = metadata.labels.get(SERVICE_NAME) else { continue };
            let service = Key::new(metadata.namespace.clone(), service.clone());
            let slices = self.slices_of.entry(service.clone()).or_default();
            match change.deleted {
                true => slices.remove(&metadata.name),
                false => slices.insert(metadata.name.clone()),
            };
            if slices.is_empty() {
                self.slices_of.remove(&service);
            }
            affected.insert(service);
        }
        affected
    }

    fn sync(&mut self, key: &Key) {
        self.problems.remove(key);
        let snapshot = self.services.snapshot();
        let row = self.services.get(&snapshot, Row::<LbService>::by_key(key));
        let Some(row) = row.filter(|row| row.is_load_balancer(|class| self.classes.contains(&class))) else {
            return;
        };
        let text = row.metadata.annotations.get(MATCH_NODE_LABELS).map_or("", SmolStr::as_str);
        let selector: LabelRequirements = match text.parse() {
            Ok(selector) => selector,
            Err(error) => {
                self.problems.insert(key.clone(), format!("{MATCH_NODE_LABELS}: {error}"));
                return;
            }
        };
        let only = (row.spec.external_traffic_policy == "Local").then(|| self.nodes_of(key));
        let ips = ingress(self.receivers.values(), &selector, only.as_ref(), &families(row, &self.families));
        match status::with_addresses(row, &ips) {
            Some(status) => {
                tracing::info!(service = %key, ips = ?ips, "Addresses of nodes of a load balancer");
                self.write.replace(&self.services, row, status);
            }
            None => self.write.forget::<LbService>(key),
        }
    }

    /// Returns the nodes with ready endpoints of a service.
    fn nodes_of(&self, service: &Key) -> BTreeSet<SmolStr> {
        let snapshot = self.slices.snapshot();
        let names = self.slices_of.get(service).into_iter().flatten();
        let rows = names.filter_map(|name| {
            let row = self.slices.get(&snapshot, Row::<EndpointSlice>::by_name(&service.namespace, name))?;
            Some(&row.object)
        });
        with_endpoints(rows.filter(|slice| slice.metadata.labels.get(SERVICE_NAME) == Some(&service.name)))
    }

    fn report(&self, cx: &JobCx) {
        let summary = format!("{} nodes receive traffic of load balancers", self.receivers.len());
        match self.problems.is_empty() {
            true => cx.health.ok(summary),
            false => {
                let problems = self.problems.iter().map(|(key, problem)| format!("service {key}: {problem}"));
                cx.health.degraded(summary, hive::health::summarize(problems, MAX_REPORTED_PROBLEMS, "; "));
            }
        }
    }
}

fn key_of(row: &Row<LbService>) -> Key {
    Key::new(row.metadata.namespace.clone(), row.metadata.name.clone())
}
