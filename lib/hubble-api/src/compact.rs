//! The line that `hubble observe` prints for a response.

use std::fmt::Write as _;

use datapath_abi::{drop, event, identity, trace};
use jiff::Timestamp;

use crate::flow::layer7::Record;
use crate::flow::{Endpoint, Flow, Layer7, LostEvent, Service, TrafficDirection, Verdict, layer4::Protocol};
use crate::observer::GetFlowsResponse;
use crate::observer::get_flows_response::ResponseTypes;

/// The message type of records of proxies.
const ACCESS_LOG: u8 = 129;

/// Texts of the fields by which a policy has matched, by number.
const MATCHES: [&str; 7] = ["none", "L3-Only", "L3-L4", "L4-Only", "all", "L3-Proto", "Proto-Only"];

/// Returns a response as a line for people, without control characters; empty for states of nodes. Times are in UTC.
#[must_use]
pub fn to_compact(response: &GetFlowsResponse) -> String {
    let line = match &response.response_types {
        Some(ResponseTypes::Flow(flow)) => flow_line(flow, response.time.as_ref()),
        Some(ResponseTypes::LostEvents(lost)) => lost_line(lost),
        Some(ResponseTypes::NodeStatus(_)) | None => String::new(),
    };
    line.replace(char::is_control, "\u{fffd}")
}

fn lost_line(lost: &LostEvent) -> String {
    let cpu = lost.cpu.map(|cpu| format!(" CPU({cpu})")).unwrap_or_default();
    format!("EVENTS LOST: {}{cpu} {}", lost.source().as_str_name(), lost.num_events_lost)
}

/// Formats a time; empty without one.
pub(crate) fn stamp(time: Option<&prost_types::Timestamp>) -> String {
    let time = time.and_then(|time| Timestamp::new(time.seconds, time.nanos).ok());
    time.map(|time| time.strftime("%b %e %H:%M:%S%.3f").to_string()).unwrap_or_default()
}

fn flow_line(flow: &Flow, time: Option<&prost_types::Timestamp>) -> String {
    let time = stamp(time);
    let source = side(flow, Side::Source);
    let destination = side(flow, Side::Destination);
    // The client of a connection is on the left of both of its directions.
    let (left, arrow, right) = match flow.is_reply {
        Some(false) => (source, "->", destination),
        Some(true) => (destination, "<-", source),
        None => (source, "<>", destination),
    };
    let mut line = format!("{time}: {left} {arrow} {right} {} {}", kind(flow), verdict(flow));
    let trace_id =
        flow.ip_trace_id.as_ref().map(|id| format!("IP Trace ID: {}; ", id.trace_id)).unwrap_or_default();
    if !flow.summary.is_empty() || !trace_id.is_empty() {
        let _ = write!(line, " ({trace_id}{})", flow.summary);
    }
    line
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Source,
    Destination,
}

/// Returns the name of one side with its port and identity.
fn side(flow: &Flow, side: Side) -> String {
    let is_source = side == Side::Source;
    let endpoint = if is_source { &flow.source } else { &flow.destination };
    let port = port(flow, is_source);
    let identity = endpoint.as_ref().map(identity_text).unwrap_or_default();
    let service = if is_source { &flow.source_service } else { &flow.destination_service };
    let names = if is_source { &flow.source_names } else { &flow.destination_names };
    let name = match (endpoint, service) {
        (Some(Endpoint { namespace, pod_name, .. }), _) if !pod_name.is_empty() => {
            format!("{namespace}/{pod_name}")
        }
        (_, Some(Service { name, namespace })) if !name.is_empty() => format!("{namespace}/{name}"),
        _ if !names.is_empty() => names.join(","),
        _ => match (&flow.ip, &flow.ethernet) {
            (Some(ip), _) => {
                let address = if is_source { &ip.source } else { &ip.destination };
                match port {
                    // The colon before a port must not be one of the address.
                    Some(_) if address.contains(':') => format!("[{address}]"),
                    _ => address.clone(),
                }
            }
            (None, Some(mac)) => if is_source { &mac.source } else { &mac.destination }.clone(),
            (None, None) => String::new(),
        },
    };
    match port {
        Some(port) => format!("{name}:{port}{identity}"),
        None => format!("{name}{identity}"),
    }
}

