//! Flows of packets: addresses, protocol and ports, for connection tracking, services and policy.

use crate::monitor::drop::Drop;
use crate::monitor::metrics;
use crate::packet::family::Family;
use crate::packet::skb::{Skb, opaque};
use datapath_abi::{FragmentPorts, file, metric};

const FILE: u8 = file::CONNTRACK;

/// Transport protocols (IANA protocol numbers).
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const SCTP: u8 = 132;

/// The part of a datagram in a packet. Not an enum: the verifier would follow the program once per variant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece(u8);

impl Piece {
    /// The whole datagram.
    pub(crate) const WHOLE: Self = Self(0);
    /// The first fragment, with the transport header.
    pub(crate) const FIRST: Self = Self(1);
    /// A later fragment, without the transport header.
    pub(crate) const LATER: Self = Self(2);
}

/// The header after the IP header and its extensions.
#[derive(Clone, Copy)]
pub(crate) struct Upper {
    /// The protocol.
    pub(crate) protocol: u8,
    /// Its offset in the packet.
    pub(crate) offset: usize,
    pub(crate) piece: Piece,
    /// The datagram's identification, in network byte order.
    pub(crate) id: u32,
    /// The protocol that all fragments of the datagram name.
    pub(crate) shared_protocol: u8,
}

/// Mask of header offsets: four extension headers have 8 KB at most.
const OFFSET_MASK: usize = 0x3fff;

impl Upper {
    /// Returns the same value, which the verifier does not distinguish from others.
    #[inline(always)]
    pub(crate) fn any(self, skb: Skb) -> Self {
        let packed = u64::from(self.protocol)
            | u64::from(self.piece.0) << 8
            | u64::from(self.shared_protocol) << 16
            | (self.offset as u64) << 48;
        let packed = skb.forget(packed);
        Self {
            protocol: packed as u8,
            piece: Piece((packed >> 8) as u8 & 3),
            shared_protocol: (packed >> 16) as u8,
            offset: (packed >> 48) as usize & OFFSET_MASK,
            ..self
        }
    }
}

/// The flow of a packet. All fields after IP are one packed integer, which each accessor reads as unknown to the
/// verifier: a branch on one of them adds no state to the rest of the program, so that paths join again after it.
#[derive(Clone, Copy)]
pub(crate) struct Flow<A> {
    pub(crate) source: A,
    pub(crate) destination: A,
    /// Ports in network byte order. The identifier of an ICMP echo request is its source port, that of an echo reply
    /// its destination port; other ICMP messages have none.
    pub(crate) sport: u16,
    pub(crate) dport: u16,
    /// See [`Fields::pack`].
    fields: u64,
}

impl<A> Flow<A> {
    /// Returns a flow without content, to be written by a function that is called.
    #[inline(always)]
    pub(crate) fn none(address: A) -> Self
    where
        A: Copy,
    {
        Flow { source: address, destination: address, sport: 0, dport: 0, fields: 0 }
    }

    #[inline(always)]
    pub(crate) fn protocol(&self) -> u8 {
        opaque(self.fields) as u8
    }

    #[inline(always)]
    pub(crate) fn is_tcp(&self) -> bool {
        self.protocol() == TCP
    }

    /// Returns the flags byte of the TCP header; zero without one.
    #[inline(always)]
    pub(crate) fn tcp_flags(&self) -> u8 {
        (opaque(self.fields) >> TCP_FLAGS_SHIFT) as u8
    }

    /// Returns type and code of an ICMP message.
    #[inline(always)]
    pub(crate) fn icmp(&self) -> [u8; 2] {
        ((opaque(self.fields) >> ICMP_SHIFT) as u16).to_le_bytes()
    }

    /// True for an ICMP error about a packet of the opposite direction.
    #[inline(always)]
    pub(crate) fn is_related(&self) -> bool {
        opaque(self.fields) >> RELATED_SHIFT & 1 != 0
    }

    /// Returns the offset of the transport header in the packet.
    #[inline(always)]
    pub(crate) fn offset(&self) -> usize {
        (opaque(self.fields) >> OFFSET_SHIFT) as usize & OFFSET_MASK
    }

