//! Requests without a server, for tests of their messages.

use std::sync::Arc;
use std::time::Duration;

use hubble_api::Status;
use hubble_api::flow::Flow;
use hubble_api::observer::{GetFlowsRequest, GetFlowsResponse};
use prost_types::Timestamp;

use crate::request::{Events, Flows, Range};
use crate::ring::{Event, Ring};

/// Returns the responses to a request for flows that a ring with these has, oldest first, one a second. One that follows
/// ends with the newest.
///
/// # Errors
/// The request is refused.
pub async fn get_flows(request: &GetFlowsRequest, flows: Vec<Flow>) -> Result<Vec<GetFlowsResponse>, Status> {
    let ring = Arc::new(Ring::new(flows.len().max(1)));
    let at = |seconds| Some(Timestamp { seconds, nanos: 0 });
    let event = |(seconds, flow)| Event::Flow(Arc::new(Flow { time: at(seconds), ..flow }));
    let count = flows.len();
    ring.push((0..).zip(flows).map(event).collect());
    let (answer, range) = (Flows::new(request)?, Range::from(request));
    let mut events = Events::new(ring, answer, range, Duration::from_secs(1), "node".into()).await?;
    let mut responses = Vec::new();
    while responses.len() < count
        && let Some(response) = events.next_ready().await
    {
        responses.push(response);
    }
    Ok(responses)
}
