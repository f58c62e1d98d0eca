//! The form with all layers of packets.

use std::fmt::Write as _;

use super::{Printer, debug, line, names, record};
use crate::decode::Event;
use crate::packet::{First, Frame};

/// The line above each event.
const RULE: &str = "------------------------------------------------------------------------------";

/// Formats an event; `None` if this form has nothing for it.
pub(super) fn format(printer: &Printer, event: &Event<'_>, cpu: &str) -> Option<String> {
    let identities = |src: u32, dst: u32| match (src, dst) {
        (0, 0) => String::new(),
        _ => format!(", identity {}->{}", printer.identity(src), printer.identity(dst)),
    };
    Some(match event {
        Event::Drop(drop) => {
            let mut text = format!(
                "{RULE}\n{cpu} MARK {:#x} FROM {} DROP: {} bytes, reason {}{}",
                drop.hash,
                drop.source,
                drop.len,
                names::reason_with_detail(drop),
                identities(drop.src_label, drop.dst_label)
            );
            if drop.dst_id != 0 {
                let _ = write!(text, ", to endpoint {}", drop.dst_id);
            }
            text + "\n" + &layers(printer, &names::frame(drop.flags, drop.packet), drop.packet)
        }
        Event::Trace(trace) => {
            let mut text = format!(
                "{RULE}\n{cpu} MARK {:#x} FROM {} {}: {} bytes ({} captured), state {}",
                trace.hash,
                trace.source,
                names::point(trace.point),
                trace.len,
                trace.captured,
                names::state(trace.reason)
            );
            if trace.ifindex != 0 {
                let _ = write!(text, ", interface {}", printer.link(trace.ifindex));
            }
            if (trace.src_label, trace.dst_label) != (0, 0) {
                let _ = write!(text, ", {}", identities(trace.src_label, trace.dst_label));
            }
            if let Some(ip) = trace.orig_ip {
                let _ = write!(text, ", orig-ip {ip}");
            }
            if trace.dst_id != 0 {
                let is_proxy = trace.point == datapath_abi::trace::TO_PROXY;
                let _ = write!(
                    text,
                    ", to {} {}",
                    if is_proxy { "proxy-port" } else { "endpoint" },
                    trace.dst_id
                );
            }
            text + "\n" + &layers(printer, &names::frame(trace.flags, trace.packet), trace.packet)
        }
        Event::Capture(capture) => {
            let text = debug::capture(capture);
            let frame = Frame::parse(First::Ethernet, None, capture.packet);
            format!(
                "{RULE}\n{cpu} MARK {:#x} FROM {} DEBUG: {} bytes, {text}\n{}",
                capture.hash,
                capture.source,
                capture.len,
                layers(printer, &frame, capture.packet)
            )
        }
        Event::Verdict(verdict) => line::decided(printer, verdict),
        Event::Debug(message) => debug::line(printer, message, cpu),
        Event::Agent(agent) => line::notified(agent),
        Event::Record(record) => record::line(printer, record),
        Event::Socket(_) | Event::Unknown(_) => return None,
    })
}

/// Formats the layers of a packet, or its bytes.
fn layers(printer: &Printer, frame: &Frame<'_>, bytes: &[u8]) -> String {
    if printer.hex {
        return hex(bytes);
    }
    let outer = frame.outer.iter().flat_map(|(_, _, headers)| &headers.layers);
    let mut text = String::new();
    for layer in outer.chain(&frame.headers.layers) {
        text.push_str(&layer.text());
        text.push('\n');
    }
    if frame.is_malformed {
        text.push_str("  Failed to decode layer: the packet is truncated or invalid\n");
        text.push_str(&hex(bytes));
    }
    text
}

/// Formats bytes as Go's `hex.Dump` does.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (row, chunk) in bytes.chunks(16).enumerate() {
        let _ = write!(text, "{:08x} ", row * 16);
        for column in 0..16 {
            if column % 8 == 0 {
                text.push(' ');
            }
            match chunk.get(column) {
                Some(byte) => drop(write!(text, "{byte:02x} ")),
                None => text.push_str("   "),
            }
        }
        text.push_str(" |");
        text.extend(chunk.iter().map(|byte| if (32..127).contains(byte) { char::from(*byte) } else { '.' }));
        text.push_str("|\n");
    }
    text
}
