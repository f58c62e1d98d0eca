//! Texts of debug messages and captures, by their ids.

use super::Printer;
use super::names;
use crate::decode::{Capture, Debug};

/// Formats a debug message as a line.
pub(super) fn line(printer: &Printer, event: &Debug, cpu: &str) -> String {
    format!("{cpu} MARK {:#x} FROM {} DEBUG: {}", event.hash, event.source, message(printer, event))
}

/// Returns the low half of a number in network order.
fn be16(number: u32) -> u16 {
    (number as u16).swap_bytes()
}

/// Returns the address whose bytes the number has in memory.
fn ip4(number: u32) -> std::net::Ipv4Addr {
    number.to_ne_bytes().into()
}

/// Returns the last groups of an IPv6 address.
fn ip6(number: u32) -> String {
    let number = number.swap_bytes();
    format!("{:x}:{:x}", number >> 16, number & 0xffff)
}

fn tuple(a: u32, b: u32) -> String {
    let flags: Vec<&str> =
        [(1, "OUT"), (2, "RELATED")].iter().filter(|(bit, _)| b & bit != 0).map(|(_, name)| *name).collect();
    format!("sport={} dport={} nexthdr={} flags={}", a >> 16, a & 0xffff, b >> 8, flags.join("|"))
}

fn proxy(a: u32, b: u32) -> String {
    format!("sport={} dport={} saddr={}", be16(a >> 16), be16(a), ip4(b))
}

/// Formats the text of a debug message.
pub(super) fn message(printer: &Printer, event: &Debug) -> String {
    let [a, b, c] = event.args;
    match event.id {
        1 => format!("No message, arg1={a} ({a:#x}) arg2={b} ({b:#x}) arg3={c} ({c:#x})"),
        2 => format!("Attempting local delivery for container id {a} from seclabel {b}"),
        3 => format!("Encapsulating to node {a} ({a:#x}) from seclabel {b}"),
        4 => format!("Local container found ifindex {} seclabel {}", printer.link(a), be16(b)),
        5 => format!("Policy evaluation would deny packet from {a} to {b}"),
        6 => format!("CT lookup: {}", tuple(a, b)),
        7 => format!("CT reverse lookup: {}", tuple(a, b)),
        8 => format!("CT entry found lifetime={a}, revnat={}", be16(b)),
        9 => format!("CT created 1/2: {} revnat={c}", tuple(a, b)),
        10 => format!("CT created 2/2: {} revnat={}", ip4(a), be16(b)),
        11 => format!("Handling ICMPv6 type={a}"),
        12 => format!("ICMPv6 echo request for router offset={a}"),
        13 => format!("ICMPv6 neighbour soliciation for address {a:x}:{b:x}"),
        14 => "Sending ICMPv6 time exceeded".to_owned(),
        15 => {
            let state = match a as u8 {
                0 => "New".to_owned(),
                1 => "Established".to_owned(),
                2 => "Reply".to_owned(),
                3 => "Related".to_owned(),
                code => names::reason(code),
            };
            format!("CT verdict: {state}, revnat={}", be16(b))
        }
        16 => format!("Tunnel decap: id={a} flowlabel={b:x}"),
        17 => format!("Mapping port from={a} to={b}"),
        18 => format!("BPF function {a} returned error {b}"),
        19 => format!("Going to host, policy-skip={a}"),
        20 => format!("Going to the stack, policy-skip={a}"),
        21 => format!("Packet hash={a} ({a:#x}), selected_service={b}"),
        22 => format!("Frontend service lookup, addr.p4={a:x} key.dport={}", be16(b)),
        23 => format!("Frontend service lookup failed, addr.p2={a:x} addr.p3={b:x}"),
        24 | 32 => format!("Service backend slot lookup: slot={a}, dport={}", be16(b)),
        25 => format!("Service backend slot lookup result: target.p4={a:x} port={}", be16(b)),
        26 | 34 => format!("Service backend slot lookup failed: slot={a}, dport={}", be16(b)),
        27 | 35 => format!("Backend service lookup failed: backend_id={a}"),
        28 | 36 => format!("Reverse NAT lookup, index={}", be16(a)),
        29 => format!("Performing reverse NAT, address.p4={a:x} port={}", be16(b)),
        30 => format!("Frontend service lookup, addr={} key.dport={}", ip4(a), be16(b)),
        31 => "Frontend service lookup failed".to_owned(),
        33 => format!("Service backend slot lookup result: target={} port={}", ip4(a), be16(b)),
        37 => format!("Performing reverse NAT, address={} port={}", ip4(a), be16(b)),
        38 => format!("Loopback SNAT from={} to={}", ip4(a), ip4(b)),
        39 => format!("Loopback reverse SNAT from={} to={}", ip4(a), ip4(b)),
        40 => format!("CT lookup address: {}", ip4(a)),
        41 => format!("RR backend slot selection hash={a} ({a:#x}), selected_service={b}"),
        42 => format!("Reverse proxy lookup {} nexthdr={c}", proxy(a, b)),
        43 => format!("Reverse proxy entry found, orig-daddr={} orig-dport={b}", ip4(a)),
        44 => format!("Reverse proxy updated {} nexthdr={c}", proxy(a, b)),
        45 => {
            let direction = match b {
                0 => "egress".to_owned(),
                1 => "ingress".to_owned(),
                other => other.to_string(),
            };
            format!("Resolved L4 policy to: {} / {direction}", be16(a))
        }
        46 => format!("Destination is inside cluster prefix, source identity: {a}"),
        47 => format!("Attempting encapsulation, lookup key: {}, identity: {b}", ip4(a)),
        48 => format!("Conntrack lookup 1/2: {}", ends4(a, b, c)),
        49 | 52 => {
            format!("Conntrack lookup 2/2: nexthdr={} flags={} dir={b} scope={c}", a >> 8, a & 0xff)
        }
        50 => {
            let (port, revnat) = (a >> 16, be16(a));
            format!("Conntrack create: proxy-port={port} revnat={revnat} src-identity={b} lb={}", ip4(c))
        }
        51 => format!("Conntrack lookup 1/2: {}", ends6(a, b, c)),
        53 => format!("Conntrack create: proxy-port={} revnat={} src-identity={b}", a >> 16, be16(a)),
        54 => format!("Skipping proxy, tc_index is set={a:x}"),
        55 => format!(
            "Matched L4 policy; creating conntrack src={a} dst={b} dport={} proto={}",
            be16(c >> 16),
            c & 0xff
        ),
        56 => format!("Failed to map addr={} to identity", ip4(a)),
        57 => format!("Failed to map addr.p4=[::{}] to identity", ip6(a)),
        58 => format!("Successfully mapped addr={} to identity={b}", ip4(a)),
        59 => format!("Successfully mapped addr.p4=[::{}] to identity={b}", ip6(a)),
        60 => format!("Stale CT entry found stale_ct.rev_nat_id={b}, svc.rev_nat_id={a}"),
        61 => format!("Inheriting identity={a} from stack"),
        62 => format!("Socket lookup: {}", ends4(a, b, c)),
        63 => format!("Socket lookup: {}", ends6(a, b, c)),
        64 if a == 0 => "Socket assign: Success".to_owned(),
        64 => format!("Socket assign: {}", std::io::Error::from_raw_os_error(a as i32)),
        65 => format!("L7 LB from {} to {}: proxy port {c}", ip4(a), ip4(b)),
        66 => format!("Skipping policy, arg1={a} arg2={b}"),
        67 => format!("Loopback SNAT from.p4={a:x} to.p4={b:x}"),
        68 => format!("Loopback reverse SNAT from.p4={a:x} to.p4={b:x}"),
        id => format!("Unknown message type={id} arg1={a} arg2={b}"),
    }
}

