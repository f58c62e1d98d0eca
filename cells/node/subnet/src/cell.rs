//! The wiring: the option, the table, and the job that keeps table and map.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::metrics::Metrics;
use config_sources::ClusterConfig;
use hive::prelude::*;
use maps::Maps;
use statedb::{RwTable, Snapshot, Table, Writer};
use tokio::time::sleep;
use tunnel::Tunnel;

use crate::commands::commands;
use crate::metrics::Pressure;
use crate::{SubnetConfig, SubnetIdentity, Topology, map};

/// The option, as objects of the cluster name it.
const OPTION: &str = "subnet-topology";
/// The owner of the map in drift checks.
const OWNER: &str = "subnet";
/// How long the job waits before it writes the map again after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Keeps the table `subnet-identities` and `cilium_subnet_map`.
pub fn cell() -> Cell {
    module(
        "subnet",
        "Subnets that route natively to each other",
        [config::<SubnetConfig>(), statedb::table::<SubnetIdentity>(), provide(commands), invoke(follow)],
    )
}

#[derive(Params)]
struct FollowParams {
    config: Config<SubnetConfig>,
    tunnel: Arc<Tunnel>,
    table: Arc<RwTable<SubnetIdentity>>,
    objects: Arc<Table<ClusterConfig>>,
    maps: Arc<Maps>,
    metrics: Arc<Metrics>,
    jobs: JobGroup,
}

fn follow(p: FollowParams) {
    let option = p.config.subnet_topology.clone();
    if !p.tunnel.is_hybrid() {
        if option.rows().next().is_some() {
            tracing::warn!("{OPTION} has no effect without routing-mode=hybrid");
        }
        return;
    }
    p.table.transact(|txn| replace(txn, &option));
    let capacity = p.maps.spec(map::NAME).map_or(0, |spec| spec.layout.max_entries);
    let pressure = Pressure { capacity, ..Pressure::default() };
    p.metrics.register_collector(pressure.clone());
    let follower = Follower { option, table: p.table, objects: p.objects, maps: p.maps, pressure };
    p.jobs.one_shot("topology", move |cx: JobCx| follower.run(cx)).add();
}

struct Follower {
    option: Topology,
    table: Arc<RwTable<SubnetIdentity>>,
    objects: Arc<Table<ClusterConfig>>,
    maps: Arc<Maps>,
    pressure: Pressure,
}

impl Follower {
    async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        let comparisons = self.maps.comparisons().clone();
        let mut topology = self.option.clone();
        let mut is_check = false;
        loop {
            let snapshot = self.objects.snapshot();
            let (_, changed) = self.objects.all_watch(&snapshot);
            let refused = match self.desired(&snapshot) {
                Ok(desired) => {
                    if desired != topology {
                        tracing::info!(topology = %desired, "The topology of subnets has changed");
                        self.table.transact(|txn| replace(txn, &desired));
                        topology = desired;
                    }
                    None
                }
                Err(reason) => Some(reason),
            };
            let failed = match map::write(&self.maps, topology.rows()) {
                Ok(written) => {
                    self.pressure.entries.store(written.entries, Ordering::Relaxed);
                    if std::mem::take(&mut is_check) {
                        let repaired =
                            written.changed.iter().map(|prefix| format!("{}: {prefix}", map::NAME));
                        comparisons.compared(OWNER, written.entries, repaired.collect());
                    }
                    None
                }
                Err(error) => Some(format!("{error:#}")),
            };
            match (&failed, refused) {
                (Some(error), _) => cx.health.degraded("The map of subnets cannot be written", error),
                (None, Some(reason)) => {
                    if cx
                        .health
                        .degraded_anew("The topology of subnets is refused, the last one stays", &reason)
                    {
                        tracing::warn!(error = reason, "The topology of subnets is refused");
                    }
                }
                (None, None) => cx.health.ok(format_args!("{} subnet(s)", topology.rows().count())),
            }
            drop(snapshot);
            tokio::select! {
                () = changed.changed() => {}
                () = comparisons.turn(OWNER) => is_check = true,
                () = sleep(RETRY_INTERVAL), if failed.is_some() => {}
                () = cx.cancelled() => return Ok(()),
            }
        }
    }

    /// Returns the topology of the cluster's objects, or that of the option if no object has one.
    fn desired(&self, snapshot: &Snapshot) -> Result<Topology, String> {
        let rows = self.objects.list(snapshot, ClusterConfig::by_name(OPTION));
        let Some(row) = rows.min_by_key(|row| row.priority) else { return Ok(self.option.clone()) };
        row.value.parse().map_err(|error| format!("{}: option {OPTION}: {error}", row.object))
    }
}

fn replace(txn: &mut Writer<'_, SubnetIdentity>, topology: &Topology) {
    txn.retain(|row| topology.group(row.prefix) == Some(row.identity));
    for row in topology.rows() {
        if txn.get(SubnetIdentity::by_key(row.prefix)).is_none() {
            txn.insert(row);
        }
    }
}
