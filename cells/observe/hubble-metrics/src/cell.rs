//! The wiring: options, the consumer of events, the server, the jobs, the status.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use api::StatusSource;
use api_models::HubbleMetricsStatus;
use endpoints::Endpoint;
use hive::job::Backoff;
use hive::prelude::*;
use hubble::{Consumer, Feed, HubbleRegistry};
use ipcache::Entry;
use server_tls::{CurrentTls, follow_certificates};
use statedb::{Db, Table};

use crate::config::HubbleMetricsConfig;
use crate::job::{Follow, Sweep};
use crate::server::{Server, address};
use crate::set::MetricSet;
use crate::spec::{BadMetrics, of_option};

/// The backoff for certificates that cannot be watched.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// Returns the cell of metrics of flows.
pub fn cell() -> Cell {
    let cells = [
        config::<HubbleMetricsConfig>(),
        provide_private(new_set),
        provide(new_consumer),
        provide(new_status),
        invoke(start),
    ];
    module("hubble-metrics", "Metrics of the flows of the node's packets", cells)
}

/// The metrics; none without a server.
struct Counting(Option<MetricSet>);

fn new_set(config: Config<HubbleMetricsConfig>) -> Result<Arc<Counting>, BadMetrics> {
    if config.hubble_metrics_server.is_empty() {
        return Ok(Arc::new(Counting(None)));
    }
    if !config.hubble_metrics.trim().is_empty() && !config.hubble_dynamic_metrics_config_path.is_empty() {
        return Err(BadMetrics::Both);
    }
    let set = MetricSet::default();
    set.replace(of_option(&config.hubble_metrics)?)?;
    Ok(Arc::new(Counting(Some(set))))
}

fn new_consumer(counting: Arc<Counting>) -> Members<Consumer> {
    let consumer = |set: MetricSet| Consumer::new(move |event| set.count(event));
    Members(counting.0.clone().into_iter().map(consumer).collect())
}

/// Returns the source of `hubble-metrics`; without a server it stays disabled.
fn new_status(counting: Arc<Counting>, feed: Arc<Feed>) -> Member<StatusSource> {
    let is_on = counting.0.is_some() && feed.is_on();
    Member(StatusSource::new("hubble-metrics", move |status| {
        if is_on {
            let state = "Ok".to_owned();
            status.hubble_metrics = Some(HubbleMetricsStatus { state, ..HubbleMetricsStatus::default() });
        }
    }))
}

#[derive(Params)]
struct Needs {
    config: Config<HubbleMetricsConfig>,
    counting: Arc<Counting>,
    feed: Arc<Feed>,
    registry: Arc<HubbleRegistry>,
    db: Arc<Db>,
    endpoints: Arc<Table<Endpoint>>,
    ipcache: Arc<Table<Entry>>,
    jobs: JobGroup,
}

fn start(p: Needs) -> anyhow::Result<()> {
    let Some(set) = p.counting.0.clone().filter(|_| p.feed.is_on()) else { return Ok(()) };
    let text = &p.config.hubble_metrics_server;
    let address = address(text).with_context(|| {
        format!("hubble-metrics-server: {text:?} is no address: give ADDRESS:PORT or :PORT")
    })?;
    set.register(&p.registry.0);
    let server = Server::new(p.registry, p.config.enable_hubble_open_metrics);
    let certificates = p.config.tls()?.map(|files| (files, Arc::<CurrentTls>::default()));
    if let Some((files, current)) = certificates.clone() {
        let follow = move |cx: JobCx| follow_certificates(files.clone(), current.clone(), cx);
        p.jobs.one_shot_with_retry("certificates", Backoff::exponential(RETRY.0, RETRY.1), follow).add();
    }
    let certificates = certificates.map(|(_, current)| current);
    p.jobs.one_shot("server", move |cx: JobCx| server.run(address, certificates, cx)).add();
    let path = &p.config.hubble_dynamic_metrics_config_path;
    if !path.is_empty() {
        let follow = Follow { path: path.into(), set: set.clone(), content: None };
        p.jobs.one_shot("follow-file", move |cx: JobCx| follow.run(cx)).add();
    }
    let sweep = Sweep { set, db: p.db, endpoints: (*p.endpoints).clone(), ipcache: (*p.ipcache).clone() };
    p.jobs.one_shot("sweep", move |cx: JobCx| sweep.run(cx)).add();
    Ok(())
}

#[cfg(test)]
mod tests;
