//! Parses protocols and ports of policies.

use std::sync::Arc;

use super::cursor::{Field, Object, Problems, quoted};
use super::proxy::{self, About, proxy_rules};
use super::{Context, MAX_FILTERS, Section};
use crate::model::{Port, PortSpec};
use crate::proxy::ProxyRules;

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const SCTP: u8 = 132;

/// Protocols without ports, accepted with `enable-extended-ip-protocols` only.
const EXTENDED: &[(&str, u8)] =
    &[("VRRP", 112), ("IGMP", 2), ("GRE", 47), ("IPIP", 4), ("IPV6", 41), ("ESP", 50), ("AH", 51)];

/// Reads an element of `toPorts`: its ports, and the rules for a proxy of their traffic if it has any.
pub(super) fn port_rule(
    field: &Field<'_>,
    section: Section,
    about: About,
    context: &Context<'_>,
    problems: &mut Problems,
) -> (Vec<PortSpec>, Option<ProxyRules>) {
    let Some(object) = field.object(problems) else { return (Vec::new(), None) };
    if !section.allows() {
        object.check_names(problems, &["ports"], &[]);
        return (ports(&object, context, problems), None);
    }
    let known: Vec<&str> = std::iter::once("ports").chain(proxy::FIELDS).collect();
    object.check_names(problems, &known, &[]);
    let before = problems.count();
    let ports = ports(&object, context, problems);
    if problems.count() > before {
        return (ports, None);
    }
    let rules = proxy_rules(&object, &ports, section, about, context, problems);
    (ports, rules)
}

fn ports(element: &Object<'_>, context: &Context<'_>, problems: &mut Problems) -> Vec<PortSpec> {
    let Some(list) = element.field("ports") else { return Vec::new() };
    let path = &list.path;
    let ports = list.list(problems).unwrap_or_default();
    if ports.len() > MAX_FILTERS {
        problems.add(path, format!("{} ports: more than {MAX_FILTERS}", ports.len()), "split the element");
        return Vec::new();
    }
    ports.iter().filter_map(|field| port_protocol(field, context, problems)).flatten().collect()
}

/// Reads an element of `ports` of a NetworkPolicy: the port may be absent, a number or a name, the protocol is TCP
/// unless given.
pub(super) fn network_policy_port(field: &Field<'_>, problems: &mut Problems) -> Option<Vec<PortSpec>> {
    let object = field.object(problems)?;
    object.check_names(problems, &["port", "endPort", "protocol"], &[]);
    let protocols = match object.field("protocol") {
        None => Some(vec![TCP]),
        Some(field) => network_policy_protocols(&field, problems),
    };
    let end = end_port(&object, problems);
    let port = match object.field("port") {
        None => Some(Number::All),
        Some(field) => match field.value.as_i64() {
            Some(number) => named_or_number(&number.to_string(), &field.path, problems),
            None => field.text(problems).and_then(|text| named_or_number(text, &field.path, problems)),
        },
    };
    specs(&object, protocols?, port?, end?, problems)
}

fn port_protocol(field: &Field<'_>, context: &Context<'_>, problems: &mut Problems) -> Option<Vec<PortSpec>> {
    let object = field.object(problems)?;
    object.check_names(problems, &["port", "endPort", "protocol"], &[]);
    let protocols = protocols(&object, context, problems);
    let end = end_port(&object, problems);
    let port = port(&object, context, problems)?;
    specs(&object, protocols?, port, end?, problems)
}

/// Returns the specs of an element, one for each protocol.
fn specs(
    object: &Object<'_>,
    protocols: Vec<u8>,
    port: Number,
    end: Option<u16>,
    problems: &mut Problems,
) -> Option<Vec<PortSpec>> {
    match (&port, end) {
        (Number::All, Some(_)) => {
            problems.warn(&object.path_of("endPort"), "not looked at: port 0 stands for all ports", "");
        }
        (Number::Port(first), Some(end)) if end < *first => {
            let reason = format!("{end} is below port {first}: only port {first} counts");
            problems.warn(&object.path_of("endPort"), reason, "write the higher port here");
        }
        _ => {}
    }
    let port = match port {
        Number::All => Port::All,
        // A range whose end is below its start is the single start port, as in Cilium.
        Number::Port(first) => Port::Range(first, end.unwrap_or(first).max(first)),
        Number::Name(name) => Port::Named { name, end },
    };
    if port != Port::All
        && let [protocol] = protocols[..]
        && EXTENDED.iter().any(|(_, number)| *number == protocol)
    {
        let reason = format!("{}: the protocol has no ports", object.text("port", problems));
        problems.add(&object.path_of("port"), reason, "write 0");
        return None;
    }
    Some(protocols.into_iter().map(|protocol| PortSpec { protocol, port: port.clone() }).collect())
}

fn protocols(object: &Object<'_>, context: &Context<'_>, problems: &mut Problems) -> Option<Vec<u8>> {
    let name = match object.field("protocol") {
        Some(field) => field.text(problems)?,
        None => "",
    };
    let upper = name.to_ascii_uppercase();
    if let Some(known) = transport(if upper.is_empty() { "ANY" } else { &upper }) {
        return Some(known);
    }
    let extended = EXTENDED.iter().find(|(known, _)| *known == upper);
    if extended.is_none() {
        let remedy = match (upper.starts_with("ICMP"), context.settings.extended_protocols) {
            (true, _) => "ICMP types are written in icmps",
            (false, true) => "TCP, UDP, SCTP, ANY, VRRP, IGMP, GRE, IPIP, IPV6, ESP or AH",
            (false, false) => "TCP, UDP, SCTP or ANY",
        };
        problems.add(
            &object.path_of("protocol"),
            format!("{}: not a protocol", quoted(&name.into())),
            remedy,
        );
    }
    extended.map(|(_, number)| vec![*number])
}

