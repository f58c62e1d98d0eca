//! The agent's service: snapshots for proxies, addresses from them.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use dns_proxy::{Client, Directory, Event, Observation};
use fqdn::{Lookup, canonical};
use futures::stream::{self, Stream};
use jiff::Timestamp;
use tokio::sync::watch;
use tonic::{Request, Response, Status, Streaming};
use uuid::Uuid;

use crate::observed;
use crate::proto::fqdn_data_server::FqdnData;
use crate::proto::{FqdnMapping, PolicyState, PolicyStateResponse, ResponseCode, UpdateMappingResponse};

/// The maximum length of a name in its text form: 255 bytes, each of which may be escaped (RFC 4343).
const MAX_NAME: usize = 1024;
/// More addresses than a DNS message has room for.
const MAX_ADDRESSES: usize = 4096;

/// Whether rules allow an endpoint to ask any server for a canonical name.
pub(crate) type NameRules = Arc<dyn Fn(u16, &str) -> bool + Send + Sync>;

/// Publishes and counts an event of a query of an endpoint.
pub(crate) type EventObserver = Arc<dyn Fn(Client, &Observation) + Send + Sync>;

/// The service. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) states: watch::Receiver<Arc<PolicyState>>,
    pub(crate) directory: Arc<dyn Directory>,
    pub(crate) names: NameRules,
    pub(crate) observer: EventObserver,
}

/// A proxy that gets snapshots.
struct Subscriber {
    states: watch::Receiver<Arc<PolicyState>>,
    responses: Streaming<PolicyStateResponse>,
    /// Whether a snapshot was sent, which the proxy has not acknowledged yet.
    is_sent: bool,
}

impl Subscriber {
    /// Returns the next snapshot; `None` if the proxy or the agent ends.
    async fn next(mut self) -> Option<(Result<PolicyState, Status>, Subscriber)> {
        if self.is_sent {
            self.responses.message().await.ok()??;
            tokio::select! {
                changed = self.states.changed() => changed.ok()?,
                // Nothing but the end of the proxy: there is nothing to acknowledge.
                _ = self.responses.message() => return None,
            }
        }
        let mut state = PolicyState::clone(&self.states.borrow_and_update());
        state.request_id = Uuid::new_v4().to_string();
        self.is_sent = true;
        Some((Ok(state), self))
    }
}

impl Service {
    /// Gives addresses to policies, and publishes what has happened to the query. Returns when the datapath knows the
    /// addresses.
    pub(crate) async fn learn(&self, mapping: FqdnMapping) -> ResponseCode {
        let text = |bytes: &[u8]| str::from_utf8(bytes).ok()?.parse::<IpAddr>().ok();
        let addresses = mapping.record_ip.iter().map(|bytes| text(bytes).map(|ip| ip.to_canonical()));
        let addresses: Option<Vec<IpAddr>> = addresses.collect();
        let (Some(source), Some(addresses)) = (text(&mapping.source_ip), addresses) else {
            return ResponseCode::ErrorInvalidArgument;
        };
        if mapping.fqdn.is_empty() || mapping.fqdn.len() > MAX_NAME || addresses.len() > MAX_ADDRESSES {
            return ResponseCode::ErrorInvalidArgument;
        }
        let Some(client) = self.directory.client(source) else {
            return ResponseCode::ErrorEndpointNotFound;
        };
        let observation = observed::observation(&mapping, source, &addresses);
        let observe = || observation.iter().for_each(|observation| (self.observer)(client, observation));
        // A name that is denied has no addresses.
        if observation.as_ref().is_some_and(|observation| observation.event == Event::Denied) {
            observe();
            return ResponseCode::NoError;
        }
        if !(self.names)(client.endpoint, &canonical(&mapping.fqdn)) {
            tracing::warn!(
                endpointID = client.endpoint,
                name = mapping.fqdn,
                "Refusing addresses of a DNS name that no rule allows"
            );
            return ResponseCode::Refused;
        }
        if mapping.response_code == 0 && !addresses.is_empty() {
            let lookup = Lookup::new(&mapping.fqdn, addresses.clone(), mapping.ttl, Timestamp::now());
            self.directory.learn(client.endpoint, lookup).await;
        }
        observe();
        ResponseCode::NoError
    }
}

#[tonic::async_trait]
impl FqdnData for Service {
    type StreamPolicyStateStream = Pin<Box<dyn Stream<Item = Result<PolicyState, Status>> + Send>>;

    async fn stream_policy_state(
        &self,
        request: Request<Streaming<PolicyStateResponse>>,
    ) -> Result<Response<Self::StreamPolicyStateStream>, Status> {
        let (states, responses) = (self.states.clone(), request.into_inner());
        let subscriber = Subscriber { states, responses, is_sent: false };
        Ok(Response::new(Box::pin(stream::unfold(subscriber, Subscriber::next))))
    }

    async fn update_mapping_request(
        &self,
        request: Request<FqdnMapping>,
    ) -> Result<Response<UpdateMappingResponse>, Status> {
        let response = self.learn(request.into_inner()).await.into();
        Ok(Response::new(UpdateMappingResponse { response }))
    }
}
