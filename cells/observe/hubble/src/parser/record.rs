//! Records of proxies to flows.

use std::collections::{HashMap, VecDeque};

use hubble_api::flow::layer4::Protocol;
use hubble_api::flow::layer7::Record as Contents7;
use hubble_api::flow::{
    Dns, Endpoint, Flow, FlowType, Http, HttpHeader, Ip, IpVersion, L7FlowType, Layer4, Layer7, Sctp, Tcp,
    TraceContext, TraceParent, TrafficDirection, Udp, Verdict,
};
use monitor_events::ACCESS_LOG;
use monitor_events::record::{
    Contents, DNS_PROXY, DnsRecord, Headers, HttpRecord, ObservationPoint, Party, Record, RecordKind,
    RecordVerdict, dns_type,
};
use prost_types::Timestamp;

use super::{dns_names, event_type};
use crate::names::{Names, cluster};
use crate::redact::Redaction;

/// The maximum number of requests that wait for their responses, as in Cilium.
const MAX_REQUESTS: usize = 10_000;
/// The longest id of a request, which a client may choose: that of Envoy is a UUID.
const MAX_REQUEST_ID: usize = 64;

const REQUEST_ID: &str = "x-request-id";
const TRACE_PARENT: &str = "traceparent";

/// The parser of records, which remembers requests until their responses come.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) redaction: Redaction,
    requests: HashMap<String, Request>,
    /// The ids of requests, the oldest first.
    order: VecDeque<String>,
}

#[derive(Clone, Debug)]
struct Request {
    time: Option<Timestamp>,
    trace: Option<TraceContext>,
}

impl Records {
    pub(crate) fn new(redaction: Redaction) -> Self {
        Self { redaction, ..Self::default() }
    }