/// Reads the protocol of a NetworkPolicy's port.
fn network_policy_protocols(field: &Field<'_>, problems: &mut Problems) -> Option<Vec<u8>> {
    let name = field.text(problems)?;
    let known = transport(&name.to_ascii_uppercase());
    if known.is_none() {
        let reason = format!("{}: not a protocol", quoted(field.value));
        problems.add(&field.path, reason, "TCP, UDP or SCTP");
    }
    known
}

/// Returns the numbers of a protocol with ports; `ANY` is all of them.
fn transport(name: &str) -> Option<Vec<u8>> {
    match name {
        "ANY" => Some(vec![TCP, UDP, SCTP]),
        "TCP" => Some(vec![TCP]),
        "UDP" => Some(vec![UDP]),
        "SCTP" => Some(vec![SCTP]),
        _ => None,
    }
}

/// The value of the field `port`.
enum Number {
    /// 0, or absent where that is allowed.
    All,
    Port(u16),
    Name(Arc<str>),
}

fn port(object: &Object<'_>, context: &Context<'_>, problems: &mut Problems) -> Option<Number> {
    let text = match object.field("port") {
        Some(field) => field.text(problems)?,
        None => "",
    };
    if text.is_empty() {
        if context.settings.extended_protocols {
            return Some(Number::All);
        }
        problems.add(&object.path_of("port"), "missing", "a number, a name, or 0 for all ports");
        return None;
    }
    named_or_number(text, &object.path_of("port"), problems)
}

/// Reads the name or the number of a port.
fn named_or_number(text: &str, path: &str, problems: &mut Problems) -> Option<Number> {
    if is_service_name(text) {
        return Some(Number::Name(text.to_ascii_lowercase().into()));
    }
    match parse_number(text) {
        Some(0) => Some(Number::All),
        Some(number) => Some(Number::Port(number)),
        None => {
            let reason = format!("{}: not a port (0-65535) and not a port's name", quoted(&text.into()));
            let remedy = "names have at most 15 letters, digits and single dashes, and a letter";
            problems.add(path, reason, remedy);
            None
        }
    }
}

/// Reads the end of a range: `Some(None)` if it is absent or 0, `None` if it is invalid.
#[expect(clippy::option_option, reason = "absent and wrong are two things")]
fn end_port(object: &Object<'_>, problems: &mut Problems) -> Option<Option<u16>> {
    let Some(field) = object.field("endPort") else { return Some(None) };
    let number = field.value.as_u64().and_then(|number| u16::try_from(number).ok());
    if number.is_none() {
        let reason = format!("{}: not a port (0-65535)", quoted(field.value));
        problems.add(&field.path, reason, "write it as a number, without quotes");
    }
    number.map(|number| (number != 0).then_some(number))
}

/// Whether a text is a service name (RFC 6335 5.1): 1-15 letters, digits and inner single dashes, at least one letter.
pub(super) fn is_service_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    (1..=15).contains(&bytes.len())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
        && bytes.iter().any(u8::is_ascii_alphabetic)
        && bytes[0] != b'-'
        && bytes[bytes.len() - 1] != b'-'
        && !text.contains("--")
}

/// Parses a number as Go's `ParseUint(text, 0, 16)` does: prefixes `0b`, `0o`, `0x`, a leading 0 is octal, single
/// underscores between digits.
fn parse_number(text: &str) -> Option<u16> {
    let lower = text.to_ascii_lowercase();
    let (radix, digits, prefixed) = match lower.as_bytes() {
        [b'0', b'b', ..] => (2, &lower[2..], true),
        [b'0', b'o', ..] => (8, &lower[2..], true),
        [b'0', b'x', ..] => (16, &lower[2..], true),
        [b'0', _, ..] => (8, &lower[1..], true),
        _ => (10, &lower[..], false),
    };
    let digits = match prefixed {
        true => digits.strip_prefix('_').unwrap_or(digits),
        false => digits,
    };
    let groups = digits.split('_');
    if groups.clone().any(|group| group.is_empty() || !group.chars().all(|c| c.is_digit(radix))) {
        return None;
    }
    u16::from_str_radix(&groups.collect::<String>(), radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_go_does() {
        for (text, number) in [
            ("80", 80),
            ("010", 8),
            ("0", 0),
            ("00", 0),
            ("8_0", 80),
            ("0_7", 7),
            ("0x1_f", 31),
            ("0b_1", 1),
            ("65535", 65535),
        ] {
            assert_eq!(parse_number(text), Some(number), "{text}");
        }
        for text in ["65536", "08", "_80", "80_", "8__0", "+80", "-1", "", "0x", "0b2", "8 0", "1-2"] {
            assert_eq!(parse_number(text), None, "{text}");
        }
    }

    #[test]
    fn names_have_a_letter_and_single_inner_dashes() {
        for name in ["http", "web-admin", "0x50", "a", "8080-tcp", "abcdefghijklmno"] {
            assert!(is_service_name(name), "{name}");
        }
        for name in ["80", "a--b", "-a", "a-", "abcdefghijklmnop", "a_b", "", "1-2", "http!"] {
            assert!(!is_service_name(name), "{name}");
        }
    }
}
