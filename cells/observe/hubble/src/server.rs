//! Connections of HTTP/2 on any stream, each request to its service.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hive::JobCx;
use hubble_api::health::health_server::HealthServer;
use hubble_api::observer::observer_server::ObserverServer;
use hubble_api::peer::peer_server::PeerServer;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::codegen::Service as _;

use crate::preface::Prefaced;
use crate::reflection::{self, Reflection};
use crate::service::Service;

/// The maximum number of open connections of a listener.
const CONNECTIONS: usize = 128;

/// The maximum number of requests of a connection that are in flight.
const REQUESTS: u32 = 100;

/// The maximum size of a request: filters with lists of names.
const MAX_REQUEST: usize = 1 << 20;

/// Bytes of responses that wait for their client, per request: a client that does not read costs no more.
const SEND_BUFFER: usize = 32 << 10;

/// The interval of pings, which detect clients that are gone without closing, and the time for their answer.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));

/// The pause after a connection could not be accepted.
pub(crate) const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The services of all listeners. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) service: Service,
    pub(crate) reflection: Reflection,
}

/// The connections of a listener. They end with the job.
pub(crate) struct Server {
    connections: TaskTracker,
    /// Whether the latest client was refused.
    is_full: AtomicBool,
    tasks: Tasks,
    route: Route,
}

impl Server {
    pub(crate) fn new(services: Services, cx: &JobCx) -> Self {
        let tasks = Tasks { tracker: TaskTracker::new(), stop: cx.token().clone() };
        Self {
            connections: TaskTracker::new(),
            is_full: AtomicBool::new(false),
            tasks,
            route: Route::new(services),
        }
    }

    /// Whether another connection is served. Logs the first refusal of a row: clients must not fill the log.
    pub(crate) fn has_capacity(&self) -> bool {
        let has_capacity = self.connections.len() < CONNECTIONS;
        if !self.is_full.swap(!has_capacity, Ordering::Relaxed) && !has_capacity {
            tracing::info!(clients = CONNECTIONS, "Hubble client refused: too many are connected");
        }
        has_capacity
    }

    /// Serves a connection, once it is established, until its client closes it or the job is cancelled.
    pub(crate) fn serve<S>(&self, connecting: impl Future<Output = Option<S>> + Send + 'static)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (tasks, route) = (self.tasks.clone(), self.route.clone());
        self.connections.spawn(async move {
            let stop = tasks.stop.clone();
            let serving = async {
                let Some(stream) = connecting.await else { return };
                let mut server = http2::Builder::new(tasks);
                server
                    .max_concurrent_streams(REQUESTS)
                    .max_send_buf_size(SEND_BUFFER)
                    .keep_alive_interval(KEEP_ALIVE.0)
                    .keep_alive_timeout(KEEP_ALIVE.1)
                    .timer(TokioTimer::new());
                // The end of a client, also by an error, needs no report.
                let stream = TokioIo::new(Prefaced::new(stream));
                drop(server.serve_connection(stream, route).await);
            };
            stop.run_until_cancelled(serving).await;
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

/// The services by their path.
#[derive(Clone)]
struct Route {
    observer: ObserverServer<Service>,
    peer: PeerServer<Service>,
    health: HealthServer<Service>,
    reflection: Reflection,
}

impl Route {
    fn new(Services { service, reflection }: Services) -> Self {
        Self {
            observer: ObserverServer::new(service.clone()).max_decoding_message_size(MAX_REQUEST),
            peer: PeerServer::new(service.clone()).max_decoding_message_size(MAX_REQUEST),
            health: HealthServer::new(service).max_decoding_message_size(MAX_REQUEST),
            reflection,
        }
    }
}

impl hyper::service::Service<Request<Incoming>> for Route {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let Self { mut observer, mut peer, mut health, reflection } = self.clone();
        Box::pin(async move {
            let service = request.uri().path().trim_start_matches('/').split('/').next().unwrap_or_default();
            // All are always ready. Paths of no service are answered by the observer: unimplemented.
            match service {
                "grpc.health.v1.Health" => health.call(request).await,
                "peer.Peer" => peer.call(request).await,
                reflection::V1 | reflection::V1ALPHA => reflection.call(request).await,
                _ => observer.call(request).await,
            }
        })
    }
}
