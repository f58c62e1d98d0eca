//! Random packets from pod A to pod B at the hooks of tc, and the model of what may become of them: for tests with seeds and
//! for a fuzz target.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result, ensure};
use datapath_abi::{MetricsKey, NodeConfig, PolicyKey, drop, identity};
use datapath_object::{
    FROM_CONTAINER, FROM_HOST, FROM_NETDEV, FROM_OVERLAY, TO_CONTAINER, TO_HOST, TO_NETDEV, TO_OVERLAY,
};

use crate::kit::*;
use crate::packet::*;

const ETHERNET: usize = 14;
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
/// That of a pod of another node.
const IDENTITY: u32 = 4711;
pub(crate) const HOOKS: [&str; 8] =
    [FROM_CONTAINER, TO_CONTAINER, FROM_NETDEV, TO_NETDEV, FROM_OVERLAY, TO_OVERLAY, FROM_HOST, TO_HOST];
/// Ports of packets and of rows of policy; types of ICMP, too.
const PORTS: [u16; 8] = [0, 3, 8, 53, 80, 81, 128, 5000];

/// A source of choices: the numbers of a seed, or the bytes of an input.
pub(crate) trait Choices {
    /// Returns a number below `end`, at most 65,536.
    fn below(&mut self, end: usize) -> usize;
}

/// A generator of numbers (Knuth's constants), the same in each run.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }
}

impl Choices for Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Returns the configurations by name.
pub(crate) fn configurations() -> [(&'static str, NodeConfig); 3] {
    [
        ("by the stack", default_config()),
        ("by the programs", host_routing_config()),
        ("by the tunnel", tunnel_config()),
    ]
}

/// Returns a frame of pod A to pod B whose headers are random within a valid beginning.
pub(crate) fn packet(choices: &mut impl Choices) -> Vec<u8> {
    let mut byte = |end: usize| choices.below(end) as u8;
    let protocol = [6, 17, 1, 58, 132, byte(255)][usize::from(byte(6))];
    let mut payload: Vec<u8> = (0..byte(64)).map(|_| byte(255)).collect();
    // Half of the packets have ports, or types of ICMP, that rows of policy name.
    if byte(2) == 0 && payload.len() >= 4 {
        let [first, second] = [0, 1].map(|_| PORTS[usize::from(byte(PORTS.len()))]);
        let kind = [first as u8, byte(5)];
        payload[..2].copy_from_slice(&if matches!(protocol, 1 | 58) { kind } else { first.to_be_bytes() });
        payload[2..4].copy_from_slice(&second.to_be_bytes());
    }
    let mut frame = if byte(2) == 0 {
        let words = [u16::from(byte(4)), [0, 0, 0x2000, 3, 0x1fff][usize::from(byte(5))]];
        let packet = ipv4_with(A.ipv4, B.ipv4, 64, protocol, words, &payload);
        eth(A.node_mac, A.mac, 0x0800, &packet)
    } else {
        const EXTENSIONS: [u8; 5] = [0, 43, 44, 51, 60];
        let (mut next, mut chain) = (protocol, payload);
        for _ in 0..byte(6) {
            let extension = EXTENSIONS[usize::from(byte(5))];
            let header = [next, byte(3), byte(4), byte(255), 0, 0, 0, byte(8)];
            chain.splice(0..0, header);
            next = extension;
        }
        ip(IpAddr::from(A.ipv6), B.ipv6.into(), next, &chain)
    };
    for _ in 0..byte(4) {
        let at = ETHERNET + usize::from(byte(24)) % (frame.len() - ETHERNET);
        frame[at] = byte(255);
    }
    if byte(3) == 0 {
        // The kernel refuses test runs of less than the fixed header.
        let fixed = ETHERNET + if is_ipv4(&frame) { IPV4_HEADER } else { IPV6_HEADER };
        frame.truncate(fixed + usize::from(byte(255)) % (frame.len() - fixed + 1));
    }
    frame
}

/// Returns rows of policy for what pod B receives ([`IN`]) or pod A sends ([`OUT`]), with everything open the other way.
pub(crate) fn policy(direction: u8, choices: &mut impl Choices) -> Vec<PolicyRow> {
    let (open, other) = if direction == IN { (ALLOW_ALL[0], A) } else { (ALLOW_ALL[1], B) };
    let mut rows = vec![open];
    for _ in 0..choices.below(7) {
        let peer = [0, 0, other.identity, IDENTITY][choices.below(4)];
        let protocol = [0, 6, 17, 1, 58, 132][choices.below(6)];
        let bits = [16, 16, 16, 12, 8, 1][choices.below(6)];
        // Bits that are wildcards are zero.
        let port = PORTS[choices.below(PORTS.len())] & (u16::MAX << (16 - bits));
        let port = (choices.below(3) > 0).then_some((port, bits as u8));
        let priority = choices.below(3) as u32;
        let kind = if choices.below(3) == 0 { Kind::Deny(priority) } else { Kind::Allow(priority) };
        rows.push(row(direction, peer, protocol, port, kind));
    }
    rows
}

fn is_ipv4(frame: &[u8]) -> bool {
    frame[12..ETHERNET] == [0x08, 0]
}

pub(crate) fn hops(frame: &[u8]) -> u8 {
    frame[if is_ipv4(frame) { 22 } else { 21 }]
}

/// The part of a datagram in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Whole,
    First,
    Later,
}

