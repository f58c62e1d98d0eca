//! The wiring: options, the table, jobs, the status.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::StatusSource;
use api_models::Status;
use hive::Backoff;
use hive::prelude::*;
use local_node::{LocalNode, StateConfig};
use maps::FamilyConfig;
use metrics::Metrics;
use node_manager::Node;
use statedb::{RwTable, Table};
use status::Collector;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::config::CiliumHealthConfig;
use crate::error::Error;
use crate::health_api::{Access, HealthApi, SOCKET};
use crate::metrics::HealthMetrics;
use crate::prober::core::Prober;
use crate::prober::results::Results;
use crate::prober::run::{CycleReport, Run};
use crate::responder::{Listening, Responder};
use crate::row::NodeHealth;

/// The maximum number of requests to probe all nodes that the prober has not read yet.
const MAX_REQUESTS: usize = 16;

/// The backoff for a socket that cannot be made.
const SOCKET_RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// Returns the cell of the connectivity between nodes.
pub fn cell() -> Cell {
    let cells = [
        config::<CiliumHealthConfig>(),
        statedb::table::<NodeHealth>(),
        provide(new_state),
        provide(new_status),
        invoke(start),
    ];
    module("cilium-health", "Connectivity between nodes", cells)
}

/// The states of the responder's listeners.
struct ResponderState(watch::Sender<Listening>);

fn new_state() -> Arc<ResponderState> {
    Arc::new(ResponderState(watch::Sender::default()))
}

/// The status of the agent's own part; without health checking there is none.
fn new_status(config: Config<CiliumHealthConfig>, responder: Arc<ResponderState>) -> Member<StatusSource> {
    let state = responder.0.subscribe();
    Member(StatusSource::new("cilium-health", move |status| {
        if !config.enable_health_checking {
            return;
        }
        let error = state.borrow().error().map(str::to_owned);
        let (state, msg) = match error {
            None => ("Ok", String::new()),
            Some(error) => ("Failure", error),
        };
        let cluster = status.cluster.get_or_insert_default();
        cluster.cilium_health = Some(Status { state: state.to_owned(), msg });
    }))
}

#[derive(Params)]
struct StartParams {
    config: Config<CiliumHealthConfig>,
    families: Config<FamilyConfig>,
    state: Config<StateConfig>,
    responder: Arc<ResponderState>,
    node: Arc<Table<LocalNode>>,
    nodes: Arc<Table<Node>>,
    rows: Arc<RwTable<NodeHealth>>,
    collector: Arc<Collector>,
    metrics: Arc<Metrics>,
    jobs: JobGroup,
    health: Health,
}

fn start(p: StartParams) -> Result<(), Error> {
    let access = Arc::new(Access::parse(&p.config.enable_cilium_health_api_server_access)?);
    if !p.config.enable_health_checking {
        return Ok(());
    }
    let port = p.config.cluster_health_port;
    let responder = Responder {
        node: Table::clone(&p.node),
        families: FamilyConfig::clone(&p.families),
        port,
        jobs: p.jobs.clone(),
        health: p.health.clone(),
        state: p.responder.0.clone(),
    };
    p.jobs.one_shot("responder", move |cx: JobCx| responder.follow(cx)).add();

    let (requests, received) = mpsc::channel(MAX_REQUESTS);
    let before = CycleReport { start: SystemTime::now(), length: Duration::ZERO };
    let (report, cycle) = watch::channel(before);
    let metrics = HealthMetrics::new(&p.metrics);
    let mut listening = p.responder.0.subscribe();
    let (node, nodes, rows, health) = (p.node.clone(), p.nodes, p.rows.clone(), p.health);
    let (config, families) = (p.config, p.families);
    p.jobs
        .one_shot("prober", move |cx: JobCx| async move {
            // The own node is probed as well, so the responder goes first.
            let tried = listening.wait_for(Listening::is_tried);
            if !matches!(cx.token().run_until_cancelled(tried).await, Some(Ok(_))) {
                return Ok(());
            }
            let row = node.get(&node.snapshot(), LocalNode::query()).map(|row| LocalNode::clone(row));
            let source = row.map(|row| (row.cluster, row.name)).unwrap_or_default();
            let run = Run {
                nodes: Table::clone(&nodes),
                families: FamilyConfig::clone(&families),
                endpoints: config.enable_endpoint_health_checking,
                port,
                prober: Prober::new(config.base(), config.health_check_icmp_failure_threshold),
                results: Results::new(RwTable::clone(&rows), metrics, health.child("nodes"), source),
                requests: received,
                cycle: report,
                pings: health.child("icmp"),
            };
            run.run(cx).await
        })
        .add();

    let answers = HealthApi {
        access,
        collector: p.collector,
        node: Table::clone(&p.node),
        rows: p.rows.reader(),
        cycle,
        requests,
        start: Instant::now(),
    };
    let path = p.state.run().join(SOCKET);
    let backoff = Backoff::exponential(SOCKET_RETRY.0, SOCKET_RETRY.1);
    p.jobs
        .one_shot_with_retry("health-api", backoff, move |cx: JobCx| answers.clone().serve(path.clone(), cx))
        .grace(Duration::from_secs(10))
        .add();
    Ok(())
}
