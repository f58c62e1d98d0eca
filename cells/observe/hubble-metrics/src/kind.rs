//! The kinds of metrics: their families, and how a flow is counted in them.

use datapath_abi::{event, identity, trace};
use hubble_api::flow::layer4::Protocol;
use hubble_api::flow::layer7::Record;
use hubble_api::flow::{
    Dns, DropReason, Flow, Http, IpVersion, L7FlowType, SctpChunkType, TrafficDirection, Verdict,
};

use crate::family::Description;

/// The message type of records of proxies.
const ACCESS_LOG: i32 = 129;

/// Matches of a policy by their number, in lower case.
const MATCHES: [&str; 7] = ["none", "l3-only", "l3-l4", "l4-only", "all", "l3-proto", "proto-only"];

/// The labels of identities outside of the cluster.
const WORLD: [&str; 3] = ["reserved:world", "reserved:world-ipv4", "reserved:world-ipv6"];

/// Texts of response codes (RFC 1035, RFC 6895).
const RCODES: [(u32, &str); 20] = [
    (0, "No Error"),
    (1, "Format Error"),
    (2, "Server Failure"),
    (3, "Non-Existent Domain"),
    (4, "Not Implemented"),
    (5, "Query Refused"),
    (6, "Name Exists when it should not"),
    (7, "RR Set Exists when it should not"),
    (8, "RR Set that should exist does not"),
    (9, "Not Authorized"),
    (10, "Name not contained in zone"),
    (11, "DSO-TYPE Not Implemented"),
    (16, "Bad OPT Version"),
    (17, "Key not recognized"),
    (18, "Signature out of time window"),
    (19, "Bad TKEY Mode"),
    (20, "Duplicate key name"),
    (21, "Algorithm not supported"),
    (22, "Bad Truncation"),
    (23, "Bad/missing Server Cookie"),
];

/// A kind of metrics with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Dns { query: bool, ignore_aaaa: bool },
    Drop,
    Flow,
    FlowsToWorld { any_drop: bool, port: bool, syn_only: bool },
    Http { exemplars: bool },
    HttpV2 { exemplars: bool },
    Icmp,
    Policy,
    PortDistribution,
    Sctp,
    Tcp,
}

/// One count: the family by its position, the values of its own labels, the observed value of a histogram, the exemplar, and
/// whether source and destination change places.
pub(crate) struct Count<'f> {
    pub(crate) family: usize,
    pub(crate) values: Vec<&'f str>,
    pub(crate) observed: Option<f64>,
    /// The trace of the request, for an exemplar.
    pub(crate) trace: Option<&'f str>,
    pub(crate) swapped: bool,
}

impl Kind {
    /// Returns the kind of a name without options.
    pub(crate) fn of(name: &str) -> Option<Self> {
        Some(match name {
            "dns" => Self::Dns { query: false, ignore_aaaa: false },
            "drop" => Self::Drop,
            "flow" => Self::Flow,
            "flows-to-world" => Self::FlowsToWorld { any_drop: false, port: false, syn_only: false },
            "http" => Self::Http { exemplars: false },
            "httpV2" => Self::HttpV2 { exemplars: false },
            "icmp" => Self::Icmp,
            "policy" => Self::Policy,
            "port-distribution" => Self::PortDistribution,
            "sctp" => Self::Sctp,
            "tcp" => Self::Tcp,
            _ => return None,
        })
    }

    /// Applies an option of this kind. Returns false if it has none of this name.
    pub(crate) fn set(&mut self, option: &str, is_on: bool) -> bool {
        let option = option.to_ascii_lowercase();
        let flag = match (self, option.as_str()) {
            (Self::Dns { query, .. }, "query") => query,
            (Self::Dns { ignore_aaaa, .. }, "ignoreaaaa") => ignore_aaaa,
            (Self::FlowsToWorld { any_drop, .. }, "any-drop") => any_drop,
            (Self::FlowsToWorld { port, .. }, "port") => port,
            (Self::FlowsToWorld { syn_only, .. }, "syn-only") => syn_only,
            (Self::Http { exemplars } | Self::HttpV2 { exemplars }, "exemplars") => exemplars,
            _ => return false,
        };
        *flag = is_on;
        true
    }

