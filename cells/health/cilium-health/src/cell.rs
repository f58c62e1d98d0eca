//! The wiring: options, the table, jobs, the status.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::StatusSource;
use api_models::Status;
use devices::{Device, NetlinkError};
use endpoints::Endpoints;
use hive::Backoff;
use hive::prelude::*;
use ipam::{Address, Ipam, NodeOwner};
use local_node::{LocalNode, LocalNodeStore, StateConfig};
use maps::FamilyConfig;
use metrics::Metrics;
use node_manager::Node;
use statedb::{RwTable, Table};
use status::Collector;
use sysctl::Sysctl;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tunnel::{MtuConfig, Tunnel};

use crate::config::CiliumHealthConfig;
use crate::endpoint::{EndpointNamespaceSlot, HealthEndpoint, OWNER, remove_leftovers};
use crate::error::Error;
use crate::health_api::{Access, HealthApi, SOCKET};
use crate::metrics::HealthMetrics;
use crate::prober::core::Prober;
use crate::prober::results::Results;
use crate::prober::run::{CycleReport, Run};
use crate::responder::{Listening, Responder, serve_endpoint};
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
        provide(new_served),
        provide(new_status),
        provide(node_owner),
        invoke(start),
        invoke(start_endpoint),
    ];
    module("cilium-health", "Connectivity between nodes", cells)
}

/// The states of the responder's listeners.
struct ResponderState(watch::Sender<Listening>);

fn new_state() -> Arc<ResponderState> {
    Arc::new(ResponderState(watch::Sender::default()))
}

/// The addresses of the own health endpoint while it takes packets.
struct Served(watch::Sender<Vec<IpAddr>>);

fn new_served() -> Arc<Served> {
    Arc::new(Served(watch::Sender::default()))
}

/// The address that the endpoint needs of each family.
fn node_owner(config: Config<CiliumHealthConfig>) -> Members<NodeOwner> {
    Members(config.has_endpoint().then_some(NodeOwner(OWNER)).into_iter().collect())
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

/// The cells that a health endpoint needs; there is none without one of them.
#[derive(Params)]
struct EndpointParams {
    config: Config<CiliumHealthConfig>,
    namespace: Option<Arc<EndpointNamespaceSlot>>,
    endpoints: Option<Arc<Endpoints>>,
    ipam: Option<Arc<Ipam>>,
    addresses: Option<Arc<Table<Address>>>,
    store: Option<Arc<LocalNodeStore>>,
    devices: Option<Arc<Table<Device>>>,
    sysctl: Option<Arc<Sysctl>>,
    tunnel: Option<Arc<Tunnel>>,
    mtu: Option<Config<MtuConfig>>,
    families: Config<FamilyConfig>,
    served: Arc<Served>,
    jobs: JobGroup,
    health: Health,
}

impl EndpointParams {
    fn endpoint(&self) -> Option<HealthEndpoint> {
        Some(HealthEndpoint {
            endpoints: self.endpoints.clone()?,
            ipam: self.ipam.clone()?,
            addresses: self.addresses.clone()?,
            store: self.store.clone()?,
            devices: self.devices.clone()?,
            sysctl: self.sysctl.clone()?,
            tunnel: self.tunnel.clone()?,
            mtu: MtuConfig::clone(self.mtu.as_ref()?),
            families: FamilyConfig::clone(&self.families),
            served: self.served.0.clone(),
        })
    }
}

fn start_endpoint(p: EndpointParams) {
    let Some(slot) = &p.namespace else { return };
    if !p.config.has_endpoint() {
        p.jobs
            .one_shot("health-endpoint-leftovers", |_| async { Ok(hive::blocking(remove_leftovers).await?) })
            .add();
        return;
    }
    let Some((endpoint, namespace)) = p.endpoint().zip(slot.take()) else { return };
    match namespace {
        Ok((namespace, listener)) => {
            // Clients show the health of the cluster if a controller has this name.
            p.jobs.one_shot("cilium-health-ep", move |cx: JobCx| endpoint.follow(namespace, cx)).add();
            p.jobs.one_shot("responder-endpoint", move |cx: JobCx| serve_endpoint(listener, cx)).add();
        }
        Err(error) => report_missing(&p.health.child("health-endpoint"), &error),
    }
}

fn report_missing(health: &Health, error: &NetlinkError) {
    let message = "This node has no health endpoint: its network namespace could not be made, which needs CAP_SYS_ADMIN";
    tracing::warn!(%error, "{message}");
    health.degraded(message, error);
}

#[derive(Params)]
struct StartParams {
    config: Config<CiliumHealthConfig>,
    families: Config<FamilyConfig>,
    state: Config<StateConfig>,
    responder: Arc<ResponderState>,
    served: Arc<Served>,
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
    let (config, families, served) = (p.config, p.families, p.served.0.subscribe());
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
                served,
                own: None,
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
