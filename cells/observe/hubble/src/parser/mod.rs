//! Events to flows: pure functions of the event and of the names that a table snapshot has.

mod agent;
mod debug;
mod record;
mod socket;

use std::net::IpAddr;

use datapath_abi::{drop, event, file, trace};
use hubble_api::flow::{
    self, CiliumEventType, DebugCapturePoint, Endpoint, Ethernet, FileInfo, Flow, FlowType, IcmPv4, IcmPv6,
    Igmp, Ip, IpTraceId, IpVersion, Layer4, NetworkInterface, Sctp, SctpChunkType, Tcp, TcpFlags,
    TraceObservationPoint, TraceReason, TrafficDirection, Udp, Verdict, Vrrp, layer4, tunnel,
};
use monitor_events::packet::{First, Frame, Headers, TransportHeader, Tunnel};
use monitor_events::{Capture, Drop, Event, Trace};

pub(crate) use agent::agent_event;
pub(crate) use debug::debug_event;
pub(crate) use record::Records;

use crate::names::{Local, Names, cluster};
use crate::policies::Packet;

/// Returns the flow of an event, without time, id and node; `None` for events that are no flow of a packet.
pub(crate) fn parse(event: &Event<'_>, names: &dyn Names) -> Option<Flow> {
    Some(match event {
        Event::Drop(drop) => dropped(drop, names),
        Event::Trace(trace) => traced(trace, names),
        Event::Verdict(verdict) => decided(verdict, names),
        Event::Capture(capture) => captured(capture, names),
        Event::Socket(trace) => return socket::translated(trace, names),
        // Records have a parser of their own, [`Records`].
        _ => return None,
    })
}

/// Drops by policy: no rule allows it, or a rule denies it.
const POLICY_DROPS: [u32; 2] = [drop::POLICY_DENIED as u32, drop::POLICY_DENY as u32];

/// Identities that the programs have found; zero if they did not.
struct Identities {
    source: u32,
    destination: u32,
}

fn dropped(drop: &Drop<'_>, names: &dyn Names) -> Flow {
    let identities = Identities { source: drop.src_label, destination: drop.dst_label };
    let mut flow = packet(&frame(drop.flags, drop.packet), identities, None, names);
    flow.verdict = Verdict::Dropped.into();
    flow.drop_reason = drop.reason.into();
    flow.drop_reason_desc = drop.reason.into();
    flow.event_type = event_type(event::DROP, drop.reason);
    let name = file::name(drop.file).map_or_else(|| format!("unknown({})", drop.file), str::to_owned);
    flow.file = Some(FileInfo { name, line: drop.line.into() });
    flow.ip_trace_id = trace_id(drop.ip_trace_id);
    flow.traffic_direction = match drop.source {
        0 => TrafficDirection::Unknown,
        id if is_source(&flow, id) => TrafficDirection::Egress,
        _ => TrafficDirection::Ingress,
    }
    .into();
    flow
}

fn traced(trace: &Trace<'_>, names: &dyn Names) -> Flow {
    let identities = Identities { source: trace.src_label, destination: trace.dst_label };
    let original = trace.orig_ip.filter(|ip| !ip.is_unspecified());
    let mut flow = packet(&frame(trace.flags, trace.packet), identities, original, names);
    flow.verdict = Verdict::Forwarded.into();
    flow.event_type = event_type(event::TRACE, trace.point);
    flow.trace_observation_point = match trace.point {
        trace::TO_LXC => TraceObservationPoint::ToEndpoint.into(),
        point => point.into(),
    };
    let reason = trace.reason & !trace::reason::ENCRYPTED;
    flow.trace_reason = match reason {
        0..=4 => i32::from(reason) + 1,
        trace::reason::UNKNOWN => TraceReason::Unknown.into(),
        other => other.into(),
    };
    if trace.reason & trace::reason::ENCRYPTED != 0
        && let Some(ip) = &mut flow.ip
    {
        ip.encrypted = true;
    }
    let is_reply = match flow.trace_reason() {
        TraceReason::Unknown | TraceReason::Srv6Encap | TraceReason::Srv6Decap => None,
        reason => Some(reason == TraceReason::Reply),
    };
    flow.is_reply = is_reply;
    flow.reply = is_reply.unwrap_or_default();
    flow.traffic_direction = match is_reply {
        Some(is_reply) if trace.source != 0 => {
            // A packet of the endpoint's own connection: sent by it and no reply, or a reply to it. With the original
            // address the programs have translated it on its way out.
            let is_own = is_source(&flow, trace.source) != is_reply;
            if is_own || original.is_some() { TrafficDirection::Egress } else { TrafficDirection::Ingress }
        }
        _ => TrafficDirection::Unknown,
    }
    .into();
    flow.interface = interface(trace.ifindex, names);
    if trace.point == trace::TO_PROXY {
        flow.proxy_port = trace.dst_id.into();
    }
    flow.ip_trace_id = trace_id(trace.ip_trace_id);
    flow
}

