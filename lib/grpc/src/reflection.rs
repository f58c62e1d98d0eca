//! The reflection service of gRPC, by which clients such as grpcurl read the definitions of all services.

use std::convert::Infallible;

use hyper::body::Incoming;
use hyper::{Request, Response};
use tonic::body::Body;
use tonic_reflection::server::Builder;
use tower::ServiceExt as _;
use tower::util::BoxCloneSyncService;

pub use tonic_reflection::server::Error as ReflectionError;

const V1: &str = "grpc.reflection.v1.ServerReflection";
const V1ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";

/// The service, in both of its versions. Cheap to clone.
#[derive(Clone)]
pub struct Reflection {
    v1: BoxCloneSyncService<Request<Incoming>, Response<Body>, Infallible>,
    v1alpha: BoxCloneSyncService<Request<Incoming>, Response<Body>, Infallible>,
}

impl std::fmt::Debug for Reflection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reflection")
    }
}

impl Reflection {
    /// Returns the service with the definitions of an encoded `FileDescriptorSet`, which has to be complete.
    ///
    /// # Errors
    /// If the set cannot be decoded, or lacks a file.
    pub fn new(descriptors: &[u8]) -> Result<Self, ReflectionError> {
        let builder = || Builder::configure().register_encoded_file_descriptor_set(descriptors);
        Ok(Self {
            v1: BoxCloneSyncService::new(builder().build_v1()?),
            v1alpha: BoxCloneSyncService::new(builder().build_v1alpha()?),
        })
    }

    /// Whether it is the service with this name.
    #[must_use]
    pub fn is(service: &str) -> bool {
        matches!(service, V1 | V1ALPHA)
    }

    /// Answers a request of either version.
    pub async fn call(self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        match request.uri().path().contains(V1ALPHA) {
            true => self.v1alpha.oneshot(request).await,
            false => self.v1.oneshot(request).await,
        }
    }
}
