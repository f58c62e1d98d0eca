//! Random packets of clients and backends at a device: a node with XDP beside one without, where the same must become of
//! them. For tests with seeds and for a fuzz target.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use datapath_abi::mark::xdp_transfer::NO_SERVICE;
use datapath_abi::{
    DIRECT_ROUTING, MAGLEV_TEMPLATE_SIZE, MasqueradeAddresses, NodeConfig, Pod as Plain, PrefilterKey4,
    PrefilterKey6, before_services, direction, drop, dsr, ipv4_word, ipv6_words, lb_flag, lb_flag2,
};
use datapath_object::FROM_NETDEV;
use test_kit::NetNs;

use crate::entry::*;
use crate::kit::*;
use crate::l4::*;
use crate::packet::checksum;
use crate::random::{Choices, Piece, header, hops, transport as read_transport};
use crate::service::*;
use crate::uplink::UPLINK;

const ETHERNET: usize = 14;
/// The ports of clients, for which there are translations.
const CLIENTS: std::ops::Range<u16> = 50_000..50_008;
/// The distance between the ports of clients of two addresses: their packets to one backend keep their ports.
const STRIDE: u16 = 100;

/// How packets leave to backends of other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Route,
    Option,
    Ipip,
    Vxlan,
    Geneve,
}

impl Way {
    pub(crate) const ALL: [Self; 5] = [Self::Route, Self::Option, Self::Ipip, Self::Vxlan, Self::Geneve];

    fn config(self) -> NodeConfig {
        let (native, tunnel) = (native(), tunnel());
        let direct = |dsr_dispatch, config| NodeConfig { dsr: dsr::ALL, dsr_dispatch, ..config };
        let config = match self {
            Self::Route => native,
            Self::Option => direct(dsr::dispatch::OPTION, native),
            Self::Ipip => by_ipip(),
            Self::Vxlan => tunnel,
            Self::Geneve => direct(dsr::dispatch::GENEVE, NodeConfig { tunnel_geneve: 1, ..tunnel }),
        };
        NodeConfig {
            extended_protocols: 1,
            // A flow has the same backend on both nodes.
            maglev: 1,
            maglev_table_size: MAGLEV_TEMPLATE_SIZE,
            ..config
        }
    }

    /// True if replies of backends come by this node.
    pub(crate) fn has_replies(self) -> bool {
        matches!(self, Self::Route | Self::Vxlan)
    }
}

/// The frontend, and the clients that it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frontend {
    NodePort,
    LoadBalancer,
    ExternalIp,
    HostPort,
    ClusterIp,
    WithAffinity,
    /// Serves clients in [`Family::outside`]'s network alone.
    ForListed,
    /// Serves all other clients.
    ForUnlisted,
}

impl Frontend {
    pub(crate) const ALL: [Self; 8] = [
        Self::NodePort,
        Self::LoadBalancer,
        Self::ExternalIp,
        Self::HostPort,
        Self::ClusterIp,
        Self::WithAffinity,
        Self::ForListed,
        Self::ForUnlisted,
    ];

    fn flags(self) -> (u8, u8) {
        match self {
            Self::NodePort => (NODE_PORT, 0),
            Self::LoadBalancer => (lb_flag::LOAD_BALANCER | lb_flag::ROUTABLE, 0),
            Self::ExternalIp => (lb_flag::EXTERNAL_IP | lb_flag::ROUTABLE, 0),
            Self::HostPort => (lb_flag::HOST_PORT | lb_flag::ROUTABLE, 0),
            Self::ClusterIp => (0, 0),
            Self::WithAffinity => (NODE_PORT | lb_flag::SESSION_AFFINITY, 0),
            Self::ForListed => (NODE_PORT | lb_flag::SOURCE_RANGE, 0),
            Self::ForUnlisted => (NODE_PORT | lb_flag::SOURCE_RANGE, lb_flag2::QUARANTINED_OR_DENY),
        }
    }

