//! A request for flows: where it begins, which events it returns, where it ends.

use std::sync::Arc;
use std::time::Duration;

use hubble_api::FieldMask;
use hubble_api::flow::{LostEvent, LostEventSource};
use hubble_api::observer::get_flows_response::ResponseTypes;
use hubble_api::observer::{GetFlowsRequest, GetFlowsResponse};
use prost_types::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;

use crate::clock;
use crate::filter::Filters;
use crate::ring::{Event, Read, Ring, is_before};

/// Events of the ring that a request reads before other tasks of its thread run: filters may have thousands of names.
const TURN: u64 = 256;

/// The events of a request that are still to come.
pub(crate) struct Flows {
    ring: Arc<Ring>,
    filters: Filters,
    mask: FieldMask,
    until: Option<Timestamp>,
    /// The position to read next.
    position: u64,
    /// The position at which a request without `follow` ends.
    end: Option<u64>,
    /// Flows that may still be returned; `None` for any number.
    left: Option<u64>,
    written: watch::Receiver<u64>,
    losses: Losses,
    node: Arc<str>,
}

/// Events that the ring has overwritten before this request has read them.
struct Losses {
    count: u64,
    first: Option<Timestamp>,
    last: Option<Timestamp>,
    /// Before this, no report is sent.
    next_report: Option<Instant>,
    interval: Duration,
}

impl Flows {
    /// Returns the events of a request.
    ///
    /// # Errors
    /// A filter, a mask or a time is invalid, or options exclude each other.
    pub(crate) async fn new(
        ring: Arc<Ring>,
        request: &GetFlowsRequest,
        interval: Duration,
        node: Arc<str>,
    ) -> Result<Self, Status> {
        if request.first && request.follow {
            return Err(Status::invalid_argument("first cannot be specified with follow"));
        }
        let filters = Filters::new(&request.whitelist, &request.blacklist)
            .map_err(|error| Status::unknown(error.to_string()))?;
        let paths = request.field_mask.iter().flat_map(|mask| &mask.paths);
        let mask = FieldMask::new(paths).map_err(|error| Status::unknown(error.to_string()))?;
        for time in [&request.since, &request.until].into_iter().flatten() {
            if !(0..1_000_000_000).contains(&time.nanos) {
                return Err(Status::invalid_argument("a time has nanoseconds beyond a second"));
            }
        }
        // Subscribed before positions are read: no event between the two is missed.
        let written = ring.follow();
        let (oldest, end) = ring.positions();
        let is_bounded = request.number > 0 && (request.first || request.since.is_some()) && !request.follow;
        let flows = Self {
            position: begin(&ring, &filters, request, oldest, end).await,
            end: (!request.follow).then_some(end),
            left: is_bounded.then_some(request.number),
            losses: Losses { count: 0, first: None, last: None, next_report: None, interval },
            until: request.until,
            ring,
            filters,
            mask,
            written,
            node,
        };
        Ok(flows)
    }

    /// Waits for the next event; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<GetFlowsResponse> {
        loop {
            if self.losses.is_due() {
                return Some(self.report());
            }
            if self.left == Some(0) || self.end.is_some_and(|end| self.position >= end) {
                return self.last();
            }
            yield_at(self.position).await;
            match self.ring.read(self.position) {
                Read::Overwritten(oldest) => {
                    self.losses.add(oldest - self.position);
                    self.position = oldest;
                }
                Read::Event(event) => {
                    self.position += 1;
                    match self.select(event) {
                        Selected::Response(response) => return Some(*response),
                        Selected::Skipped => {}
                        Selected::Late => {
                            // Ends here, also if it follows.
                            self.end = Some(0);
                        }
                    }
                }
                Read::End => {
                    let position = self.position;
                    let more = self.written.wait_for(|end| *end > position);
                    match self.losses.next_report.filter(|_| self.losses.count > 0) {
                        // An error means that the ring is gone, with the server.
                        None => drop(more.await.ok()?),
                        Some(time) => drop(tokio::time::timeout_at(time, more).await),
                    }
                }
            }
        }
    }

    fn select(&mut self, event: Event) -> Selected {
        let flow = match event {
            Event::Lost(lost) => {
                let time = lost.last.or(Some(clock::now()));
                return Selected::Response(Box::new(self.response(ResponseTypes::LostEvents(lost), time)));
            }
            Event::Flow(flow) => flow,
        };
        let time = flow.time;
        if let (Some(time), Some(until)) = (&time, &self.until)
            && is_before(until, time)
        {
            return Selected::Late;
        }
        if !self.filters.select(&flow) {
            return Selected::Skipped;
        }
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        let flow = ResponseTypes::Flow(self.mask.apply(&flow));
        Selected::Response(Box::new(self.response(flow, time)))
    }

    /// Returns the report of the losses that are not reported yet, at the end of the request.
    fn last(&mut self) -> Option<GetFlowsResponse> {
        (self.losses.count > 0).then(|| self.report())
    }

    fn report(&mut self) -> GetFlowsResponse {
        let lost = self.losses.take();
        self.response(ResponseTypes::LostEvents(lost), Some(clock::now()))
    }

    fn response(&self, response_types: ResponseTypes, time: Option<Timestamp>) -> GetFlowsResponse {
        GetFlowsResponse { response_types: Some(response_types), node_name: self.node.to_string(), time }
    }
}

/// An event as a request sees it.
enum Selected {
    Response(Box<GetFlowsResponse>),
    Skipped,
    /// Later than the request's end.
    Late,
}

impl Losses {
    fn add(&mut self, count: u64) {
        let now = clock::now();
        self.count += count;
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    /// Whether a report is due: the first one at once, the following ones after the interval.
    fn is_due(&self) -> bool {
        self.count > 0 && self.next_report.is_none_or(|time| Instant::now() >= time)
    }

    fn take(&mut self) -> LostEvent {
        self.next_report = Some(Instant::now() + self.interval);
        LostEvent {
            source: LostEventSource::HubbleRingBuffer.into(),
            num_events_lost: std::mem::take(&mut self.count),
            cpu: None,
            first: self.first.take(),
            last: self.last.take(),
        }
    }
}

/// Lets other tasks run at every [`TURN`]th position.
async fn yield_at(position: u64) {
    if position % TURN == TURN - 1 {
        tokio::task::yield_now().await;
    }
}

/// Returns the position of the first event. Linear in the events that are walked over.
async fn begin(ring: &Ring, filters: &Filters, request: &GetFlowsRequest, oldest: u64, end: u64) -> u64 {
    if request.first && request.since.is_none() {
        return oldest;
    }
    if request.follow && request.number == 0 && request.since.is_none() {
        return end;
    }
    let mut matches = 0;
    let mut begin = end;
    for position in (oldest..end).rev() {
        yield_at(position).await;
        let Read::Event(event) = ring.read(position) else { break };
        match (&event, &request.since) {
            (Event::Flow(flow), Some(since))
                if flow.time.as_ref().is_some_and(|time| is_before(time, since)) =>
            {
                break;
            }
            (Event::Flow(flow), None) if filters.select(flow) => matches += 1,
            _ => {}
        }
        begin = position;
        if request.since.is_none() && request.number > 0 && matches == request.number {
            break;
        }
    }
    begin
}

#[cfg(test)]
mod tests;
