//! The job of the prober: the core with a clock, sockets, the table of nodes and requests.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{FuturesUnordered, StreamExt as _};
use hive::prelude::*;
use maps::FamilyConfig;
use node_manager::Node;
use statedb::{Changes, Table};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::core::{CHECK_TIMEOUT, Event, ProbeId, Prober};
use super::hello::hello;
use super::ping::PingSockets;
use super::results::Results;
use super::schedule::Moment;
use super::target::{Target, addresses};
use crate::row::{CheckResult, Failure};

/// The maximum number of nodes that are read between two events.
const MAX_CHANGES: usize = 500;

/// A cycle, as the health API reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CycleReport {
    pub(crate) start: SystemTime,
    pub(crate) length: Duration,
}

/// A request to probe all nodes at once, answered when all are probed.
pub(crate) type ProbeAll = oneshot::Sender<()>;

/// The values that the job needs.
pub(crate) struct Run {
    pub(crate) nodes: Table<Node>,
    pub(crate) families: FamilyConfig,
    /// Whether health endpoints are probed.
    pub(crate) endpoints: bool,
    pub(crate) port: u16,
    pub(crate) prober: Prober,
    pub(crate) results: Results,
    pub(crate) requests: mpsc::Receiver<ProbeAll>,
    /// The addresses of the own health endpoint once it takes packets. The own node is probed at once then and not in its
    /// turn, as the first question after an agent's start is whether its node is well.
    pub(crate) served: watch::Receiver<Vec<IpAddr>>,
    /// The own node.
    pub(crate) own: Option<Target>,
    pub(crate) cycle: watch::Sender<CycleReport>,
    /// The reporter of missing privileges.
    pub(crate) pings: Health,
}

type Hello = BoxFuture<'static, (ProbeId, CheckResult)>;

impl Run {
    /// Probes nodes until the job is cancelled.
    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        let FamilyConfig { enable_ipv4, enable_ipv6 } = self.families;
        let (sockets, error) = PingSockets::open(enable_ipv4, enable_ipv6, self.prober.id());
        self.report_sockets(error.as_ref());
        let mut changes = self.nodes.changes().named("cilium-health").limit(MAX_CHANGES);
        let mut hellos: FuturesUnordered<Hello> = FuturesUnordered::new();
        let mut waiting: Vec<ProbeAll> = Vec::new();
        let begin = Instant::now();
        let mut cycle_start = None;
        loop {
            let now = begin.elapsed();
            let (more, changed) = self.read_nodes(&mut changes, now);
            self.prober.handle_time(now);
            self.process_events(&sockets, &hellos, &mut waiting, begin + now);
            self.results.report();
            let cycle = self.prober.cycle();
            if cycle_start.replace(cycle.start) != Some(cycle.start) {
                self.cycle.send_replace(CycleReport { start: SystemTime::now(), length: cycle.length });
            }
            if more {
                tokio::task::yield_now().await;
                continue;
            }
            let due = self.prober.due().map(|due| begin + due);
            tokio::select! {
                () = changed.changed() => {}
                () = wait_until(due) => {}
                (from, echo) = sockets.receive() => {
                    self.prober.handle_reply(from, echo, begin.elapsed());
                }
                Some((probe, result)) = hellos.next() => {
                    self.prober.handle_http(probe, result);
                    // Those of a batch come together.
                    while let Some(Some((probe, result))) = hellos.next().now_or_never() {
                        self.prober.handle_http(probe, result);
                    }
                }
                Some(request) = self.requests.recv() => {
                    waiting.push(request);
                    self.prober.probe_all();
                }
                // The sender lives as long as the agent.
                Ok(()) = self.served.changed() => self.probe_own(),
                () = cx.cancelled() => return Ok(()),
            }
        }
    }

    /// Applies changes of the table of nodes. Returns whether there may be more, and a watch on further ones.
    fn read_nodes(&mut self, changes: &mut Changes<Node>, now: Moment) -> (bool, statedb::Watch) {
        let snapshot = self.nodes.snapshot();
        let (batch, watch) = changes.read(&snapshot, MAX_CHANGES);
        for change in &batch {
            let node = &*change.object;
            let name: Arc<str> = node.full_name().into();
            if change.deleted {
                if self.prober.set(now, &name, None) {
                    self.results.remove(&name);
                }
                continue;
            }
            let target = self.target(name, node);
            if self.prober.set(now, &target.name, Some(target.clone())) {
                self.results.set(&target);
                if target.local {
                    self.own = Some(target);
                    self.probe_own();
                }
            }
        }
        (batch.len() == MAX_CHANGES, watch)
    }

    fn probe_own(&mut self) {
        let served = self.served.borrow_and_update();
        let own = self.own.iter().flat_map(|own| own.served(&served));
        self.prober.probe_now(own);
    }

    fn target(&self, name: Arc<str>, node: &Node) -> Target {
        let endpoint = match self.endpoints {
            true => addresses(node.health_ipv4, node.health_ipv6, &self.families),
            false => Vec::new(),
        };
        let host = addresses(node.ipv4(), node.ipv6(), &self.families);
        Target { name, local: node.is_local(), host, endpoint }
    }

    fn process_events(
        &mut self,
        sockets: &PingSockets,
        hellos: &FuturesUnordered<Hello>,
        waiting: &mut Vec<ProbeAll>,
        now: Instant,
    ) {
        while let Some(event) = self.prober.poll_event() {
            match event {
                Event::Ping { to, echo } => match sockets.send(to, echo) {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => {
                        self.prober.handle_unsent(echo, Some(Failure::Other(error.to_string().into())));
                    }
                    None => self.prober.handle_unsent(echo, None),
                },
                Event::Hello { probe, to } => {
                    let (port, deadline) = (self.port, now + CHECK_TIMEOUT);
                    hellos.push(Box::pin(async move { (probe, hello(to, port, deadline).await) }));
                }
                Event::Probed { key, icmp, http } => {
                    self.results.probed(&key, icmp, http, SystemTime::now());
                }
                Event::AllProbed => {
                    for request in waiting.drain(..) {
                        // Fails for a client that waits no longer.
                        let _sent = request.send(());
                    }
                }
            }
        }
    }

    /// HTTP is probed without the privilege as well, so its absence is reported and is no fault.
    fn report_sockets(&self, error: Option<&io::Error>) {
        let Some(error) = error else { return };
        let message = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "no ICMP probes: add CAP_NET_RAW to the agent's capabilities".to_owned()
            }
            _ => format!("no ICMP probes: the raw socket cannot be opened: {error}"),
        };
        tracing::info!(%error, "Nodes are probed by HTTP only");
        self.pings.ok(message);
    }
}

async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
