//! The services: a stream of each type of resources.

use std::pin::Pin;

use envoy_api::Any;
use envoy_api::cilium::network_policy_discovery_service_server as npds;
use envoy_api::cilium::network_policy_hosts_discovery_service_server as nphds;
use envoy_api::discovery::{DiscoveryRequest, DiscoveryResponse};
use envoy_api::service::cluster::v3::cluster_discovery_service_server as cds;
use envoy_api::service::endpoint::v3::endpoint_discovery_service_server as eds;
use envoy_api::service::listener::v3::listener_discovery_service_server as lds;
use envoy_api::service::route::v3::route_discovery_service_server as rds;
use envoy_api::service::secret::v3::secret_discovery_service_server as sds;
use futures::Stream;
use grpc::{Reflection, ReflectionError};
use hyper::body::Incoming;
use hyper::{Request as HttpRequest, Response as HttpResponse};
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::{Request, Response, Status, Streaming};
use xds::Response as Due;

use crate::kind::Kind;
use crate::resources::{Resources, Stream as Subscription};

/// The maximum size of a request: names of resources.
const MAX_REQUEST: usize = 1 << 20;

type Responses = Pin<Box<dyn Stream<Item = Result<DiscoveryResponse, Status>> + Send>>;

/// The implementation of all services.
#[derive(Clone)]
pub(crate) struct Discovery(Resources);

impl Discovery {
    fn stream(
        &self,
        kind: Kind,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Responses>, Status> {
        let subscription = self.0.open(kind);
        let state = (subscription, request.into_inner());
        let responses = futures::stream::try_unfold(state, |(mut subscription, mut requests)| async move {
            let response = next(&mut subscription, &mut requests).await?;
            Ok(response.map(|response| (response, (subscription, requests))))
        });
        Ok(Response::new(Box::pin(responses)))
    }
}

/// Returns the next response of a stream; `None` at its end.
async fn next(
    subscription: &mut Subscription,
    requests: &mut Streaming<DiscoveryRequest>,
) -> Result<Option<DiscoveryResponse>, Status> {
    let mut changed = subscription.subscribe();
    loop {
        changed.mark_unchanged();
        if let Some(due) = subscription.response() {
            return Ok(Some(message(subscription.kind(), due)));
        }
        tokio::select! {
            request = requests.message() => match request? {
                Some(request) => subscription.request(request)?,
                None => return Ok(None),
            },
            // The sender lives as long as the subscription.
            _ = changed.changed() => {}
        }
    }
}

fn message(kind: Kind, Due { version, resources }: Due) -> DiscoveryResponse {
    let type_url = kind.type_url();
    let any = |value: &xds::Value| Any { type_url: type_url.clone(), value: value.to_vec() };
    DiscoveryResponse {
        version_info: version.to_string(),
        resources: resources.iter().map(any).collect(),
        nonce: version.to_string(),
        type_url: type_url.clone(),
    }
}

macro_rules! discovery {
    ($module:ident, $service:ident, $method:ident, $stream:ident, $kind:expr) => {
        #[tonic::async_trait]
        impl $module::$service for Discovery {
            type $stream = Responses;

            async fn $method(
                &self,
                request: Request<Streaming<DiscoveryRequest>>,
            ) -> Result<Response<Responses>, Status> {
                self.stream($kind, request)
            }
        }
    };
}

discovery!(lds, ListenerDiscoveryService, stream_listeners, StreamListenersStream, Kind::Listeners);
discovery!(rds, RouteDiscoveryService, stream_routes, StreamRoutesStream, Kind::Routes);
discovery!(cds, ClusterDiscoveryService, stream_clusters, StreamClustersStream, Kind::Clusters);
discovery!(eds, EndpointDiscoveryService, stream_endpoints, StreamEndpointsStream, Kind::Endpoints);
discovery!(sds, SecretDiscoveryService, stream_secrets, StreamSecretsStream, Kind::Secrets);
discovery!(
    npds,
    NetworkPolicyDiscoveryService,
    stream_network_policies,
    StreamNetworkPoliciesStream,
    Kind::Policies
);
discovery!(
    nphds,
    NetworkPolicyHostsDiscoveryService,
    stream_network_policy_hosts,
    StreamNetworkPolicyHostsStream,
    Kind::Hosts
);

/// The services by their path.
#[derive(Clone)]
pub(crate) struct Services {
    listeners: lds::ListenerDiscoveryServiceServer<Discovery>,
    routes: rds::RouteDiscoveryServiceServer<Discovery>,
    clusters: cds::ClusterDiscoveryServiceServer<Discovery>,
    endpoints: eds::EndpointDiscoveryServiceServer<Discovery>,
    secrets: sds::SecretDiscoveryServiceServer<Discovery>,
    policies: npds::NetworkPolicyDiscoveryServiceServer<Discovery>,
    hosts: nphds::NetworkPolicyHostsDiscoveryServiceServer<Discovery>,
    reflection: Reflection,
}

impl Services {
    pub(crate) fn new(resources: Resources) -> Result<Services, ReflectionError> {
        let all = Discovery(resources);
        Ok(Services {
            listeners: lds::ListenerDiscoveryServiceServer::new(all.clone())
                .max_decoding_message_size(MAX_REQUEST),
            routes: rds::RouteDiscoveryServiceServer::new(all.clone()).max_decoding_message_size(MAX_REQUEST),
            clusters: cds::ClusterDiscoveryServiceServer::new(all.clone())
                .max_decoding_message_size(MAX_REQUEST),
            endpoints: eds::EndpointDiscoveryServiceServer::new(all.clone())
                .max_decoding_message_size(MAX_REQUEST),
            secrets: sds::SecretDiscoveryServiceServer::new(all.clone())
                .max_decoding_message_size(MAX_REQUEST),
            policies: npds::NetworkPolicyDiscoveryServiceServer::new(all.clone())
                .max_decoding_message_size(MAX_REQUEST),
            hosts: nphds::NetworkPolicyHostsDiscoveryServiceServer::new(all)
                .max_decoding_message_size(MAX_REQUEST),
            reflection: Reflection::new(envoy_api::DESCRIPTORS)?,
        })
    }
}

impl hyper::service::Service<HttpRequest<Incoming>> for Services {
    type Response = HttpResponse<Body>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, request: HttpRequest<Incoming>) -> Self::Future {
        let mut services = self.clone();
        Box::pin(async move {
            let service = request.uri().path().trim_start_matches('/').split('/').next().unwrap_or_default();
            // All are always ready. Paths of no service are answered by that of listeners: unimplemented.
            match service {
                rds::SERVICE_NAME => services.routes.call(request).await,
                cds::SERVICE_NAME => services.clusters.call(request).await,
                eds::SERVICE_NAME => services.endpoints.call(request).await,
                sds::SERVICE_NAME => services.secrets.call(request).await,
                npds::SERVICE_NAME => services.policies.call(request).await,
                nphds::SERVICE_NAME => services.hosts.call(request).await,
                name if Reflection::is(name) => services.reflection.call(request).await,
                _ => services.listeners.call(request).await,
            }
        })
    }
}