    /// Whether packets of a client are dropped.
    fn denies(self, family: Family, client: IpAddr) -> bool {
        let is_listed = is_beside(client, family.outside());
        match self {
            Self::ClusterIp => true,
            Self::ForListed => !is_listed,
            Self::ForUnlisted => is_listed,
            _ => false,
        }
    }
}

/// Whether addresses are in one network: of 24 bits, of IPv6 of 64.
fn is_beside(one: IpAddr, other: IpAddr) -> bool {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => one.octets()[..3] == other.octets()[..3],
        (IpAddr::V6(one), IpAddr::V6(other)) => one.segments()[..4] == other.segments()[..4],
        _ => false,
    }
}

impl Family {
    /// A client of another network.
    fn stranger(self) -> IpAddr {
        if self == Self::V4 { [203, 0, 113, 77].into() } else { "2001:db8:7::77".parse().unwrap() }
    }

    /// A client in the network that the prefilter lists.
    fn banned(self) -> IpAddr {
        if self == Self::V4 { [198, 18, 5, 5].into() } else { "2001:db8:bad::5".parse().unwrap() }
    }
}

/// Returns a frame with random headers: most are for the frontend or replies of its backend.
pub(crate) fn random(choices: &mut impl Choices, way: Way, family: Family, own: u8) -> Vec<u8> {
    let mut below = |end: usize| choices.below(end);
    let protocol = [own, own, own, TCP, UDP, SCTP, family.icmp(), below(255) as u8][below(8)];
    let addresses = [
        family.outside(),
        family.outside(),
        family.outside(),
        family.stranger(),
        family.remote().ip(),
        family.b(0).ip(),
        family.host(0).ip(),
        family.banned(),
    ];
    let client = below(addresses.len());
    let port = CLIENTS.start + STRIDE * client as u16 + below(CLIENTS.len() + 2) as u16;
    let client = SocketAddr::new(addresses[client], port);
    let port = CLIENTS.start + below(CLIENTS.len() + 2) as u16;
    let router = if way == Way::Vxlan { family.router(port) } else { family.host(port) };
    let (source, destination) = match below(8) {
        0..=4 => (client, family.vip()),
        5 | 6 => (family.remote(), router),
        _ => (client, family.host(below(65_536) as u16)),
    };
    let flags = [SYN, ACK, SYN | ACK, below(256) as u8][below(4)];
    let mut payload = transport(source, destination, protocol, flags);
    if protocol == family.icmp() {
        // An error about a reply of the service, or about a translated request.
        let about = match below(2) {
            0 => segment(family.vip(), client, own, ACK),
            _ => segment(router, family.remote(), own, SYN),
        };
        payload = [&family.port_unreachable()[..], &[0; 6], &about].concat();
    }
    payload.truncate(payload.len() - [0, 0, below(64)][below(3)]);
    let id = below(16) as u16;
    let fragment =
        [(0, 0, false), (0, 0, false), (id, 0, true), (id, 3, true), (id, 0x1fff, false)][below(5)];
    let mut packet = ip_fragment(source.ip(), destination.ip(), protocol, fragment, &payload);
    if below(3) == 0 {
        extend(&mut packet, choices);
    }
    let mut below = |end: usize| choices.below(end);
    let mut frame = frame(DEVICE, ROUTER_MAC, &packet);
    for _ in 0..below(4) {
        // Seldom the addresses: most packets must still be for the node.
        let at = [below(ETHERNET + 12), below(frame.len())][below(2)];
        frame[at] = below(256) as u8;
    }
    match below(4) {
        0 => frame.truncate(ETHERNET + below(frame.len() - ETHERNET + 1)),
        1 => frame.extend(vec![0; below(20)]),
        _ => {}
    }
    frame
}