fn identity_text(endpoint: &Endpoint) -> String {
    match identity::label(endpoint.identity) {
        Some(name) => format!(" ({name})"),
        None => format!(" (ID:{})", endpoint.identity),
    }
}

fn port(flow: &Flow, is_source: bool) -> Option<u32> {
    let (source, destination) = match flow.l4.as_ref()?.protocol.as_ref()? {
        Protocol::Tcp(tcp) => (tcp.source_port, tcp.destination_port),
        Protocol::Udp(udp) => (udp.source_port, udp.destination_port),
        Protocol::Sctp(sctp) => (sctp.source_port, sctp.destination_port),
        _ => return None,
    };
    let port = if is_source { source } else { destination };
    (port != 0).then_some(port)
}

/// Returns the kind of event: the drop's reason, the point of a trace, or the match of a policy.
fn kind(flow: &Flow) -> String {
    let Some(event) = &flow.event_type else { return flow.r#type().as_str_name().to_owned() };
    let sub_type = u8::try_from(event.sub_type).unwrap_or_default();
    match u8::try_from(event.r#type).unwrap_or_default() {
        event::DROP => drop::label(sub_type).map_or_else(|| sub_type.to_string(), str::to_owned),
        event::TRACE => trace::label(sub_type).map_or_else(|| sub_type.to_string(), str::to_owned),
        event::POLICY_VERDICT => {
            let index = usize::try_from(flow.policy_match_type).unwrap_or(usize::MAX);
            let matched = MATCHES
                .get(index)
                .map_or_else(|| flow.policy_match_type.to_string(), |text| (*text).to_owned());
            let direction = match flow.traffic_direction() {
                TrafficDirection::Unknown => "UNKNOWN",
                direction => direction.as_str_name(),
            };
            format!("policy-verdict:{matched} {direction}")
        }
        ACCESS_LOG => flow.l7.as_ref().map_or_else(|| "l7".to_owned(), contents),
        event::DEBUG_CAPTURE => flow.debug_capture_point().as_str_name().to_owned(),
        other => other.to_string(),
    }
}

/// Returns the kind of a request or response: its protocol and direction, of DNS with the proxy.
fn contents(l7: &Layer7) -> String {
    let (protocol, source) = match &l7.record {
        Some(Record::Dns(dns)) => ("dns", &*dns.observation_source),
        Some(Record::Http(_)) => ("http", ""),
        Some(Record::Kafka(_)) => ("kafka", ""),
        None => ("unknown", ""),
    };
    let text = format!("{protocol}-{} {source}", l7.r#type().as_str_name().to_ascii_lowercase());
    text.trim_end().to_owned()
}

fn verdict(flow: &Flow) -> String {
    let is_decision =
        flow.event_type.as_ref().is_some_and(|event| event.r#type == i32::from(event::POLICY_VERDICT));
    let verdict = match flow.verdict() {
        Verdict::Forwarded if is_decision => "ALLOWED",
        Verdict::Dropped if is_decision => "DENIED",
        Verdict::Audit if is_decision => "AUDITED",
        verdict => verdict.as_str_name(),
    };
    let lists =
        [&flow.ingress_allowed_by, &flow.ingress_denied_by, &flow.egress_allowed_by, &flow.egress_denied_by];
    let policies = lists.into_iter().flatten().filter(|policy| !policy.name.is_empty());
    let policies: Vec<_> = policies.map(|policy| format!("{} ({})", policy.name, policy.kind)).collect();
    match policies.is_empty() {
        true => verdict.to_owned(),
        false => format!("{verdict} BY {}", policies.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{CiliumEventType, Ethernet, Ip, Layer4, LostEventSource, Udp};

    fn line(flow: Flow) -> String {
        let time = Some(prost_types::Timestamp { seconds: 1_795_262_729, nanos: 803_999_999 });
        to_compact(&GetFlowsResponse {
            response_types: Some(ResponseTypes::Flow(flow)),
            time,
            ..Default::default()
        })
    }

    fn endpoint(pod: &str, identity: u32) -> Option<Endpoint> {
        let namespace = if pod.is_empty() { "" } else { "default" };
        Some(Endpoint { namespace: namespace.into(), pod_name: pod.into(), identity, ..Endpoint::default() })
    }

    fn udp() -> Flow {
        let udp = Udp { source_port: 51482, destination_port: 53 };
        Flow {
            verdict: Verdict::Forwarded.into(),
            ip: Some(Ip { source: "10.0.0.1".into(), destination: "fd00::2".into(), ..Ip::default() }),
            l4: Some(Layer4 { protocol: Some(Protocol::Udp(udp)) }),
            source: endpoint("p1", 6126),
            destination: endpoint("", 2),
            event_type: Some(CiliumEventType { r#type: 4, sub_type: 0 }),
            is_reply: Some(false),
            summary: "UDP".into(),
            ..Flow::default()
        }
    }

    #[test]
    fn lines_are_those_of_hubble_observe() {
        assert_eq!(
            line(udp()),
            "Nov 21 12:05:29.803: default/p1:51482 (ID:6126) -> [fd00::2]:53 (world) to-endpoint FORWARDED (UDP)"
        );
        assert_eq!(
            line(Flow { is_reply: Some(true), ..udp() }),
            "Nov 21 12:05:29.803: [fd00::2]:53 (world) <- default/p1:51482 (ID:6126) to-endpoint FORWARDED (UDP)"
        );
        let service = Some(Service { name: "dns".into(), namespace: "kube-system".into() });
        let denied = Flow {
            verdict: Verdict::Dropped.into(),
            event_type: Some(CiliumEventType { r#type: 5, sub_type: 0 }),
            policy_match_type: 1,
            traffic_direction: TrafficDirection::Egress.into(),
            is_reply: None,
            destination_service: service,
            ..udp()
        };
        assert_eq!(
            line(denied),
            "Nov 21 12:05:29.803: default/p1:51482 (ID:6126) <> kube-system/dns:53 (world) policy-verdict:L3-Only EGRESS DENIED (UDP)"
        );
        let policy = |name: &str| crate::flow::Policy {
            name: name.into(),
            kind: "CiliumNetworkPolicy".into(),
            ..Default::default()
        };
        let allowed = Flow {
            event_type: Some(CiliumEventType { r#type: 5, sub_type: 0 }),
            policy_match_type: 4,
            traffic_direction: TrafficDirection::Egress.into(),
            egress_allowed_by: vec![policy("web"), policy("dns")],
            ..udp()
        };
        assert!(line(allowed).ends_with(
            " policy-verdict:all EGRESS ALLOWED BY web (CiliumNetworkPolicy), dns (CiliumNetworkPolicy) (UDP)"
        ));
        let dropped = Flow {
            verdict: Verdict::Dropped.into(),
            event_type: Some(CiliumEventType { r#type: 1, sub_type: 139 }),
            ethernet: Some(Ethernet {
                source: "02:00:00:00:00:01".into(),
                destination: "ff:ff:ff:ff:ff:ff".into(),
            }),
            source: endpoint("", 6126),
            destination: endpoint("", 0),
            summary: "Ethernet\u{1b}".into(),
            ..Flow::default()
        };
        assert_eq!(
            line(dropped),
            "Nov 21 12:05:29.803: 02:00:00:00:00:01 (ID:6126) <> ff:ff:ff:ff:ff:ff (unknown) Unsupported L3 protocol DROPPED (Ethernet\u{fffd})"
        );
        let dns = crate::flow::Dns { observation_source: "proxy".into(), ..Default::default() };
        let answer = Flow {
            event_type: Some(CiliumEventType { r#type: 129, sub_type: 0 }),
            l7: Some(Layer7 { r#type: 2, latency_ns: 0, record: Some(Record::Dns(dns)) }),
            summary: "DNS Query a.test. A".into(),
            ..udp()
        };
        assert_eq!(
            line(answer.clone()),
            "Nov 21 12:05:29.803: default/p1:51482 (ID:6126) -> [fd00::2]:53 (world) dns-response proxy FORWARDED (DNS Query a.test. A)"
        );
        let unknown = Flow { l7: Some(Layer7 { r#type: 1, ..Layer7::default() }), ..answer };
        assert!(line(unknown).contains(" unknown-request FORWARDED"));
        let lost = LostEvent {
            source: LostEventSource::PerfEventRingBuffer.into(),
            num_events_lost: 7,
            cpu: Some(1),
            ..LostEvent::default()
        };
        let lost =
            GetFlowsResponse { response_types: Some(ResponseTypes::LostEvents(lost)), ..Default::default() };
        assert_eq!(to_compact(&lost), "EVENTS LOST: PERF_EVENT_RING_BUFFER CPU(1) 7");
    }
}
