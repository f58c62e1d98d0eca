//! ICMP and ICMPv6: names of types and codes.

use super::{LayerKind, Layers, Malformed, Transport, be16, layer, split};

/// Reads an ICMP header.
pub(super) fn parse(is_v6: bool, bytes: &[u8], out: &mut Layers) -> Result<(), Malformed> {
    let (header, payload) = split(bytes, if is_v6 { 4 } else { 8 })?;
    let (kind, code) = (header[0], header[1]);
    let name = text(is_v6, kind, code);
    let (layer_kind, text) = if is_v6 {
        let text = layer("ICMPv6", header, payload);
        (LayerKind::Icmpv6, format!("{text} TypeCode={name} Checksum={}}}", be16(header, 2)))
    } else {
        let (checksum, id, seq) = (be16(header, 2), be16(header, 4), be16(header, 6));
        let text = layer("ICMPv4", header, payload);
        (LayerKind::Icmpv4, format!("{text} TypeCode={name} Checksum={checksum} Id={id} Seq={seq}}}"))
    };
    out.texts.push((layer_kind, text));
    out.l4 = Some(Transport::Other(format!("icmp {name}")));
    Ok(())
}

/// Returns the names of a type and a code.
pub(super) fn text(is_v6: bool, kind: u8, code: u8) -> String {
    name(if is_v6 { v6(kind) } else { v4(kind) }, kind, code)
}

/// A type's name and those of its codes.
type Names = Option<(&'static str, &'static [&'static str])>;

fn name(names: Names, kind: u8, code: u8) -> String {
    match names {
        None => format!("{kind}({code})"),
        Some((name, [])) if code == 0 => name.to_owned(),
        Some((name, codes)) => match codes.get(usize::from(code)) {
            Some(text) if !text.is_empty() => format!("{name}({text})"),
            _ => format!("{name}(Code: {code})"),
        },
    }
}

fn v4(kind: u8) -> Names {
    Some(match kind {
        0 => ("EchoReply", &[]),
        3 => (
            "DestinationUnreachable",
            &[
                "Net",
                "Host",
                "Protocol",
                "Port",
                "FragmentationNeeded",
                "SourceRoutingFailed",
                "NetUnknown",
                "HostUnknown",
                "SourceIsolated",
                "NetAdminProhibited",
                "HostAdminProhibited",
                "NetTOS",
                "HostTOS",
                "CommAdminProhibited",
                "HostPrecedence",
                "PrecedenceCutoff",
            ],
        ),
        4 => ("SourceQuench", &[]),
        5 => ("Redirect", &["Net", "Host", "TOS+Net", "TOS+Host"]),
        8 => ("EchoRequest", &[]),
        9 => ("RouterAdvertisement", &[]),
        10 => ("RouterSolicitation", &[]),
        11 => ("TimeExceeded", &["TTLExceeded", "FragmentReassemblyTimeExceeded"]),
        12 => ("ParameterProblem", &["PointerIndicatesError", "MissingOption", "BadLength"]),
        13 => ("TimestampRequest", &[]),
        14 => ("TimestampReply", &[]),
        15 => ("InfoRequest", &[]),
        16 => ("InfoReply", &[]),
        17 => ("AddressMaskRequest", &[]),
        18 => ("AddressMaskReply", &[]),
        _ => return None,
    })
}

fn v6(kind: u8) -> Names {
    Some(match kind {
        1 => (
            "DestinationUnreachable",
            &[
                "NoRouteToDst",
                "AdminProhibited",
                "BeyondScopeOfSrc",
                "AddressUnreachable",
                "PortUnreachable",
                "SrcAddressFailedPolicy",
                "RejectRouteToDst",
            ],
        ),
        2 => ("PacketTooBig", &[]),
        3 => ("TimeExceeded", &["HopLimitExceeded", "FragmentReassemblyTimeExceeded"]),
        4 => ("ParameterProblem", &["ErroneousHeader", "UnrecognizedNextHeader", "UnrecognizedIPv6Option"]),
        128 => ("EchoRequest", &[]),
        129 => ("EchoReply", &[]),
        133 => ("RouterSolicitation", &[]),
        134 => ("RouterAdvertisement", &[]),
        135 => ("NeighborSolicitation", &[]),
        136 => ("NeighborAdvertisement", &[]),
        137 => ("Redirect", &[]),
        _ => return None,
    })
}