/// Inserts options of IPv4, or extension headers of IPv6.
fn extend(packet: &mut Vec<u8>, choices: &mut impl Choices) {
    if packet[0] >> 4 == 4 {
        let words = choices.below(11);
        packet.splice(20..20, (0..words * 4).map(|_| choices.below(256) as u8));
        packet[0] += words as u8;
        let (len, header) = (packet.len() as u16, 20 + words * 4);
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet[10..12].fill(0);
        let sum = checksum(&packet[..header]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        return;
    }
    const EXTENSIONS: [u8; 5] = [0, 43, 44, 51, 60];
    for _ in 0..choices.below(6) {
        let words = choices.below(3);
        let mut header = vec![packet[6], words as u8, choices.below(4) as u8, choices.below(256) as u8];
        header.resize(8 + words * 8, 0);
        packet[6] = EXTENSIONS[choices.below(5)];
        packet.splice(40..40, header);
        let len = (packet.len() - 40) as u16;
        packet[4..6].copy_from_slice(&len.to_be_bytes());
    }
}

/// The offset of the transport header in a frame; `None` for a later fragment, which has none.
fn transport_offset(frame: &[u8]) -> Option<usize> {
    let packet = &frame[ETHERNET..];
    if family_of(frame) == Family::V4 {
        let is_later = u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff != 0;
        return (!is_later).then_some(ETHERNET + usize::from(packet[0] & 15) * 4);
    }
    let (mut at, mut next) = (40, packet[6]);
    while let 0 | 43 | 44 | 51 | 60 = next {
        let header = &packet[at..];
        if next == 44 && u16::from_be_bytes([header[2], header[3]]) & 0xfff8 != 0 {
            return None;
        }
        at += match next {
            44 => 8,
            51 => (usize::from(header[1]) + 2) * 4,
            _ => (usize::from(header[1]) + 1) * 8,
        };
        next = header[0];
    }
    Some(ETHERNET + at)
}

/// Checks that only what a translation rewrites differs behind the Ethernet addresses: IP addresses, the hop limit, ports
/// and checksums. `lengths`: the length of the header may differ as well.
pub(crate) fn ensure_translated(frame: &[u8], out: &[u8], lengths: bool) -> Result<()> {
    let mut rewritten: Vec<usize> = match family_of(frame) {
        Family::V4 => [vec![22, 24, 25], (26..34).collect()].concat(),
        Family::V6 => [vec![21], (22..54).collect()].concat(),
    };
    if lengths {
        rewritten.extend(match family_of(frame) {
            Family::V4 => [14, 16, 17],
            Family::V6 => [18, 19, 20],
        });
    }
    if let Some(at) = transport_offset(frame) {
        // Ports, and the checksums of UDP and of TCP.
        rewritten.extend([0, 1, 2, 3, 6, 7, 16, 17].map(|byte| at + byte));
    }
    ensure!(frame.len() == out.len(), "{} bytes and not {}", out.len(), frame.len());
    let differs = (12..frame.len()).find(|at| frame[*at] != out[*at] && !rewritten.contains(at));
    ensure!(differs.is_none(), "the byte at {differs:?} differs");
    Ok(())
}

/// True for a packet to the clients' address, whatever version its header has.
fn is_to_client(family: Family, frame: &[u8]) -> bool {
    match family.outside() {
        IpAddr::V4(ip) => frame.get(30..34) == Some(&ip.octets()[..]),
        IpAddr::V6(ip) => frame.get(38..54) == Some(&ip.octets()[..]),
    }
}

fn family_of(frame: &[u8]) -> Family {
    if frame[12..ETHERNET] == [8, 0] { Family::V4 } else { Family::V6 }
}

/// Checks a frame that leaves by the device.
fn ensure_sent(way: Way, family: Family, frame: &[u8], out: &[u8]) -> Result<()> {
    let added = out.len() - frame.len();
    match way {
        _ if added == 0 => ensure_translated(frame, out, false),
        Way::Option => {
            ensure!(added == family.option_len(), "{added} bytes more");
            let at = ETHERNET + if family == Family::V4 { 20 } else { 40 };
            let option = family.option(family.vip(), frame[20]);
            ensure!(out[at..at + added] == option, "option {:02x?}", &out[at..at + added]);
            ensure_translated(frame, &[&out[..at], &out[at + added..]].concat(), true)
        }
        Way::Ipip => {
            ensure!(added == family.outer().1, "{added} bytes more");
            ensure_translated(frame, &[&frame[..ETHERNET], &out[ETHERNET + added..]].concat(), false)
        }
        // The inner frame begins behind Ethernet, IPv4, UDP and the header of the tunnel with its option.
        Way::Vxlan => {
            ensure!(added == 50, "{added} bytes more");
            ensure_translated(frame, &out[added..], false)
        }
        Way::Geneve => {
            let option = family.tunnel_option(family.vip());
            ensure!(added == 50 || added == 50 + option.len(), "{added} bytes more");
            ensure!(added == 50 || out[50..added] == option, "option {:02x?}", &out[50..added]);
            ensure_translated(frame, &out[added..], false)
        }
        Way::Route => anyhow::bail!("{added} bytes more"),
    }
}

/// A node with XDP and one without, with the same services.
pub(crate) struct Pair {
    way: Way,
    family: Family,
    protocol: u8,
    frontend: Frontend,
    ns: NetNs,
    with_xdp: Node,
    without: Node,
    /// The drops of the node with XDP so far.
    drops: Drops,
    /// The packets that both nodes have counted, by place, before those of a frontend.
    counted: BTreeMap<[u8; 8], u64>,
    /// Datagrams of which the node with XDP may not have the first fragment: there the program that XDP leaves it to, which
    /// does not run, would have kept its ports.
    unknown: BTreeSet<Vec<u8>>,
    pub(crate) counts: Counts,
}

/// Drops by reason and direction.
type Drops = BTreeMap<(u8, u8), u64>;

/// The numbers of packets at XDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) left: u64,
    pub(crate) local: u64,
    pub(crate) sent: u64,
    /// Those of [`Self::sent`] that are to clients.
    pub(crate) replies: u64,
    pub(crate) dropped: u64,
    /// Those of [`Self::dropped`] that the prefilter has to drop.
    pub(crate) banned: u64,
    /// Those that must not be served, whether XDP drops them or leaves them to the device's program.
    pub(crate) denied: u64,
}

