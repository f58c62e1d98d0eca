//! The wiring: options and the garbage collection job.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hive::job::Backoff;
use hive::prelude::*;
use maps::{ClockConfig, FamilyConfig, Maps};
use metrics::Metrics;
use signals::{Families, Signals};

use crate::collect::{Collected, collect_with};
use crate::config::ConntrackGcConfig;
use crate::interval::{Interval, MIN_INTERVAL};
use crate::metrics::{Kind, Numbers};
use crate::orphans::{Orphans, purge_orphans};
use crate::pace::Pace;

/// Limit of a pass through one map with millions of entries and a pause after each chunk.
const MAX_PASS: Duration = Duration::from_secs(600);

/// How long a regular pass may be slow: the other maps have to follow within [`MAX_PASS`] each.
const SLOW_PASS: Duration = Duration::from_secs(300);

/// The first and the maximum delay after a failed run.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Deletes expired connection tracking entries.
pub fn cell() -> Cell {
    module(
        "conntrack-gc",
        "Garbage collection of connection tracking entries",
        [config::<ConntrackGcConfig>(), invoke(start)],
    )
}

#[derive(Params)]
struct GcParams {
    config: ConfigWatch<ConntrackGcConfig>,
    clock: Config<ClockConfig>,
    families: Config<FamilyConfig>,
    maps: Arc<Maps>,
    metrics: Arc<Metrics>,
    signals: Arc<Signals>,
    jobs: JobGroup,
}

fn start(p: GcParams) {
    let kind = |family, protocol| Kind { family, protocol };
    let mut collected = Vec::new();
    if p.families.enable_ipv4 {
        collected.push((Families::IPV4, "cilium_ct4_global", kind("ipv4", "TCP")));
        collected.push((Families::IPV4, "cilium_ct_any4_global", kind("ipv4", "non-TCP")));
    }
    if p.families.enable_ipv6 {
        collected.push((Families::IPV6, "cilium_ct6_global", kind("ipv6", "TCP")));
        collected.push((Families::IPV6, "cilium_ct_any6_global", kind("ipv6", "non-TCP")));
    }
    let kinds: Vec<Kind> = collected.iter().map(|(.., kind)| *kind).collect();
    let gc = Gc {
        interval: Interval::new((*p.config.get()).clone()),
        config: p.config,
        clock: (*p.clock).clone(),
        maps: p.maps,
        numbers: Numbers::new(&p.metrics, &kinds),
        collected,
        signals: p.signals,
    };
    p.jobs.one_shot("collect", move |cx: JobCx| gc.run(cx)).add();
}

/// Returns the map of translations of a map of connections.
fn nat_map(connections: &str) -> &'static str {
    if connections.contains("6_global") { "cilium_snat_v6_external" } else { "cilium_snat_v4_external" }
}

struct Gc {
    config: ConfigWatch<ConntrackGcConfig>,
    interval: Interval,
    clock: ClockConfig,
    maps: Arc<Maps>,
    numbers: Numbers,
    collected: Vec<(Families, &'static str, Kind)>,
    signals: Arc<Signals>,
}

impl Gc {
    /// Deletes translations of a family without a connection, after those of ended connections have gone.
    async fn purge_orphans(&self, family: Families, cx: &JobCx) -> Result<(), (&'static str, anyhow::Error)> {
        let names: Vec<&'static str> =
            self.collected.iter().filter(|(of, ..)| *of == family).map(|(_, name, _)| *name).collect();
        let Some(nat_name) = names.first().map(|name| nat_map(name)) else { return Ok(()) };
        let (maps, cancelled) = (self.maps.clone(), cx.token().clone());
        let purged = hive::blocking(move || -> anyhow::Result<Orphans> {
            let Some(nat) = maps.shared(nat_name)? else { return Ok(Orphans::default()) };
            let mut connections = Vec::new();
            for name in names {
                connections.extend(maps.shared(name)?);
            }
            let mut pace = Pace::urgent();
            Ok(purge_orphans(&nat, &connections, Duration::ZERO, || {
                pace.rest(|| cancelled.is_cancelled());
                !cancelled.is_cancelled()
            })?)
        });
        let Orphans { owned, deleted } = purged.await.map_err(|error| (nat_name, error))?;
        if deleted > 0 {
            tracing::info!(mapName = nat_name, owned, deleted, "Purged translations without a connection");
        }
        Ok(())
    }

