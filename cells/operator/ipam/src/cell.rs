//! The wiring, and the job that follows CiliumNodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use hive::prelude::*;
use k8s_tables::Row;
use k8s_types::SmolStr;
use k8s_types::cilium::{CiliumNode, CiliumPodIPPool};
use k8s_writer::Writer;
use operator_definitions::Registered;
use operator_election::Leadership;
use statedb::{Change, Table};

use crate::Error;
use crate::cluster_pool::{ClusterPool, Desired, Node};
use crate::config::{IpamMode, OperatorIpamConfig};
use crate::multi_pool::MultiPool;
use crate::multi_pool_job::PoolAllocator;
use crate::pod_pools;
use crate::write::NodeWriter;

/// The annotation of a CiliumNode that is not the operator's.
pub(crate) const IGNORE: &str = "ipam.cilium.io/ignore";

/// Gives nodes their CIDRs, with `ipam=cluster-pool` and `ipam=multi-pool`. A cell of the leader.
pub fn cell() -> Cell {
    let needs_pools = |config: Config<OperatorIpamConfig>| config.ipam == IpamMode::MultiPool;
    let pools = k8s_tables::optional::<CiliumPodIPPool, _>(needs_pools);
    module("ipam", "CIDRs of pods for all nodes", [config::<OperatorIpamConfig>(), pools, invoke(start)])
}

#[derive(Params)]
struct IpamParams {
    config: Config<OperatorIpamConfig>,
    nodes: Arc<Table<Row<CiliumNode>>>,
    pools: Arc<Table<Row<CiliumPodIPPool>>>,
    writer: Arc<Writer>,
    leadership: Arc<Leadership>,
    /// Objects can be read once their kinds are defined.
    _registered: Arc<Registered>,
    jobs: JobGroup,
    health: Health,
}

fn start(p: IpamParams) -> Result<(), Error> {
    let write = NodeWriter { writer: p.writer, leadership: Leadership::clone(&p.leadership) };
    match p.config.ipam {
        IpamMode::ClusterPool => {}
        IpamMode::MultiPool => {
            let created = pod_pools::parse(&p.config.auto_create_cilium_pod_ip_pools)?;
            let pools = MultiPool::new(p.config.enable_ipv4, p.config.enable_ipv6);
            let allocator = PoolAllocator { pools, write, created, errors: BTreeMap::new() };
            p.jobs.one_shot("multi-pool", move |cx: JobCx| allocator.run(p.pools, p.nodes, cx)).add();
            return Ok(());
        }
        IpamMode::Others => {
            p.health.ok("Nodes get their addresses without an operator");
            return Ok(());
        }
    }
    let pool = ClusterPool::new(&p.config)?;
    let allocator = Allocator { pool, write, errors: BTreeMap::new() };
    p.jobs.one_shot("cluster-pool", move |cx: JobCx| allocator.run(p.nodes, cx)).add();
    Ok(())
}

/// Follows CiliumNodes and gives them CIDRs.
struct Allocator {
    pool: ClusterPool,
    write: NodeWriter,
    /// The errors of nodes that have some.
    errors: BTreeMap<SmolStr, String>,
}

impl Allocator {
    async fn run(mut self, nodes: Arc<Table<Row<CiliumNode>>>, cx: JobCx) -> anyhow::Result<()> {
        let ranges: Vec<String> = self.pool.ranges().iter().map(ToString::to_string).collect();
        tracing::info!(cidrs = ranges.join(","), "Allocating pod CIDRs of the cluster pool");
        cx.health.ok("Waits for the list of CiliumNodes");
        if cx.token().run_until_cancelled(nodes.wait_initialized()).await.is_none() {
            return Ok(());
        }
        let mut changes = nodes.changes();
        let mut is_first = true;
        while let Some(batch) = cx.token().run_until_cancelled(changes.next()).await {
            let mut batch: Vec<Change<Row<CiliumNode>>> = batch.into_iter().collect();
            if std::mem::take(&mut is_first) {
                // Nodes with CIDRs keep them before others get any; of two with the same one the older node does.
                batch.sort_by_key(|change| {
                    let (spec, metadata) = (&change.object.spec, &change.object.metadata);
                    let created = metadata.creation_timestamp.map(|time| time.seconds());
                    (spec.ipam.pod_cidrs.is_empty(), created, metadata.name.clone())
                });
            }
            let mut has_freed = false;
            for change in &batch {
                match change.deleted {
                    true => {
                        let name = &change.object.metadata.name;
                        has_freed |= self.pool.remove(name);
                        self.errors.remove(name);
                    }
                    false => self.sync(&change.object),
                }
            }
            if has_freed {
                // Nodes that wait are served.
                let snapshot = nodes.snapshot();
                for name in self.errors.keys().cloned().collect::<Vec<_>>() {
                    if let Some(row) = nodes.get(&snapshot, Row::<CiliumNode>::by_name("", &name)) {
                        self.sync(row);
                    }
                }
            }
            self.report(&cx);
        }
        Ok(())
    }

    fn sync(&mut self, row: &Row<CiliumNode>) {
        let metadata = &row.metadata;
        if metadata.annotations.get(IGNORE).is_some_and(|value| value == "true") {
            return;
        }
        let (name, basis) = (&metadata.name, &row.spec.ipam.pod_cidrs);
        let Desired { pod_cidrs, error } = self.pool.sync(&Node { name, pod_cidrs: basis });
        if let Some(cidrs) = pod_cidrs {
            tracing::info!(node = %name, cidrs = cidrs.join(","), "Allocated pod CIDRs");
            self.write.pod_cidrs(name, &metadata.uid, basis, cidrs);
        }
        let known = self.errors.get(name).map_or("", String::as_str);
        let is_new = known != error;
        if is_new && !error.is_empty() {
            tracing::warn!(node = %name, error, "A node does not get the pod CIDRs that it needs");
        }
        // Also one that an earlier operator has left.
        if is_new || row.status.ipam.operator_status.error != error {
            self.write.error(name, &metadata.uid, error.clone());
        }
        match error.is_empty() {
            true => drop(self.errors.remove(name)),
            false => drop(self.errors.insert(name.clone(), error)),
        }
    }

    fn report(&self, cx: &JobCx) {
        let summary = self.pool.summary();
        match self.errors.first_key_value() {
            None => cx.health.ok(summary),
            Some((name, error)) => {
                let more = match self.errors.len() - 1 {
                    0 => String::new(),
                    more => format!(", and {more} nodes more"),
                };
                cx.health.degraded(summary, format!("node {name}: {error}{more}"));
            }
        }
    }
}
