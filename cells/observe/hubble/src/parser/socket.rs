//! Translations at sockets to flows.

use std::net::IpAddr;

use datapath_abi::event::{self, sock_protocol, xlate};
use hubble_api::flow::layer4::Protocol;
use hubble_api::flow::{Flow, FlowType, Ip, IpVersion, Layer4, Tcp, Udp, Verdict};
use monitor_events::SocketTrace;

use super::{dns_names, endpoint, event_type};
use crate::names::Names;

/// Returns the flow of a translation; `None` if the pod of the socket is unknown, and such events are skipped.
pub(super) fn translated(trace: &SocketTrace, names: &dyn Names) -> Option<Flow> {
    let is_ipv6 = trace.address.is_ipv6();
    let of_pod = names.cgroup(trace.cgroup)?[usize::from(is_ipv6)];
    // The socket's own port is not in the event.
    let ends = [(of_pod, 0), (Some(trace.address), trace.port)];
    let is_reverse = matches!(trace.point, xlate::PRE_REV | xlate::POST_REV);
    let [(source, source_port), (destination, destination_port)] =
        if is_reverse { [ends[1], ends[0]] } else { ends };
    let (from, to) = (source_port.into(), destination_port.into());
    let (protocol, summary) = match trace.protocol {
        sock_protocol::TCP => {
            let tcp = Tcp { source_port: from, destination_port: to, flags: None };
            (Some(Protocol::Tcp(tcp)), "TCP")
        }
        sock_protocol::UDP => (Some(Protocol::Udp(Udp { source_port: from, destination_port: to })), "UDP"),
        _ => (None, "Unknown"),
    };
    let verdict = match trace.point {
        xlate::PRE_FWD | xlate::PRE_REV => Verdict::Traced,
        xlate::POST_FWD | xlate::POST_REV => Verdict::Translated,
        _ => Verdict::Unknown,
    };
    let text = |address: Option<IpAddr>| address.map(|address| address.to_string()).unwrap_or_default();
    let version = if is_ipv6 { IpVersion::IPv6 } else { IpVersion::IPv4 };
    let mut flow = Flow {
        verdict: verdict.into(),
        ip: Some(Ip {
            source: text(source),
            destination: text(destination),
            ip_version: version.into(),
            ..Ip::default()
        }),
        l4: protocol.map(|protocol| Layer4 { protocol: Some(protocol) }),
        source: Some(endpoint(source, 0, names)),
        destination: Some(endpoint(destination, 0, names)),
        r#type: FlowType::Sock.into(),
        event_type: event_type(event::TRACE_SOCK, trace.point),
        source_service: source.and_then(|address| names.service(address, source_port)),
        destination_service: destination.and_then(|address| names.service(address, destination_port)),
        sock_xlate_point: trace.point.into(),
        socket_cookie: trace.cookie,
        cgroup_id: trace.cgroup,
        summary: summary.to_owned(),
        ..Flow::default()
    };
    dns_names(&mut flow, [source, destination], names);
    Some(flow)
}