    /// Returns the flow of a record, without time, id and node.
    pub(crate) fn parse(&mut self, record: &Record, names: &dyn Names) -> Flow {
        let request = self.request(record);
        let latency_ns = match (record.kind, &request) {
            (RecordKind::Response, Some(request)) => latency(request.time, timestamp(record)),
            _ => 0,
        };
        let (contents, summary) = self.contents(record, latency_ns);
        let (source, destination) = (record.source.address, record.destination.address);
        let is_reply = record.kind == RecordKind::Response;
        let mut flow = Flow {
            verdict: match record.verdict {
                RecordVerdict::Forwarded => Verdict::Forwarded,
                RecordVerdict::Denied => Verdict::Dropped,
                RecordVerdict::Error => Verdict::Error,
                RecordVerdict::Redirected => Verdict::Redirected,
            }
            .into(),
            ip: Some(Ip {
                source: source.map(|address| address.to_string()).unwrap_or_default(),
                destination: destination.map(|address| address.to_string()).unwrap_or_default(),
                ip_version: if record.is_ipv6 { IpVersion::IPv6 } else { IpVersion::IPv4 }.into(),
                ..Ip::default()
            }),
            l4: layer4(record),
            source: Some(endpoint(&record.source, names)),
            destination: Some(endpoint(&record.destination, names)),
            r#type: FlowType::L7.into(),
            l7: Some(Layer7 {
                r#type: match record.kind {
                    RecordKind::Request => L7FlowType::Request,
                    RecordKind::Response => L7FlowType::Response,
                    RecordKind::Sample => L7FlowType::Sample,
                }
                .into(),
                latency_ns,
                record: contents,
            }),
            reply: is_reply,
            is_reply: Some(is_reply),
            event_type: event_type(ACCESS_LOG, 0),
            source_service: source.and_then(|address| names.service(address, record.source.port)),
            destination_service: destination
                .and_then(|address| names.service(address, record.destination.port)),
            traffic_direction: match record.point {
                ObservationPoint::Ingress => TrafficDirection::Ingress,
                ObservationPoint::Egress => TrafficDirection::Egress,
            }
            .into(),
            trace_context: request.and_then(|request| request.trace),
            summary,
            ..Flow::default()
        };
        dns_names(&mut flow, [source, destination], names);
        flow
    }

    /// Returns the request of a record, which a request itself is; `None` if it is not known.
    fn request(&mut self, record: &Record) -> Option<Request> {
        let Contents::Http(http) = &record.contents else { return None };
        let id = header(&http.headers, REQUEST_ID).filter(|id| id.len() <= MAX_REQUEST_ID);
        if record.kind == RecordKind::Response {
            return self.requests.get(id?).cloned();
        }
        let trace = header(&http.headers, TRACE_PARENT).and_then(trace_context);
        let request = Request { time: timestamp(record), trace };
        if let Some(id) = id
            && self.requests.insert(id.to_owned(), request.clone()).is_none()
        {
            self.order.push_back(id.to_owned());
            if self.order.len() > MAX_REQUESTS
                && let Some(oldest) = self.order.pop_front()
            {
                self.requests.remove(&oldest);
            }
        }
        Some(request)
    }

    /// Returns the contents of a flow and its summary.
    fn contents(&self, record: &Record, latency_ns: u64) -> (Option<Contents7>, String) {
        match &record.contents {
            Contents::Unknown => (None, String::new()),
            Contents::Http(http) => {
                let http = self.http(record.kind, http);
                let summary = match record.kind {
                    RecordKind::Response => {
                        let millis = (latency_ns + 500_000) / 1_000_000;
                        let Http { code, method, url, protocol, .. } = &http;
                        format!("{protocol} {code} {millis}ms ({method} {url})")
                    }
                    _ => format!("{} {} {}", http.protocol, http.method, http.url),
                };
                (Some(Contents7::Http(http)), summary)
            }
            Contents::Dns(record_of_dns) => {
                let dns = dns(record.kind, record_of_dns);
                let summary = dns_summary(record.kind, &dns);
                (Some(Contents7::Dns(dns)), summary)
            }
            Contents::Generic(generic) => {
                let fields: Vec<_> =
                    generic.fields.iter().map(|(name, value)| format!("{name}:{value}")).collect();
                (None, format!("{} Fields: map[{}]", generic.protocol, fields.join(" ")))
            }
        }
    }

    fn http(&self, kind: RecordKind, http: &HttpRecord) -> Http {
        let one = |(key, value): (&String, &String)| HttpHeader {
            key: key.clone(),
            value: self.redaction.header(key, value),
        };
        let headers = http.headers.iter();
        Http {
            code: if kind == RecordKind::Response { http.code.into() } else { 0 },
            method: http.method.clone(),
            url: self.redaction.url(&http.url),
            protocol: http.protocol.clone(),
            headers: headers
                .flat_map(|(key, values)| values.iter().map(move |value| one((key, value))))
                .collect(),
        }
    }
}

/// Returns the first value of a header.
fn header<'h>(headers: &'h Headers, name: &str) -> Option<&'h str> {
    let (_, values) = headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name))?;
    values.first().map(String::as_str)
}

