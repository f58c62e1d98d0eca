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

/// The content of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineOptions {
    /// The name of the node.
    pub node_name: bool,
    /// The policies that have decided.
    pub policy_names: bool,
    /// Names of pods, services and DNS instead of addresses.
    pub names: bool,
    /// The format of times, as `strftime` has it, in UTC.
    pub time_format: &'static str,
}

impl LineOptions {
    /// The format of times without an option.
    pub const TIME_FORMAT: &'static str = "%b %e %H:%M:%S%.3f";
}

impl Default for LineOptions {
    fn default() -> Self {
        Self { node_name: false, policy_names: true, names: true, time_format: Self::TIME_FORMAT }
    }
}

/// Returns a response as a line for people, without control characters; empty for states of nodes. Times are in UTC.
#[must_use]
pub fn to_compact(response: &GetFlowsResponse, options: &LineOptions) -> String {
    let line = match &response.response_types {
        Some(ResponseTypes::Flow(flow)) => flow_line(flow, response, options),
        Some(ResponseTypes::LostEvents(lost)) => lost_line(lost),
        Some(ResponseTypes::NodeStatus(_)) | None => String::new(),
    };
    line.replace(char::is_control, "\u{fffd}")
}

/// Returns the titles and values of a flow's columns; `None` for other responses.
#[must_use]
pub fn to_columns(response: &GetFlowsResponse, options: &LineOptions) -> Option<Vec<(&'static str, String)>> {
    let Some(ResponseTypes::Flow(flow)) = &response.response_types else { return None };
    let mut columns = vec![("TIMESTAMP", stamp_in(response.time.as_ref(), options.time_format))];
    if options.node_name {
        columns.push(("NODE", response.node_name.clone()));
    }
    columns.extend([
        ("SOURCE", side(flow, Side::Source, options, false)),
        ("DESTINATION", side(flow, Side::Destination, options, false)),
        ("TYPE", kind(flow)),
        ("VERDICT", verdict(flow, options.policy_names)),
        ("SUMMARY", flow.summary.clone()),
    ]);
    columns.iter_mut().for_each(|(_, text)| *text = text.replace(char::is_control, "\u{fffd}"));
    Some(columns)
}

fn lost_line(lost: &LostEvent) -> String {
    let cpu = lost.cpu.map(|cpu| format!(" CPU({cpu})")).unwrap_or_default();
    format!("EVENTS LOST: {}{cpu} {}", lost.source().as_str_name(), lost.num_events_lost)
}

/// Formats a time; empty without one.
pub(crate) fn stamp(time: Option<&prost_types::Timestamp>) -> String {
    stamp_in(time, LineOptions::TIME_FORMAT)
}

fn stamp_in(time: Option<&prost_types::Timestamp>, format: &str) -> String {
    let time = time.and_then(|time| Timestamp::new(time.seconds, time.nanos).ok());
    time.map(|time| time.strftime(format).to_string()).unwrap_or_default()
}

fn flow_line(flow: &Flow, response: &GetFlowsResponse, options: &LineOptions) -> String {
    let mut time = stamp_in(response.time.as_ref(), options.time_format);
    if options.node_name {
        let _ = write!(time, " [{}]", response.node_name);
    }
    let source = side(flow, Side::Source, options, true);
    let destination = side(flow, Side::Destination, options, true);
    // The client of a connection is on the left of both of its directions.
    let (left, arrow, right) = match flow.is_reply {
        Some(false) => (source, "->", destination),
        Some(true) => (destination, "<-", source),
        None => (source, "<>", destination),
    };
    let mut line =
        format!("{time}: {left} {arrow} {right} {} {}", kind(flow), verdict(flow, options.policy_names));
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

/// Returns the name of one side with its port and, with `with_identity`, its identity.
fn side(flow: &Flow, side: Side, options: &LineOptions, with_identity: bool) -> String {
    let is_source = side == Side::Source;
    let endpoint = if is_source { &flow.source } else { &flow.destination };
    let port = port(flow, is_source);
    let identity = endpoint.as_ref().filter(|_| with_identity).map(identity_text).unwrap_or_default();
    let service = if is_source { &flow.source_service } else { &flow.destination_service };
    let names = if is_source { &flow.source_names } else { &flow.destination_names };
    let name = match (endpoint, service) {
        (Some(Endpoint { namespace, pod_name, .. }), _) if options.names && !pod_name.is_empty() => {
            format!("{namespace}/{pod_name}")
        }
        (_, Some(Service { name, namespace })) if options.names && !name.is_empty() => {
            format!("{namespace}/{name}")
        }
        _ if options.names && !names.is_empty() => names.join(","),
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

fn verdict(flow: &Flow, with_policies: bool) -> String {
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
    match policies.is_empty() || !with_policies {
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
        let response_types = Some(ResponseTypes::Flow(flow));
        to_compact(&GetFlowsResponse { response_types, time, ..Default::default() }, &LineOptions::default())
    }

    #[test]
    fn options_choose_names_times_and_columns() {
        let policy = crate::flow::Policy { name: "web".into(), kind: "K".into(), ..Default::default() };
        let flow = Flow { egress_allowed_by: vec![policy], is_reply: Some(true), ..udp() };
        let response = GetFlowsResponse {
            node_name: "n".into(),
            response_types: Some(ResponseTypes::Flow(flow)),
            time: Some(prost_types::Timestamp { seconds: 1_795_262_729, nanos: 0 }),
        };
        let options =
            LineOptions { node_name: true, policy_names: false, names: false, time_format: "%Y-%m-%d" };
        assert_eq!(
            to_compact(&response, &options),
            "2026-11-21 [n]: [fd00::2]:53 (world) <- 10.0.0.1:51482 (ID:6126) to-endpoint FORWARDED (UDP)"
        );
        let columns = to_columns(&response, &LineOptions { policy_names: true, ..options }).unwrap();
        let texts: Vec<&str> = columns.iter().map(|(_, text)| text.as_str()).collect();
        let expected = [
            "2026-11-21",
            "n",
            "10.0.0.1:51482",
            "[fd00::2]:53",
            "to-endpoint",
            "FORWARDED BY web (K)",
            "UDP",
        ];
        assert_eq!(texts, expected);
        assert_eq!(to_columns(&GetFlowsResponse::default(), &options), None);
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
        assert_eq!(
            to_compact(&lost, &LineOptions::default()),
            "EVENTS LOST: PERF_EVENT_RING_BUFFER CPU(1) 7"
        );
    }
}