/// The properties that all fragments of a datagram share.
pub(crate) type Datagram = (IpAddr, IpAddr, u32, u8);

/// An IP header with its extensions, of any number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header<'a> {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) piece: Piece,
    pub(crate) datagram: Datagram,
    /// The packet after the headers.
    pub(crate) rest: &'a [u8],
}

/// Reads a header as receivers do; `None` for one that is cut.
pub(crate) fn header(packet: &[u8], is_ipv4: bool) -> Option<Header<'_>> {
    let word = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
    if is_ipv4 {
        let address = |at: usize| -> Option<IpAddr> {
            Some(Ipv4Addr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?).into())
        };
        let (source, destination, protocol) = (address(12)?, address(16)?, packet[9]);
        let piece = match (word(6)? & 0x1fff, word(6)? & 0x2000) {
            (0, 0) => Piece::Whole,
            (0, _) => Piece::First,
            _ => Piece::Later,
        };
        let len = (usize::from(packet[0] & 15) * 4).max(IPV4_HEADER);
        let rest = match piece {
            // The ports of later fragments are those of the first one, wherever their headers end.
            Piece::Later => packet.get(len..).unwrap_or_default(),
            _ => packet.get(len..)?,
        };
        let datagram = (source, destination, word(4)?.into(), protocol);
        return Some(Header { source, destination, protocol, piece, datagram, rest });
    }
    let address = |at: usize| -> Option<IpAddr> {
        Some(Ipv6Addr::from(<[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?).into())
    };
    let (source, destination) = (address(8)?, address(24)?);
    let (mut protocol, mut at, mut piece) = (packet[6], IPV6_HEADER, Piece::Whole);
    let mut datagram = (source, destination, 0, 0);
    while piece != Piece::Later {
        let len = match protocol {
            44 => {
                let (offset, shared) = (word(at + 2)?, *packet.get(at)?);
                piece = match (offset & 0xfff8, offset & 1) {
                    (0, 0) => piece,
                    (0, _) => Piece::First,
                    _ => Piece::Later,
                };
                let id = u32::from(word(at + 4)?) << 16 | u32::from(word(at + 6)?);
                datagram = (source, destination, id, shared);
                8
            }
            51 => (usize::from(*packet.get(at + 1)?) + 2) * 4,
            0 | 43 | 60 => (usize::from(*packet.get(at + 1)?) + 1) * 8,
            _ => break,
        };
        protocol = *packet.get(at)?;
        at += len;
    }
    Some(Header { source, destination, protocol, piece, datagram, rest: packet.get(at..)? })
}

/// A connection as one of its packets has it: of ICMP the identifiers of echoes are the ports.
type Flow = (IpAddr, IpAddr, u8, [u16; 2]);

/// The part of a transport header that decides: protocol, type and code of ICMP, ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transport {
    protocol: u8,
    icmp: Option<[u8; 2]>,
    pub(crate) ports: [u16; 2],
}