    /// True if the packet has the transport header.
    #[inline(always)]
    pub(crate) fn has_upper_header(&self) -> bool {
        (opaque(self.fields) >> PIECE_SHIFT) as u8 & 3 != Piece::LATER.0
    }
}

const TCP_FLAGS_SHIFT: u32 = 8;
const ICMP_SHIFT: u32 = 16;
const RELATED_SHIFT: u32 = 32;
const PIECE_SHIFT: u32 = 33;
const OFFSET_SHIFT: u32 = 48;

/// The fields of a flow besides addresses, before they are packed.
struct Fields {
    sport: u16,
    dport: u16,
    protocol: u8,
    tcp_flags: u8,
    icmp: [u8; 2],
    related: bool,
    offset: usize,
    piece: Piece,
}

impl Fields {
    #[inline(always)]
    fn pack<A>(self, skb: Skb, source: A, destination: A) -> Flow<A> {
        let fields = u64::from(self.protocol)
            | u64::from(self.tcp_flags) << TCP_FLAGS_SHIFT
            | u64::from(u16::from_le_bytes(self.icmp)) << ICMP_SHIFT
            | u64::from(self.related) << RELATED_SHIFT
            | u64::from(self.piece.0) << PIECE_SHIFT
            | (self.offset as u64) << OFFSET_SHIFT;
        let fields = skb.forget(fields);
        let ports = skb.forget(u64::from(self.sport) | u64::from(self.dport) << 16);
        Flow { source, destination, sport: ports as u16, dport: (ports >> 16) as u16, fields }
    }
}

/// Bytes of an ICMP header: type, code, checksum, and the identifier of an echo.
const ICMP_BYTES: usize = 8;

/// In place of a direction: do not count fragments, as another program has counted or will count this packet.
pub(crate) const UNCOUNTED: u8 = 0;

/// Returns the flow of a packet. Later fragments have the ports of the first one, and its protocol if an extension
/// header precedes the transport header. Never moves the packet.
#[inline(always)]
pub(crate) fn of<F: Family>(skb: Skb, ip: &F::Header, direction: u8) -> Result<Flow<F::Address>, Drop> {
    let upper = F::upper(skb, ip)?;
    let (source, destination) = (F::source(ip), F::destination(ip));
    let datagram = Datagram { source, destination, id: upper.id, protocol: upper.shared_protocol };
    let mut flow = Fields {
        sport: 0,
        dport: 0,
        protocol: upper.protocol,
        tcp_flags: 0,
        icmp: [0; 2],
        related: false,
        offset: upper.offset,
        piece: upper.piece,
    };
    if upper.piece != Piece::WHOLE && !F::tracks_fragments() {
        return Err(drop_here!(IP_FRAGMENTATION_NOT_SUPPORTED));
    }
    if upper.piece == Piece::LATER {
        if direction != UNCOUNTED {
            count(metric::FRAG_PACKET, direction, line!() as u16, skb.len());
        }
        let first = recall::<F>(&datagram);
        if first == UNKNOWN {
            return Err(drop_here!(FIRST_LOGICAL_DATAGRAM_FRAGMENT_NOT_FOUND));
        }
        let (sport, dport) = (first as u16, (first >> 16) as u16);
        flow.protocol = (first >> 32) as u8;
        if flow.protocol == F::ICMP {
            flow.icmp = [u16::from_be(dport) as u8, 0];
            set_icmp::<F>(&mut flow, sport);
        } else {
            (flow.sport, flow.dport) = (sport, dport);
        }
        return Ok(flow.pack(skb, source, destination));
    }
    match upper.protocol {
        TCP => {
            let Some(tcp) = skb.read::<[u16; 7]>(upper.offset) else {
                return Err(drop_here!(CT_TRUNCATED_OR_INVALID_HEADER));
            };
            (flow.sport, flow.dport, flow.tcp_flags) = (tcp[0], tcp[1], tcp[6].to_ne_bytes()[1]);
        }
        protocol if protocol == UDP || protocol == SCTP && enabled!(sctp) => {
            let Some(ports) = skb.read::<[u16; 2]>(upper.offset) else {
                return Err(drop_here!(CT_TRUNCATED_OR_INVALID_HEADER));
            };
            (flow.sport, flow.dport) = (ports[0], ports[1]);
        }
        protocol if protocol == F::ICMP => {
            let Some(message) = skb.read::<[u8; ICMP_BYTES]>(upper.offset) else {
                return Err(drop_here!(CT_TRUNCATED_OR_INVALID_HEADER));
            };
            flow.icmp = [message[0], message[1]];
            set_icmp::<F>(&mut flow, u16::from_ne_bytes([message[4], message[5]]));
        }
        _ if enabled!(extended_protocols) => {}
        _ => return Err(drop_here!(CT_UNKNOWN_L4_PROTOCOL)),
    }
    if upper.piece == Piece::FIRST {
        if direction != UNCOUNTED {
            count(metric::FRAG_PACKET, direction, line!() as u16, skb.len());
        }
        let ports = if flow.protocol == F::ICMP {
            // The type is stored in the port that an echo does not use, so that all fragments get the same verdict.
            [flow.sport | flow.dport, u16::from(flow.icmp[0]).to_be()]
        } else {
            [flow.sport, flow.dport]
        };
        remember::<F>(&datagram, flow.protocol, ports, direction, skb.len());
    }
    Ok(flow.pack(skb, source, destination))
}