impl Pair {
    /// Returns nodes with a backend here and one elsewhere, and translations of a packet of each client.
    pub(crate) fn new(way: Way, family: Family, protocol: u8) -> Result<Self> {
        let (remote, local) = (family.remote(), family.b(BACKEND_PORT));
        let (backends, config) = ([remote, local], way.config());
        let early = NodeConfig { before_services: before_services::XDP, xdp_prefilter: 1, ..config };
        let Entry { node: mut with_xdp, ns, .. } = Entry::new(&early, family, protocol, &backends)?;
        with_xdp.datapath.set_address(local.ip(), &Plain::zeroed())?;
        ban(&mut with_xdp.datapath, family)?;
        let mut without = Node::with(&config, family, protocol, &backends)?;
        let row = MasqueradeAddresses {
            ipv4: ipv4_word(HOST_V4),
            ipv6: ipv6_words(HOST_V6),
            ..MasqueradeAddresses::default()
        };
        without.datapath.put::<4, 64>("ep_masquerade", &DIRECT_ROUTING, &row)?;
        for node in [&mut with_xdp, &mut without] {
            node.datapath.add_host(family.router(0).ip())?;
            if matches!(way, Way::Vxlan | Way::Geneve) {
                let row = behind(REMOTE_IDENTITY, [192, 0, 2, 7].into(), 0);
                node.datapath.set_ipcache(remote.ip(), &row)?;
            }
            node.set_table(|position| position % backends.len())?;
            node.list_clients(family.outside(), if family == Family::V4 { 24 } else { 64 })?;
        }
        let (drops, counted, unknown) = (Drops::new(), BTreeMap::new(), BTreeSet::new());
        let (frontend, counts) = (Frontend::NodePort, Counts::default());
        Ok(Self { way, family, protocol, frontend, ns, with_xdp, without, drops, counted, unknown, counts })
    }

