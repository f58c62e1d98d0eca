//! Random headers, options, fragments and cut packets at XDP, with a service and with translations of earlier packets: in
//! each form in which packets leave.

use crate::kit::*;
use crate::l4::*;
use crate::nodeport::*;
use crate::packet::{checksum, eth};
use crate::random::{Choices as _, Numbers};
use crate::service::*;
use crate::uplink::UPLINK;
use crate::xdp::{Entry, XDP_TX};
use anyhow::{Context as _, Result, ensure};
use datapath_abi::mark::xdp_transfer::NO_SERVICE;
use datapath_abi::{NodeConfig, Pod as Plain, before_services, dsr};
use std::net::{IpAddr, SocketAddr};

const ETHERNET: usize = 14;
const ROUNDS: usize = 1000;
const SEEDS: u64 = 2;
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
/// The ports of clients, for which there are translations.
const CLIENTS: std::ops::Range<u16> = 50_000..50_008;

/// How packets leave to backends of other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Route,
    Option,
    Ipip,
    Vxlan,
    Geneve,
}

impl Way {
    fn config(self) -> NodeConfig {
        let (native, tunnel) = (crate::nodeport_remote::native(), crate::nodeport_remote::tunnel());
        let direct = |dsr_dispatch, config| NodeConfig { dsr: dsr::ALL, dsr_dispatch, ..config };
        let config = match self {
            Self::Route => native,
            Self::Option => direct(dsr::dispatch::OPTION, native),
            Self::Ipip => direct(dsr::dispatch::IPIP, native),
            Self::Vxlan => tunnel,
            Self::Geneve => direct(dsr::dispatch::GENEVE, NodeConfig { tunnel_geneve: 1, ..tunnel }),
        };
        NodeConfig { before_services: before_services::XDP, extended_protocols: 1, ..config }
    }

    /// True if replies of backends come by this node, and not in a tunnel.
    fn has_replies(self) -> bool {
        self == Self::Route
    }
}

/// A node with a backend here and one elsewhere, and translations of a packet of each client.
fn node(way: Way, family: Family, protocol: u8) -> Result<Entry> {
    let (remote, local) = (family.remote(), family.b(BACKEND_PORT));
    let mut entry = Entry::new(&way.config(), family, protocol, &[remote])?;
    entry.node.datapath.set_address(local.ip(), &Plain::zeroed())?;
    if matches!(way, Way::Vxlan | Way::Geneve) {
        let row = behind(REMOTE_IDENTITY, [192, 0, 2, 7].into(), 0);
        entry.node.datapath.set_ipcache(remote.ip(), &row)?;
    }
    // Which client has which backend is no matter of chance.
    for (port, backend) in CLIENTS.zip([remote, local].into_iter().cycle()) {
        entry.node.set_backends(&[backend])?;
        entry.node.set_flags(NODE_PORT, 0)?;
        entry.arrive(&segment(SocketAddr::new(family.outside(), port), family.vip(), protocol, SYN))?;
    }
    entry.node.set_backends(&[remote, local])?;
    entry.node.set_flags(NODE_PORT, 0)?;
    Ok(entry)
}

