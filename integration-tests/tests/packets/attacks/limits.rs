//! Ports, protocols, lengths and hops at their limits.

use datapath_abi::drop::{
    CT_TRUNCATED_OR_INVALID_HEADER, CT_UNKNOWN_L4_PROTOCOL, INVALID_PACKET_DROPPED, POLICY_DENIED,
    TTL_EXCEEDED,
};
use integration_tests::frames::{Packet, TCP, Token, UDP};

use super::arena::Fate::{self, At, Drop};
use super::arena::Place::{Friend, Host, Mallory, Victim, World};
use super::arena::{AT_HOST, Arena, Case, FRIENDS, OPEN, SPORT, Step};

pub(crate) fn of_headers(arena: &Arena) -> Vec<Case> {
    let mut cases = Vec::new();
    for ipv6 in [false, true] {
        let [own, victim, host] = [Mallory, Victim, Host].map(|place| arena.ip(place, ipv6));
        let udp = |sport, dport| Packet::udp(own, victim, (sport, dport));
        let mut case = |name: &str, attack, fate, twin| {
            cases.push(Case::simple(format!("{name}, IPv6 {ipv6}"), attack, fate, twin));
        };
        for port in [0, 1, OPEN - 1, OPEN ^ 0x8000, OPEN.swap_bytes(), u16::MAX] {
            case(&format!("UDP to port {port}"), udp(SPORT, port), Drop(POLICY_DENIED), udp(port, OPEN));
            case(
                &format!("TCP to port {port}"),
                Packet::tcp(own, victim, (SPORT, port), 2),
                Drop(POLICY_DENIED),
                Packet::tcp(own, victim, (port, OPEN), 2),
            );
        }
        for flags in [0, 1, 2, 4, 0x10, 0x12, 0x29, 0xff] {
            case(
                &format!("TCP with flags {flags:#x} that are unsolicited"),
                Packet::tcp(own, victim, (SPORT, FRIENDS), flags),
                Drop(POLICY_DENIED),
                Packet::tcp(own, victim, (SPORT, OPEN), flags),
            );
        }
        // With an allowed port at the offset of UDP's: another protocol must not be parsed as UDP.
        let any = [&[SPORT, OPEN, 24, 0].map(u16::to_be_bytes).concat()[..], &Token::PLACEHOLDER].concat();
        let protocols: &[u8] = if ipv6 {
            &[1, 2, 4, 41, 47, 50, 89, 132, 253, 255]
        } else {
            &[0, 2, 4, 41, 47, 50, 51, 58, 89, 132, 253, 255]
        };
        for protocol in protocols {
            case(
                &format!("protocol {protocol}"),
                Packet::new(own, victim, *protocol, any.clone()),
                Drop(CT_UNKNOWN_L4_PROTOCOL),
                udp(SPORT, OPEN),
            );
        }
        let icmp = if ipv6 { 58 } else { 1 };
        for (name, protocol, length) in [
            ("UDP without a byte", UDP, 0),
            ("UDP with half a port", UDP, 3),
            ("TCP without a byte", TCP, 0),
            ("TCP with ports and nothing else", TCP, 8),
            ("TCP that ends before its flags", TCP, 13),
            ("ICMP without a byte", icmp, 0),
            ("ICMP of four bytes", icmp, 4),
        ] {
            let whole =
                if protocol == TCP { Packet::tcp(own, victim, (SPORT, OPEN), 2) } else { udp(SPORT, OPEN) };
            let short = whole.clone().with(|p| (p.protocol, p.payload) = (protocol, vec![0; length]));
            case(name, short, Drop(CT_TRUNCATED_OR_INVALID_HEADER), whole);
        }
        // The stack of the host makes checks that programs do not.
        let to_host = || Packet::udp(own, host, (SPORT, AT_HOST));
        let length = if ipv6 { 4 } else { 2 };
        for (name, value) in
            [("longer than the frame", 2000u16), ("shorter than its headers", 10), ("of no bytes", 0)]
        {
            cases.push(Case::new(
                format!("a length {name} to the host, IPv6 {ipv6}"),
                vec![Step::new(
                    Mallory,
                    to_host().with(|p| p.overwritten = vec![(length, value.to_be_bytes().to_vec())]),
                    Fate::BLOCKED,
                )],
                vec![Step::new(Mallory, to_host(), At(Host))],
            ));
        }
        cases.push(Case::new(
            format!("another version in the IP header, to the host, IPv6 {ipv6}"),
            vec![Step::new(
                Mallory,
                to_host().with(|p| p.overwritten = vec![(0, vec![if ipv6 { 0x40 } else { 0x65 }])]),
                Fate::BLOCKED,
            )],
            vec![Step::new(Mallory, to_host(), At(Host))],
        ));
        cases.push(Case::new(
            format!("a wrong checksum to the host, IPv6 {ipv6}"),
            vec![Step::new(
                Mallory,
                to_host().with(|p| p.overwritten = vec![(if ipv6 { 46 } else { 26 }, vec![0xde, 0xad])]),
                Fate::BLOCKED,
            )],
            vec![Step::new(Mallory, to_host(), At(Host))],
        ));
    }
    cases.extend(of_ipv4_options(arena));
    cases
}