    /// Forgets all packets and numbers, and makes the frontend one of another kind.
    pub(crate) fn renew(&mut self, frontend: Frontend) -> Result<()> {
        let (family, protocol) = (self.family, self.protocol);
        self.counts = Counts::default();
        self.unknown.clear();
        for node in [&mut self.with_xdp, &mut self.without] {
            node.datapath.forget_flows()?;
            node.datapath.forget_translations()?;
            node.set_flags(NODE_PORT, 0)?;
        }
        self.frontend = Frontend::NodePort;
        let ns = self.ns.clone();
        ns.run(|| {
            CLIENTS.map(|port| SocketAddr::new(family.outside(), port)).try_for_each(|client| {
                let packet = segment(client, family.vip(), protocol, SYN);
                self.packet(&frame(DEVICE, ROUTER_MAC, &packet))
            })
        })?;
        let (flags, flags2) = frontend.flags();
        for node in [&mut self.with_xdp, &mut self.without] {
            match frontend {
                Frontend::WithAffinity => {
                    node.set_affinity(3600)?;
                    node.set_first_word(flags, 3600)?;
                }
                _ => node.set_flags(flags, flags2)?,
            }
        }
        self.frontend = frontend;
        self.drops = drops(&mut self.with_xdp.datapath)?;
        self.counted = self.counters()?;
        self.counts = Counts::default();
        Ok(())
    }

    /// Runs random packets of choices while `goes_on`.
    pub(crate) fn feed<C: Choices + Send>(
        &mut self,
        choices: &mut C,
        mut goes_on: impl FnMut(&C) -> bool + Send,
    ) -> Result<()> {
        let ns = self.ns.clone();
        ns.run(|| {
            while goes_on(choices) {
                self.packet(&random(choices, self.way, self.family, self.protocol))?;
            }
            Ok(())
        })
    }

    /// Runs a packet at both nodes, in the namespace with their routes.
    fn packet(&mut self, frame: &[u8]) -> Result<()> {
        self.compare(frame).with_context(|| format!("{:?} {frame:02x?}", self.frontend))
    }

    fn compare(&mut self, frame: &[u8]) -> Result<()> {
        let early = self.with_xdp.datapath.run_xdp(UPLINK, frame)?;
        let dropped = match early.verdict {
            XDP_DROP => Some(self.reason()?),
            _ => None,
        };
        if dropped == Some((drop::POLICY_DENIED, direction::INGRESS)) || self.is_banned(frame) {
            ensure!(dropped.is_some() && self.is_banned(frame), "the prefilter: {dropped:?} {early:02x?}");
            self.counts.banned += 1;
            self.counts.dropped += 1;
            return Ok(());
        }
        match (early.verdict, early.mark) {
            (XDP_DROP, _) => self.counts.dropped += 1,
            (XDP_PASS, 0) => {
                ensure!(early.packet == frame, "changed: {early:02x?}");
                self.counts.left += 1;
            }
            (XDP_PASS, NO_SERVICE) => {
                ensure_translated(frame, &early.packet, false).with_context(|| format!("{early:02x?}"))?;
                ensure!(early.packet[..12] == frame[..12], "{early:02x?}");
                self.counts.local += 1;
            }
            (XDP_TX, _) => {
                ensure_sent(self.way, self.family, frame, &early.packet)
                    .with_context(|| format!("{early:02x?}"))?;
                self.counts.sent += 1;
                self.counts.replies += u64::from(is_to_client(self.family, &early.packet));
            }
            _ => anyhow::bail!("{early:02x?}"),
        }
        let is_left = (early.verdict, early.mark) == (XDP_PASS, 0);
        let Some(ethernet) = frame.get(12..ETHERNET) else { return Ok(()) };
        let fixed = match ethernet {
            [8, 0] => 20,
            [0x86, 0xdd] => 40,
            _ => 1,
        };
        if frame.len() < ETHERNET + fixed {
            // The kernel refuses test runs of tc of such packets.
            ensure!(is_left, "{early:02x?}");
            return Ok(());
        }
        let before = dropped.map(|_| drops(&mut self.without.datapath)).transpose()?;
        let late = self.without.datapath.run(FROM_NETDEV, frame)?;
        let is_known = self.is_known(frame, is_left);
        let context = || format!("XDP {early:02x?}, tc {late:02x?}");
        if self.denies(frame) {
            self.counts.denied += 1;
            ensure!(matches!(early.verdict, XDP_DROP | XDP_PASS) && early.mark == 0, context());
            ensure!(late.verdict == SHOT, context());
        }
        if is_left || !is_known {
            return Ok(());
        }
        match (early.verdict, before) {
            (XDP_DROP, Some(before)) => {
                let reason = difference(&before, &drops(&mut self.without.datapath)?);
                ensure!((late.verdict, reason) == (SHOT, dropped), "{dropped:?} {reason:?} {}", context());
            }
            (XDP_PASS, _) => {
                ensure!((late.verdict, &late.packet) == (PASS, &early.packet), context());
            }
            _ => {
                let inner = self.inner(frame, &early.packet);
                let is_same = is_same(frame, &late.packet[ETHERNET..], inner);
                ensure!(late.verdict == REDIRECT && is_same, context());
            }
        }
        Ok(())
    }

