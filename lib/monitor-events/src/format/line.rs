//! A line an event.

use datapath_abi::event::{sock_protocol, xlate};

use super::names::{self, printable};
use super::{Format, Printer, debug, record};
use crate::decode::{Agent, Drop, Event, SocketTrace, Trace, Verdict};
use crate::packet::{First, Frame, socket};

/// Formats an event; `None` if this form has no line for it.
pub(super) fn format(printer: &Printer, event: &Event<'_>, cpu: &str) -> Option<String> {
    let is_verbose = printer.format == Format::Verbose;
    Some(match event {
        Event::Drop(drop) => dropped(printer, drop),
        Event::Trace(trace) => traced(printer, trace),
        Event::Verdict(verdict) => decided(printer, verdict),
        Event::Debug(message) if is_verbose => debug::line(printer, message, cpu),
        Event::Capture(capture) => {
            let short = debug::short(printer, capture)?;
            let frame = Frame::parse(First::Ethernet, None, capture.packet);
            format!("{short}: {}", frame.connection())
        }
        Event::Socket(trace) if is_verbose => at_socket(trace, cpu),
        Event::Agent(agent) => notified(agent),
        Event::Record(record) => record::line(printer, record),
        Event::Debug(_) | Event::Socket(_) | Event::Unknown(_) => return None,
    })
}

fn dropped(printer: &Printer, drop: &Drop<'_>) -> String {
    format!(
        "xx drop ({}) flow {:#x} to endpoint {}, ifindex {}, file {}:{}, {}, identity {}->{}: {}",
        names::reason_with_detail(drop),
        drop.hash,
        drop.dst_id,
        drop.ifindex,
        names::source_file(drop.file),
        drop.line,
        trace_id(drop.ip_trace_id),
        printer.identity(drop.src_label),
        printer.identity(drop.dst_label),
        names::frame(drop.flags, drop.packet).connection(),
    )
}

fn traced(printer: &Printer, trace: &Trace<'_>) -> String {
    format!(
        "{} flow {:#x} , identity {}->{}{} state {} ifindex {} orig-ip {}: {}",
        names::arrow(trace),
        trace.hash,
        printer.identity(trace.src_label),
        printer.identity(trace.dst_label),
        trace_id(trace.ip_trace_id),
        names::state(trace.reason),
        printer.link(trace.ifindex),
        trace.orig_ip.map_or_else(|| "0.0.0.0".to_owned(), |ip| ip.to_string()),
        names::frame(trace.flags, trace.packet).connection(),
    )
}

/// Formats the trace id of an IP option.
fn trace_id(id: u64) -> String {
    if id == 0 { String::new() } else { format!(" [ ip-trace-id = {id} ]") }
}

/// Formats a verdict, which has the same line in all forms.
pub(super) fn decided(printer: &Printer, verdict: &Verdict<'_>) -> String {
    let texts = if verdict.cookie == 0 { Vec::new() } else { printer.texts.texts(verdict.cookie) };
    let log: String = texts.iter().map(|text| format!(", log {text:?}")).collect();
    format!(
        "Policy verdict log: flow {:#x} local EP ID {}, remote ID {}, proto {}, {}, action {}, auth: {}, match {}, {}{log}",
        verdict.hash,
        verdict.source,
        printer.identity(verdict.remote_label),
        verdict.proto,
        names::direction(verdict),
        names::action(verdict),
        names::auth(verdict),
        names::matched(verdict),
        names::verdict_frame(verdict).connection(),
    )
}

fn at_socket(trace: &SocketTrace, cpu: &str) -> String {
    let point = match trace.point {
        xlate::PRE_FWD => "pre-xlate-fwd".to_owned(),
        xlate::POST_FWD => "post-xlate-fwd".to_owned(),
        xlate::PRE_REV => "pre-xlate-rev".to_owned(),
        xlate::POST_REV => "post-xlate-rev".to_owned(),
        point => point.to_string(),
    };
    let protocol = match trace.protocol {
        sock_protocol::TCP => "tcp",
        sock_protocol::UDP => "udp",
        _ => "unknown",
    };
    // Cilium brackets IPv4 addresses, too.
    let destination = match trace.address.is_ipv4() {
        true => format!("[{}]:{}", trace.address, trace.port),
        false => socket(trace.address, trace.port),
    };
    let (cgroup, cookie) = (trace.cgroup, trace.cookie);
    format!("{cpu} [{point}] cgroup_id: {cgroup} sock_cookie: {cookie}, dst {destination} proto {protocol}")
}

/// Formats a notification of the agent.
pub(super) fn notified(agent: &Agent) -> String {
    format!(">> {}: {}", names::notification(agent.kind), printable(&agent.text))
}
