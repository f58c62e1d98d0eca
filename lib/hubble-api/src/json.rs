//! The JSON form of responses, as protobuf defines it with the names of the schema and without unset fields.

use jiff::Timestamp;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::flow::agent_event::Notification;
use crate::flow::layer7::Record;
use crate::flow::{self, AgentEvent, Layer4, Layer7};
use crate::observer::get_flows_response::ResponseTypes;
use crate::observer::{GetAgentEventsResponse, GetDebugEventsResponse, GetFlowsResponse};
use crate::relay::NodeState;

/// Returns a response as a line of JSON, which Cilium's clients read (`hubble observe --input-file`).
#[must_use]
pub fn to_json<R: Serialize>(response: &R) -> String {
    // Nothing in a response is without a JSON form.
    let text = serde_json::to_string(response).unwrap_or_default();
    // Only strings contain these characters; Go escapes them, so that the text may be embedded in HTML and JavaScript.
    // DEL and the control characters beyond it, which Go does not escape, could control a terminal.
    let escaped = |c: char| matches!(c, '<' | '>' | '&' | '\u{2028}' | '\u{2029}') || c.is_control();
    if !text.contains(escaped) {
        return text;
    }
    text.chars().fold(String::with_capacity(text.len() + 32), |mut out, c| {
        match escaped(c) {
            true => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => out.push(c),
        }
        out
    })
}

impl Serialize for GetFlowsResponse {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        match &self.response_types {
            Some(ResponseTypes::Flow(flow)) => map.serialize_entry("flow", flow)?,
            Some(ResponseTypes::NodeStatus(status)) => map.serialize_entry("node_status", status)?,
            Some(ResponseTypes::LostEvents(lost)) => map.serialize_entry("lost_events", lost)?,
            None => {}
        }
        end(map, &self.node_name, &self.time)
    }
}

impl Serialize for GetAgentEventsResponse {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        if let Some(event) = &self.agent_event {
            map.serialize_entry("agent_event", event)?;
        }
        end(map, &self.node_name, &self.time)
    }
}

impl Serialize for GetDebugEventsResponse {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        if let Some(event) = &self.debug_event {
            map.serialize_entry("debug_event", event)?;
        }
        end(map, &self.node_name, &self.time)
    }
}

/// Ends a response with its node and time.
fn end<M: SerializeMap>(
    mut map: M,
    node_name: &str,
    at: &Option<prost_types::Timestamp>,
) -> Result<M::Ok, M::Error> {
    struct Time<'a>(&'a Option<prost_types::Timestamp>);
    impl Serialize for Time<'_> {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            time(self.0, to)
        }
    }
    if !node_name.is_empty() {
        map.serialize_entry("node_name", node_name)?;
    }
    if at.is_some() {
        map.serialize_entry("time", &Time(at))?;
    }
    map.end()
}

impl Serialize for AgentEvent {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        if self.r#type != 0 {
            struct Type(i32);
            impl Serialize for Type {
                fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                    name::<flow::AgentEventType, _>(&self.0, to)
                }
            }
            map.serialize_entry("type", &Type(self.r#type))?;
        }
        match &self.notification {
            Some(Notification::Unknown(content)) => map.serialize_entry("unknown", content)?,
            Some(Notification::AgentStart(content)) => map.serialize_entry("agent_start", content)?,
            Some(Notification::PolicyUpdate(content)) => map.serialize_entry("policy_update", content)?,
            Some(Notification::EndpointRegenerate(content)) => {
                map.serialize_entry("endpoint_regenerate", content)?;
            }
            Some(Notification::EndpointUpdate(content)) => map.serialize_entry("endpoint_update", content)?,
            Some(Notification::IpcacheUpdate(content)) => map.serialize_entry("ipcache_update", content)?,
            Some(Notification::ServiceUpsert(content)) => map.serialize_entry("service_upsert", content)?,
            Some(Notification::ServiceDelete(content)) => map.serialize_entry("service_delete", content)?,
            None => {}
        }
        map.end()
    }
}

impl Serialize for Layer4 {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.protocol {
            Some(protocol) => protocol.serialize(to),
            None => to.serialize_map(Some(0))?.end(),
        }
    }
}

