//! The reflection service of gRPC, by which clients such as grpcurl read the definitions of all services.

use std::convert::Infallible;

use hyper::body::Incoming;
use hyper::{Request, Response};
use tonic::body::Body;
use tonic_reflection::server::{Builder, Error};
use tower::ServiceExt as _;
use tower::util::BoxCloneSyncService;

/// The names of the service in its two versions.
pub(crate) const V1: &str = "grpc.reflection.v1.ServerReflection";
pub(crate) const V1ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";

/// The service. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Reflection {
    v1: BoxCloneSyncService<Request<Incoming>, Response<Body>, Infallible>,
    v1alpha: BoxCloneSyncService<Request<Incoming>, Response<Body>, Infallible>,
}

impl Reflection {
    /// Returns the service with Hubble's definitions.
    pub(crate) fn new() -> Result<Self, Error> {
        let builder = || Builder::configure().register_encoded_file_descriptor_set(hubble_api::DESCRIPTORS);
        Ok(Self {
            v1: BoxCloneSyncService::new(builder().build_v1()?),
            v1alpha: BoxCloneSyncService::new(builder().build_v1alpha()?),
        })
    }

    /// Answers a request of either version.
    pub(crate) async fn call(self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        match request.uri().path().contains(V1ALPHA) {
            true => self.v1alpha.oneshot(request).await,
            false => self.v1.oneshot(request).await,
        }
    }
}