/// Counts a fragment. A separate function: its stack does not add verifier states to the caller.
#[inline(never)]
fn count(reason: u8, direction: u8, line: u16, bytes: u32) -> i32 {
    metrics::count(reason, direction, FILE, line, bytes);
    0
}

/// Sets the ports of an ICMP message with a known type.
#[inline(always)]
fn set_icmp<F: Family>(flow: &mut Fields, identifier: u16) {
    let kind = flow.icmp[0];
    if kind == F::ECHO_REQUEST {
        flow.sport = identifier;
    } else if kind == F::ECHO_REPLY {
        flow.dport = identifier;
    } else {
        flow.related = F::is_error(kind);
    }
}

/// The properties that all fragments of a datagram share.
pub(crate) struct Datagram<A> {
    pub(crate) source: A,
    pub(crate) destination: A,
    /// Identification, in network byte order.
    pub(crate) id: u32,
    /// The next protocol in the header with the fragment offset: in IPv6 possibly that of the first extension header of
    /// the fragmentable part.
    pub(crate) protocol: u8,
}

/// Stores the ports of a first fragment for later ones, and the protocol if those do not have it. A full map is no
/// reason to drop the packet. A separate function, as [`count`].
#[inline(never)]
fn remember<F: Family>(
    datagram: &Datagram<F::Address>,
    protocol: u8,
    [sport, dport]: [u16; 2],
    direction: u8,
    bytes: u32,
) -> i32 {
    let key = F::fragment_key(datagram);
    let stored = match F::protocol_key(&key) {
        Some(key) => {
            let protocol = FragmentPorts { sport: u16::from(protocol), dport: 0 };
            F::fragments().insert(&key, &protocol).is_ok()
        }
        None => true,
    };
    if !stored || F::fragments().insert(&key, &FragmentPorts { sport, dport }).is_err() {
        metrics::count(metric::FRAG_PACKET_UPDATE, direction, FILE, line!() as u16, bytes);
    }
    0
}

/// Returns the ports of a later fragment, and its protocol in the upper half; [`UNKNOWN`] if the first one was not
/// seen. A separate function, as [`count`].
#[inline(never)]
fn recall<F: Family>(datagram: &Datagram<F::Address>) -> u64 {
    let key = F::fragment_key(datagram);
    let protocol = match F::protocol_key(&key) {
        Some(key) => match remembered::<F>(&key) {
            Some(row) => row.sport as u8,
            None => return UNKNOWN,
        },
        None => datagram.protocol,
    };
    match remembered::<F>(&key) {
        Some(ports) => u64::from(ports.sport) | u64::from(ports.dport) << 16 | u64::from(protocol) << 32,
        None => UNKNOWN,
    }
}

const UNKNOWN: u64 = u64::MAX;

#[inline(always)]
fn remembered<F: Family>(key: &F::FragmentKey) -> Option<&'static FragmentPorts> {
    // SAFETY: null or a row of the map, which outlives the program's run.
    unsafe { F::fragments().pointer(key).as_ref() }
}
