//! The listener of the agent's service: connections of processes of the agent's user.

use std::net::SocketAddr;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection::is_own;
use crate::proto::fqdn_data_server::FqdnDataServer;
use crate::service::Service;

/// The maximum number of open connections: a proxy has one, and there are two of them during an upgrade.
const MAX_CONNECTIONS: usize = 8;
/// The maximum number of requests of a connection that are in flight.
const MAX_REQUESTS: u32 = 1024;
/// The maximum size of a request: a DNS message has 64 KiB, addresses as text take more.
const MAX_REQUEST: usize = 256 << 10;
/// The interval of pings, as in Cilium, and the time for their answer: proxies that hang must not keep a connection.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(5));
/// The pause after a connection could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Runs the requests of connections, until the token is cancelled.
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

/// Serves connections until the token is cancelled.
pub(crate) async fn serve(listener: TcpListener, service: Service, stop: CancellationToken) {
    let tasks = Tasks { tracker: TaskTracker::new(), stop };
    let connections = TaskTracker::new();
    let mut refused = None;
    while let Some(accepted) = tasks.stop.run_until_cancelled(listener.accept()).await {
        let (stream, client) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "Unable to accept a standalone DNS proxy, trying again");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let reason = match is_own(&stream) {
            Ok(true) if connections.len() < MAX_CONNECTIONS => None,
            Ok(true) => Some("too many are connected".to_owned()),
            Ok(false) => Some("it is a process of another user".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        if reason.is_some() {
            // The first of a row: clients must not fill the log.
            if reason != refused {
                tracing::warn!(%client, reason, "Refusing a standalone DNS proxy");
            }
            refused = reason;
            continue;
        }
        connections.spawn(connection(stream, service.clone(), tasks.clone()));
    }
    drop(listener);
    for tracker in [connections, tasks.tracker] {
        tracker.close();
        tracker.wait().await;
    }
}

async fn connection(stream: TcpStream, service: Service, tasks: Tasks) {
    let stop = tasks.stop.clone();
    let serving = async {
        if stream.set_nodelay(true).is_err() {
            return;
        }
        let service = FqdnDataServer::new(service).max_decoding_message_size(MAX_REQUEST);
        let mut server = http2::Builder::new(tasks);
        server
            .max_concurrent_streams(MAX_REQUESTS)
            .keep_alive_interval(KEEP_ALIVE.0)
            .keep_alive_timeout(KEEP_ALIVE.1)
            .timer(TokioTimer::new());
        // The end of a proxy, also by an error, needs no report.
        drop(server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await);
    };
    stop.run_until_cancelled(serving).await;
}

/// Returns the address of the service.
pub(crate) fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
