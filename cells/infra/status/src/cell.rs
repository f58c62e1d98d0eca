//! The wiring: status rounds, the operation on the socket, the kubelet's server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use api::{Operation, Request, Response, Route, StatusSource};
use hive::config::Source;
use hive::job::Jobs;
use hive::prelude::*;
use hive::{HealthTree, Settings};
use k8s_tables::Row;
use k8s_tables::core::Node;
use local_node::{LocalNode, StateConfig};
use maps::FamilyConfig;
use metrics::VERSION;
use parking_lot::Mutex;
use statedb::{RwTable, Table};
use tokio::time::timeout;

use crate::collector::{Collector, Question};
use crate::commands;
use crate::config::HealthConfig;
use crate::error::Error;
use crate::history::History;
use crate::kubelet::Port;
use crate::mirror::Mirror;
use crate::proxy::{self, Proxy};
use crate::report::Report;
use crate::thread::Thread;
use crate::watch::Watch;

/// Returns the cell: `GET /healthz` on the socket and for the kubelet, and the [`table`].
pub fn cell() -> Cell {
    let cells = [config::<HealthConfig>(), provide(new_collector), provide(new_route), invoke(new_server)];
    bundle([
        module("agent-healthz", "Status of the agent for its socket and the kubelet", cells),
        module("health", "Health of all modules as a table and as a history", table()),
    ])
}

/// Returns the cells of the table `health`, of the history in the state folder if there is one, and of the commands
/// that show both, for the enclosing module.
pub fn table() -> Cell {
    bundle([statedb::table::<Report>(), invoke(new_table), provide(commands::commands)])
}

#[derive(Params)]
struct TableParams {
    tree: Arc<HealthTree>,
    table: Arc<RwTable<Report>>,
    state: Option<Config<StateConfig>>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
}

/// Mirrors health into the table and writes the history. The job has the name of Cilium's, as scripts compare its row
/// of the table.
fn new_table(p: TableParams) {
    let rows = Arc::new(Mirror::new(RwTable::clone(&p.table)));
    let mirror = rows.clone();
    p.tree.mirror(move |change| mirror.change(change));
    let folder = p.state.map(|state| state.state());
    let history = Arc::new(OnceLock::new());
    let (tree, opened) = (p.tree, history.clone());
    let ended = history.clone();
    // A start that fails in another cell must leave no file behind.
    let started = Arc::new(AtomicBool::new(false));
    let past_refusals = started.clone();
    p.lifecycle
        .hook("health-history")
        // First, so that reports of other hooks follow the line `Started` of this run.
        .first()
        .on_start(move |_| async move {
            let lines = tree.clone();
            let open = move || folder.map(|folder| Arc::new(History::open(lines, &folder)));
            let history = hive::blocking(open).await;
            tree.note("Started", VERSION);
            let _first = opened.set((tree, history));
            Ok(())
        })
        .on_stop(move |_| async move {
            let Some((tree, history)) = ended.get() else { return Ok(()) };
            tree.note("Stopped", VERSION);
            if let Some(history) = history.clone().filter(|_| past_refusals.load(Ordering::Relaxed)) {
                hive::blocking(move || history.write()).await?;
            }
            Ok(())
        })
        .add();
    p.lifecycle
        .hook("health-history-file")
        .on_start(move |_| async move {
            started.store(true, Ordering::Relaxed);
            Ok(())
        })
        .add();
    p.jobs
        .one_shot("module-status-metrics", move |cx: JobCx| async move {
            let ended = cx.token().clone();
            let lines = async {
                match history.get() {
                    Some((_, Some(history))) => history.clone().follow(cx).await,
                    _ => cx.cancelled().await,
                }
            };
            tokio::join!(lines, ended.run_until_cancelled(rows.follow()));
            Ok(())
        })
        .add();
}

#[derive(Params)]
struct CollectorParams {
    config: Config<HealthConfig>,
    sources: Group<StatusSource>,
    health: Arc<HealthTree>,
    lifecycle: Lifecycle,
    all_jobs: Arc<Jobs>,
    jobs: JobGroup,
}