    /// Returns the families with their own labels.
    pub(crate) fn families(self) -> Vec<(Description, Vec<&'static str>)> {
        let counter = |name, help, labels: &[&'static str]| {
            (Description { name, help, is_histogram: false }, labels.to_vec())
        };
        let duration = |labels: &[&'static str]| {
            let help = "Quantile of HTTP request duration";
            (Description { name: "http_request_duration_seconds", help, is_histogram: true }, labels.to_vec())
        };
        let with = |mut labels: Vec<&'static str>, is_on: bool, label| {
            labels.extend(is_on.then_some(label));
            labels
        };
        match self {
            Self::Dns { query, .. } => {
                let labels = with(vec!["rcode", "qtypes", "ips_returned"], query, "query");
                let types = with(vec!["type", "qtypes"], query, "query");
                vec![
                    counter("dns_queries", "Number of DNS queries observed", &labels),
                    counter("dns_responses", "Number of DNS queries observed", &labels),
                    counter("dns_response_types", "Number of DNS queries observed", &types),
                ]
            }
            Self::Drop => vec![counter("drop", "Number of drops", &["reason", "protocol"])],
            Self::Flow => vec![counter(
                "flows_processed",
                "Total number of flows processed",
                &["protocol", "type", "subtype", "verdict"],
            )],
            Self::FlowsToWorld { port, .. } => {
                let labels = with(vec!["protocol", "verdict"], port, "port");
                vec![counter("flows_to_world", "Total number of flows to reserved:world", &labels)]
            }
            Self::Http { .. } => vec![
                counter("http_requests", "Count of HTTP requests", &["method", "protocol", "reporter"]),
                counter(
                    "http_responses",
                    "Count of HTTP responses",
                    &["method", "protocol", "status", "reporter"],
                ),
                duration(&["method", "reporter"]),
            ],
            Self::HttpV2 { .. } => vec![
                counter(
                    "http_requests",
                    "Count of HTTP requests",
                    &["method", "protocol", "status", "reporter"],
                ),
                duration(&["method", "reporter"]),
            ],
            Self::Icmp => vec![counter("icmp", "Number of ICMP messages", &["family", "type"])],
            Self::Policy => vec![counter(
                "policy_verdicts",
                "Total number of Cilium network policy verdicts",
                &["direction", "match", "action"],
            )],
            Self::PortDistribution => vec![counter(
                "port_distribution",
                "Numbers of packets distributed by destination port",
                &["protocol", "port"],
            )],
            Self::Sctp => {
                vec![counter("sctp_chunk_types", "SCTP chunk type occurrences", &["chunk_type", "family"])]
            }
            Self::Tcp => vec![counter("tcp_flags", "TCP flag occurrences", &["flag", "family"])],
        }
    }

    /// Calls `count` for each family in which a flow counts.
    pub(crate) fn count(self, flow: &Flow, count: &mut dyn FnMut(Count<'_>)) {
        let mut one = |family: usize, values: &[&str]| {
            count(Count { family, values: values.to_vec(), observed: None, trace: None, swapped: false });
        };
        match self {
            Self::Dns { query, ignore_aaaa } => dns(flow, query, ignore_aaaa, &mut one),
            Self::Drop if flow.verdict() == Verdict::Dropped => {
                let number = flow.drop_reason_desc.to_string();
                let reason = DropReason::try_from(flow.drop_reason_desc);
                one(0, &[reason.map_or(number.as_str(), |reason| reason.as_str_name()), protocol(flow)]);
            }
            Self::Drop => {}
            Self::Flow => {
                let (kind, subtype) = event_type(flow);
                one(0, &[protocol(flow), kind, &subtype, flow.verdict().as_str_name()]);
            }
            Self::FlowsToWorld { any_drop, port, syn_only } => {
                to_world(flow, any_drop, port, syn_only, &mut one);
            }
            Self::Http { exemplars } => http(flow, exemplars, count),
            Self::HttpV2 { exemplars } => http_v2(flow, exemplars, count),
            Self::Icmp => {
                let family = match transport(flow) {
                    Some(Protocol::IcmPv4(_)) => "IPv4",
                    Some(Protocol::IcmPv6(_)) => "IPv6",
                    _ => return,
                };
                let (_, name) = flow.summary.split_once(' ').unwrap_or_default();
                one(0, &[family, name]);
            }
            Self::Policy => policy(flow, &mut one),
            Self::PortDistribution => {
                if passes(flow) && flow.is_reply == Some(false) && transport(flow).is_some() {
                    let port = destination_port(flow).unwrap_or_default().to_string();
                    one(0, &[protocol(flow), &port]);
                }
            }
            Self::Sctp => {
                if let (true, Some(Protocol::Sctp(sctp)), Some(family)) =
                    (passes(flow), transport(flow), family(flow))
                    && sctp.chunk_type() != SctpChunkType::Unsupported
                {
                    one(0, &[sctp.chunk_type().as_str_name(), family]);
                }
            }
            Self::Tcp => {
                let (true, Some(Protocol::Tcp(tcp)), Some(family)) =
                    (passes(flow), transport(flow), family(flow))
                else {
                    return;
                };
                let flags = tcp.flags.unwrap_or_default();
                let syn = if flags.ack { "SYN-ACK" } else { "SYN" };
                for (is_set, flag) in [(flags.fin, "FIN"), (flags.syn, syn), (flags.rst, "RST")] {
                    if is_set {
                        one(0, &[flag, family]);
                    }
                }
            }
        }
    }
}

