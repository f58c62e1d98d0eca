//! The services of all listeners, and the bounds of their connections.

use std::convert::Infallible;
use std::pin::Pin;

use grpc::{Bounds, Reflection, Server};
use hive::JobCx;
use hubble_api::health::health_server::HealthServer;
use hubble_api::observer::observer_server::ObserverServer;
use hubble_api::peer::peer_server::PeerServer;
use hyper::body::Incoming;
use hyper::{Request, Response};
use tonic::body::Body;
use tonic::codegen::Service as _;

use crate::service::Service;

/// The maximum number of open connections of a listener.
const CONNECTIONS: usize = 128;

/// The maximum number of requests of a connection that are in flight.
const REQUESTS: u32 = 100;

/// The maximum size of a request: filters with lists of names.
const MAX_REQUEST: usize = 1 << 20;

/// The services of all listeners. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) service: Service,
    pub(crate) reflection: Reflection,
}

/// Returns the connections of a listener, which end with its job.
pub(crate) fn server(services: Services, cx: &JobCx) -> Server<Route> {
    let bounds = Bounds { connections: CONNECTIONS, requests: REQUESTS, ..Bounds::default() };
    Server::new("Hubble", bounds, Route::new(services), cx.token().clone())
}

/// The services by their path.
#[derive(Clone)]
pub(crate) struct Route {
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
                name if Reflection::is(name) => reflection.call(request).await,
                _ => observer.call(request).await,
            }
        })
    }
}
