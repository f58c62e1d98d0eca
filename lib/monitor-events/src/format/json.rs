//! A JSON object an event, with Cilium's keys in its order.

use serde::Serialize;
use serde_json::value::RawValue;

use super::{Printer, debug, line, names, record};
use crate::decode::{Event, Trace};
use crate::packet::{First, Frame, Headers, LayerKind, TransportHeader, mac};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DropJson<'a> {
    cpu: &'a str,
    r#type: &'static str,
    mark: String,
    reason: String,
    source: u16,
    bytes: u32,
    src_label: u32,
    dst_label: u32,
    #[serde(rename = "dstID")]
    dst_id: u32,
    #[serde(rename = "Line")]
    line: u16,
    #[serde(rename = "File")]
    file: u8,
    #[serde(rename = "ExtError")]
    ext_error: i8,
    #[serde(rename = "Ifindex")]
    ifindex: u32,
    #[serde(rename = "IPTraceID", skip_serializing_if = "is_zero")]
    ip_trace_id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<Summary>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TraceJson<'a> {
    cpu: &'a str,
    r#type: &'static str,
    mark: String,
    ifindex: String,
    state: String,
    observation_point: String,
    trace_summary: String,
    source: u16,
    bytes: u32,
    src_label: u32,
    dst_label: u32,
    #[serde(rename = "dstID")]
    dst_id: u16,
    #[serde(rename = "IpTraceID")]
    ip_trace_id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<Summary>,
}

#[derive(Serialize)]
struct DebugJson<'a> {
    cpu: &'a str,
    r#type: &'static str,
    message: String,
}

#[derive(Serialize)]
struct CaptureJson<'a> {
    cpu: &'a str,
    r#type: &'static str,
    mark: String,
    message: String,
    prefix: String,
    source: u16,
    bytes: u32,
    summary: String,
}

#[derive(Serialize)]
struct AgentJson<'a> {
    r#type: &'static str,
    subtype: String,
    message: &'a RawValue,
}

#[derive(Default, Serialize)]
struct Ends {
    src: String,
    dst: String,
}

/// The layers that each packet of a tunnel has at most once.
#[derive(Default, Serialize)]
struct Texts {
    #[serde(skip_serializing_if = "Option::is_none")]
    ethernet: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ipv4: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ipv6: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    udp: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sctp: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    icmpv4: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    icmpv6: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vrrp: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    igmp: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vxlan: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    geneve: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    l2: Option<Ends>,
    #[serde(skip_serializing_if = "Option::is_none")]
    l3: Option<Ends>,
    #[serde(skip_serializing_if = "Option::is_none")]
    l4: Option<Ends>,
}

#[derive(Serialize)]
struct Summary {
    #[serde(flatten)]
    texts: Texts,
    #[serde(skip_serializing_if = "Option::is_none")]
    tunnel: Option<Texts>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Texts {
    fn new(headers: &Headers<'_>) -> Self {
        let ends = |(src, dst): (u16, u16)| Ends { src: src.to_string(), dst: dst.to_string() };
        let mut texts = Self {
            l2: headers.ethernet.map(|header| Ends { src: mac(header.src), dst: mac(header.dst) }),
            l3: headers.ip.map(|(src, dst)| Ends { src: src.to_string(), dst: dst.to_string() }),
            l4: headers.transport.as_ref().and_then(TransportHeader::ports).map(ends),
            ..Self::default()
        };
        for layer in &headers.layers {
            let text = match layer.kind {
                LayerKind::Ethernet => &mut texts.ethernet,
                LayerKind::Ipv4 => &mut texts.ipv4,
                LayerKind::Ipv6 => &mut texts.ipv6,
                LayerKind::Tcp => &mut texts.tcp,
                LayerKind::Udp => &mut texts.udp,
                LayerKind::Sctp => &mut texts.sctp,
                LayerKind::Icmpv4 => &mut texts.icmpv4,
                LayerKind::Icmpv6 => &mut texts.icmpv6,
                LayerKind::Vrrp => &mut texts.vrrp,
                LayerKind::Igmp => &mut texts.igmp,
                LayerKind::Vxlan => &mut texts.vxlan,
                LayerKind::Geneve => &mut texts.geneve,
            };
            *text = Some(layer.text());
        }
        texts
    }
}

impl Summary {
    fn new(frame: &Frame<'_>) -> Option<Self> {
        let texts = Texts::new(&frame.headers);
        let tunnel = frame.outer.as_ref().map(|(_, _, headers)| Texts::new(headers));
        (tunnel.is_some() || !frame.headers.layers.is_empty()).then_some(Self { texts, tunnel })
    }
}

/// Formats an event; `None` if this form has nothing for it. Verdicts are the same line of text as elsewhere, which
/// scripts for Cilium expect.
pub(super) fn format(printer: &Printer, event: &Event<'_>, cpu: &str) -> Option<String> {
    match event {
        Event::Drop(drop) => object(&DropJson {
            cpu,
            r#type: "drop",
            mark: format!("{:#x}", drop.hash),
            reason: names::reason(drop.reason),
            source: drop.source,
            bytes: drop.len,
            src_label: drop.src_label,
            dst_label: drop.dst_label,
            dst_id: drop.dst_id,
            line: drop.line,
            file: drop.file,
            ext_error: drop.ext_error,
            ifindex: drop.ifindex,
            ip_trace_id: drop.ip_trace_id,
            summary: Summary::new(&names::frame(drop.flags, drop.packet)),
        }),
        Event::Trace(trace) => object(&traced(printer, trace, cpu)),
        Event::Verdict(verdict) => Some(line::decided(printer, verdict)),
        Event::Debug(message) => {
            object(&DebugJson { cpu, r#type: "debug", message: debug::message(printer, message) })
        }
        Event::Capture(capture) => object(&CaptureJson {
            cpu,
            r#type: "capture",
            mark: format!("{:#x}", capture.hash),
            message: debug::capture(capture),
            prefix: debug::short(printer, capture).unwrap_or_default(),
            source: capture.source,
            bytes: capture.len,
            summary: Frame::parse(First::Ethernet, None, capture.packet).connection(),
        }),
        Event::Agent(agent) => {
            let subtype = names::notification(agent.kind);
            // Text that is no JSON becomes a string, so that a line is always one object.
            let quoted =
                || serde_json::to_string(&agent.text).ok().and_then(|text| RawValue::from_string(text).ok());
            let message = serde_json::from_str::<Box<RawValue>>(&agent.text).ok().or_else(quoted)?;
            object(&AgentJson { r#type: "agent", subtype, message: &message })
        }
        Event::Record(record) => record::json(record),
        Event::Socket(_) | Event::Unknown(_) => None,
    }
}

fn traced<'a>(printer: &Printer, trace: &Trace<'_>, cpu: &'a str) -> TraceJson<'a> {
    TraceJson {
        cpu,
        r#type: "trace",
        mark: format!("{:#x}", trace.hash),
        ifindex: printer.link(trace.ifindex),
        state: names::state(trace.reason),
        observation_point: names::point(trace.point),
        trace_summary: names::arrow(trace),
        source: trace.source,
        bytes: trace.len,
        src_label: trace.src_label,
        dst_label: trace.dst_label,
        dst_id: trace.dst_id,
        ip_trace_id: trace.ip_trace_id,
        summary: Summary::new(&names::frame(trace.flags, trace.packet)),
    }
}

/// Returns an object as Go writes it: the characters of HTML are escaped.
pub(super) fn object(value: &impl Serialize) -> Option<String> {
    let json = serde_json::to_string(value).ok()?;
    let json = json.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e");
    Some(names::printable(&json))
}
