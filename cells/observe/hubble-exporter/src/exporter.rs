//! An exporter: events to lines of its file.

use std::io;

use hubble::{Event, Filters};
use hubble_api::flow::{EventTypeFilter, Flow, FlowFilter, LostEvent, LostEventSource};
use hubble_api::observer::get_flows_response::ResponseTypes;
use hubble_api::observer::{GetAgentEventsResponse, GetDebugEventsResponse, GetFlowsResponse};
use hubble_api::{FieldMask, to_json};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::aggregate::Aggregation;
use crate::clock;
use crate::file::{Cleanup, Output, RotatingFile};
use crate::spec::{BadSpec, Spec};

/// The path that stands for the standard output.
pub(crate) const STDOUT: &str = "stdout";

/// Message types of notifications and debug messages, by which filters select them (monitor of Cilium).
const AGENT: i32 = 130;
const DEBUG: i32 = 2;

/// The circumstances of a write.
#[derive(Clone, Debug)]
pub struct Moment {
    /// The time of day.
    pub time: Timestamp,
    /// The time of the clock that never goes back.
    pub instant: Instant,
    /// The name of this node.
    pub node: String,
}

impl Moment {
    /// Returns the circumstances of a write at this moment.
    pub fn now(node: impl Into<String>) -> Self {
        Self { time: clock::now(), instant: Instant::now(), node: node.into() }
    }
}

/// Writes the events that its filters select.
#[derive(Debug)]
pub struct Exporter {
    spec: Spec,
    filters: Filters,
    mask: FieldMask,
    aggregation: Option<Aggregation>,
    output: Output,
    /// Events that were not written and are not reported in the file yet.
    losses: Option<LostEvent>,
}

impl Exporter {
    /// Returns the exporter of a description. Its file is made with its first line.
    ///
    /// # Errors
    /// A filter or a mask is invalid.
    pub fn new(spec: Spec) -> Result<Self, BadSpec> {
        let filters = Filters::new(&spec.allow, &spec.deny)?;
        let mask = FieldMask::new(&spec.fields)?;
        let aggregated = FieldMask::new(&spec.aggregate)?;
        let aggregation = match (spec.aggregate.is_empty(), spec.interval.is_zero()) {
            (true, _) => None,
            (false, false) => Some(Aggregation::new(aggregated, spec.interval)),
            (false, true) => {
                tracing::warn!(exporter = spec.name, "Flows are not aggregated: the interval is not set");
                None
            }
        };
        let output = match spec.path.as_str() {
            STDOUT => Output::Stdout(None),
            path => Output::File(RotatingFile::new(path.as_ref(), spec.limits), None),
        };
        Ok(Self { spec, filters, mask, aggregation, output, losses: None })
    }

    /// Returns its description.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Whether it writes: its end has not come.
    pub fn is_active(&self, now: Timestamp) -> bool {
        self.spec.end.is_none_or(|end| now < end)
    }

    /// Writes events, and aggregated flows that are due. `lost` events in front of them were overwritten.
    ///
    /// # Errors
    /// The file cannot be written: the lines are gone, and reported in the file when it can be written again.
    pub fn write(&mut self, events: &[Event], lost: u64, moment: &Moment) -> io::Result<()> {
        let mut lines = Vec::new();
        if self.is_active(moment.time) {
            self.add_losses(lost, moment.time);
            lines.extend(events.iter().filter_map(|event| self.line(event, moment)).flatten());
        }
        if let Some(aggregation) = &mut self.aggregation {
            lines.extend(aggregation.due(moment.instant).into_iter().map(line_of));
        }
        self.write_lines(lines, moment)
    }