impl Serialize for Layer7 {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        if self.r#type != 0 {
            map.serialize_entry("type", self.r#type().as_str_name())?;
        }
        if self.latency_ns != 0 {
            map.serialize_entry("latency_ns", &self.latency_ns.to_string())?;
        }
        match &self.record {
            Some(Record::Dns(dns)) => map.serialize_entry("dns", dns)?,
            Some(Record::Http(http)) => map.serialize_entry("http", http)?,
            Some(Record::Kafka(kafka)) => map.serialize_entry("kafka", kafka)?,
            None => {}
        }
        map.end()
    }
}

/// Whether a field has its default, with which it is left out.
pub(crate) fn is_unset<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Writes a number of 64 bits, which JavaScript would round.
pub(crate) fn text<N: ToString, S: Serializer>(number: &N, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&number.to_string())
}

/// Writes a time in RFC 3339 with 0, 3, 6 or 9 digits of its fraction; an invalid one as null.
pub(crate) fn time<S: Serializer>(time: &Option<prost_types::Timestamp>, to: S) -> Result<S::Ok, S::Error> {
    let time = time.as_ref().and_then(|time| Timestamp::new(time.seconds, time.nanos).ok());
    let Some(time) = time else { return to.serialize_none() };
    let nanos = time.subsec_nanosecond();
    let precision = match nanos {
        0 => 0,
        _ if nanos % 1_000_000 == 0 => 3,
        _ if nanos % 1_000 == 0 => 6,
        _ => 9,
    };
    to.collect_str(&format_args!("{time:.precision$}"))
}

/// An enum with the names of the schema.
pub(crate) trait Named: TryFrom<i32> {
    /// Returns the value's name.
    fn name(self) -> &'static str;
}

/// Writes the name of a value; a number that has none as the number.
pub(crate) fn name<E: Named, S: Serializer>(value: &i32, to: S) -> Result<S::Ok, S::Error> {
    match E::try_from(*value) {
        Ok(known) => to.serialize_str(known.name()),
        Err(_) => to.serialize_i32(*value),
    }
}

macro_rules! named {
    ($($enum:ty),* $(,)?) => {
        $(impl Named for $enum {
            fn name(self) -> &'static str {
                self.as_str_name()
            }
        })*
    };
}

named!(
    flow::AuthType,
    flow::Verdict,
    flow::FlowType,
    flow::L7FlowType,
    flow::SctpChunkType,
    flow::IpVersion,
    flow::tunnel::Protocol,
    flow::TrafficDirection,
    flow::TraceObservationPoint,
    flow::TraceReason,
    flow::DropReason,
    flow::DebugCapturePoint,
    flow::SocketTranslationPoint,
    flow::LostEventSource,
    flow::AgentEventType,
    flow::DebugEventType,
    NodeState,
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{Flow, LostEvent, LostEventSource};

    fn response(response_types: ResponseTypes) -> GetFlowsResponse {
        GetFlowsResponse { response_types: Some(response_types), ..GetFlowsResponse::default() }
    }

    #[test]
    fn numbers_without_a_name_times_and_wide_numbers_have_protobufs_form() {
        let at = |nanos| Some(prost_types::Timestamp { seconds: 1_795_262_729, nanos });
        let flow = Flow {
            time: at(803_000_000),
            drop_reason: 206,
            drop_reason_desc: 206,
            is_reply: Some(false),
            cgroup_id: u64::MAX,
            summary: "a<b>&\u{2028}".to_owned(),
            ..Flow::default()
        };
        let json = r#"{"flow":{"time":"2026-11-21T12:05:29.803Z","drop_reason":206,"drop_reason_desc":206,"is_reply":false,"cgroup_id":"18446744073709551615","Summary":"a\u003cb\u003e\u0026\u2028"}}"#;
        assert_eq!(to_json(&response(ResponseTypes::Flow(flow))), json);
        let lost = LostEvent {
            source: LostEventSource::HubbleRingBuffer.into(),
            num_events_lost: 7,
            cpu: Some(0),
            first: at(0),
            last: at(1),
        };
        let json = r#"{"lost_events":{"source":"HUBBLE_RING_BUFFER","num_events_lost":"7","cpu":0,"first":"2026-11-21T12:05:29Z","last":"2026-11-21T12:05:29.000000001Z"},"node_name":"n"}"#;
        let response =
            GetFlowsResponse { node_name: "n".into(), ..response(ResponseTypes::LostEvents(lost)) };
        assert_eq!(to_json(&response), json);
    }
}
