//! A custom cell: counts the endpoints of the node, in health and at `GET /apiary/census`.

use std::sync::Arc;
use std::time::Duration;

use api::{Page, Response};
use endpoints::Endpoint;
use hive::prelude::*;
use statedb::Table;

#[derive(hive::Config)]
struct CensusConfig {
    /// Count the endpoints
    #[flag(default = true)]
    enable_census: bool,
    /// How often they are counted
    #[flag(default = "10s")]
    census_interval: Duration,
}

pub fn cell() -> Cell {
    let cells = [config::<CensusConfig>(), invoke(report), provide(page)];
    module("census", "Counts the endpoints", cells).when(|c: &CensusConfig| c.enable_census)
}

fn count(endpoints: &Table<Endpoint>) -> usize {
    endpoints.all(&endpoints.snapshot()).count()
}

fn report(endpoints: Arc<Table<Endpoint>>, config: Config<CensusConfig>, jobs: JobGroup, health: Health) {
    jobs.timer("count", config.census_interval, move |_cx: JobCx| {
        health.ok(format!("{} endpoints", count(&endpoints)));
        async { Ok(()) }
    }).add();
}

fn page(endpoints: Arc<Table<Endpoint>>) -> Member<Page> {
    Member(Page::new("census", move |_| {
        let answer = serde_json::json!({ "endpoints": count(&endpoints) });
        async move { Response::json(200, &answer) }
    }))
}
