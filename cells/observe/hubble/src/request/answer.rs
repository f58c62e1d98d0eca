//! The kinds of requests: which events of the ring they return, and in which form.

use hubble_api::FieldMask;
use hubble_api::flow::LostEvent;
use hubble_api::observer::get_flows_response::ResponseTypes;
use hubble_api::observer::{
    GetAgentEventsResponse, GetDebugEventsResponse, GetFlowsRequest, GetFlowsResponse,
};
use tonic::Status;

use crate::clock;
use crate::filter::Filters;
use crate::ring::Event;

/// A kind of request.
pub(crate) trait Answer: Send + Sync {
    /// Its responses.
    type Response: Send;

    /// Whether an event is one of the requested ones; never true of losses.
    fn selects(&self, event: &Event) -> bool;

    /// Returns the response with an event that the request selects.
    fn event(&self, event: Event, node: &str) -> Option<Self::Response>;

    /// Returns the response with a loss; `None` if responses of this kind have no place for it.
    fn lost(&self, lost: LostEvent, node: &str) -> Option<Self::Response>;
}

/// A request for flows.
#[derive(Debug)]
pub(crate) struct Flows {
    filters: Filters,
    mask: FieldMask,
}

impl Flows {
    /// Returns the answer of a request.
    ///
    /// # Errors
    /// A filter or the mask is invalid.
    pub(crate) fn new(request: &GetFlowsRequest) -> Result<Self, Status> {
        let filters = Filters::new(&request.whitelist, &request.blacklist)
            .map_err(|error| Status::unknown(error.to_string()))?;
        let paths = request.field_mask.iter().flat_map(|mask| &mask.paths);
        let mask = FieldMask::new(paths).map_err(|error| Status::unknown(error.to_string()))?;
        Ok(Self { filters, mask })
    }
}

impl Answer for Flows {
    type Response = GetFlowsResponse;

    fn selects(&self, event: &Event) -> bool {
        matches!(event, Event::Flow(flow) if self.filters.select(flow))
    }

    fn event(&self, event: Event, node: &str) -> Option<GetFlowsResponse> {
        let Event::Flow(flow) = event else { return None };
        let response_types = Some(ResponseTypes::Flow(self.mask.apply(&flow)));
        Some(GetFlowsResponse { response_types, node_name: node.to_owned(), time: flow.time })
    }

    fn lost(&self, lost: LostEvent, node: &str) -> Option<GetFlowsResponse> {
        let time = lost.last.or_else(|| Some(clock::now()));
        let response_types = Some(ResponseTypes::LostEvents(lost));
        Some(GetFlowsResponse { response_types, node_name: node.to_owned(), time })
    }
}

/// A request for notifications of the agent.
#[derive(Debug)]
pub(crate) struct AgentEvents;

impl Answer for AgentEvents {
    type Response = GetAgentEventsResponse;

    fn selects(&self, event: &Event) -> bool {
        matches!(event, Event::Agent(..))
    }

    fn event(&self, event: Event, node: &str) -> Option<GetAgentEventsResponse> {
        let Event::Agent(event, time) = event else { return None };
        let agent_event = Some((*event).clone());
        Some(GetAgentEventsResponse { agent_event, node_name: node.to_owned(), time: Some(time) })
    }

    fn lost(&self, _lost: LostEvent, _node: &str) -> Option<GetAgentEventsResponse> {
        None
    }
}

/// A request for debug messages of the programs.
#[derive(Debug)]
pub(crate) struct DebugEvents;

impl Answer for DebugEvents {
    type Response = GetDebugEventsResponse;

    fn selects(&self, event: &Event) -> bool {
        matches!(event, Event::Debug(..))
    }

    fn event(&self, event: Event, node: &str) -> Option<GetDebugEventsResponse> {
        let Event::Debug(event, time) = event else { return None };
        let debug_event = Some((*event).clone());
        Some(GetDebugEventsResponse { debug_event, node_name: node.to_owned(), time: Some(time) })
    }

    fn lost(&self, _lost: LostEvent, _node: &str) -> Option<GetDebugEventsResponse> {
        None
    }
}