    async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        let clock = self.clock.clock();
        self.numbers.interval(self.interval.current());
        let mut last = Instant::now();
        // The first run, and a run after a failure, does not wait for the interval.
        let mut early = true;
        let mut wait = MIN_INTERVAL.min(self.interval.current());
        let mut backoff = Backoff::exponential(RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        let mut requested = Families::default();
        let mut last_requested: Option<Instant> = None;
        loop {
            let mut pause = wait.saturating_sub(last.elapsed());
            // Thousands of signals arrive while a map is full: enforce a minimum interval between requested runs.
            if !requested.is_empty() {
                let rest = last_requested.map(|last| MIN_INTERVAL.saturating_sub(last.elapsed()));
                pause = pause.min(rest.unwrap_or_default());
            }
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = tokio::time::sleep(pause) => {}
                families = self.signals.full_maps() => {
                    requested = requested.with(families);
                    continue;
                }
                () = self.config.changed() => {
                    let interval = self.interval.follow((*self.config.get()).clone());
                    self.numbers.interval(interval);
                    wait = if early { wait.min(interval) } else { interval };
                    continue;
                }
            }
            let working = cx.working_within(MAX_PASS);
            let is_due = wait <= last.elapsed();
            let (mut total, mut most, mut failed) = (Collected::default(), 0.0, None);
            for (family, name, kind) in self.collected.clone() {
                if !is_due && !requested.contains(family) {
                    continue;
                }
                let (maps, clock, cancelled) = (self.maps.clone(), clock.clone(), cx.token().clone());
                let begin = Instant::now();
                let is_requested = requested.contains(family);
                let round = hive::blocking(move || -> anyhow::Result<(Collected, u32)> {
                    let Some(map) = maps.shared(name)? else { return Ok((Collected::default(), 1)) };
                    // Only with translations of sources by the programs.
                    let nat = maps.shared(nat_map(name))?;
                    let mut pace = if is_requested { Pace::urgent() } else { Pace::regular(SLOW_PASS) };
                    let found = collect_with(&map, nat.as_ref(), &clock, Duration::ZERO, || {
                        pace.rest(|| cancelled.is_cancelled());
                        !cancelled.is_cancelled()
                    })?;
                    Ok((found, map.layout().max_entries))
                });
                let round = round.await;
                if cx.is_cancelled() {
                    return Ok(());
                }
                working.step();
                self.numbers.round(kind, round.as_ref().ok().map(|(found, _)| found), begin.elapsed());
                match round {
                    Ok((found, capacity)) => {
                        most = f64::max(most, found.deleted as f64 / f64::from(capacity));
                        total.alive += found.alive;
                        total.deleted += found.deleted;
                    }
                    Err(error) => failed = Some((name, error)),
                }
            }
            for family in [Families::IPV4, Families::IPV6].into_iter().filter(|f| requested.contains(*f)) {
                if let Err((map, error)) = self.purge_orphans(family, &cx).await {
                    failed = Some((map, error));
                }
                working.step();
            }
            drop(working);
            if !std::mem::take(&mut requested).is_empty() {
                last_requested = Some(Instant::now());
            }
            // A run for a signal does not postpone the regular one; the new interval may bring it forward.
            if !is_due && failed.is_none() {
                wait = wait.min(self.interval.after_signal(most));
                self.numbers.interval(self.interval.current());
                cx.health.ok(format!("{} connections, {} ended: after a signal", total.alive, total.deleted));
                continue;
            }
            (last, early) = (Instant::now(), failed.is_some());
            wait = self.interval.after(most);
            self.numbers.interval(wait);
            match failed {
                None => {
                    cx.health.ok(format!("{} connections, {} ended", total.alive, total.deleted));
                    backoff.reset();
                }
                Some((map, error)) => {
                    let message = format!("Could not collect expired connections of {map}");
                    if cx.health.degraded_anew(message, &*error) {
                        tracing::warn!(mapName = map, %error, "Could not collect expired connections, retrying");
                    }
                    wait = backoff.next_wait().unwrap_or(MAX_RETRY_INTERVAL).min(wait);
                }
            }
        }
    }
}