/// Runs the first round in the start hook, after those of the sources and before that of the REST server, so that each
/// request finds a status; further rounds in a job, which also proves that the agent's jobs make progress.
fn new_collector(p: CollectorParams) -> Result<Arc<Collector>, Error> {
    let collector = Arc::new(Collector::new(p.sources.to_vec(), p.health, p.all_jobs));
    let (limit, first) = (p.config.status_collector_probe_check_timeout, collector.clone());
    p.lifecycle
        .hook("status-collector")
        .on_start(move |_| async move {
            let round = hive::blocking(move || first.round(SystemTime::now()));
            timeout(limit, round).await.map_err(|_| Error::NoFirstRound(limit))?;
            Ok(())
        })
        .add();
    let rounds = collector.clone();
    p.jobs
        .timer("status-collector", p.config.status_collector_interval, move |cx: JobCx| {
            let collector = rounds.clone();
            async move {
                collector.round(SystemTime::now());
                cx.health.ok("status collected");
                Ok(())
            }
        })
        .add();
    Ok(collector)
}

fn new_route(collector: Arc<Collector>) -> Member<Route> {
    Member(Route::new(Operation::GetHealthz, move |request: Request| {
        let question = Question {
            brief: request.header_bool("brief").unwrap_or(false),
            require_k8s: request.header_bool("require-k8s-connectivity").unwrap_or(true),
            require_modules: true,
        };
        let answer = match collector.status(question) {
            Some(status) => Response::json(200, &status),
            None => Response::error(503, "the agent is starting"),
        };
        std::future::ready(answer)
    }))
}

#[derive(Params)]
struct ServerParams {
    config: Config<HealthConfig>,
    /// Absent in an agent that cannot disable a family.
    families: Option<Config<FamilyConfig>>,
    settings: Arc<Settings>,
    node: Option<Arc<Table<LocalNode>>>,
    nodes: Option<Arc<Table<Row<Node>>>>,
    collector: Arc<Collector>,
    jobs: Arc<Jobs>,
    health: Health,
    lifecycle: Lifecycle,
}

fn new_server(p: ServerParams) {
    let proxy = kube_proxy(&p);
    let families = p.families.map_or_else(FamilyConfig::default, |families| FamilyConfig::clone(&families));
    // Cilium ignores the default of this option: its probes succeed while the API server is unreachable.
    let option = p.settings.get("agent-health-require-k8s-connectivity");
    let is_set = option.is_some_and(|option| option.source != Source::Default);
    let port = Port {
        port: p.config.agent_health_port,
        ipv4: families.enable_ipv4,
        ipv6: families.enable_ipv6,
        require_k8s: is_set && p.config.agent_health_require_k8s_connectivity,
    };
    let deadline = p.config.status_collector_failure_threshold;
    let running = Arc::new(Mutex::new(None));
    let thread = running.clone();
    p.lifecycle
        .hook("agent-healthz")
        .on_start(move |_| async move {
            let watch = Watch::new(p.jobs, deadline, p.collector.clone(), p.health.child("watchdog"));
            let server = p.health.child("job-agent-healthz-server");
            *running.lock() = Some(Thread::start(port, proxy, watch, p.collector, server).await?);
            Ok(())
        })
        .on_stop(move |_| async move {
            let thread = thread.lock().take();
            if let Some(thread) = thread {
                thread.stop().await;
            }
            Ok(())
        })
        .add();
}

/// Returns the server that answers load balancers in the place of kube-proxy, if it is configured.
fn kube_proxy(p: &ServerParams) -> Option<Proxy> {
    let address = &p.config.kube_proxy_replacement_healthz_bind_address;
    if address.is_empty() {
        return None;
    }
    let health = p.health.child("kube-proxy-healthz");
    if p.settings.get("kube-proxy-replacement").is_none_or(|option| option.value != "true") {
        let error =
            "kube-proxy-replacement-healthz-bind-address has no effect without kube-proxy-replacement";
        health.degraded("Nobody answers in the place of kube-proxy", error);
        return None;
    }
    // The address was validated with the options.
    let address = proxy::address(address).ok()?;
    Some(Proxy { address, node: p.node.clone(), nodes: p.nodes.clone(), health })
}