    /// Writes aggregated flows before they are due: the exporter ends.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(&mut self, moment: &Moment) -> io::Result<()> {
        let flows = self.aggregation.as_mut().map(Aggregation::take).unwrap_or_default();
        self.write_lines(flows.into_iter().map(line_of).collect(), moment)
    }

    /// Returns when aggregated flows are due, if there are any.
    pub fn due(&self) -> Option<Instant> {
        self.aggregation.as_ref().and_then(Aggregation::end)
    }

    /// Returns the pending work on rotated files.
    pub fn take_cleanup(&mut self) -> Option<Cleanup> {
        self.output.take_cleanup()
    }

    /// Returns the lines of an event; `None` if it is not selected.
    fn line(&mut self, event: &Event, moment: &Moment) -> Option<Vec<String>> {
        match event {
            Event::Flow(flow) if self.filters.select(flow) => match &mut self.aggregation {
                Some(aggregation) => Some(aggregation.add(flow).into_iter().map(line_of).collect()),
                None => Some(vec![line_of(self.mask.apply(flow))]),
            },
            Event::Lost(lost) if self.selects(None) => Some(vec![lost_line(*lost, moment)]),
            Event::Agent(event, time) if self.selects(Some((AGENT, event.r#type))) => {
                Some(vec![to_json(&GetAgentEventsResponse {
                    agent_event: Some((**event).clone()),
                    node_name: moment.node.clone(),
                    time: Some(*time),
                })])
            }
            Event::Debug(event, time) if self.selects(Some((DEBUG, event.r#type))) => {
                Some(vec![to_json(&GetDebugEventsResponse {
                    debug_event: Some((**event).clone()),
                    node_name: moment.node.clone(),
                    time: Some(*time),
                })])
            }
            _ => None,
        }
    }

    /// Whether an event that is no flow is written, by its type and subtype; losses have none and are of each type. Only the
    /// field `event_type` of filters matches such events.
    fn selects(&self, kind: Option<(i32, i32)>) -> bool {
        let matches = |filter: &FlowFilter| {
            let is_type = |wanted: &EventTypeFilter| {
                kind.is_none_or(|(kind, sub_type)| {
                    (wanted.r#type == 0 || wanted.r#type == kind)
                        && (!wanted.match_sub_type || wanted.sub_type == sub_type)
                })
            };
            FlowFilter { event_type: Vec::new(), ..filter.clone() } == FlowFilter::default()
                && (filter.event_type.is_empty() || filter.event_type.iter().any(is_type))
        };
        (self.spec.allow.is_empty() || self.spec.allow.iter().any(matches))
            && !self.spec.deny.iter().any(matches)
    }

    fn write_lines(&mut self, mut lines: Vec<String>, moment: &Moment) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let reported = self.losses.take();
        if let Some(lost) = &reported {
            lines.insert(0, lost_line(*lost, moment));
        }
        self.output.write(&lines, moment.time).map_err(|unwritten| {
            // The report may be among the lines that were not written: rather twice than never.
            let is_report_lost = reported.is_some();
            self.losses = reported;
            self.add_losses(unwritten.lines - u64::from(is_report_lost && unwritten.lines > 0), moment.time);
            unwritten.error
        })
    }

    fn add_losses(&mut self, count: u64, time: Timestamp) {
        if count == 0 {
            return;
        }
        let lost = self.losses.get_or_insert_with(|| LostEvent {
            source: LostEventSource::HubbleRingBuffer.into(),
            first: Some(timestamp(time)),
            ..LostEvent::default()
        });
        lost.num_events_lost += count;
        lost.last = Some(timestamp(time));
    }
}

fn timestamp(time: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() }
}

/// Returns the line of a flow. Its time and node are those that the mask has left, as in Cilium.
fn line_of(flow: Flow) -> String {
    let (node_name, time) = (flow.node_name.clone(), flow.time);
    to_json(&GetFlowsResponse { response_types: Some(ResponseTypes::Flow(flow)), node_name, time })
}

fn lost_line(lost: LostEvent, moment: &Moment) -> String {
    let response_types = Some(ResponseTypes::LostEvents(lost));
    let time = Some(timestamp(moment.time));
    to_json(&GetFlowsResponse { response_types, node_name: moment.node.clone(), time })
}

#[cfg(test)]
mod tests;
