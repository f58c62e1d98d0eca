//! The server on `health.sock`.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::{Response, Socket};
use api_models::HealthResponse;
use hive::prelude::*;
use http::{Method, Request};
use http_server::Bounds;
use hyper::body::Incoming;
use hyper::service::service_fn;
use local_node::LocalNode;
use statedb::Table;
use status::{Collector, Question};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use super::access::{Access, Operation};
use super::{load, report};
use crate::prober::run::{CycleReport, ProbeAll};
use crate::row::NodeHealth;

/// The name of the socket in the run folder.
pub(crate) const SOCKET: &str = "health.sock";

/// The maximum number of open connections.
const CONNECTIONS: usize = 64;

/// The timeout for the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// The size of a connection's read buffer, and of its write buffer, in bytes.
const BUFFER: usize = 16 << 10;

/// How long a request to probe all nodes waits; then the answer has the results that there are. Clients wait longer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(60);

/// The answers of the API. Cheap to clone.
#[derive(Clone)]
pub(crate) struct HealthApi {
    pub(crate) access: Arc<Access>,
    pub(crate) collector: Arc<Collector>,
    pub(crate) node: Table<LocalNode>,
    pub(crate) rows: Table<NodeHealth>,
    pub(crate) cycle: watch::Receiver<CycleReport>,
    pub(crate) requests: mpsc::Sender<ProbeAll>,
    pub(crate) start: Instant,
}

impl HealthApi {
    /// Serves the socket until the job is cancelled; an error if it cannot be made.
    pub(crate) async fn serve(self, path: PathBuf, cx: JobCx) -> anyhow::Result<()> {
        let socket = hive::blocking(move || Socket::bind(&path, "state-dir")).await?;
        cx.health.ok("serving");
        let answer = service_fn(move |request: Request<Incoming>| {
            let api = self.clone();
            async move {
                Ok::<_, Infallible>(api.answer(request.method(), request.uri().path()).await.into_http())
            }
        });
        let bounds =
            Bounds::new(CONNECTIONS).header_timeout(HEADER_TIMEOUT).buffer(BUFFER).title_case_headers();
        let tasks = TaskTracker::new();
        let report_accept = |error: Option<&io::Error>| match error {
            Some(error) => cx.health.degraded("Cannot accept connections on health.sock", error),
            None => cx.health.ok("serving"),
        };
        http_server::serve(socket.listener(), bounds, answer, cx.token(), &tasks, report_accept).await;
        drop(socket);
        tasks.close();
        tasks.wait().await;
        Ok(())
    }

    async fn answer(&self, method: &Method, path: &str) -> Response {
        let (operation, required) = match path {
            "/v1beta/healthz" => (Operation::GetHealthz, Method::GET),
            "/v1beta/status" => (Operation::GetStatus, Method::GET),
            "/v1beta/status/probe" => (Operation::PutStatusProbe, Method::PUT),
            _ => return Response::unknown_path(path),
        };
        if method != required {
            return Response::wrong_method(method.clone(), vec![required]);
        }
        if !self.access.allows(operation) {
            let endpoint = operation.name();
            tracing::info!(endpoint, "Denied API request on administratively disabled API endpoint");
            return Response::denied();
        }
        match operation {
            Operation::GetHealthz => self.healthz().await,
            Operation::GetStatus => self.status(),
            Operation::PutStatusProbe => {
                self.probe().await;
                self.status()
            }
        }
    }

    async fn healthz(&self) -> Response {
        let question = Question { brief: false, require_k8s: true, require_modules: true };
        let Some(cilium) = self.collector.status(question) else {
            return Response::error(500, "the agent is starting");
        };
        let text = hive::blocking(|| std::fs::read_to_string("/proc/loadavg")).await;
        let system_load = text.ok().and_then(|text| load::parse(&text));
        let uptime = go_duration::format(self.start.elapsed());
        Response::json(200, &HealthResponse { cilium, system_load, uptime })
    }

    fn status(&self) -> Response {
        let snapshot = self.rows.snapshot();
        let local = self.node.get(&snapshot, LocalNode::query()).map(|node| node.full_name());
        let rows = self.rows.all(&snapshot).map(|row| &**row);
        Response::json(200, &report::status(local.unwrap_or_default(), rows, *self.cycle.borrow()))
    }

    /// Probes all nodes and waits until all have a new result, or until the timeout.
    async fn probe(&self) {
        let (done, probed) = oneshot::channel();
        let probe = async {
            // Fails only while the agent stops.
            if self.requests.send(done).await.is_ok() {
                let _probed_or_stopped = probed.await;
            }
        };
        let _probed_or_late = timeout(PROBE_TIMEOUT, probe).await;
    }
}
