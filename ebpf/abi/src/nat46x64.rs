//! Translation between the IP families: addresses of IPv4 in those of IPv6, and types of ICMP (RFC 6052, RFC 7915).
//!
//! Two ranges of IPv6 contain IPv4 addresses. Frontends and backends of services, and the node's own address, are in maps
//! as *mapped* addresses, `::ffff:a.b.c.d`, which never leave the node: no host accepts a packet from one. Machines know
//! each other by the well-known *prefix*, `64:ff9b::/96`.

/// The first word of addresses with the prefix, as on the wire.
const PREFIX: u32 = 0x0064_ff9b_u32.to_be();
/// The third word of mapped addresses, as on the wire.
const MAPPED: u32 = 0x0000_ffff_u32.to_be();

/// The difference between the headers of both families in bytes.
pub const HEADER_DIFFERENCE: u32 = 20;

/// Returns `::ffff:a.b.c.d`.
#[inline(always)]
pub const fn mapped(ipv4: u32) -> [u32; 4] {
    [0, 0, MAPPED, ipv4]
}

/// Returns `64:ff9b::a.b.c.d`.
#[inline(always)]
pub const fn prefixed(ipv4: u32) -> [u32; 4] {
    [PREFIX, 0, 0, ipv4]
}

/// True for mapped addresses.
#[inline(always)]
pub const fn is_mapped(ipv6: [u32; 4]) -> bool {
    ipv6[0] | ipv6[1] | (ipv6[2] ^ MAPPED) == 0
}

/// True for addresses with the prefix.
#[inline(always)]
pub const fn is_prefixed(ipv6: [u32; 4]) -> bool {
    (ipv6[0] ^ PREFIX) | ipv6[1] | ipv6[2] == 0
}

/// True for addresses that contain one of IPv4.
#[inline(always)]
pub const fn embeds(ipv6: [u32; 4]) -> bool {
    is_mapped(ipv6) || is_prefixed(ipv6)
}

/// Returns the IPv4 address in one that [`embeds`] one.
#[inline(always)]
pub const fn embedded(ipv6: [u32; 4]) -> u32 {
    ipv6[3]
}

/// The reason why an ICMP message has no counterpart.
#[derive(Clone, Copy)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq))]
pub enum Unknown {
    /// Its type.
    Type,
    /// Its code.
    Code,
}

/// Type and code of an ICMP message, and the second word of its header in the machine's byte order.
pub type Message = ([u8; 2], u32);

/// Messages of both families.
const ECHO_REPLY: u8 = 0;
const UNREACHABLE: u8 = 3;
const ECHO: u8 = 8;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;
const UNREACHABLE_V6: u8 = 1;
const TOO_BIG_V6: u8 = 2;
const TIME_EXCEEDED_V6: u8 = 3;
const PARAMETER_PROBLEM_V6: u8 = 4;
const ECHO_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;

/// The code of IPv4's "unreachable" for packets that are too long and must not be fragmented.
const FRAGMENTATION_NEEDED: u8 = 4;
/// The code of IPv4's "unreachable" for protocols.
const PROTOCOL: u8 = 2;
/// The offset of the next header in an IPv6 header, to which an unknown protocol's problem points.
const NEXT_HEADER: u32 = 6;
/// The MTU for routers that report none.
const DEFAULT_MTU: u32 = 1500;
/// The smallest MTU of links with IPv6: its hosts have no use for smaller ones (RFC 8200, 5).
const MIN_MTU_V6: u32 = 1280;

/// Returns the ICMPv6 message for one of ICMP.
#[inline(always)]
pub const fn to_icmpv6(([kind, code], word): Message) -> Result<Message, Unknown> {
    Ok(match kind {
        ECHO => ([ECHO_V6, 0], word),
        ECHO_REPLY => ([ECHO_REPLY_V6, 0], word),
        UNREACHABLE => match code {
            PROTOCOL => ([PARAMETER_PROBLEM_V6, 1], NEXT_HEADER),
            3 => ([UNREACHABLE_V6, 4], 0),
            FRAGMENTATION_NEEDED => ([TOO_BIG_V6, 0], longer(word & 0xffff)),
            9 | 10 | 13 => ([UNREACHABLE_V6, 1], 0),
            0 | 1 | 5..=8 | 11 | 12 => ([UNREACHABLE_V6, 0], 0),
            _ => return Err(Unknown::Code),
        },
        TIME_EXCEEDED => ([TIME_EXCEEDED_V6, code], 0),
        // The field that it points to has no counterpart in general.
        PARAMETER_PROBLEM => ([PARAMETER_PROBLEM_V6, 0], NEXT_HEADER),
        _ => return Err(Unknown::Type),
    })
}

/// Returns the ICMP message for one of ICMPv6.
#[inline(always)]
pub const fn to_icmp(([kind, code], word): Message) -> Result<Message, Unknown> {
    Ok(match kind {
        ECHO_V6 => ([ECHO, 0], word),
        ECHO_REPLY_V6 => ([ECHO_REPLY, 0], word),
        UNREACHABLE_V6 => match code {
            0 | 2 | 3 => ([UNREACHABLE, 1], 0),
            1 => ([UNREACHABLE, 10], 0),
            4 => ([UNREACHABLE, 3], 0),
            _ => return Err(Unknown::Code),
        },
        TOO_BIG_V6 => ([UNREACHABLE, FRAGMENTATION_NEEDED], shorter(word)),
        TIME_EXCEEDED_V6 => ([TIME_EXCEEDED, code], 0),
        PARAMETER_PROBLEM_V6 => match code {
            0 => ([PARAMETER_PROBLEM, 0], 0),
            1 => ([UNREACHABLE, PROTOCOL], 0),
            _ => return Err(Unknown::Code),
        },
        _ => return Err(Unknown::Type),
    })
}

/// Returns the MTU of a path for packets of IPv6 that continue as IPv4 on a link with this one.
#[inline(always)]
const fn longer(mtu: u32) -> u32 {
    let mtu = (if mtu == 0 { DEFAULT_MTU } else { mtu }) + HEADER_DIFFERENCE;
    if mtu < MIN_MTU_V6 { MIN_MTU_V6 } else { mtu }
}

/// Returns the MTU of a path for packets of IPv4 that continue as IPv6 on a link with this one.
#[inline(always)]
const fn shorter(mtu: u32) -> u32 {
    let mtu = if mtu == 0 { DEFAULT_MTU } else { mtu };
    let mtu = mtu.saturating_sub(HEADER_DIFFERENCE);
    if mtu > u16::MAX as u32 { u16::MAX as u32 } else { mtu }
}