    /// The packet within the outer headers of a frame that XDP sends.
    fn inner<'a>(&self, frame: &[u8], sent: &'a [u8]) -> &'a [u8] {
        let added = sent.len() - frame.len();
        match self.way {
            Way::Route | Way::Option => &sent[ETHERNET..],
            _ => &sent[ETHERNET + added..],
        }
    }

    /// Returns the reason of a drop at XDP, which must have been counted once.
    fn reason(&mut self) -> Result<(u8, u8)> {
        let now = drops(&mut self.with_xdp.datapath)?;
        let before = std::mem::replace(&mut self.drops, now);
        let reason = difference(&before, &self.drops).context("not counted as one drop")?;
        ensure!(drop::label(reason.0).is_some(), "reason {reason:?}");
        Ok(reason)
    }

    /// Whether the prefilter lists the sender.
    fn is_banned(&self, frame: &[u8]) -> bool {
        let source = match (self.family, frame.get(12..ETHERNET)) {
            (Family::V4, Some([8, 0])) if frame.len() >= ETHERNET + 20 => addresses_at(frame, 26, 4),
            (Family::V6, Some([0x86, 0xdd])) if frame.len() >= ETHERNET + 40 => addresses_at(frame, 22, 16),
            _ => return false,
        };
        is_beside(source, self.family.banned())
    }

    /// Whether it is for the frontend, of a client that this does not serve; `false` for what expires here, and for
    /// what has no ports that the programs read.
    fn denies(&self, frame: &[u8]) -> bool {
        let is_ipv4 = match &frame[12..ETHERNET] {
            [8, 0] => true,
            [0x86, 0xdd] => false,
            _ => return false,
        };
        let is_of_family = is_ipv4 == (self.family == Family::V4);
        if !is_of_family || hops(frame) <= 1 || !is_ipv4 && !is_readable(&frame[ETHERNET..]) {
            return false;
        }
        let Some(header) = header(&frame[ETHERNET..], is_ipv4) else { return false };
        let Some(transport) = read_transport(header.protocol, header.rest, is_ipv4) else { return false };
        let destination = SocketAddr::new(header.destination, transport.ports[1]);
        // The programs read no ports of a header that is cut.
        let len = if header.protocol == TCP { 20 } else { 8 };
        header.rest.len() >= len
            && header.piece != Piece::Later
            && (header.protocol, destination) == (self.protocol, self.family.vip())
            && self.frontend.denies(self.family, header.source)
    }

    /// Whether the node with XDP has all that it needs to know of a packet.
    fn is_known(&mut self, frame: &[u8], is_left: bool) -> bool {
        let is_ipv4 = self.family == Family::V4;
        let Some(header) = header(&frame[ETHERNET..], is_ipv4) else { return true };
        let datagram = format!("{:?}", header.datagram).into_bytes();
        match header.piece {
            Piece::Whole => true,
            Piece::First if is_left => self.unknown.insert(datagram),
            Piece::First => {
                self.unknown.remove(&datagram);
                true
            }
            Piece::Later => !self.unknown.contains(&datagram),
        }
    }

    /// Checks that no packet was counted as dropped that was not. Returns the places that have counted packets.
    pub(crate) fn end(&mut self) -> Result<BTreeSet<[u8; 8]>> {
        let now = drops(&mut self.with_xdp.datapath)?;
        ensure!(now == self.drops, "{now:?} and not {:?}", self.drops);
        let counters = self.counters()?;
        let new = |(place, packets): (_, u64)| (self.counted.get(&place) != Some(&packets)).then_some(place);
        Ok(counters.into_iter().filter_map(new).collect())
    }

    /// Returns the packets that both nodes have counted, by place.
    fn counters(&mut self) -> Result<BTreeMap<[u8; 8], u64>> {
        let mut counters = BTreeMap::new();
        for node in [&mut self.with_xdp, &mut self.without] {
            for (key, packets, _) in node.datapath.counters()? {
                let place = <[u8; 8]>::try_from(key.as_bytes())?;
                *counters.entry(place).or_default() += packets;
            }
        }
        Ok(counters)
    }
}