fn dns(flow: &Flow, query: bool, ignore_aaaa: bool, one: &mut dyn FnMut(usize, &[&str])) {
    let Some(Record::Dns(dns)) = record(flow) else { return };
    if ignore_aaaa && dns.qtypes == ["AAAA"] {
        return;
    }
    let Dns { qtypes, ips, rrtypes, .. } = dns;
    let (qtypes, ips) = (qtypes.join(","), ips.len().to_string());
    let name = query.then_some(dns.query.as_str());
    let mut with_name = |family: usize, values: &[&str]| {
        let values: Vec<_> = values.iter().copied().chain(name).collect();
        one(family, &values);
    };
    let is_dropped = flow.verdict() == Verdict::Dropped;
    if is_dropped || flow.is_reply != Some(true) {
        with_name(0, &[if is_dropped { "Policy denied" } else { "" }, &qtypes, &ips]);
        return;
    }
    let rcode = RCODES.iter().find(|(number, _)| *number == dns.rcode).map_or("", |(_, text)| text);
    with_name(1, &[rcode, &qtypes, &ips]);
    for kind in rrtypes {
        with_name(2, &[kind, &qtypes]);
    }
}

fn to_world(
    flow: &Flow,
    any_drop: bool,
    with_port: bool,
    syn_only: bool,
    one: &mut dyn FnMut(usize, &[&str]),
) {
    let labels = flow.destination.as_ref().map_or(&[][..], |destination| &destination.labels);
    let is_world = labels.iter().any(|label| WORLD.contains(&label.as_str()));
    let (true, Some(transport), Some(_)) = (is_world, transport(flow), &flow.event_type) else { return };
    match flow.verdict() {
        Verdict::Dropped if !any_drop && flow.drop_reason_desc() != DropReason::PolicyDenied => return,
        Verdict::Dropped => {}
        _ if flow.is_reply == Some(true) => return,
        _ => {}
    }
    if syn_only {
        let flags = match transport {
            Protocol::Tcp(tcp) => tcp.flags.unwrap_or_default(),
            _ => return,
        };
        if !flags.syn || flow.is_reply == Some(true) {
            return;
        }
    }
    let port = destination_port(flow).map(|port| port.to_string()).unwrap_or_default();
    let values = [protocol(flow), flow.verdict().as_str_name(), &port];
    one(0, if with_port { &values } else { &values[..2] });
}

/// Returns the name of the side that has reported a request.
fn reporter(flow: &Flow) -> &'static str {
    match flow.traffic_direction() {
        TrafficDirection::Egress => "client",
        TrafficDirection::Ingress => "server",
        _ => "unknown",
    }
}

