//! The socket: connections of HTTP/2, each request to its service.

use std::convert::Infallible;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use api::Socket;
use hive::JobCx;
use hubble_api::health::health_server::HealthServer;
use hubble_api::observer::observer_server::ObserverServer;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::codegen::Service as _;

use crate::service::Service;

/// The maximum number of open connections.
const CONNECTIONS: usize = 64;

/// The maximum number of requests of a connection that are in flight.
const REQUESTS: u32 = 100;

/// The maximum size of a request: filters with lists of names.
const MAX_REQUEST: usize = 1 << 20;

/// The pause after a connection could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Serves the socket until the job is cancelled; an error if it cannot be made.
pub(crate) async fn serve(path: PathBuf, service: Service, cx: JobCx) -> anyhow::Result<()> {
    let socket = hive::blocking(move || Socket::bind(&path, "hubble-socket-path")).await?;
    cx.health.ok("Serving");
    let (connections, requests) = (TaskTracker::new(), TaskTracker::new());
    while let Some(accepted) = cx.token().run_until_cancelled(socket.listener().accept()).await {
        match accepted {
            Ok(_) if connections.len() >= CONNECTIONS => {
                tracing::info!(clients = CONNECTIONS, "Hubble client refused: too many are connected");
            }
            Ok((stream, _)) => {
                cx.health.ok("Serving");
                let tasks = Tasks { tracker: requests.clone(), stop: cx.token().clone() };
                connections.spawn(connection(stream, service.clone(), tasks));
            }
            Err(error) => {
                cx.health.degraded("Cannot accept connections on the socket of Hubble", &error);
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
    hive::blocking(move || drop(socket)).await;
    for tracker in [connections, requests] {
        tracker.close();
        tracker.wait().await;
    }
    Ok(())
}

/// Serves a connection until its client closes it or the job is cancelled.
async fn connection(stream: UnixStream, service: Service, tasks: Tasks) {
    let stop = tasks.stop.clone();
    let mut server = http2::Builder::new(tasks);
    server.max_concurrent_streams(REQUESTS).timer(TokioTimer::new());
    let serving = server.serve_connection(TokioIo::new(stream), Route::new(service));
    // The end of a client, also by an error, needs no report.
    drop(stop.run_until_cancelled(serving).await);
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

/// The services by their path.
#[derive(Clone)]
struct Route {
    observer: ObserverServer<Service>,
    health: HealthServer<Service>,
}

impl Route {
    fn new(service: Service) -> Self {
        Self {
            observer: ObserverServer::new(service.clone()).max_decoding_message_size(MAX_REQUEST),
            health: HealthServer::new(service).max_decoding_message_size(MAX_REQUEST),
        }
    }
}

impl hyper::service::Service<Request<Incoming>> for Route {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let Self { mut observer, mut health } = self.clone();
        Box::pin(async move {
            // Both are always ready. Paths of no service are answered by the observer: unimplemented.
            match request.uri().path().starts_with("/grpc.health.v1.Health/") {
                true => health.call(request).await,
                false => observer.call(request).await,
            }
        })
    }
}
