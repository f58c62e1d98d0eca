//! The services: `observer.Observer`, `peer.Peer` and `grpc.health.v1.Health`.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream};
use hubble_api::health::health_check_response::ServingStatus;
use hubble_api::health::health_server::Health;
use hubble_api::health::{HealthCheckRequest, HealthCheckResponse};
use hubble_api::observer::{
    GetAgentEventsRequest, GetAgentEventsResponse, GetDebugEventsRequest, GetDebugEventsResponse,
    GetFlowsRequest, GetFlowsResponse, GetNamespacesRequest, GetNamespacesResponse, GetNodesRequest,
    GetNodesResponse, ServerStatusRequest, ServerStatusResponse, observer_server,
};
use hubble_api::peer::{ChangeNotification, NotifyRequest, peer_server};
use local_node::LocalNode;
use node_manager::Node;
use statedb::{Db, Table};
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status};

use crate::observer::{Observer, VERSION, node_name};
use crate::peers::{Naming, Notifications};
use crate::request::{AgentEvents, Answer, DebugEvents, Events, Flows, Range};

/// The service by which clients ask for health.
const SERVICE: &str = "hubble.server.Observer";

/// The header by which clients compare versions.
const VERSION_HEADER: &str = "hubble-server-version";

/// Answers requests from the ring. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) observer: Arc<Observer>,
    pub(crate) db: Arc<Db>,
    pub(crate) node: Table<LocalNode>,
    pub(crate) nodes: Table<Node>,
    pub(crate) naming: Naming,
    pub(crate) lost_event_interval: Duration,
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn versioned<T>(message: T) -> Response<T> {
    let mut response = Response::new(message);
    response.metadata_mut().insert(VERSION_HEADER, MetadataValue::from_static(VERSION));
    response
}

impl Service {
    fn with_node<T: Default>(&self, read: impl FnOnce(&LocalNode) -> T) -> T {
        let snapshot = self.db.snapshot();
        self.node.get(&snapshot, LocalNode::query()).map(|node| read(node)).unwrap_or_default()
    }

    /// Returns the events of a request.
    async fn events<A: Answer + 'static>(
        &self,
        answer: A,
        range: Range,
    ) -> Result<Response<Responses<A::Response>>, Status> {
        let node = self.with_node(node_name).into();
        let events =
            Events::new(self.observer.ring.clone(), answer, range, self.lost_event_interval, node).await?;
        let responses = stream::unfold(events, |mut events| async {
            let response = events.next().await?;
            Some((Ok(response), events))
        });
        Ok(versioned(Box::pin(responses)))
    }
}

#[tonic::async_trait]
impl observer_server::Observer for Service {
    type GetFlowsStream = Responses<GetFlowsResponse>;
    type GetAgentEventsStream = Responses<GetAgentEventsResponse>;
    type GetDebugEventsStream = Responses<GetDebugEventsResponse>;

    async fn get_flows(
        &self,
        request: Request<GetFlowsRequest>,
    ) -> Result<Response<Self::GetFlowsStream>, Status> {
        let answer = Flows::new(request.get_ref())?;
        self.events(answer, request.get_ref().into()).await
    }

    async fn get_agent_events(
        &self,
        request: Request<GetAgentEventsRequest>,
    ) -> Result<Response<Self::GetAgentEventsStream>, Status> {
        self.events(AgentEvents, request.get_ref().into()).await
    }

    async fn get_debug_events(
        &self,
        request: Request<GetDebugEventsRequest>,
    ) -> Result<Response<Self::GetDebugEventsStream>, Status> {
        self.events(DebugEvents, request.get_ref().into()).await
    }

    async fn get_nodes(
        &self,
        _request: Request<GetNodesRequest>,
    ) -> Result<Response<GetNodesResponse>, Status> {
        // Only relay knows other nodes; Cilium's agents refuse it in these words, too.
        Err(Status::unimplemented("GetNodes not implemented"))
    }

    async fn get_namespaces(
        &self,
        _request: Request<GetNamespacesRequest>,
    ) -> Result<Response<GetNamespacesResponse>, Status> {
        let namespaces = self.observer.namespaces(&self.with_node(|node| node.cluster.clone()));
        Ok(versioned(GetNamespacesResponse { namespaces }))
    }

    async fn server_status(
        &self,
        _request: Request<ServerStatusRequest>,
    ) -> Result<Response<ServerStatusResponse>, Status> {
        let observer = &self.observer;
        Ok(versioned(ServerStatusResponse {
            num_flows: observer.ring.len() as u64,
            max_flows: observer.ring.capacity() as u64,
            seen_flows: observer.seen(),
            uptime_ns: observer.uptime().as_nanos() as u64,
            version: format!("cilium v{VERSION}"),
            flows_rate: observer.flow_rate(),
            ..ServerStatusResponse::default()
        }))
    }
}

#[tonic::async_trait]
impl peer_server::Peer for Service {
    type NotifyStream = Responses<ChangeNotification>;

    async fn notify(&self, _request: Request<NotifyRequest>) -> Result<Response<Self::NotifyStream>, Status> {
        let changes = Notifications::new(self.nodes.clone(), self.naming.clone());
        let responses = stream::unfold(changes, |mut changes| async {
            let change = changes.next().await;
            Some((Ok(change), changes))
        });
        Ok(versioned(Box::pin(responses)))
    }
}

#[tonic::async_trait]
impl Health for Service {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match request.get_ref().service.as_str() {
            "" | SERVICE => Ok(versioned(HealthCheckResponse { status: ServingStatus::Serving.into() })),
            _ => Err(Status::not_found("unknown service")),
        }
    }
}
