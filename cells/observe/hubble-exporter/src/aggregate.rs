//! Aggregation: equal flows of an interval become one, with their number by direction.

use std::collections::HashMap;
use std::time::Duration;

use hubble_api::FieldMask;
use hubble_api::flow::{Aggregate, Flow, TrafficDirection};
use prost::Message;
use tokio::time::Instant;

/// The maximum number of different flows of an interval, of about 1 KB each. At the limit the interval ends early.
const MAX_FLOWS: usize = 16_384;

/// The flows of the current interval.
#[derive(Debug)]
pub(crate) struct Aggregation {
    fields: FieldMask,
    interval: Duration,
    /// The position in `flows` by the selected fields, encoded.
    positions: HashMap<Vec<u8>, usize>,
    /// Selected fields with the number of flows, in the order of their first one.
    flows: Vec<Flow>,
    /// The end of the interval.
    end: Instant,
}

impl Aggregation {
    /// Returns the aggregation by these fields.
    pub(crate) fn new(fields: FieldMask, interval: Duration) -> Self {
        let end = Instant::now() + interval;
        Self { fields, interval, positions: HashMap::new(), flows: Vec::new(), end }
    }

    /// Counts a flow. Returns the flows of the interval if it has ended by their number.
    pub(crate) fn add(&mut self, flow: &Flow) -> Vec<Flow> {
        let selected = self.fields.apply(flow);
        let position = match self.positions.get(&selected.encode_to_vec()) {
            Some(position) => *position,
            None => {
                self.positions.insert(selected.encode_to_vec(), self.flows.len());
                self.flows.push(Flow { time: flow.time, ..selected });
                self.flows.len() - 1
            }
        };
        let counts = self.flows[position].aggregate.get_or_insert_with(Aggregate::default);
        *match flow.traffic_direction() {
            TrafficDirection::Ingress => &mut counts.ingress_flow_count,
            TrafficDirection::Egress => &mut counts.egress_flow_count,
            _ => &mut counts.unknown_direction_flow_count,
        } += 1;
        if self.flows.len() < MAX_FLOWS { Vec::new() } else { self.take() }
    }

    /// Returns the flows of the interval if it has ended by time.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Flow> {
        if now < self.end {
            return Vec::new();
        }
        self.end = now + self.interval;
        self.take()
    }

    /// Returns the end of the interval; `None` without flows.
    pub(crate) fn end(&self) -> Option<Instant> {
        (!self.flows.is_empty()).then_some(self.end)
    }

    /// Returns the flows of the interval before its end.
    pub(crate) fn take(&mut self) -> Vec<Flow> {
        self.positions.clear();
        std::mem::take(&mut self.flows)
    }
}
