//! The events of the probe's packet and of the reply, as steps.

use std::net::{IpAddr, SocketAddr};

use datapath_abi::event::xlate;
use datapath_abi::{drop, file, trace};
use monitor_events::packet::{Frame, TransportHeader};
use monitor_events::{Event, Trace, Verdict};
use serde::Serialize;

use super::probe::{Packet, Protocol};

/// A packet at a place of the datapath.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Step {
    /// Whether it is the reply.
    pub(super) is_reply: bool,
    pub(super) event: StepEvent,
    /// Addresses of the packet at this place, with the ports of TCP and UDP.
    pub(super) source: String,
    pub(super) destination: String,
    #[serde(skip)]
    pub(super) to: Option<SocketAddr>,
    /// Identities, where the programs know them.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) source_identity: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) destination_identity: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The event of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub(super) enum StepEvent {
    /// A translation at the socket, before or after.
    Socket { is_translated: bool },
    /// A verdict of an endpoint's policy.
    Verdict {
        endpoint: u16,
        is_ingress: bool,
        action: &'static str,
        #[serde(skip_serializing_if = "is_no_code")]
        drop_reason: u8,
    },
    /// A point of the datapath.
    Trace {
        point: &'static str,
        #[serde(skip)]
        code: u8,
        endpoint: u16,
        state: &'static str,
        interface: u32,
    },
    /// A drop.
    Drop { reason: String, code: u8, endpoint: u16, place: String },
}

fn is_no_code(code: &u8) -> bool {
    *code == 0
}

/// Returns the step that an event is; `None` for another packet.
pub(super) fn step(event: &Event<'_>, probe: &Packet) -> Option<Step> {
    if let Event::Socket(at) = event {
        let is_reply = matches!(at.point, xlate::PRE_REV | xlate::POST_REV);
        let to = SocketAddr::new(at.address, at.port);
        return (at.cookie == probe.cookie && !is_reply).then(|| Step {
            is_reply: false,
            event: StepEvent::Socket { is_translated: at.point == xlate::POST_FWD },
            source: probe.source.to_string(),
            destination: to.to_string(),
            to: Some(to),
            source_identity: 0,
            destination_identity: 0,
        });
    }
    let frame = event.frame()?;
    let (original, bytes) = match event {
        Event::Trace(trace) => (trace.orig_ip, trace.packet),
        Event::Drop(drop) => (None, drop.packet),
        Event::Verdict(verdict) => (None, verdict.packet),
        _ => return None,
    };
    let is_reply = direction(&frame, original, bytes, probe)?;
    let (source, destination) = frame.headers.ip?;
    let (from, to) = frame.headers.transport.and_then(|header| header.ports()).unwrap_or_default();
    let text = |address: IpAddr, port: u16| match port {
        0 => address.to_string(),
        port => SocketAddr::new(address, port).to_string(),
    };
    let (event, source_identity, destination_identity) = match event {
        Event::Trace(trace) => (traced(trace), trace.src_label, trace.dst_label),
        Event::Drop(event) => {
            let reason = drop::label(event.reason).map_or_else(|| event.reason.to_string(), str::to_owned);
            let name = file::name(event.file).map_or_else(|| event.file.to_string(), str::to_owned);
            let place = format!("{name}:{}", event.line);
            let dropped = StepEvent::Drop { reason, code: event.reason, endpoint: event.source, place };
            (dropped, event.src_label, event.dst_label)
        }
        Event::Verdict(verdict) => decided(verdict),
        _ => return None,
    };
    Some(Step {
        is_reply,
        event,
        source: text(source, from),
        destination: text(destination, to),
        to: Some(SocketAddr::new(destination, to)),
        source_identity,
        destination_identity,
    })
}

/// Returns whether a packet is the reply to the probe; `None` if it is neither of both.
fn direction(frame: &Frame<'_>, original: Option<IpAddr>, bytes: &[u8], probe: &Packet) -> Option<bool> {
    let (source, destination) = frame.headers.ip?;
    let is_ours = |address: IpAddr| address == probe.source.ip();
    if probe.protocol == Protocol::Icmp {
        // Echo requests have no port: the payload is that of the probe, on the way back, too.
        let has_mark = bytes.windows(probe.mark.len()).any(|part| part == probe.mark);
        let kind = match frame.headers.transport? {
            TransportHeader::Icmpv4 { kind, .. } | TransportHeader::Icmpv6 { kind, .. } => kind,
            _ => return None,
        };
        return has_mark.then_some(matches!(kind, 0 | 129));
    }
    let (from, to) = match (frame.headers.transport?, probe.protocol) {
        (header @ TransportHeader::Tcp { .. }, Protocol::Tcp) => header.ports()?,
        (header @ TransportHeader::Udp { .. }, Protocol::Udp) => header.ports()?,
        _ => return None,
    };
    let port = probe.source.port();
    // A translated packet keeps its port, if it is free, and has the pod's address as the original one.
    if from == port && (is_ours(source) || original.is_some_and(is_ours)) {
        return Some(false);
    }
    (to == port && is_ours(destination)).then_some(true)
}

fn traced(trace: &Trace<'_>) -> StepEvent {
    let endpoint = match trace.point {
        trace::TO_LXC => trace.dst_id,
        trace::TO_PROXY => 0,
        _ => trace.source,
    };
    StepEvent::Trace {
        point: trace::label(trace.point).unwrap_or("unknown"),
        code: trace.point,
        endpoint,
        state: match trace.reason & !trace::reason::ENCRYPTED {
            0 => "new",
            1 => "established",
            2 => "reply",
            3 => "related",
            4 => "reopened",
            _ => "unknown",
        },
        interface: trace.ifindex,
    }
}