fn decided(verdict: &monitor_events::Verdict<'_>, names: &dyn Names) -> Flow {
    use event::verdict_flag;
    let is_ingress = verdict.flags & 3 == 1;
    let remote = verdict.remote_label;
    let identities = match is_ingress {
        true => Identities { source: remote, destination: 0 },
        false => Identities { source: 0, destination: remote },
    };
    let first = if verdict.flags & verdict_flag::L3_DEVICE != 0 { First::Ip } else { First::Ethernet };
    let frame = Frame::parse(first, None, verdict.packet);
    let mut flow = packet(&frame, identities, None, names);
    let decision = match verdict.verdict {
        ..0 => Verdict::Dropped,
        1.. => Verdict::Redirected,
        0 if verdict.flags & verdict_flag::AUDITED != 0 => Verdict::Audit,
        0 => Verdict::Forwarded,
    };
    flow.verdict = decision.into();
    if decision == Verdict::Dropped {
        flow.drop_reason = verdict.verdict.unsigned_abs();
        flow.drop_reason_desc = verdict.verdict.saturating_neg();
    } else {
        flow.is_reply = Some(false);
    }
    flow.event_type = event_type(event::POLICY_VERDICT, 0);
    flow.auth_type = verdict.auth_type.into();
    flow.policy_match_type = (verdict.flags >> verdict_flag::MATCH_SHIFT & 7).into();
    let direction = if is_ingress { TrafficDirection::Ingress } else { TrafficDirection::Egress };
    flow.traffic_direction = direction.into();
    if let Some((protocol, port)) = frame.headers.transport.as_ref().and_then(policy_port) {
        let packet = Packet { endpoint: verdict.source, is_ingress, peer: remote, protocol, port };
        correlate(&mut flow, &packet, verdict.cookie, names);
    }
    flow
}

/// Returns the protocol and the port by which policies select a packet, for ICMP its type; `None` without a port.
fn policy_port(transport: &TransportHeader) -> Option<(u8, u16)> {
    let (protocol, port) = match *transport {
        TransportHeader::Icmpv4 { kind, .. } => (1, kind.into()),
        TransportHeader::Icmpv6 { kind, .. } => (58, kind.into()),
        TransportHeader::Tcp { .. } => (6, transport.ports()?.1),
        TransportHeader::Udp { .. } => (17, transport.ports()?.1),
        TransportHeader::Sctp { .. } => (132, transport.ports()?.1),
        TransportHeader::Vrrp { .. } | TransportHeader::Igmp { .. } => return None,
    };
    (port != 0).then_some((protocol, port))
}

/// Adds the rules of policies that have decided. The policy may have changed since the event: rules that decide
/// otherwise are left out. The texts for the log are those that the event names, else those of the rules.
fn correlate(flow: &mut Flow, packet: &Packet, cookie: u32, names: &dyn Names) {
    let is_allowed = match flow.verdict() {
        Verdict::Forwarded | Verdict::Redirected => true,
        Verdict::Audit => false,
        Verdict::Dropped if POLICY_DROPS.contains(&flow.drop_reason) => false,
        _ => return,
    };
    flow.policy_log = names.policy_texts(cookie);
    let Some(deciding) = names.deciding(packet).filter(|deciding| deciding.allows == is_allowed) else {
        return;
    };
    let policies = match (packet.is_ingress, is_allowed) {
        (true, true) => &mut flow.ingress_allowed_by,
        (true, false) => &mut flow.ingress_denied_by,
        (false, true) => &mut flow.egress_allowed_by,
        (false, false) => &mut flow.egress_denied_by,
    };
    *policies = deciding.policies;
    if flow.policy_log.is_empty() {
        flow.policy_log = deciding.log;
    }
}