/// Returns the record of a request or response with its type and latency in seconds.
fn http_record(flow: &Flow) -> Option<(&Http, L7FlowType, f64)> {
    let Some(Record::Http(http)) = record(flow) else { return None };
    let l7 = flow.l7.as_ref()?;
    Some((http, l7.r#type(), l7.latency_ns as f64 / 1e9))
}

/// Returns the id of the trace that a request belongs to.
fn trace(flow: &Flow, exemplars: bool) -> Option<&str> {
    let parent = flow.trace_context.as_ref()?.parent.as_ref()?;
    Some(&*parent.trace_id).filter(|id| exemplars && !id.is_empty())
}

fn http(flow: &Flow, exemplars: bool, count: &mut dyn FnMut(Count<'_>)) {
    let Some((http, kind, latency)) = http_record(flow) else { return };
    let (code, reporter) = (http.code.to_string(), reporter(flow));
    let trace = trace(flow, exemplars);
    match kind {
        L7FlowType::Request => {
            let values = vec![&*http.method, &*http.protocol, reporter];
            count(Count { family: 0, values, observed: None, trace, swapped: false });
        }
        L7FlowType::Response => {
            let values = vec![&*http.method, &*http.protocol, &*code, reporter];
            count(Count { family: 1, values, observed: None, trace, swapped: false });
            let values = vec![&*http.method, reporter];
            count(Count { family: 2, values, observed: Some(latency), trace, swapped: false });
        }
        _ => {}
    }
}

fn http_v2(flow: &Flow, exemplars: bool, count: &mut dyn FnMut(Count<'_>)) {
    let Some((http, L7FlowType::Response, latency)) = http_record(flow) else { return };
    let (code, reporter) = (http.code.to_string(), reporter(flow));
    let trace = trace(flow, exemplars);
    let values = vec![&*http.method, &*http.protocol, &*code, reporter];
    count(Count { family: 0, values, observed: None, trace, swapped: true });
    let values = vec![&*http.method, reporter];
    count(Count { family: 1, values, observed: Some(latency), trace, swapped: true });
}

fn policy(flow: &Flow, one: &mut dyn FnMut(usize, &[&str])) {
    let matched = match flow.event_type.as_ref().map(|event| event.r#type) {
        Some(ACCESS_LOG) => match record(flow) {
            Some(Record::Dns(_)) => "l7/dns",
            Some(Record::Http(_)) => "l7/http",
            Some(Record::Kafka(_)) => "l7/kafka",
            None => "l7/",
        },
        Some(kind) if kind == i32::from(event::POLICY_VERDICT) => {
            // The node reaches its endpoints by no policy.
            if flow.source.as_ref().is_some_and(|source| source.identity == identity::HOST) {
                return;
            }
            MATCHES.get(flow.policy_match_type as usize).copied().unwrap_or_default()
        }
        _ => return,
    };
    let direction = flow.traffic_direction().as_str_name().to_ascii_lowercase();
    one(0, &[&direction, matched, &flow.verdict().as_str_name().to_ascii_lowercase()]);
}

fn record(flow: &Flow) -> Option<&Record> {
    flow.l7.as_ref()?.record.as_ref()
}

fn transport(flow: &Flow) -> Option<&Protocol> {
    flow.l4.as_ref()?.protocol.as_ref()
}

/// Whether a flow goes on: it is neither dropped nor only an observation.
fn passes(flow: &Flow) -> bool {
    matches!(flow.verdict(), Verdict::Forwarded | Verdict::Redirected)
}

fn family(flow: &Flow) -> Option<&'static str> {
    Some(match flow.ip.as_ref()?.ip_version() {
        IpVersion::IPv4 => "IPv4",
        IpVersion::IPv6 => "IPv6",
        IpVersion::IpNotUsed => "IP_NOT_USED",
    })
}

fn destination_port(flow: &Flow) -> Option<u32> {
    match transport(flow)? {
        Protocol::Tcp(tcp) => Some(tcp.destination_port),
        Protocol::Udp(udp) => Some(udp.destination_port),
        Protocol::Sctp(sctp) => Some(sctp.destination_port),
        _ => None,
    }
}

/// Returns the name of a flow's protocol, of a proxy's record that of the request.
fn protocol(flow: &Flow) -> &'static str {
    let kind = flow.event_type.as_ref().map_or(0, |event| event.r#type);
    if kind == ACCESS_LOG {
        return match record(flow) {
            Some(Record::Dns(_)) => "DNS",
            Some(Record::Http(_)) => "HTTP",
            Some(Record::Kafka(_)) => "Kafka",
            None => "Unknown L7",
        };
    }
    match transport(flow) {
        Some(Protocol::Tcp(_)) => "TCP",
        Some(Protocol::Udp(_)) => "UDP",
        Some(Protocol::IcmPv4(_)) => "ICMPv4",
        Some(Protocol::IcmPv6(_)) => "ICMPv6",
        Some(Protocol::Sctp(_)) => "SCTP",
        Some(Protocol::Vrrp(_)) => "VRRP",
        Some(Protocol::Igmp(_)) => "IGMP",
        None if is_packet(kind) => "Unknown L4",
        None => "Unknown flow",
    }
}

fn is_packet(kind: i32) -> bool {
    [event::DROP, event::TRACE, event::POLICY_VERDICT, event::DEBUG_CAPTURE].map(i32::from).contains(&kind)
}

/// Returns the names of an event's type and subtype.
fn event_type(flow: &Flow) -> (&'static str, String) {
    let Some(event) = &flow.event_type else { return ("Unknown", "0".to_owned()) };
    match u8::try_from(event.r#type) {
        Ok(event::DROP) => ("Drop", String::new()),
        Ok(event::DEBUG_CAPTURE) => ("Capture", String::new()),
        Ok(event::POLICY_VERDICT) => ("PolicyVerdict", String::new()),
        Ok(event::TRACE) => {
            let point = u8::try_from(event.sub_type).ok().and_then(trace::label);
            ("Trace", point.map_or_else(|| event.sub_type.to_string(), str::to_owned))
        }
        _ if event.r#type == ACCESS_LOG => {
            let kind = match record(flow) {
                Some(Record::Dns(_)) => "DNS",
                Some(Record::Http(_)) => "HTTP",
                Some(Record::Kafka(_)) => "Kafka",
                None => "",
            };
            ("L7", kind.to_owned())
        }
        _ => ("Unknown", event.r#type.to_string()),
    }
}