fn of_ipv4_options(arena: &Arena) -> Vec<Case> {
    let [own, victim] = [Mallory, Victim].map(|place| arena.ip(place, false));
    let open = Packet::udp(own, victim, (SPORT, OPEN));
    let closed = Packet::udp(own, victim, (SPORT, FRIENDS));
    // Bytes like the header of an allowed datagram, at the offset after an IP header without options.
    let disguise = || [SPORT, OPEN].map(u16::to_be_bytes).concat();
    // A loose source route by way of the victim.
    let octets = match victim {
        std::net::IpAddr::V4(ip) => ip.octets(),
        std::net::IpAddr::V6(_) => unreachable!(),
    };
    let route = || [&[0x83, 7, 4][..], &octets, &[0]].concat();
    let with = |packet: &Packet, options: Vec<u8>| packet.clone().with(|p| p.options = options);
    vec![
        Case::simple(
            "options that look like an allowed port",
            with(&closed, disguise()),
            Drop(POLICY_DENIED),
            with(&open, disguise()),
        ),
        Case::simple(
            "options as long as can be",
            with(&closed, vec![1; 40]),
            Drop(POLICY_DENIED),
            with(&open, vec![1; 40]),
        ),
        Case::simple(
            "a source route to a port of another",
            with(&closed, route()),
            Drop(POLICY_DENIED),
            open.clone(),
        ),
        Case::simple(
            "a header of four words",
            open.clone().with(|p| p.overwritten = vec![(0, vec![0x44])]),
            Drop(INVALID_PACKET_DROPPED),
            open.clone(),
        ),
        Case::simple(
            "a header of no words",
            open.clone().with(|p| p.overwritten = vec![(0, vec![0x40])]),
            Drop(INVALID_PACKET_DROPPED),
            open.clone(),
        ),
        Case::simple(
            "a header that ends behind the packet",
            open.clone().with(|p| {
                p.payload.truncate(16);
                p.overwritten = vec![(0, vec![0x4f])];
            }),
            Drop(CT_TRUNCATED_OR_INVALID_HEADER),
            open.clone(),
        ),
    ]
}

/// Hop limit: exhausted packets are not forwarded. Replies have the token as their destination MAC address.
pub(crate) fn of_hops(arena: &Arena) -> Vec<Case> {
    let mut cases = Vec::new();
    for ipv6 in [false, true] {
        let [own, victim, friend] = [Mallory, Victim, Friend].map(|place| arena.ip(place, ipv6));
        let udp = |destination, hops| Packet::udp(own, destination, (SPORT, OPEN)).with(|p| p.hops = hops);
        for hops in [0, 1] {
            // An IPv6 packet is answered by an ICMP error to its sender.
            let fate = if ipv6 { Fate::BLOCKED } else { Drop(TTL_EXCEEDED) };
            for destination in [victim, friend] {
                let place = if destination == victim { Victim } else { Friend };
                cases.push(Case::new(
                    format!("{hops} hops to {place:?}, IPv6 {ipv6}"),
                    vec![Step::new(Mallory, udp(destination, hops), fate)],
                    vec![
                        Step::new(Mallory, udp(destination, 2), At(place)),
                        Step::new(Mallory, udp(destination, 255), At(place)),
                    ],
                ));
            }
        }
        let world = arena.ip(World, ipv6);
        cases.push(Case::new(
            format!("1 hop to the world, IPv6 {ipv6}"),
            vec![
                Step::new(Mallory, udp(world, 1), Fate::BLOCKED),
                Step::new(Mallory, udp(world, 0), Fate::BLOCKED),
            ],
            vec![Step::new(Mallory, udp(world, 3), At(World))],
        ));
    }
    cases
}
