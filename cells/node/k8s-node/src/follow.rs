//! The job that follows the objects.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use devices::{NodeAddress, WILDCARD_DEVICE};
use hive::{Health, JobCx};
use k8s_tables::Row;
use k8s_types::cilium::CiliumNode;
use k8s_types::core::Node;
use k8s_writer::Writer;
use local_node::{AutomaticRanges, LocalNode, LocalNodeStore};
use statedb::Table;
use tokio::time::{Instant, sleep_until};

use crate::annotate;
use crate::apply::{Facts, Findings, apply};
use crate::config::Settings;

/// How long an optional range of the cluster is waited for, as in Cilium.
const OPTIONAL_RANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// The tables that the job reads and what it writes.
pub(crate) struct Follower {
    pub(crate) settings: Settings,
    pub(crate) nodes: Arc<Table<Row<Node>>>,
    pub(crate) cilium_nodes: Arc<Table<Row<CiliumNode>>>,
    pub(crate) addresses: Arc<Table<NodeAddress>>,
    pub(crate) store: Arc<LocalNodeStore>,
    pub(crate) automatic: Arc<AutomaticRanges>,
    pub(crate) writer: Option<Arc<Writer>>,
}

impl Follower {
    /// Runs until the job is cancelled.
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        let deadline = Instant::now() + OPTIONAL_RANGE_TIMEOUT;
        let invalid = cx.health.child("objects");
        let (mut reported, mut is_deleted) = (Findings::default(), false);
        loop {
            let snapshot = self.nodes.snapshot();
            let (node, node_watch) = self.nodes.get_watch(&snapshot, Row::by_name("", &self.settings.name));
            let cilium_snapshot = self.cilium_nodes.snapshot();
            let own = Row::by_name("", &self.settings.name);
            let (cilium_node, cilium_node_watch) = self.cilium_nodes.get_watch(&cilium_snapshot, own);
            let address_snapshot = self.addresses.snapshot();
            let (rows, address_watch) = self.addresses.all_watch(&address_snapshot);
            let device_addresses: BTreeSet<IpAddr> =
                rows.filter(|row| row.device_name != WILDCARD_DEVICE).map(|row| row.addr).collect();
            let facts = Facts {
                nodes_are_read: self.nodes.initialized(&snapshot),
                node: node.map(|row| &row.object),
                cilium_node: cilium_node.map(|row| &row.object),
                device_addresses: &device_addresses,
            };
            let mut findings = Findings::default();
            self.store.update(|row| findings = apply(&self.settings, &facts, row));
            let has_waited = Instant::now() >= deadline;
            if findings.may_derive && has_waited {
                match self.derive(&facts) {
                    Ok(after) => findings = after,
                    Err(error) => findings.problems.push(format!("no automatic range: {error:#}")),
                }
            }
            if let (true, Some(writer), Some(object), Some(row)) =
                (self.settings.annotations, &self.writer, node, self.store.node())
                && let Some((target, mutation)) = annotate::mutation(&row, object)
            {
                drop(writer.enqueue(target, mutation));
            }
            let leaves = self.store.node().is_some_and(|row| row.is_being_deleted);
            if leaves != std::mem::replace(&mut is_deleted, leaves) {
                let name = &self.settings.name;
                match leaves {
                    true => {
                        tracing::info!(node = name, "The Node is being deleted; the datapath stays as it is")
                    }
                    false => tracing::info!(node = name, "The Node is there again"),
                }
            }
            report(&findings, &mut reported, &self.settings.name, &cx.health, &invalid);

            let (store_watch, _row);
            let local = self.store.table();
            let local_snapshot = local.snapshot();
            (_row, store_watch) = local.get_watch(&local_snapshot, LocalNode::query());
            let nodes_are_read = facts.nodes_are_read;
            drop((snapshot, cilium_snapshot, address_snapshot, local_snapshot));
            tokio::select! {
                () = node_watch.changed() => {}
                () = self.nodes.wait_initialized(), if !nodes_are_read => {}
                () = cilium_node_watch.changed() => {}
                () = address_watch.changed() => {}
                () = store_watch.changed(), if self.settings.annotations => {}
                () = sleep_until(deadline), if findings.may_derive && !has_waited => {}
                () = cx.cancelled() => return Ok(()),
            }
        }
    }

    /// Sets automatic ranges where the cluster has none.
    fn derive(&self, facts: &Facts<'_>) -> Result<Findings, local_node::Error> {
        let (mut derived, mut findings) = (Ok(()), Findings::default());
        self.store.update(|row| {
            derived = self.automatic.set(row);
            findings = apply(&self.settings, facts, row);
        });
        derived.map(|()| findings)
    }
}

/// Reports findings in health; those that are new also in the log.
fn report(findings: &Findings, reported: &mut Findings, name: &str, health: &Health, invalid: &Health) {
    if findings == reported && !(findings.waits.is_empty() && findings.problems.is_empty()) {
        return;
    }
    match findings.waits.is_empty() {
        true => health.ok(format!("Node {name} is known")),
        false => {
            let waits = findings.waits.join("; ");
            if health.degraded_anew("Waits for information of the cluster about this node", &waits) {
                tracing::info!(reason = waits, "Waiting for k8s node information");
            }
        }
    }
    match findings.problems.is_empty() {
        true => invalid.close(),
        false => {
            let problems = findings.problems.join("; ");
            if invalid.degraded_anew("Objects of the cluster describe this node wrongly", &problems) {
                tracing::warn!(
                    node = name,
                    error = problems,
                    "Objects of the cluster describe this node wrongly"
                );
            }
        }
    }
    *reported = findings.clone();
}
