//! The wiring: options, the consumer of flows, the job.

use std::sync::Arc;
use std::time::Instant;

use endpoints::Endpoint;
use hive::prelude::*;
use hubble::{Consumer, Event, Feed};
use k8s_types::Api;
use local_node::LocalNode;
use policy::{EndpointPolicy, Policies};
use statedb::{Db, Table};
use token_bucket::Bucket;

use crate::config::DropEventsConfig;
use crate::job::{Pending, Writer};
use crate::occurrence::Occurrence;
use crate::policies;

/// Returns the cell of events for drops.
pub fn cell() -> Cell {
    let cells =
        [config::<DropEventsConfig>(), provide_private(new_counting), provide(new_consumer), invoke(start)];
    module("hubble-drop-events", "Events of Kubernetes for packets of pods that are dropped", cells)
}

/// The occurrences; none if there are no events.
struct Counting(Option<Arc<Pending>>);

fn new_counting(config: Config<DropEventsConfig>, api: Option<Arc<dyn Api>>) -> Arc<Counting> {
    let is_on = config.hubble_drop_events && api.is_some();
    let pending = || Arc::new(Pending::new(config.hubble_drop_events_interval));
    Arc::new(Counting(is_on.then(pending)))
}

fn new_consumer(
    config: Config<DropEventsConfig>,
    counting: Arc<Counting>,
    policies: Option<Arc<Policies>>,
) -> Members<Consumer> {
    let (reasons, _) = config.reasons();
    let policies = policies.filter(|_| config.hubble_drop_events_extended && counting.0.is_some());
    if let Some(policies) = &policies {
        policies.keep_decisions();
    }
    let table = policies.map(|policies| policies.table());
    let consumer = |pending: Arc<Pending>| {
        let (reasons, table) = (reasons.clone(), table.clone());
        Consumer::new(move |event| {
            let Event::Flow(flow) = event else { return };
            let sentence = |endpoint: u32, is_ingress| {
                let (Some(table), Ok(id)) = (&table, u16::try_from(endpoint)) else { return String::new() };
                let row = table.get(&table.snapshot(), EndpointPolicy::by_endpoint(id)).cloned();
                row.map(|row| policies::sentence(flow, is_ingress, &row)).unwrap_or_default()
            };
            if let Some(occurrence) = Occurrence::of(flow, &reasons, sentence) {
                pending.add(occurrence);
            }
        })
    };
    Members(counting.0.clone().into_iter().map(consumer).collect())
}

#[derive(Params)]
struct Needs {
    config: Config<DropEventsConfig>,
    counting: Arc<Counting>,
    feed: Arc<Feed>,
    api: Option<Arc<dyn Api>>,
    db: Arc<Db>,
    node: Arc<Table<LocalNode>>,
    endpoints: Arc<Table<Endpoint>>,
    jobs: JobGroup,
}

fn start(p: Needs) {
    if !p.config.hubble_drop_events {
        return;
    }
    let (_, unknown) = p.config.reasons();
    unknown.iter().for_each(|error| tracing::warn!(%error, "A reason is ignored"));
    let (Some(api), Some(pending)) = (p.api, p.counting.0.clone()) else {
        tracing::warn!("hubble-drop-events has no effect: there is no API server for events");
        return;
    };
    if !p.feed.is_on() {
        tracing::warn!("hubble-drop-events has no effect: it needs enable-hubble=true");
        return;
    }
    let rate = p.config.hubble_drop_events_rate_limit;
    let writer = Writer {
        api,
        pending,
        bucket: (rate > 0).then(|| Bucket::new(rate.into(), rate.into(), Instant::now())),
        db: p.db,
        node: (*p.node).clone(),
        endpoints: (*p.endpoints).clone(),
        created: 0,
    };
    p.jobs.one_shot("write", move |cx: JobCx| writer.run(cx)).add();
}

#[cfg(test)]
mod tests;