fn ends4(a: u32, b: u32, c: u32) -> String {
    format!("src={}:{} dst={}:{}", ip4(a), c & 0xffff, ip4(b), c >> 16)
}

fn ends6(a: u32, b: u32, c: u32) -> String {
    format!("src=[::{}]:{} dst=[::{}]:{}", ip6(a), c & 0xffff, ip6(b), c >> 16)
}

/// Formats the text of a capture.
pub(super) fn capture(event: &Capture<'_>) -> String {
    let [a, _] = event.args;
    match event.id {
        4 => format!("Delivery to ifindex {a}"),
        5 => format!("Incoming packet to load balancer on ifindex {a}"),
        6 => format!("Packet after nat46 ifindex {a}"),
        7 => format!("Packet after nat64 ifindex {a}"),
        8 => format!("Packet to proxy port {} (Pre)", be16(a)),
        9 => format!("Packet to proxy port {} (Post)", be16(a)),
        10 => format!("Packet going into snat engine on ifindex {a}"),
        11 => format!("Packet coming from snat engine on ifindex {a}"),
        id => format!("Unknown message type={id} arg1={a}"),
    }
}

/// Formats the short text of a capture, if it has one.
pub(super) fn short(printer: &Printer, event: &Capture<'_>) -> Option<String> {
    let [a, _] = event.args;
    Some(match event.id {
        4 => format!("-> {}", printer.link(a)),
        5 => format!("<- load-balancer {}", printer.link(a)),
        6 => format!("== v4->v6 {a}"),
        7 => format!("== v6->v4 {a}"),
        9 => format!("-> proxy port {}", be16(a)),
        _ => return None,
    })
}