/// Reads a transport header; `None` for one that is cut.
pub(crate) fn transport(protocol: u8, rest: &[u8], is_ipv4: bool) -> Option<Transport> {
    let word = |at: usize| Some(u16::from_be_bytes([*rest.get(at)?, *rest.get(at + 1)?]));
    let (request, reply, icmp) = if is_ipv4 { (8, 0, 1) } else { (128, 129, 58) };
    Some(match protocol {
        6 | 17 | 132 => Transport { protocol, icmp: None, ports: [word(0)?, word(2)?] },
        _ if protocol == icmp => {
            let (kind, identifier) = ([*rest.first()?, *rest.get(1)?], word(4)?);
            let ports = match kind[0] {
                kind if kind == request => [identifier, 0],
                kind if kind == reply => [0, identifier],
                _ => [0, 0],
            };
            Transport { protocol, icmp: Some(kind), ports }
        }
        _ => Transport { protocol, icmp: None, ports: [0, 0] },
    })
}

/// The model of the policies of both pods: an upper bound of the packets that pod A sends to pod B, and of those that pod B
/// receives.
struct Model {
    /// The rows of pod A, then those of pod B.
    rows: [Vec<PolicyRow>; 2],
    /// The flows of all packets so far.
    flows: HashSet<Flow>,
    /// The transport headers of all first fragments so far.
    firsts: HashMap<Datagram, Vec<Transport>>,
}

impl Model {
    /// Adds a packet to those that later ones may belong to.
    fn add(&mut self, frame: &[u8]) {
        let is_ipv4 = is_ipv4(frame);
        let Some(header) = header(&frame[ETHERNET..], is_ipv4) else { return };
        if header.piece == Piece::First
            && let Some(transport) = transport(header.protocol, header.rest, is_ipv4)
        {
            self.firsts.entry(header.datagram).or_default().push(transport);
        }
        for Transport { protocol, ports, .. } in self.transports(&header, is_ipv4) {
            self.flows.insert((header.source, header.destination, protocol, ports));
        }
    }

    /// Returns the transport header of a packet: of a later fragment those that the first one may have had.
    fn transports(&self, header: &Header<'_>, is_ipv4: bool) -> Vec<Transport> {
        match header.piece {
            Piece::Later => self.firsts.get(&header.datagram).cloned().unwrap_or_default(),
            _ => transport(header.protocol, header.rest, is_ipv4).into_iter().collect(),
        }
    }

    /// Whether a packet may leave pod A for a peer, or reach pod B from a peer; `true` for packets to others than pod B.
    fn allows(&self, direction: u8, peer: u32, frame: &[u8]) -> bool {
        let is_ipv4 = is_ipv4(frame);
        let (at, address) =
            if is_ipv4 { (30, B.ipv4.octets().to_vec()) } else { (38, B.ipv6.octets().to_vec()) };
        if frame.get(at..at + address.len()) != Some(&address[..]) {
            return true;
        }
        let Some(header) = header(&frame[ETHERNET..], is_ipv4) else { return false };
        self.transports(&header, is_ipv4).iter().any(|transport| {
            let [sport, dport] = transport.ports;
            let reply = (header.destination, header.source, transport.protocol, [dport, sport]);
            self.permits(direction, peer, transport, is_ipv4)
                || self.flows.contains(&reply)
                || self.is_related(transport, &header, is_ipv4)
        })
    }

    /// Whether it is an ICMP error about a packet of a known flow, whichever way that went.
    fn is_related(&self, error: &Transport, header: &Header<'_>, is_ipv4: bool) -> bool {
        let is_error = |kind: u8| if is_ipv4 { matches!(kind, 3 | 4 | 5 | 11 | 12) } else { kind <= 4 };
        if !error.icmp.is_some_and(|[kind, _]| is_error(kind)) {
            return false;
        }
        let quoted = header.rest.get(8..).and_then(|packet| self::header(packet, is_ipv4));
        let Some(quoted) = quoted else { return false };
        self.transports(&quoted, is_ipv4).iter().any(|transport| {
            let (source, destination) = (quoted.source, quoted.destination);
            let [sport, dport] = transport.ports;
            self.flows.contains(&(source, destination, transport.protocol, [sport, dport]))
                || self.flows.contains(&(destination, source, transport.protocol, [dport, sport]))
        })
    }

