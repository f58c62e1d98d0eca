//! Connections of HTTP/2, each request to its service.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hive::JobCx;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::server::service::Services;

/// The maximum number of open connections: Envoy has one for each type of resources and listener.
const CONNECTIONS: usize = 64;

/// The maximum number of requests of a connection that are in flight.
const REQUESTS: u32 = 64;

/// Bytes of responses that wait for their client, per request: a client that does not read costs no more.
const SEND_BUFFER: usize = 32 << 10;

/// The interval of pings, which detect clients that are gone without closing, and the time for their answer.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));

/// The connections of the socket. They end with the job.
pub(crate) struct Server {
    connections: TaskTracker,
    /// Whether the latest client was refused.
    is_full: AtomicBool,
    tasks: Tasks,
    services: Services,
}

impl Server {
    pub(crate) fn new(services: Services, cx: &JobCx) -> Self {
        let tasks = Tasks { tracker: TaskTracker::new(), stop: cx.token().clone() };
        Self { connections: TaskTracker::new(), is_full: AtomicBool::new(false), tasks, services }
    }

    /// Whether another connection is served. Logs the first refusal of a row: clients must not fill the log.
    pub(crate) fn has_capacity(&self) -> bool {
        let has_capacity = self.connections.len() < CONNECTIONS;
        if !self.is_full.swap(!has_capacity, Ordering::Relaxed) && !has_capacity {
            tracing::info!(clients = CONNECTIONS, "xDS client refused: too many are connected");
        }
        has_capacity
    }

    /// Serves a connection until its client closes it or the job is cancelled.
    pub(crate) fn serve<S>(&self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (tasks, services) = (self.tasks.clone(), self.services.clone());
        self.connections.spawn(async move {
            let stop = tasks.stop.clone();
            let mut server = http2::Builder::new(tasks);
            server
                .max_concurrent_streams(REQUESTS)
                .max_send_buf_size(SEND_BUFFER)
                .keep_alive_interval(KEEP_ALIVE.0)
                .keep_alive_timeout(KEEP_ALIVE.1)
                .timer(TokioTimer::new());
            // The end of a client, also by an error, needs no report.
            let serving = server.serve_connection(TokioIo::new(stream), services);
            drop(stop.run_until_cancelled(serving).await);
        });
    }

    /// Waits for the end of all connections and requests.
    pub(crate) async fn drain(self) {
        for tracker in [self.connections, self.tasks.tracker] {
            tracker.close();
            tracker.wait().await;
        }
    }
}

/// Runs the requests of connections, until the job is cancelled.
#[derive(Clone)]
struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl<F: Future<Output: Send> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, work: F) {
        let stop = self.stop.clone();
        self.tracker.spawn(async move { drop(stop.run_until_cancelled(work).await) });
    }
}
