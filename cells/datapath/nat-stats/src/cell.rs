//! The wiring: options, table, the job that counts.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use loadbalancer::ServicesConfig;
use maps::{FamilyConfig, Maps};
use metrics::Metrics;
use statedb::{Query, RwTable, TableSpec as _};

use crate::config::NatStatsConfig;
use crate::count::{Counts, count};
use crate::metrics::Usage;
use crate::row::NatStats;

/// The first pass, as in Cilium: connections of the start are there by then.
const FIRST_PASS: Duration = Duration::from_secs(5);
/// The pause after each chunk of a map, as in the collection of connections.
const CHUNK_PAUSE: Duration = Duration::from_millis(3);
/// Limit of a pass through a map with millions of entries.
const MAX_PASS: Duration = Duration::from_secs(600);

/// Counts translations of sources by destination.
pub fn cell() -> Cell {
    let cells = [config::<NatStatsConfig>(), statedb::table::<NatStats>(), invoke(start)];
    module("nat-stats", "Statistics of translations of sources", cells)
}

#[derive(Params)]
struct StartParams {
    config: Config<NatStatsConfig>,
    services: Config<ServicesConfig>,
    families: Config<FamilyConfig>,
    maps: Arc<Maps>,
    table: Arc<RwTable<NatStats>>,
    metrics: Arc<Metrics>,
    jobs: JobGroup,
}

fn start(p: StartParams) {
    let mut families = Vec::new();
    if p.families.enable_ipv4 {
        families.push(("ipv4", "cilium_snat_v4_external"));
    }
    if p.families.enable_ipv6 {
        families.push(("ipv6", "cilium_snat_v6_external"));
    }
    let usage = Usage::new(&p.metrics);
    for (family, _) in &families {
        usage.record(family, 0.0);
    }
    let specs = p.maps.specs().of_node();
    families.retain(|(_, map)| specs.iter().any(|spec| spec.name == *map));
    let stats = Stats {
        config: (*p.config).clone(),
        source_ports: u16::MAX - p.services.node_port_range.ports().end().saturating_add(1),
        families,
        maps: p.maps,
        table: p.table,
        usage,
    };
    p.jobs.one_shot("count", move |cx: JobCx| stats.run(cx)).add();
}

struct Stats {
    config: NatStatsConfig,
    /// Ports behind those of NodePort services.
    source_ports: u16,
    /// Families with a map of translations, and its name.
    families: Vec<(&'static str, &'static str)>,
    maps: Arc<Maps>,
    table: Arc<RwTable<NatStats>>,
    usage: Usage,
}

impl Stats {
    async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        let interval = self.config.nat_map_stats_interval;
        if interval.is_zero() {
            cx.health.ok("off: nat-map-stats-interval=0s");
            return Ok(());
        }
        if self.families.is_empty() {
            cx.health.ok("no translations of sources on this node");
            return Ok(());
        }
        let mut wait = FIRST_PASS.min(interval);
        loop {
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = tokio::time::sleep(wait) => {}
            }
            wait = interval;
            let working = cx.working_within(MAX_PASS);
            let counted = self.pass(&cx).await;
            drop(working);
            match counted {
                Ok(()) => {
                    cx.health.ok(format_args!("{} destinations", self.table.len(&self.table.snapshot())));
                }
                Err(error) => {
                    let message = "Could not count translations";
                    if cx.health.degraded_anew(message, format_args!("{error:#}")) {
                        tracing::warn!(error = format!("{error:#}"), "{message}, trying again");
                    }
                }
            }
        }
    }

    /// Counts the maps and writes the table, unless the job is cancelled.
    async fn pass(&mut self, cx: &JobCx) -> anyhow::Result<()> {
        let mut rows = Vec::new();
        for (family, name) in self.families.clone() {
            let (maps, cancelled) = (self.maps.clone(), cx.token().clone());
            let entries = self.config.nat_map_stats_entries;
            let counted = hive::blocking(move || -> anyhow::Result<Option<Counts>> {
                let Some(map) = maps.shared(name)? else { return Ok(Some(Counts::default())) };
                Ok(count(&map, entries, CHUNK_PAUSE, || !cancelled.is_cancelled())?)
            });
            let Some(counts) = counted.await? else { return Ok(()) };
            self.usage.record(family, f64::from(counts.max) / f64::from(self.source_ports.max(1)));
            rows.extend(counts.top);
        }
        self.replace(rows);
        Ok(())
    }

    /// Writes rows that differ and deletes those that are no longer among the first.
    fn replace(&self, rows: Vec<NatStats>) {
        self.table.transact(|table| {
            let keys: HashSet<_> = rows.iter().map(NatStats::key).collect();
            table.retain(|row| keys.contains(&row.key()));
            drop(keys);
            for row in rows {
                if table.get(Query::of(&row)).is_none_or(|old| **old != row) {
                    table.insert(row);
                }
            }
        });
    }
}