    /// Whether the rows permit the packet: of those of the peer and of those of all peers the one with the longest prefix
    /// counts, of both that of the higher precedence, then that of the longer prefix, then that of the peer.
    fn permits(&self, direction: u8, peer: u32, transport: &Transport, is_ipv4: bool) -> bool {
        // A demand for smaller packets passes any policy.
        if is_ipv4 && transport.icmp == Some([3, 4]) {
            return true;
        }
        let port = transport.icmp.map_or(transport.ports[1], |[kind, _]| kind.into());
        let matches = |key: &PolicyKey, label: u32| {
            let bits = key.prefixlen - PolicyKey::STATIC_BITS;
            let port_bits = bits.saturating_sub(8);
            let differs = u32::from(port ^ u16::from_be(key.dport)) >> (16 - port_bits);
            key.egress == direction
                && key.sec_label == label
                && (bits == 0 || key.protocol == transport.protocol)
                && differs == 0
        };
        // The last of equal keys is the one in the map.
        let longest = |label: u32| {
            let rows = self.rows[usize::from(direction == IN)].iter();
            rows.filter(|(key, _)| matches(key, label)).max_by_key(|(key, _)| key.prefixlen)
        };
        let winner = longest(0).into_iter().chain(longest(peer));
        let winner = winner.max_by_key(|(key, entry)| (entry.precedence, key.prefixlen));
        winner.is_some_and(|(_, entry)| !entry.deny())
    }
}

/// Whether a frame cannot be parsed as far as the ports: a pod's packet of that kind must be dropped.
fn is_cut(frame: &[u8]) -> bool {
    let packet = &frame[ETHERNET..];
    let needed = |protocol: u8| match protocol {
        6 | 17 => 4,
        _ => 0,
    };
    if is_ipv4(frame) {
        let header = usize::from(packet[0] & 15) * 4;
        let is_first = packet.len() >= 8 && u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff == 0;
        packet.len() < 20 || is_first && packet.len() < header.max(20) + needed(packet[9])
    } else {
        packet.len() < 40 || packet.len() < 40 + needed(packet[6])
    }
}

/// Whether only what forwarding rewrites differs: addresses of Ethernet, the hop limit and the header's checksum.
fn is_forwarded(frame: &[u8], out: &[u8]) -> bool {
    let rewritten: &[usize] = if is_ipv4(frame) { &[22, 24, 25] } else { &[21] };
    frame.len() == out.len() && (12..frame.len()).all(|at| frame[at] == out[at] || rewritten.contains(&at))
}

/// Whether the hop limit is exceeded and the packet that leaves is an ICMP error to the sender.
fn is_expired(frame: &[u8], out: &[u8]) -> bool {
    // Hop limit, protocol, source and destination, from the beginning of the frame.
    let (hops, protocol, source, destination, icmp) =
        if is_ipv4(frame) { (22, 23, 26..30, 30..34, 1) } else { (21, 20, 22..38, 38..54, 58) };
    frame[hops] <= 1
        && out.len() > destination.end
        && out[protocol] == icmp
        && out[destination] == frame[source]
}

/// Packets at a hook, each compared with the model.
pub(crate) struct Feed<'a> {
    datapath: &'a mut Datapath,
    peer: &'a Peer,
    hook: &'static str,
    /// Whether pod B's policy decides on packets to it that are not dropped.
    is_enforced: bool,
    model: Model,
    before: Vec<(MetricsKey, u64, u64)>,
    pub(crate) counts: Counts,
}

/// The numbers of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) dropped: u64,
    /// Those that must be dropped as they cannot be parsed.
    pub(crate) cut: u64,
    /// Those that must be dropped as pod B's policy denies them.
    pub(crate) denied: u64,
    /// Those that must be dropped as pod A's policy denies them, whatever that of pod B is.
    pub(crate) denied_to_sender: u64,
}