/// Returns a frame with random headers: most are for the frontend or replies of its backend.
fn random(numbers: &mut Numbers, way: Way, family: Family, own: u8) -> Vec<u8> {
    let mut below = |end: usize| numbers.below(end);
    let protocol = [own, own, own, TCP, UDP, SCTP, family.icmp(), below(255) as u8][below(8)];
    let client = SocketAddr::new(family.outside(), CLIENTS.start + below(CLIENTS.len() + 2) as u16);
    let router = if way == Way::Vxlan { family.router(client.port()) } else { family.host(client.port()) };
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
    let fragment = [(0, 0, false), (0, 0, false), (7, 0, true), (7, 3, true), (7, 0x1fff, false)][below(5)];
    let mut packet = ip_fragment(source.ip(), destination.ip(), protocol, fragment, &payload);
    if below(3) == 0 {
        extend(&mut packet, &mut below);
    }
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
fn extend(packet: &mut Vec<u8>, below: &mut impl FnMut(usize) -> usize) {
    if packet[0] >> 4 == 4 {
        let words = below(11);
        packet.splice(20..20, (0..words * 4).map(|_| below(256) as u8));
        packet[0] += words as u8;
        let (len, header) = (packet.len() as u16, 20 + words * 4);
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet[10..12].fill(0);
        let sum = checksum(&packet[..header]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        return;
    }
    const EXTENSIONS: [u8; 5] = [0, 43, 44, 51, 60];
    for _ in 0..below(6) {
        let words = below(3);
        let mut header = vec![packet[6], words as u8, below(4) as u8, below(256) as u8];
        header.resize(8 + words * 8, 0);
        packet[6] = EXTENSIONS[below(5)];
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
fn ensure_translated(frame: &[u8], out: &[u8], lengths: bool) -> Result<()> {
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

fn dropped(entry: &mut Entry) -> Result<u64> {
    let drops = entry.node.datapath.counters()?.into_iter().filter(|(key, ..)| key.is_drop());
    Ok(drops.map(|(_, packets, _)| packets).sum())
}

/// No run is aborted, each drop is counted, a packet that is passed on is unchanged or translated, and of one that leaves
/// nothing is written but the fields of a translation and the header that its way needs.
#[test]
fn random_packets_at_xdp_are_passed_on_sent_or_counted() -> Result<()> {
    test_kit::require_root!();
    let slice = test_kit::Slice::of(SEEDS);
    for seed in (0..SEEDS).filter(|seed| slice.covers(*seed)) {
        for way in [Way::Route, Way::Option, Way::Ipip, Way::Vxlan, Way::Geneve] {
            for (family, protocol) in
                FAMILIES.into_iter().zip(if seed % 2 == 0 { [TCP, UDP] } else { [UDP, TCP] })
            {
                feed(way, family, protocol, seed)
                    .with_context(|| format!("{way:?} {family:?} {protocol}, seed {seed}"))?;
            }
        }
    }
    Ok(())
}

fn feed(way: Way, family: Family, protocol: u8, seed: u64) -> Result<()> {
    let mut numbers = Numbers::new(seed);
    let mut entry = node(way, family, protocol)?;
    let before = dropped(&mut entry)?;
    let (mut drops, mut left, mut local, mut sent, mut replies) = (0, 0, 0, 0, 0);
    for _ in 0..ROUNDS {
        let frame = random(&mut numbers, way, family, protocol);
        let outcome = entry
            .ns
            .run(|| entry.node.datapath.run_xdp(UPLINK, &frame))
            .with_context(|| format!("{frame:02x?}"))?;
        let context = || format!("{frame:02x?} {outcome:02x?}");
        match (outcome.verdict, outcome.mark) {
            (XDP_DROP, _) => drops += 1,
            (XDP_PASS, 0) => {
                ensure!(outcome.packet == frame, context());
                left += 1;
            }
            (XDP_PASS, NO_SERVICE) => {
                ensure_translated(&frame, &outcome.packet, false).with_context(context)?;
                ensure!(outcome.packet[..12] == frame[..12], context());
                local += 1;
            }
            (XDP_TX, _) => {
                ensure_sent(way, family, &frame, &outcome.packet).with_context(context)?;
                sent += 1;
                replies += u64::from(is_to_client(family, &outcome.packet));
            }
            _ => anyhow::bail!(context()),
        }
    }
    let counted = dropped(&mut entry)? - before;
    ensure!(counted == drops, "{drops} dropped, {counted} counted");
    let enough = left > 100 && local > 20 && sent > 20 && (replies > 5) == way.has_replies();
    ensure!(enough, "{left} left, {local} local, {sent} sent, {replies} replies, {drops} dropped");
    Ok(())
}

/// The control: a check that finds nothing would pass anything.
#[test]
fn a_byte_outside_of_the_translation_is_found() {
    let family = Family::V4;
    let packet = segment(SocketAddr::new(family.outside(), 1), family.vip(), TCP, SYN);
    let frame = eth(DEVICE, ROUTER_MAC, 0x0800, &packet);
    let differing = |at: usize| {
        let mut out = frame.clone();
        out[at] ^= 1;
        ensure_translated(&frame, &out, false).is_err()
    };
    let found: Vec<usize> = (0..54).filter(|at| differing(*at)).collect();
    let expected: Vec<usize> = [12..22, 23..24, 38..40, 42..50, 52..54].into_iter().flatten().collect();
    assert_eq!(found, expected);
}