fn captured(capture: &Capture<'_>, names: &dyn Names) -> Flow {
    let frame = Frame::parse(First::Ethernet, None, capture.packet);
    let mut flow = packet(&frame, Identities { source: 0, destination: 0 }, None, names);
    flow.event_type = event_type(event::DEBUG_CAPTURE, capture.id);
    flow.debug_capture_point = capture.id.into();
    match flow.debug_capture_point() {
        DebugCapturePoint::DbgCaptureProxyPre | DebugCapturePoint::DbgCaptureProxyPost => {
            // The port is in network order.
            flow.proxy_port = (capture.args[0] as u16).swap_bytes().into();
        }
        DebugCapturePoint::DbgCapturePointUnknown => {}
        _ => flow.interface = interface(capture.args[0], names),
    }
    flow
}

/// Returns the flow of a packet: addresses, ports, names.
fn packet(frame: &Frame<'_>, identities: Identities, original: Option<IpAddr>, names: &dyn Names) -> Flow {
    let headers = &frame.headers;
    let mut flow = Flow {
        r#type: FlowType::L3L4.into(),
        ethernet: headers
            .ethernet
            .map(|header| Ethernet { source: mac(header.src), destination: mac(header.dst) }),
        ip: ip(headers),
        l4: layer4(headers.transport.as_ref()),
        tunnel: frame.outer.as_ref().map(|(protocol, vni, outer)| flow::Tunnel {
            protocol: match protocol {
                Tunnel::Vxlan => tunnel::Protocol::Vxlan,
                Tunnel::Geneve => tunnel::Protocol::Geneve,
            }
            .into(),
            ip: ip(outer),
            l4: layer4(outer.transport.as_ref()),
            vni: *vni,
        }),
        summary: frame.summary(),
        ..Flow::default()
    };
    let (mut source, destination) = headers.ip.unzip();
    if let (Some(original), Some(header), Some(ip)) = (original, source, &mut flow.ip) {
        if original != header {
            ip.source_xlated = std::mem::replace(&mut ip.source, original.to_string());
        }
        source = Some(original);
    }
    let (source_port, destination_port) = ports(headers.transport.as_ref());
    flow.source = Some(endpoint(source, identities.source, names));
    flow.destination = Some(endpoint(destination, identities.destination, names));
    flow.source_service = source.and_then(|address| names.service(address, source_port));
    flow.destination_service = destination.and_then(|address| names.service(address, destination_port));
    dns_names(&mut flow, [source, destination], names);
    flow
}

/// Adds the DNS names of both addresses, each by the lookups of the endpoint at the other end.
fn dns_names(flow: &mut Flow, [source, destination]: [Option<IpAddr>; 2], names: &dyn Names) {
    let by = |endpoint: &Option<Endpoint>, address: Option<IpAddr>| match (endpoint, address) {
        (Some(Endpoint { id: id @ 1.., .. }), Some(address)) => {
            u16::try_from(*id).map(|id| names.dns_names(id, address)).unwrap_or_default()
        }
        _ => Vec::new(),
    };
    flow.source_names = by(&flow.destination, source);
    flow.destination_names = by(&flow.source, destination);
}

/// Returns one side of a flow: the local endpoint, else the ipcache's mapping and labels of the identity.
fn endpoint(address: Option<IpAddr>, identity: u32, names: &dyn Names) -> Endpoint {
    if let Some(local) = address.and_then(|address| names.endpoint(address)) {
        let endpoint = local_endpoint(local);
        return Endpoint { identity: if identity == 0 { endpoint.identity } else { identity }, ..endpoint };
    }
    // Pods have mappings of their own addresses; prefixes matter only for the identity.
    let remote = address.and_then(|address| match identity {
        0 => names.address(address),
        _ => names.host(address),
    });
    let remote = remote.unwrap_or_default();
    let identity = if identity == 0 { remote.identity } else { identity };
    let labels = names.labels(identity);
    let (namespace, pod_name) = remote.pod.unwrap_or_default();
    Endpoint {
        id: 0,
        identity,
        cluster_name: cluster(&labels),
        namespace,
        labels,
        pod_name,
        workloads: Vec::new(),
    }
}

/// Returns an endpoint of this node.
fn local_endpoint(local: Local) -> Endpoint {
    Endpoint {
        id: local.id.into(),
        identity: local.identity,
        cluster_name: cluster(&local.labels),
        namespace: local.namespace,
        labels: local.labels,
        pod_name: local.pod,
        workloads: local.workloads,
    }
}