fn decided(verdict: &Verdict<'_>) -> (StepEvent, u32, u32) {
    use datapath_abi::event::verdict_flag;
    let is_ingress = verdict.flags & 3 == 1;
    let action = match verdict.verdict {
        _ if verdict.flags & verdict_flag::AUDITED != 0 => "audited",
        ..0 => "denied",
        1.. => "redirected",
        0 => "allowed",
    };
    let drop_reason = u8::try_from(verdict.verdict.min(0).unsigned_abs()).unwrap_or(u8::MAX);
    let event = StepEvent::Verdict { endpoint: verdict.source, is_ingress, action, drop_reason };
    let remote = verdict.remote_label;
    if is_ingress { (event, remote, 0) } else { (event, 0, remote) }
}

#[cfg(test)]
mod tests {
    use datapath_abi::event::sock_protocol;
    use monitor_events::{Drop, SocketTrace};

    use super::*;

    fn probe(protocol: Protocol) -> Packet {
        Packet {
            protocol,
            source: "10.0.0.1:40000".parse().unwrap(),
            destination: "10.96.0.1:80".parse().unwrap(),
            mark: *b"apiary-t01234567",
            cookie: 77,
        }
    }

    fn packet(protocol: u8, source: [u8; 4], destination: [u8; 4], transport: &[u8]) -> Vec<u8> {
        let mut packet = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        let length = 20 + transport.len() as u8;
        packet.extend([0x45, 0, 0, length, 0, 0, 0, 0, 64, protocol, 0, 0]);
        packet.extend(source);
        packet.extend(destination);
        packet.extend(transport);
        packet
    }

    fn tcp(from: u16, to: u16) -> Vec<u8> {
        let mut header = [from.to_be_bytes(), to.to_be_bytes()].concat();
        header.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0]);
        header
    }

    const POD: [u8; 4] = [10, 0, 0, 1];
    const BACKEND: [u8; 4] = [10, 0, 0, 2];
    const NODE: [u8; 4] = [192, 0, 2, 1];

    #[test]
    fn steps_are_those_of_the_probe_and_its_reply() {
        let trace = |packet: &[u8], orig_ip: Option<IpAddr>| {
            let trace =
                Trace { point: trace::TO_LXC, dst_id: 9, ifindex: 4, orig_ip, packet, ..Trace::default() };
            step(&Event::Trace(trace), &probe(Protocol::Tcp))
        };
        let there = trace(&packet(6, POD, BACKEND, &tcp(40_000, 8080)), None).unwrap();
        assert!(!there.is_reply);
        let event = StepEvent::Trace {
            point: "to-endpoint",
            code: trace::TO_LXC,
            endpoint: 9,
            state: "new",
            interface: 4,
        };
        assert_eq!((there.event, &*there.destination), (event, "10.0.0.2:8080"));
        let back = trace(&packet(6, BACKEND, POD, &tcp(8080, 40_000)), None).unwrap();
        assert!(back.is_reply);
        let masqueraded = packet(6, NODE, BACKEND, &tcp(40_000, 80));
        assert_eq!(trace(&masqueraded, None), None, "of another source");
        assert!(!trace(&masqueraded, Some(POD.into())).unwrap().is_reply);
        assert_eq!(trace(&packet(6, POD, BACKEND, &tcp(40_001, 80)), None), None, "of another connection");
        assert_eq!(trace(&packet(17, POD, BACKEND, &tcp(40_000, 80)), None), None, "of another protocol");
        assert_eq!(trace(&[], None), None);
    }

    #[test]
    fn echo_requests_are_known_by_their_mark() {
        let step_of = |kind: u8, mark: &[u8]| {
            let packet = packet(1, NODE, BACKEND, &[&[kind, 0, 0, 0, 0, 0, 0, 0], mark].concat());
            let drop = Drop { reason: 133, source: 7, line: 9, file: 2, packet: &packet, ..Drop::default() };
            step(&Event::Drop(drop), &probe(Protocol::Icmp))
        };
        let mark = probe(Protocol::Icmp).mark;
        let dropped = step_of(8, &mark).unwrap();
        let StepEvent::Drop { reason, code, endpoint, place } = &dropped.event else { panic!("{dropped:?}") };
        assert_eq!((&**reason, *code, *endpoint, &**place), ("Policy denied", 133, 7, "bpf_lxc.c:9"));
        assert!(!dropped.is_reply && step_of(0, &mark).unwrap().is_reply);
        assert_eq!(step_of(8, b"another payload."), None);
    }

    #[test]
    fn verdicts_and_translations_are_steps() {
        let bytes = packet(6, POD, BACKEND, &tcp(40_000, 8080));
        let verdict = Verdict {
            source: 7,
            remote_label: 300,
            verdict: -133,
            flags: 2,
            packet: &bytes,
            ..Verdict::default()
        };
        let decided = step(&Event::Verdict(verdict), &probe(Protocol::Tcp)).unwrap();
        let event = StepEvent::Verdict { endpoint: 7, is_ingress: false, action: "denied", drop_reason: 133 };
        assert_eq!((decided.event, decided.destination_identity), (event, 300));
        let at = |cookie, point| {
            let trace = SocketTrace {
                point,
                protocol: sock_protocol::TCP,
                address: BACKEND.into(),
                port: 8080,
                cookie,
                cgroup: 1,
            };
            step(&Event::Socket(trace), &probe(Protocol::Tcp))
        };
        assert_eq!(at(77, xlate::POST_FWD).unwrap().event, StepEvent::Socket { is_translated: true });
        assert_eq!((at(78, xlate::POST_FWD), at(77, xlate::PRE_REV)), (None, None));
    }
}