impl<'a> Feed<'a> {
    /// Forgets earlier flows and gives both pods their rows: pod A's, then pod B's.
    pub(crate) fn new(
        datapath: &'a mut Datapath,
        peer: &'a Peer,
        config: &NodeConfig,
        hook: &'static str,
        rows: [Vec<PolicyRow>; 2],
    ) -> Result<Self> {
        datapath.forget_flows()?;
        for (pod, rows) in [A, B].iter().zip(&rows) {
            datapath.set_policy(pod, rows)?;
        }
        let before = datapath.counters()?;
        // Where the stack routes, it gives packets of devices to another hook.
        let is_enforced = match hook {
            FROM_CONTAINER | FROM_OVERLAY | FROM_HOST => true,
            FROM_NETDEV => config.host_routing != 0,
            _ => false,
        };
        let model = Model { rows, flows: HashSet::new(), firsts: HashMap::new() };
        Ok(Self { datapath, peer, hook, is_enforced, model, before, counts: Counts::default() })
    }

    /// Runs a packet and checks that it is forwarded with the fields of forwarding changed alone, answered as expired, or
    /// dropped, and that it does not pass where the model denies it.
    pub(crate) fn packet(&mut self, frame: &[u8]) -> Result<()> {
        let outcome = match self.hook {
            FROM_OVERLAY => self.peer.sends(self.datapath, IDENTITY, frame),
            hook => self.datapath.run(hook, frame),
        }
        .with_context(|| format!("{frame:02x?}"))?;
        let is_dropped = outcome.verdict == SHOT;
        let expired = is_expired(frame, &outcome.packet);
        let is_well = is_dropped || expired || is_forwarded(frame, &outcome.packet);
        ensure!(is_well, "{frame:02x?} {outcome:02x?}");
        if self.hook == FROM_CONTAINER && is_cut(frame) {
            self.counts.cut += 1;
            ensure!(is_dropped, "cut: {frame:02x?} {outcome:02x?}");
        }
        let is_denied = self.is_enforced && !self.model.allows(IN, self.identity(frame), frame);
        let is_denied_to_sender = self.hook == FROM_CONTAINER && !self.model.allows(OUT, B.identity, frame);
        self.counts.denied += u64::from(is_denied);
        self.counts.denied_to_sender += u64::from(is_denied_to_sender);
        if is_denied || is_denied_to_sender {
            // The stack forwards no packet at its last hop.
            let is_last = self.hook == FROM_NETDEV && outcome.verdict == PASS && hops(frame) <= 1;
            ensure!(
                is_dropped || expired || is_last,
                "denied: {:x?} {frame:02x?} {outcome:02x?}",
                self.model.rows
            );
        }
        self.model.add(frame);
        *if is_dropped { &mut self.counts.dropped } else { &mut self.counts.passed } += 1;
        Ok(())
    }

    /// The identity of the sender, as far as rows name it.
    fn identity(&self, frame: &[u8]) -> u32 {
        match (self.hook, header(&frame[ETHERNET..], is_ipv4(frame)).map(|header| header.source)) {
            (FROM_CONTAINER, _) => A.identity,
            (FROM_OVERLAY, _) => IDENTITY,
            (_, Some(source)) if [IpAddr::from(A.ipv4), A.ipv6.into()].contains(&source) => A.identity,
            _ => identity::WORLD,
        }
    }

    /// Checks that each drop was counted, for a reason that has a name. Returns the numbers, and the places that counted.
    pub(crate) fn end(self) -> Result<(Counts, BTreeSet<[u8; 8]>)> {
        let before: HashMap<[u8; 8], u64> =
            self.before.iter().map(|(key, packets, _)| (bytes(key), *packets)).collect();
        let (mut counted, mut places) = (0, BTreeSet::new());
        for (key, packets, _) in self.datapath.counters()? {
            let new = packets - before.get(&bytes(&key)).copied().unwrap_or_default();
            if new == 0 {
                continue;
            }
            places.insert(bytes(&key));
            if key.is_drop() {
                counted += new;
                ensure!(drop::label(key.reason).is_some(), "reason {} at {}", key.reason, key.line);
            }
        }
        let dropped = self.counts.dropped;
        ensure!(counted == dropped, "{dropped} dropped, {counted} counted");
        Ok((self.counts, places))
    }
}

fn bytes(key: &MetricsKey) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(datapath_abi::Pod::as_bytes(key));
    bytes
}
