//! A request for events: where it begins, which events it returns, where it ends. [`answer`] has the kinds of requests.

mod answer;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use answer::{AgentEvents, Answer, DebugEvents, Flows};
use hubble_api::flow::{LostEvent, LostEventSource};
use hubble_api::observer::{GetAgentEventsRequest, GetDebugEventsRequest, GetFlowsRequest};
use prost_types::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;

use crate::clock;
use crate::ring::{Event, Read, Ring, is_before};

/// Events of the ring that a request reads before other tasks of its thread run: filters may have thousands of names.
const TURN: u64 = 256;

/// The options of requests for events of any kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Range {
    number: u64,
    first: bool,
    follow: bool,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
}

macro_rules! range_of {
    ($($request:ty),*) => {
        $(impl From<&$request> for Range {
            fn from(request: &$request) -> Self {
                let (number, first, follow) = (request.number, request.first, request.follow);
                Self { number, first, follow, since: request.since, until: request.until }
            }
        })*
    };
}

range_of!(GetFlowsRequest, GetAgentEventsRequest, GetDebugEventsRequest);

impl Range {
    fn check(&self) -> Result<(), Status> {
        if self.first && self.follow {
            return Err(Status::invalid_argument("first cannot be specified with follow"));
        }
        for time in [&self.since, &self.until].into_iter().flatten() {
            if !(0..1_000_000_000).contains(&time.nanos) {
                return Err(Status::invalid_argument("a time has nanoseconds beyond a second"));
            }
        }
        Ok(())
    }
}

/// The events of a request that are still to come.
pub(crate) struct Events<A> {
    ring: Arc<Ring>,
    answer: A,
    until: Option<Timestamp>,
    /// The position to read next.
    position: u64,
    /// The position at which a request without `follow` ends.
    end: Option<u64>,
    /// Events that may still be returned; `None` for any number.
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

impl<A: Answer> Events<A> {
    /// Returns the events of a request.
    ///
    /// # Errors
    /// A time is invalid, or options exclude each other.
    pub(crate) async fn new(
        ring: Arc<Ring>,
        answer: A,
        range: Range,
        interval: Duration,
        node: Arc<str>,
    ) -> Result<Self, Status> {
        range.check()?;
        // Subscribed before positions are read: no event between the two is missed.
        let written = ring.follow();
        let (oldest, end) = ring.positions();
        let is_bounded = range.number > 0 && (range.first || range.since.is_some()) && !range.follow;
        let events = Self {
            position: begin(&ring, &answer, &range, oldest, end).await,
            end: (!range.follow).then_some(end),
            left: is_bounded.then_some(range.number),
            losses: Losses { count: 0, first: None, last: None, next_report: None, interval },
            until: range.until,
            ring,
            answer,
            written,
            node,
        };
        Ok(events)
    }

    /// Waits for the next event; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<A::Response> {
        loop {
            if self.losses.is_due()
                && let Some(report) = self.report()
            {
                return Some(report);
            }
            if self.left == Some(0) || self.end.is_some_and(|end| self.position >= end) {
                return self.last();
            }
            yield_at(self.position).await;
            match self.ring.read(self.position) {
                Read::Overwritten(oldest) => {
                    // Events after the end of the request are no losses of it.
                    let end = self.end.map_or(oldest, |end| oldest.min(end));
                    self.losses.add(end - self.position);
                    self.position = oldest;
                }
                Read::Event(event) => {
                    self.position += 1;
                    match self.select(event) {
                        Selected::Response(response) => return Some(response),
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

    /// Returns the next event if it need not be waited for.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) async fn next_ready(&mut self) -> Option<A::Response> {
        // Polled once: a request yields to other tasks only at every `TURN`th event.
        let mut next = std::pin::pin!(self.next());
        std::future::poll_fn(|cx| match next.as_mut().poll(cx) {
            std::task::Poll::Pending => std::task::Poll::Ready(None),
            ready => ready,
        })
        .await
    }

    fn select(&mut self, event: Event) -> Selected<A::Response> {
        if let Event::Lost(lost) = event {
            return self.answer.lost(lost, &self.node).map_or(Selected::Skipped, Selected::Response);
        }
        if let (Some(time), Some(until)) = (event.time(), &self.until)
            && is_before(until, time)
        {
            return Selected::Late;
        }
        if !self.answer.selects(&event) {
            return Selected::Skipped;
        }
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        self.answer.event(event, &self.node).map_or(Selected::Skipped, Selected::Response)
    }

    /// Returns the report of the losses that are not reported yet, at the end of the request.
    fn last(&mut self) -> Option<A::Response> {
        if self.losses.count > 0 { self.report() } else { None }
    }

    fn report(&mut self) -> Option<A::Response> {
        let lost = self.losses.take();
        self.answer.lost(lost, &self.node)
    }
}

/// An event as a request sees it.
enum Selected<R> {
    Response(R),
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
async fn begin(ring: &Ring, answer: &impl Answer, range: &Range, oldest: u64, end: u64) -> u64 {
    if range.first && range.since.is_none() {
        return oldest;
    }
    if range.follow && range.number == 0 && range.since.is_none() {
        return end;
    }
    let mut matches = 0;
    let mut begin = end;
    for position in (oldest..end).rev() {
        yield_at(position).await;
        let Read::Event(event) = ring.read(position) else { break };
        match (event.time(), &range.since) {
            (Some(time), Some(since)) if is_before(time, since) => break,
            (_, None) if answer.selects(&event) => matches += 1,
            _ => {}
        }
        begin = position;
        if range.since.is_none() && range.number > 0 && matches == range.number {
            break;
        }
    }
    begin
}

#[cfg(test)]
mod tests;