/// Returns the trace of a `traceparent` header (W3C Trace Context, 3.2).
fn trace_context(header: &str) -> Option<TraceContext> {
    let mut parts = header.split('-');
    let mut part = |len: usize| {
        let part = parts.next()?;
        (part.len() == len && part.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(part)
    };
    let (_version, trace_id, _span) = (part(2)?, part(32)?, part(16)?);
    let is_valid = trace_id.bytes().any(|byte| byte != b'0');
    is_valid.then(|| TraceContext { parent: Some(TraceParent { trace_id: trace_id.to_owned() }) })
}

fn timestamp(record: &Record) -> Option<Timestamp> {
    record.timestamp.parse().ok()
}

/// Returns the nanoseconds between request and response; 0 if unknown or negative.
fn latency(request: Option<Timestamp>, response: Option<Timestamp>) -> u64 {
    let (Some(request), Some(response)) = (request, response) else { return 0 };
    let nanos = i128::from(response.seconds - request.seconds) * 1_000_000_000
        + i128::from(response.nanos - request.nanos);
    u64::try_from(nanos).unwrap_or_default()
}

/// Returns one side. The pod is that of the endpoint of this node or of the ipcache; all else is of the record.
fn endpoint(party: &Party, names: &dyn Names) -> Endpoint {
    let mut labels: Vec<String> = party.labels.iter().map(ToString::to_string).collect();
    labels.sort_unstable();
    let local = party.address.and_then(|address| names.endpoint(address));
    let (pod, workloads) = local.map(|local| ((local.namespace, local.pod), local.workloads)).unzip();
    let pod = pod.or_else(|| party.address.and_then(|address| names.host(address)?.pod));
    let (namespace, pod_name) = pod.unwrap_or_default();
    Endpoint {
        id: u32::try_from(party.id).unwrap_or_default(),
        identity: u32::try_from(party.identity).unwrap_or_default(),
        cluster_name: cluster(&labels),
        namespace,
        labels,
        pod_name,
        workloads: workloads.unwrap_or_default(),
    }
}

fn layer4(record: &Record) -> Option<Layer4> {
    let (source_port, destination_port) = (record.source.port.into(), record.destination.port.into());
    let protocol = match record.protocol {
        6 => Protocol::Tcp(Tcp { source_port, destination_port, flags: None }),
        17 => Protocol::Udp(Udp { source_port, destination_port }),
        132 => Protocol::Sctp(Sctp { source_port, destination_port, ..Sctp::default() }),
        _ => return None,
    };
    Some(Layer4 { protocol: Some(protocol) })
}

fn dns(kind: RecordKind, record: &DnsRecord) -> Dns {
    let types = |numbers: &[u16]| numbers.iter().map(|number| dns_type(*number).to_owned()).collect();
    let query = Dns {
        query: record.query.clone(),
        observation_source: record.source.clone(),
        qtypes: types(&record.qtypes),
        ..Dns::default()
    };
    match kind {
        RecordKind::Response => Dns {
            ips: record.ips.iter().map(ToString::to_string).collect(),
            ttl: record.ttl,
            cnames: record.cnames.clone(),
            rcode: record.rcode.into(),
            rrtypes: types(&record.answer_types),
            ..query
        },
        _ => query,
    }
}

fn dns_summary(kind: RecordKind, dns: &Dns) -> String {
    let types = dns.qtypes.join(",");
    if kind != RecordKind::Response {
        return format!("DNS Query {} {types}", dns.query);
    }
    let answer = match dns.rcode {
        0 => {
            let addresses = (!dns.ips.is_empty()).then(|| format!("{:?}", dns.ips.join(",")));
            let aliases = (!dns.cnames.is_empty()).then(|| format!("CNAMEs: {:?}", dns.cnames.join(",")));
            addresses.into_iter().chain(aliases).collect::<Vec<_>>().join(" ")
        }
        code => format!("RCode: {}", rcode(code)),
    };
    let source = if dns.observation_source == DNS_PROXY { "Proxy" } else { "Query" };
    format!("DNS Answer {answer} TTL: {} ({source} {} {types})", dns.ttl, dns.query)
}

/// Returns the text of a code (RFC 6895) as Cilium prints it.
fn rcode(code: u32) -> &'static str {
    match code {
        1 => "Format Error",
        2 => "Server Failure",
        3 => "Non-Existent Domain",
        4 => "Not Implemented",
        5 => "Query Refused",
        6 => "Name Exists when it should not",
        7 => "RR Set Exists when it should not",
        8 => "RR Set that should exist does not",
        9 => "Server Not Authoritative for zone",
        10 => "Name not contained in zone",
        16 => "Bad OPT Version",
        17 => "Key not recognized",
        18 => "Signature out of time window",
        19 => "Bad TKEY Mode",
        20 => "Duplicate key name",
        21 => "Algorithm not supported",
        22 => "Bad Truncation",
        23 => "Bad Cookie",
        _ => "Unknown",
    }
}
