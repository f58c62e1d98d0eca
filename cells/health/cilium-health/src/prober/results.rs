//! The results of probes: rows of the table, numbers for metrics, nodes that cannot be reached in health.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use hive::Health;
use hive::health::SHOWN;
use statedb::RwTable;

use super::target::{Key, Target};
use crate::metrics::{Counts, HealthMetrics};
use crate::report::Unreachable;
use crate::row::{CheckResult, NodeHealth, Path, primary};

/// Writes the table `node-health`.
pub(crate) struct Results {
    table: RwTable<NodeHealth>,
    metrics: HealthMetrics,
    health: Health,
    /// Names of this node's cluster and of this node, for metrics.
    source: (String, String),
    counts: Counts,
    /// Number of rows.
    nodes: usize,
    /// Names of nodes with a failed check.
    unreachable: BTreeSet<Arc<str>>,
    reported: String,
    is_changed: bool,
}

impl Results {
    pub(crate) fn new(
        table: RwTable<NodeHealth>,
        metrics: HealthMetrics,
        health: Health,
        source: (String, String),
    ) -> Self {
        let (counts, nodes, unreachable, reported) = Default::default();
        Self { table, metrics, health, source, counts, nodes, unreachable, reported, is_changed: true }
    }

    /// Adds a node or changes its addresses; results of the addresses that it keeps stay.
    pub(crate) fn set(&mut self, target: &Target) {
        let old = self.row(&target.name);
        let known = |ip| {
            let paths = old.iter().flat_map(|row| row.host.iter().chain(&row.endpoint));
            paths.into_iter().find(|path| path.ip == ip).cloned().unwrap_or_else(|| Path::new(ip))
        };
        let row = NodeHealth {
            name: target.name.clone(),
            local: target.local,
            host: target.host.iter().map(|ip| known(*ip)).collect(),
            endpoint: target.endpoint.iter().map(|ip| known(*ip)).collect(),
        };
        self.replace(old.as_ref(), Some(row));
    }

    /// Removes a node.
    pub(crate) fn remove(&mut self, name: &str) {
        let old = self.row(name);
        self.replace(old.as_ref(), None);
    }

    /// Stores the results of a probe.
    pub(crate) fn probed(
        &mut self,
        (name, ip): &Key,
        icmp: Option<CheckResult>,
        http: CheckResult,
        now: SystemTime,
    ) {
        let Some(old) = self.row(name) else { return };
        let mut row = old.clone();
        for (kind, paths) in [("node", &mut row.host), ("endpoint", &mut row.endpoint)] {
            for (at, path) in paths.iter_mut().enumerate().filter(|(_, path)| path.ip == *ip) {
                *path =
                    Path { ip: *ip, last_probed: Some(now), icmp: icmp.clone(), http: Some(http.clone()) };
                // As in Cilium, the latencies are those of paths to other nodes.
                let source = (&*self.source.0, &*self.source.1);
                if let Some(icmp) = &icmp {
                    self.metrics.observe(source, kind, "icmp", at == 0, icmp);
                }
                self.metrics.observe(source, kind, "http", at == 0, &http);
            }
        }
        self.replace(Some(&old), Some(row));
    }

    /// Reports the numbers if they have changed: in metrics, in health, and in the log when all nodes could be reached
    /// before or can be now. A node that cannot be reached is no fault of this agent, so health stays at OK.
    pub(crate) fn report(&mut self) {
        if !std::mem::take(&mut self.is_changed) {
            return;
        }
        self.metrics.set((&self.source.0, &self.source.1), &self.counts);
        let (nodes, failing) = (self.nodes, self.unreachable.len());
        let message = if failing == 0 {
            format!("no path of {nodes} nodes has failed")
        } else {
            // Only the rows that are shown are read: there is a report for each probe, and all nodes may be unreachable.
            let snapshot = self.table.snapshot();
            let rows = self.unreachable.iter().take(SHOWN).filter_map(|name| {
                self.table.get(&snapshot, NodeHealth::by_name(name)).map(|row| Unreachable(row).to_string())
            });
            let more = failing.saturating_sub(SHOWN);
            let more = (more > 0).then(|| format!("and {more} more"));
            let texts: Vec<String> = rows.chain(more).collect();
            format!("{failing} of {nodes} nodes unreachable: {}", texts.join("; "))
        };
        if message == self.reported {
            return;
        }
        let failed_before = self.reported.contains(" nodes unreachable: ");
        if failing != 0 && !failed_before {
            tracing::info!(nodes = message, "Nodes cannot be reached");
        } else if failing == 0 && failed_before {
            tracing::info!(nodes, "All nodes can be reached again");
        }
        self.health.ok(&message);
        self.reported = message;
    }

    fn row(&self, name: &str) -> Option<NodeHealth> {
        let snapshot = self.table.snapshot();
        self.table.get(&snapshot, NodeHealth::by_name(name)).map(|row| NodeHealth::clone(row))
    }

    fn replace(&mut self, old: Option<&NodeHealth>, new: Option<NodeHealth>) {
        for (row, by) in [(old, -1), (new.as_ref(), 1)] {
            if let Some(row) = row {
                self.counts.nodes.add(primary(&row.host), by);
                self.counts.endpoints.add(primary(&row.endpoint), by);
            }
        }
        self.nodes = self.nodes + usize::from(new.is_some()) - usize::from(old.is_some());
        let name = old.or(new.as_ref()).map(|row| row.name.clone());
        if let Some(name) = name {
            match &new {
                Some(row) if Unreachable::is(row) => drop(self.unreachable.insert(name)),
                _ => drop(self.unreachable.remove(&name)),
            }
        }
        self.is_changed = true;
        let (_done, _snapshot) = self.table.transact(|w| match (new, old) {
            (Some(row), _) => drop(w.insert(row)),
            (None, Some(old)) => drop(w.delete(NodeHealth::by_name(&old.name))),
            (None, None) => {}
        });
    }
}