/// Whether an IPv6 packet has as few extension headers as the programs read, and is no fragment of a fragment: all others
/// are nothing to services, and the stack gets them as they are.
fn is_readable(packet: &[u8]) -> bool {
    const EXTENSIONS: usize = 4;
    let (mut at, mut chain) = (40, vec![packet[6]]);
    while let (Some(0 | 43 | 44 | 51 | 60), Some(&[next, len])) = (chain.last(), packet.get(at..at + 2)) {
        at += match chain.last() {
            Some(44) => 8,
            Some(51) => (usize::from(len) + 2) * 4,
            _ => (usize::from(len) + 1) * 8,
        };
        chain.push(next);
    }
    chain.len() <= EXTENSIONS + 1 && chain.iter().filter(|next| **next == 44).count() <= 1
}

fn addresses_at(frame: &[u8], at: usize, len: usize) -> IpAddr {
    match <[u8; 4]>::try_from(&frame[at..at + len]) {
        Ok(ipv4) => ipv4.into(),
        Err(_) => <[u8; 16]>::try_from(&frame[at..at + len]).unwrap().into(),
    }
}

/// Whether packets are the same; the source port, where both have another than the client's, need not be.
fn is_same(frame: &[u8], one: &[u8], other: &[u8]) -> bool {
    if one == other {
        return true;
    }
    let Some(at) = transport_offset(frame).map(|at| at - ETHERNET) else { return false };
    let is_moved = |packet: &[u8]| packet.get(at..at + 2) != frame.get(ETHERNET + at..ETHERNET + at + 2);
    let moving = [0, 1, 6, 7, 16, 17].map(|byte| at + byte);
    one.len() == other.len()
        && is_moved(one)
        && is_moved(other)
        && (0..one.len()).all(|at| one[at] == other[at] || moving.contains(&at))
}

/// Returns the reason that one more packet was dropped for.
fn difference(before: &Drops, after: &Drops) -> Option<(u8, u8)> {
    let more = |reason: &(u8, u8)| after[reason] - before.get(reason).copied().unwrap_or_default();
    let changed: Vec<_> = after.keys().filter(|reason| more(reason) > 0).collect();
    match changed[..] {
        [reason] if more(reason) == 1 => Some(*reason),
        _ => None,
    }
}

fn drops(datapath: &mut Datapath) -> Result<Drops> {
    let mut drops = Drops::new();
    for (key, packets, _) in datapath.counters()?.into_iter().filter(|(key, ..)| key.is_drop()) {
        *drops.entry((key.reason, key.dir)).or_default() += packets;
    }
    Ok(drops)
}

/// Lists a network in the prefilter.
fn ban(datapath: &mut Datapath, family: Family) -> Result<()> {
    match family.banned() {
        IpAddr::V4(ip) => {
            let key = PrefilterKey4 { prefixlen: 24, address: ipv4_word(ip) };
            datapath.put_prefix::<4>("cilium_cidr_v4_dyn", 24, &key)
        }
        IpAddr::V6(ip) => {
            let key = PrefilterKey6 { prefixlen: 64, address: ipv6_words(ip) };
            datapath.put_prefix::<16>("cilium_cidr_v6_dyn", 64, &key)
        }
    }
}
