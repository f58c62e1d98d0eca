//! The wiring: options, the start hook that opens maps, the job that creates the rest, the table, the routes.

use std::sync::Arc;
use std::time::Duration;

use api::{Route, StatusSource};
use hive::Settings;
use hive::prelude::*;
use memory_limit::MemoryLimit;
use metrics::Metrics;
use statedb::RwTable;

use crate::config::{ClockConfig, FamilyConfig, LivenessConfig, MapsConfig};
use crate::counters::Counters;
use crate::fit::Fit;
use crate::gauges::Gauges;
use crate::maps::{LOAD_THREADS, Maps};
use crate::memory::{Memory, register_durations};
use crate::runtime;
use crate::specs::{POLICY_PREFIX, Specs};
use crate::table::MapRow;

/// Limit of the wait for forwarding before maps are created that forwarding does not need.
const MAX_FORWARDING_WAIT: Duration = Duration::from_millis(500);

/// Creates and opens the node's maps; provides `Arc<Maps>` and the table `bpf-maps`. A cell that takes
/// `Arc<Maps>` finds the maps that the datapath uses open in its start hook.
pub fn cell() -> Cell {
    bundle([
        module("ip-families", "Which IP families the node forwards", [config::<FamilyConfig>()]),
        module("bpf-clock", "The clock of the datapath", [config::<ClockConfig>()]),
        module(
            "maps",
            "Pinned BPF maps",
            [
                config::<MapsConfig>(),
                config::<LivenessConfig>(),
                statedb::table::<MapRow>(),
                provide(new_maps),
                provide(new_routes),
                provide(new_status),
                invoke(runtime::start),
            ],
        ),
    ])
}

#[derive(Params)]
struct MapsParams {
    config: Config<MapsConfig>,
    families: Config<FamilyConfig>,
    settings: Arc<Settings>,
    table: Arc<RwTable<MapRow>>,
    memory: Option<Arc<MemoryLimit>>,
    metrics: Option<Arc<Metrics>>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
}

fn new_maps(p: MapsParams) -> anyhow::Result<Arc<Maps>> {
    let (config, families) = ((*p.config).clone(), (*p.families).clone());
    let specs = Specs::new(config, families).with_settings(&p.settings);
    let (specs, fit) = match p.memory.as_deref().and_then(|limit| Some((limit.bytes()?, limit.for_maps()?))) {
        None => (specs, None),
        Some((limit, budget)) => {
            let (specs, fit) = specs.fit(budget);
            report_fit(&fit, limit)?;
            (specs, Some(fit))
        }
    };
    let threads = p.memory.as_deref().map_or(LOAD_THREADS, |limit| limit.load_threads(LOAD_THREADS));
    let maps = Arc::new(Maps::of(specs).with_load_threads(threads));
    if let Some(metrics) = p.metrics {
        metrics.register_collector(Counters(maps.clone()));
        metrics.register_collector(Gauges(maps.clone()));
        metrics.register_collector(Memory(maps.clone()));
        register_durations(&metrics);
    }
    let opened = maps.clone();
    p.lifecycle
        .hook("maps")
        .on_start(move |_| async move {
            hive::blocking(move || opened.open()).await?;
            Ok(())
        })
        .add();
    let (rest, table) = (maps.clone(), p.table);
    // Creates on half of the CPUs, as endpoints are created at the same time.
    let creators = (bpf::possible_cpus() / 2).clamp(1, 4);
    let backoff = Backoff::exponential(Duration::from_secs(1), Duration::from_secs(30));
    p.jobs
        .one_shot_with_retry("create-maps", backoff, move |cx: JobCx| {
            let (rest, table) = (rest.clone(), table.clone());
            async move {
                // Programs and endpoints have precedence: creating one of these maps occupies a CPU for milliseconds.
                tokio::select! {
                    () = rest.forwarding() => {}
                    () = tokio::time::sleep(MAX_FORWARDING_WAIT) => {}
                    () = cx.cancelled() => return Ok(()),
                }
                let rows = hive::blocking(move || {
                    let created = rest.open_rest(creators)?;
                    let pinned = rest.pinned()?;
                    let row = |(name, (id, layout)): (&String, &(u32, bpf::Layout))| {
                        let of_node = !name.starts_with(POLICY_PREFIX) && rest.spec(name).is_some();
                        of_node.then(|| MapRow::new(name, &rest.path(name), *id, *layout))
                    };
                    anyhow::Ok((created, pinned.iter().filter_map(row).collect::<Vec<_>>()))
                });
                let (created, rows) = rows.await?;
                table.transact(|w| {
                    for row in rows {
                        w.insert(row);
                    }
                });
                match fit {
                    None => cx.health.ok(format_args!("{created} maps")),
                    Some(fit) if fit.fits() => cx.health.ok(format_args!("{created} maps: {fit}")),
                    Some(fit) => cx.health.degraded(format_args!("{created} maps: {fit}"), TOO_LARGE),
                }
                Ok(())
            }
        })
        .add();
    Ok(maps)
}

const TOO_LARGE: &str =
    "the sizes that options set leave too little to the agent; raise the limit of its container";

/// Reports how the maps were sized for the limit. Refuses sizes that would get the agent killed for lack of memory.
fn report_fit(fit: &Fit, limit: u64) -> anyhow::Result<()> {
    anyhow::ensure!(
        fit.taken < limit,
        "The maps need {} MiB of kernel memory, and the limit of the agent's container is {} MiB: raise it, or lower \
         bpf-ct-global-tcp-max, bpf-ct-global-any-max, bpf-policy-stats-map-max, bpf-lb-map-max, bpf-auth-map-max",
        fit.taken >> 20,
        limit >> 20
    );
    if fit.wanted > fit.taken {
        tracing::info!("Maps are sized by the limit of memory: {fit}");
    }
    Ok(())
}

fn new_status(maps: Arc<Maps>) -> Member<StatusSource> {
    Member(StatusSource::new("bpf-maps", move |status| {
        status.bpf_maps = Some(crate::status::status(maps.specs()))
    }))
}

fn new_routes(maps: Arc<Maps>) -> Members<Route> {
    Members(crate::rest::routes(maps))
}