/// Whether a flow comes from this endpoint.
fn is_source(flow: &Flow, id: u16) -> bool {
    flow.source.as_ref().is_some_and(|source| source.id == u32::from(id))
}

/// Reads a packet by the flags of its drop or trace.
fn frame(flags: u8, bytes: &[u8]) -> Frame<'_> {
    use event::flag;
    let first = if flags & flag::L3_DEVICE != 0 { First::Ip } else { First::Ethernet };
    let tunnel = match flags & (flag::VXLAN | flag::GENEVE) {
        flag::VXLAN => Some(Tunnel::Vxlan),
        flag::GENEVE => Some(Tunnel::Geneve),
        _ => None,
    };
    Frame::parse(first, tunnel, bytes)
}

fn event_type(kind: u8, sub_type: u8) -> Option<CiliumEventType> {
    Some(CiliumEventType { r#type: kind.into(), sub_type: sub_type.into() })
}

fn trace_id(id: u64) -> Option<IpTraceId> {
    (id != 0).then_some(IpTraceId { trace_id: id, ip_option_type: 0 })
}

fn interface(index: u32, names: &dyn Names) -> Option<NetworkInterface> {
    (index != 0).then(|| NetworkInterface { index, name: names.link(index).unwrap_or_default() })
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

fn ip(headers: &Headers<'_>) -> Option<Ip> {
    let (source, destination) = headers.ip?;
    let version = if source.is_ipv4() { IpVersion::IPv4 } else { IpVersion::IPv6 };
    Some(Ip {
        source: source.to_string(),
        destination: destination.to_string(),
        ip_version: version.into(),
        ..Ip::default()
    })
}

fn ports(transport: Option<&TransportHeader>) -> (u16, u16) {
    transport.and_then(TransportHeader::ports).unwrap_or_default()
}

fn layer4(transport: Option<&TransportHeader>) -> Option<Layer4> {
    use layer4::Protocol;
    let (source_port, destination_port) = ports(transport);
    let (source_port, destination_port) = (source_port.into(), destination_port.into());
    let protocol = match *transport? {
        TransportHeader::Tcp { flags, .. } => {
            Protocol::Tcp(Tcp { source_port, destination_port, flags: Some(tcp_flags(flags)) })
        }
        TransportHeader::Udp { .. } => Protocol::Udp(Udp { source_port, destination_port }),
        TransportHeader::Sctp { chunk, .. } => {
            let chunk_type = chunk.map_or(SctpChunkType::Unsupported, chunk_type).into();
            Protocol::Sctp(Sctp { source_port, destination_port, chunk_type })
        }
        TransportHeader::Icmpv4 { kind, code } => {
            Protocol::IcmPv4(IcmPv4 { r#type: kind.into(), code: code.into() })
        }
        TransportHeader::Icmpv6 { kind, code } => {
            Protocol::IcmPv6(IcmPv6 { r#type: kind.into(), code: code.into() })
        }
        TransportHeader::Vrrp { kind, id, priority } => {
            Protocol::Vrrp(Vrrp { r#type: kind.into(), vrid: id.into(), priority: priority.into() })
        }
        TransportHeader::Igmp { kind, group } => {
            Protocol::Igmp(Igmp { r#type: kind.into(), group_address: group.to_string() })
        }
    };
    Some(Layer4 { protocol: Some(protocol) })
}

/// Returns the type of a chunk by its number (RFC 9260, section 3.2).
fn chunk_type(number: u8) -> SctpChunkType {
    match number {
        1 => SctpChunkType::Init,
        2 => SctpChunkType::InitAck,
        6 => SctpChunkType::Abort,
        7 => SctpChunkType::Shutdown,
        8 => SctpChunkType::ShutdownAck,
        14 => SctpChunkType::ShutdownComplete,
        _ => SctpChunkType::Unsupported,
    }
}

fn tcp_flags(flags: u16) -> TcpFlags {
    let is = |bit: u16| flags & bit != 0;
    TcpFlags {
        fin: is(1),
        syn: is(2),
        rst: is(4),
        psh: is(8),
        ack: is(16),
        urg: is(32),
        ece: is(64),
        cwr: is(128),
        ns: is(256),
    }
}

#[cfg(test)]
mod tests;
