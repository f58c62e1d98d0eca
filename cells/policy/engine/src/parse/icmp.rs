//! Parses ICMP types of policies.

use super::cursor::{Field, Object, Problems, quoted};
use super::{Context, MAX_FILTERS};
use crate::model::{Port, PortSpec};

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// Names of the ICMP types of IPv4: IANA's, as Cilium spells them, which includes two names with a space.
const TYPES_V4: &[(&str, u8)] = &[
    ("EchoReply", 0),
    ("DestinationUnreachable", 3),
    ("Redirect", 5),
    ("Echo", 8),
    ("EchoRequest", 8),
    ("RouterAdvertisement", 9),
    ("RouterSelection", 10),
    ("TimeExceeded", 11),
    ("ParameterProblem", 12),
    ("Timestamp", 13),
    ("TimestampReply", 14),
    ("Photuris", 40),
    ("ExtendedEchoRequest", 42),
    ("ExtendedEcho Request", 42),
    ("ExtendedEchoReply", 43),
    ("ExtendedEcho Reply", 43),
];

/// Names of the ICMPv6 types, from the same source.
const TYPES_V6: &[(&str, u8)] = &[
    ("DestinationUnreachable", 1),
    ("PacketTooBig", 2),
    ("TimeExceeded", 3),
    ("ParameterProblem", 4),
    ("EchoRequest", 128),
    ("EchoReply", 129),
    ("MulticastListenerQuery", 130),
    ("MulticastListenerReport", 131),
    ("MulticastListenerDone", 132),
    ("RouterSolicitation", 133),
    ("RouterAdvertisement", 134),
    ("NeighborSolicitation", 135),
    ("NeighborAdvertisement", 136),
    ("RedirectMessage", 137),
    ("RouterRenumbering", 138),
    ("ICMPNodeInformationQuery", 139),
    ("ICMPNodeInformationResponse", 140),
    ("InverseNeighborDiscoverySolicitation", 141),
    ("InverseNeighborDiscoveryAdvertisement", 142),
    ("HomeAgentAddressDiscoveryRequest", 144),
    ("HomeAgentAddressDiscoveryReply", 145),
    ("MobilePrefixSolicitation", 146),
    ("MobilePrefixAdvertisement", 147),
    ("DuplicateAddressRequestCodeSuffix", 157),
    ("DuplicateAddressConfirmationCodeSuffix", 158),
    ("ExtendedEchoRequest", 160),
    ("ExtendedEchoReply", 161),
];

/// Reads an element of `icmps`.
pub(super) fn icmp(field: &Field<'_>, context: &Context<'_>, problems: &mut Problems) -> Vec<PortSpec> {
    if !context.settings.icmp_rules {
        problems.add(&field.path, "ICMP rules are off", "switch enable-icmp-rules on");
        return Vec::new();
    }
    let Some(object) = field.object(problems) else { return Vec::new() };
    object.check_names(problems, &["fields"], &[]);
    let Some(list) = object.field("fields") else { return Vec::new() };
    let path = &list.path;
    let fields = list.list(problems).unwrap_or_default();
    if fields.len() > MAX_FILTERS {
        problems.add(
            path,
            format!("{} ICMP types: more than {MAX_FILTERS}", fields.len()),
            "split the element",
        );
        return Vec::new();
    }
    fields.iter().filter_map(|field| icmp_field(field, problems)).collect()
}

fn icmp_field(field: &Field<'_>, problems: &mut Problems) -> Option<PortSpec> {
    let object = field.object(problems)?;
    object.check_names(problems, &["family", "type"], &[]);
    let (protocol, names) = match object.text("family", problems) {
        "" | "IPv4" => (ICMP, TYPES_V4),
        "IPv6" => (ICMPV6, TYPES_V6),
        other => {
            let reason = format!("{}: not a family", quoted(&other.into()));
            problems.add(&object.path_of("family"), reason, "IPv4 or IPv6");
            return None;
        }
    };
    let number = icmp_type(&object, names, problems)?;
    // Cilium stores an ICMP type as a port, and port 0 matches the whole protocol: type 0 (IPv4's echo reply) cannot be
    // selected alone.
    if number == 0 {
        problems.warn(&object.path_of("type"), "type 0 stands for all types of the family", "");
        return Some(PortSpec { protocol, port: Port::All });
    }
    let port = Port::Range(number.into(), number.into());
    Some(PortSpec { protocol, port })
}

fn icmp_type(object: &Object<'_>, names: &[(&str, u8)], problems: &mut Problems) -> Option<u8> {
    let Some(field) = object.field("type") else {
        problems.add(&object.path_of("type"), "missing", "a number (0-255) or a name such as EchoRequest");
        return None;
    };
    let number = match field.value.as_str() {
        Some(name) => names
            .iter()
            .find_map(|(known, number)| (*known == name).then_some(*number))
            .or_else(|| name.bytes().all(|b| b.is_ascii_digit()).then(|| name.parse().ok()).flatten()),
        None => field.value.as_u64().and_then(|number| number.try_into().ok()),
    };
    if number.is_none() {
        let reason = format!("{}: not an ICMP type of the family", quoted(field.value));
        problems.add(&field.path, reason, "a number (0-255) or a name such as EchoRequest");
    }
    number
}
