//! A client that is true to the protocol, as Envoy is.

use std::path::Path;
use std::time::Duration;

use envoy_api::cilium::network_policy_discovery_service_client::NetworkPolicyDiscoveryServiceClient;
use envoy_api::cilium::network_policy_hosts_discovery_service_client::NetworkPolicyHostsDiscoveryServiceClient;
use envoy_api::core::Node;
use envoy_api::discovery::{DiscoveryRequest, DiscoveryResponse};
use envoy_api::service::cluster::v3::cluster_discovery_service_client::ClusterDiscoveryServiceClient;
use envoy_api::service::listener::v3::listener_discovery_service_client::ListenerDiscoveryServiceClient;
use envoy_api::service::secret::v3::secret_discovery_service_client::SecretDiscoveryServiceClient;
use envoy_api::{Message, Name, cilium, cluster, listener, rpc, tls};
use futures::channel::mpsc::{UnboundedSender, unbounded};
use grpc::Connection;
use hubble_api::{Server, connect};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tonic::{Status, Streaming};

pub(crate) const NODE: &str = "host~127.0.0.1~no-id~localdomain";
/// The time for a response that comes, and for one that does not.
const LIMIT: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_millis(150);

/// A stream of resources of one type.
pub(crate) struct Client<M> {
    requests: UnboundedSender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
    pub(crate) version: String,
    nonce: String,
    _work: AbortOnDropHandle<()>,
    _type: std::marker::PhantomData<M>,
}

pub(crate) async fn connected(socket: &Path) -> (Connection, AbortOnDropHandle<()>) {
    let (connection, work) = connect(&Server::Unix(socket.to_owned())).await.unwrap();
    (connection, AbortOnDropHandle::new(TaskTracker::new().spawn(async move { drop(work.await) })))
}

pub(crate) fn first(node: &str, version: &str) -> DiscoveryRequest {
    let node = Node { id: node.to_owned(), cluster: "ingress-cluster".to_owned() };
    DiscoveryRequest { node: Some(node), version_info: version.to_owned(), ..DiscoveryRequest::default() }
}

impl<M: Message + Name + Default> Client<M> {
    pub(crate) async fn open(socket: &Path, request: DiscoveryRequest) -> Client<M> {
        let (connection, work) = connected(socket).await;
        let (requests, stream) = unbounded();
        let version = request.version_info.clone();
        requests.unbounded_send(request).unwrap();
        let responses = match M::full_name() {
            name if name == listener::Listener::full_name() => {
                ListenerDiscoveryServiceClient::new(connection).stream_listeners(stream).await
            }
            name if name == cluster::Cluster::full_name() => {
                ClusterDiscoveryServiceClient::new(connection).stream_clusters(stream).await
            }
            name if name == cilium::NetworkPolicy::full_name() => {
                NetworkPolicyDiscoveryServiceClient::new(connection).stream_network_policies(stream).await
            }
            name if name == tls::Secret::full_name() => {
                SecretDiscoveryServiceClient::new(connection).stream_secrets(stream).await
            }
            _ => {
                let mut client = NetworkPolicyHostsDiscoveryServiceClient::new(connection);
                client.stream_network_policy_hosts(stream).await
            }
        };
        let responses = responses.unwrap().into_inner();
        let nonce = String::new();
        Client { requests, responses, version, nonce, _work: work, _type: std::marker::PhantomData }
    }

    pub(crate) async fn envoy(socket: &Path) -> Client<M> {
        Client::open(socket, first(NODE, "")).await
    }

    /// The same, with the first response accepted.
    pub(crate) async fn accepting(socket: &Path) -> Client<M> {
        let mut client = Client::envoy(socket).await;
        client.next().await;
        client.ack();
        client
    }

    /// Returns the resources of the next response.
    pub(crate) async fn next(&mut self) -> Vec<M> {
        self.try_next().await.unwrap()
    }

    pub(crate) async fn try_next(&mut self) -> Result<Vec<M>, Status> {
        let response = tokio::time::timeout(LIMIT, self.responses.message()).await.unwrap()?.unwrap();
        assert_eq!((&response.type_url, &response.nonce), (&M::type_url(), &response.version_info));
        self.nonce = response.nonce;
        Ok(response.resources.iter().map(|any| M::decode(&*any.value).unwrap()).collect())
    }

    /// Asserts that there is no response.
    pub(crate) async fn is_silent(&mut self) {
        let response = tokio::time::timeout(SILENCE, self.responses.message()).await;
        assert!(response.is_err(), "{response:?}");
    }

    pub(crate) fn ack(&mut self) {
        self.version = self.nonce.clone();
        self.send("");
    }

    pub(crate) fn nack(&mut self, error: &str) {
        self.send(error);
    }

    fn send(&mut self, error: &str) {
        let error_detail = (!error.is_empty()).then(|| rpc::Status { code: 13, message: error.to_owned() });
        let request = DiscoveryRequest {
            version_info: self.version.clone(),
            response_nonce: self.nonce.clone(),
            error_detail,
            ..DiscoveryRequest::default()
        };
        self.requests.unbounded_send(request).unwrap();
    }
}
