//! The wiring of the metrics.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hive::job::Backoff;
use hive::prelude::*;
use hive::{Events, HealthTree};
use parking_lot::Mutex;
use server_tls::{CurrentTls, Listener, follow_certificates};
use statedb::Db;

use crate::agent::Framework;
use crate::commands::commands;
use crate::config::MetricsConfig;
use crate::controllers;
use crate::process::Process;
use crate::profile::MetricsProfile;
use crate::reconcilers;
use crate::registry::Metrics;
use crate::sampler::{KEPT, Sampler};
use crate::selection::Selection;
use crate::server;
use crate::tables;

/// The backoff for certificates that cannot be watched.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// Returns the cell of the registry, with its HTTP server if `--prometheus-serve-addr` is set.
pub fn cell() -> Cell {
    let cells = [
        config::<MetricsConfig>(),
        provide(new_metrics),
        provide(new_sampler),
        provide(commands),
        invoke(serve_metrics),
        invoke(measure_tables),
    ];
    module("metrics", "Metrics registry and Prometheus endpoint", cells)
}

fn new_metrics(
    mut config: ConfigWatch<MetricsConfig>,
    profile: Option<Arc<MetricsProfile>>,
    jobs: JobGroup,
) -> Arc<Metrics> {
    let selection_of_start = selection(&config.get());
    let metrics = Arc::new(match profile {
        Some(profile) => Metrics::with_prefix(profile.prefix, selection_of_start),
        None => Metrics::new(selection_of_start),
    });
    metrics.register_collector(Process::new("/proc"));
    let selected = metrics.clone();
    jobs.one_shot("selection", move |cx: JobCx| async move {
        loop {
            tokio::select! {
                () = config.changed() => selected.select(selection(&config.get())),
                () = cx.cancelled() => return Ok(()),
            }
        }
    })
    .add();
    metrics
}

/// Registers metrics of tables, if the hive has any.
fn measure_tables(metrics: Arc<Metrics>, db: Option<Arc<Db>>) {
    db.iter().for_each(|db| {
        tables::register(&metrics, db);
        reconcilers::register(&metrics, db);
    });
}

fn selection(config: &MetricsConfig) -> Selection {
    let words = config.metrics.iter().map(|word| word.trim()).filter(|word| !word.is_empty());
    let (selection, wrong) = Selection::parse(words);
    for metric in wrong {
        tracing::warn!(metric, "Metric without + or - in front is ignored");
    }
    selection
}

/// Starts the jobs of the sampler. They have the names of Cilium's, as scripts compare their rows of the table
/// `health`.
fn new_sampler(config: Config<MetricsConfig>, metrics: Arc<Metrics>, jobs: JobGroup) -> Arc<Sampler> {
    let interval = config.metrics_sampling_interval;
    let sampler = Arc::new(Sampler::new(interval));
    let collects = sampler.clone();
    jobs.one_shot("collect", move |cx: JobCx| async move {
        loop {
            let count = collects.collect(&metrics, Instant::now());
            cx.health.ok(format_args!("Sampled {count} metrics, next in {}", statedb::age::of(interval)));
            if cx.token().run_until_cancelled(tokio::time::sleep(interval)).await.is_none() {
                return Ok(());
            }
        }
    })
    .add();
    let cleans = sampler.clone();
    jobs.timer("cleanup", interval * KEPT as u32 / 2, move |_: JobCx| {
        cleans.clean(Instant::now());
        std::future::ready(Ok(()))
    })
    .add();
    sampler
}

#[derive(Params)]
struct ServeParams {
    config: Config<MetricsConfig>,
    profile: Option<Arc<MetricsProfile>>,
    metrics: Arc<Metrics>,
    health: Arc<HealthTree>,
    events: Arc<Events>,
    db: Option<Arc<Db>>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
}

fn serve_metrics(p: ServeParams) {
    // Of agents only, as in Cilium.
    let is_agent = p.profile.is_none();
    let controllers = is_agent.then(|| controllers::register(&p.metrics, p.health.clone(), p.db));
    let framework = Framework::new(&p.metrics, p.health, controllers);
    p.events.observe(move |event| framework.count(event));
    let (option, address, tls) = match &p.profile {
        Some(profile) => (profile.option, profile.address.clone(), profile.tls.clone()),
        None => ("prometheus-serve-addr", p.config.prometheus_serve_addr.clone(), None),
    };
    if address.is_empty() {
        return;
    }
    let certificates = tls.as_ref().map(|_| Arc::<CurrentTls>::default());
    if let Some((files, current)) = tls.zip(certificates.clone()) {
        let follow = move |cx: JobCx| follow_certificates(files.clone(), current.clone(), cx);
        p.jobs.one_shot_with_retry("certificates", Backoff::exponential(RETRY.0, RETRY.1), follow).add();
    }
    let bound = Arc::new(Mutex::new(None));
    let at_start = bound.clone();
    p.lifecycle
        .hook("prometheus-server")
        .on_start(move |_| async move {
            // With TLS a connection is refused until there are certificates.
            let listener = server::bind(option, &address).await?;
            tracing::info!(address, tls = certificates.is_some(), "Serving prometheus metrics");
            *at_start.lock() = Some(Listener { listener, certificates });
            Ok(())
        })
        .add();
    let metrics = p.metrics;
    p.jobs
        .one_shot("agent-prometheus-server", move |cx: JobCx| async move {
            let listener = bound.lock().take();
            let on_accept = |error: Option<&std::io::Error>| match error {
                Some(error) => cx.health.degraded("Cannot accept connections", error),
                None => cx.health.ok("serving"),
            };
            if let Some(listener) = listener {
                server::serve(listener, metrics, cx.token().clone(), on_accept).await;
            }
            Ok(())
        })
        .add();
}
