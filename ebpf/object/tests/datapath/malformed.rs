//! Random headers, options, chains of extension headers, fragments and cut packets at every hook of tc.

use crate::kit::*;
use crate::packet::*;
use crate::xdp::Numbers;
use anyhow::{Context as _, Result, ensure};
use datapath_object::{
    FROM_CONTAINER, FROM_HOST, FROM_NETDEV, FROM_OVERLAY, TO_CONTAINER, TO_HOST, TO_NETDEV, TO_OVERLAY,
};
use std::net::IpAddr;

const ETHERNET: usize = 14;
const ROUNDS: usize = 2000;
const SEEDS: u64 = 8;
/// That of a pod of another node.
const IDENTITY: u32 = 4711;
const HOOKS: [&str; 8] =
    [FROM_CONTAINER, TO_CONTAINER, FROM_NETDEV, TO_NETDEV, FROM_OVERLAY, TO_OVERLAY, FROM_HOST, TO_HOST];

/// Returns a frame of pod A to pod B whose headers are random within a valid beginning.
fn random(numbers: &mut Numbers) -> Vec<u8> {
    let mut byte = |end: usize| numbers.below(end) as u8;
    let protocol = [6, 17, 1, 58, 132, byte(255)][usize::from(byte(6))];
    let payload: Vec<u8> = (0..byte(64)).map(|_| byte(255)).collect();
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
        let fixed = ETHERNET + if frame[12..ETHERNET] == [0x08, 0] { 20 } else { 40 };
        frame.truncate(fixed + usize::from(byte(255)) % (frame.len() - fixed + 1));
    }
    frame
}

/// Whether a frame cannot be parsed as far as the ports: a pod's packet of that kind must be dropped.
fn is_cut(frame: &[u8]) -> bool {
    let packet = &frame[ETHERNET..];
    let needed = |protocol: u8| match protocol {
        6 | 17 => 4,
        _ => 0,
    };
    if frame[12..ETHERNET] == [0x08, 0] {
        let header = usize::from(packet[0] & 15) * 4;
        // The ports of later fragments are those of the first one, wherever their headers end.
        let is_first = packet.len() >= 8 && u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff == 0;
        packet.len() < 20 || is_first && packet.len() < header.max(20) + needed(packet[9])
    } else {
        packet.len() < 40 || packet.len() < 40 + needed(packet[6])
    }
}

/// Whether only what forwarding rewrites differs: addresses of Ethernet, the hop limit and the header's checksum.
fn is_forwarded(frame: &[u8], out: &[u8]) -> bool {
    let rewritten: &[usize] = if frame[12..ETHERNET] == [0x08, 0] { &[22, 24, 25] } else { &[21] };
    frame.len() == out.len() && (12..frame.len()).all(|at| frame[at] == out[at] || rewritten.contains(&at))
}

/// Whether the hop limit is exceeded and the packet that leaves is an ICMP error to the sender.
fn is_expired(frame: &[u8], out: &[u8]) -> bool {
    // Hop limit, protocol, source and destination, from the beginning of the frame.
    let (hops, protocol, source, destination, icmp) = if frame[12..ETHERNET] == [0x08, 0] {
        (22, 23, 26..30, 30..34, 1)
    } else {
        (21, 20, 22..38, 38..54, 58)
    };
    frame[hops] <= 1
        && out.len() > destination.end
        && out[protocol] == icmp
        && out[destination] == frame[source]
}

/// No run fails, each drop is counted with its reason, nothing but forwarding's fields is written, and a pod's packet
/// that cannot be parsed goes nowhere.
#[test]
fn random_packets_are_forwarded_unchanged_or_counted() -> Result<()> {
    test_kit::require_root!();
    let slice = test_kit::Slice::of(SEEDS);
    for seed in (0..SEEDS).filter(|seed| slice.covers(*seed)) {
        for (name, config) in [
            ("by the stack", default_config()),
            ("by the programs", host_routing_config()),
            ("by the tunnel", tunnel_config()),
        ] {
            let (mut datapath, peer) = (Datapath::with_pods(&config)?, Peer::new()?);
            for hook in HOOKS {
                feed(&mut datapath, &peer, hook, seed)
                    .with_context(|| format!("{name}, seed {seed}, {hook}"))?;
            }
        }
    }
    Ok(())
}

fn dropped(datapath: &mut Datapath) -> Result<u64> {
    Ok(datapath.counters()?.iter().filter(|row| row.0.is_drop()).map(|row| row.1).sum())
}

/// Gives a hook the packets of a seed; those of the overlay have the tunnel's key with an identity.
fn feed(datapath: &mut Datapath, peer: &Peer, hook: &str, seed: u64) -> Result<()> {
    let mut numbers = Numbers::new(seed);
    let before = dropped(datapath)?;
    let (mut drops, mut cut) = (0, 0);
    for _ in 0..ROUNDS {
        let frame = random(&mut numbers);
        let outcome = match hook {
            FROM_OVERLAY => peer.sends(datapath, IDENTITY, &frame),
            _ => datapath.run(hook, &frame),
        }
        .with_context(|| format!("{frame:02x?}"))?;
        let is_dropped = outcome.verdict == SHOT;
        let is_well =
            is_dropped || is_forwarded(&frame, &outcome.packet) || is_expired(&frame, &outcome.packet);
        ensure!(is_well, "{frame:02x?} {outcome:02x?}");
        if hook == FROM_CONTAINER && is_cut(&frame) {
            cut += 1;
            ensure!(is_dropped, "{frame:02x?} {outcome:02x?}");
        }
        drops += u64::from(is_dropped);
    }
    let counted = dropped(datapath)? - before;
    ensure!(counted == drops, "{drops} dropped, {counted} counted");
    let passed = ROUNDS as u64 - drops;
    ensure!(hook != FROM_CONTAINER || cut > 20 && passed > 100, "{cut} cut, {passed} passed");
    Ok(())
}
