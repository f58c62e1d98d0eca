//! Names of codes in events.

use datapath_abi::{drop, file, policy_match, trace};

use crate::decode::{Drop, Trace, Verdict};
use crate::notification;
use crate::packet::{First, Frame, Tunnel};

/// Returns text without characters that control a terminal or the order of text.
pub(super) fn printable(text: &str) -> String {
    let escaped = |c: char| {
        let orders = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        c.is_control() || orders
    };
    if !text.contains(escaped) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match escaped(c) {
            true => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => out.push(c),
        }
    }
    out
}

/// Returns bytes as Go prints them.
pub(super) fn go_bytes(bytes: &[u8]) -> String {
    let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
    format!("[{}]", numbers.join(" "))
}

/// Returns the text of a drop reason.
pub(super) fn reason(code: u8) -> String {
    drop::label(code).map_or_else(|| code.to_string(), str::to_owned)
}

/// Returns the text of a drop's reason with its detail.
pub(super) fn reason_with_detail(drop: &Drop<'_>) -> String {
    match drop.ext_error {
        0 => reason(drop.reason),
        detail => format!("{}, {detail}", reason(drop.reason)),
    }
}

/// Returns the name of a source file.
pub(super) fn source_file(id: u8) -> String {
    file::name(id).map_or_else(|| format!("unknown({id})"), str::to_owned)
}

/// Returns the name of a trace point.
pub(super) fn point(point: u8) -> String {
    trace::label(point).map_or_else(|| point.to_string(), str::to_owned)
}

/// Returns the state of the connection, without the bit of encryption.
pub(super) fn state(reason: u8) -> String {
    const STATES: [&str; 9] = [
        "new",
        "established",
        "reply",
        "related",
        "reopened",
        "unknown",
        "srv6-encap",
        "srv6-decap",
        "encrypt-overlay",
    ];
    let reason = reason & !trace::reason::ENCRYPTED;
    STATES.get(usize::from(reason)).map_or_else(|| reason.to_string(), |state| (*state).to_owned())
}

/// Returns from where or to where a packet goes.
pub(super) fn arrow(event: &Trace<'_>) -> String {
    let arrow = match event.point {
        trace::TO_LXC => format!("-> endpoint {}", event.dst_id),
        trace::TO_PROXY if event.dst_id > 0 => format!("-> proxy port {}", event.dst_id),
        trace::TO_PROXY => "-> proxy".to_owned(),
        trace::TO_HOST => "-> host from".to_owned(),
        trace::TO_STACK => "-> stack".to_owned(),
        trace::TO_OVERLAY => "-> overlay".to_owned(),
        trace::TO_NETWORK => "-> network".to_owned(),
        trace::TO_CRYPTO => "-> crypto".to_owned(),
        trace::FROM_LXC => format!("<- endpoint {}", event.source),
        trace::FROM_PROXY => "<- proxy".to_owned(),
        trace::FROM_HOST => "<- host".to_owned(),
        trace::FROM_STACK => "<- stack".to_owned(),
        trace::FROM_OVERLAY => "<- overlay".to_owned(),
        trace::FROM_NETWORK => "<- network".to_owned(),
        trace::FROM_CRYPTO => "<- crypto".to_owned(),
        point => format!("unknown trace point {point}"),
    };
    match event.reason & trace::reason::ENCRYPTED {
        0 => arrow,
        _ => format!("{arrow} encrypted "),
    }
}

/// Returns the direction of a verdict.
pub(super) fn direction(verdict: &Verdict<'_>) -> &'static str {
    if verdict.flags & 3 == 1 { "ingress" } else { "egress" }
}

/// Returns the action of a verdict.
pub(super) fn action(verdict: &Verdict<'_>) -> &'static str {
    use datapath_abi::event::verdict_flag;
    match verdict.verdict {
        _ if verdict.flags & verdict_flag::AUDITED != 0 => "audit",
        ..0 => "deny",
        1.. => "redirect",
        0 => "allow",
    }
}

/// Returns the authentication of a verdict.
pub(super) fn auth(verdict: &Verdict<'_>) -> String {
    match verdict.auth_type {
        0 => "disabled".to_owned(),
        1 => "spire".to_owned(),
        2 => "test-always-fail".to_owned(),
        other => other.to_string(),
    }
}

/// Returns the fields of the packet that a verdict's rule has matched.
pub(super) fn matched(verdict: &Verdict<'_>) -> String {
    use datapath_abi::event::verdict_flag;
    match verdict.flags >> verdict_flag::MATCH_SHIFT & 7 {
        policy_match::NONE => "none".to_owned(),
        policy_match::L3_ONLY => "L3-Only".to_owned(),
        policy_match::L3_L4 => "L3-L4".to_owned(),
        policy_match::L4_ONLY => "L4-Only".to_owned(),
        policy_match::ALL => "all".to_owned(),
        policy_match::L3_PROTO => "L3-Proto".to_owned(),
        policy_match::PROTO_ONLY => "Proto-Only".to_owned(),
        other => other.to_string(),
    }
}

/// Returns the kind of a notification of the agent.
pub(super) fn notification(kind: u32) -> String {
    notification::name(kind).map_or_else(|| kind.to_string(), str::to_owned)
}

/// Reads a packet by the flags of its drop or trace.
pub(crate) fn frame(flags: u8, bytes: &[u8]) -> Frame<'_> {
    use datapath_abi::event::flag;
    let first = if flags & flag::L3_DEVICE != 0 { First::Ip } else { First::Ethernet };
    let tunnel = match flags & (flag::VXLAN | flag::GENEVE) {
        flag::VXLAN => Some(Tunnel::Vxlan),
        flag::GENEVE => Some(Tunnel::Geneve),
        _ => None,
    };
    Frame::parse(first, tunnel, bytes)
}

/// Reads the packet of a verdict.
pub(crate) fn verdict_frame<'a>(verdict: &Verdict<'a>) -> Frame<'a> {
    use datapath_abi::event::verdict_flag;
    let is_l3 = verdict.flags & verdict_flag::L3_DEVICE != 0;
    Frame::parse(if is_l3 { First::Ip } else { First::Ethernet }, None, verdict.packet)
}
