//! ICMP and ICMPv6: names of types and codes.

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
