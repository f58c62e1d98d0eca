//! Fragments of all kinds: later fragments have no ports and get the verdict of the first fragment of their datagram.

use std::net::IpAddr;

use datapath_abi::drop::{
    CT_TRUNCATED_OR_INVALID_HEADER, FIRST_LOGICAL_DATAGRAM_FRAGMENT_NOT_FOUND, INVALID_IPV6_EXTENSION_HEADER,
    INVALID_PACKET_DROPPED, INVALID_SOURCE_IP, POLICY_DENIED,
};
use integration_tests::frames::{
    DESTINATION_OPTIONS, Fragment, HOP_BY_HOP, ICMPV6, NO_NEXT_HEADER, Packet, ROUTING, TCP, UDP, padding,
};

use super::arena::Fate::{self, At, Drop};
use super::arena::Place::{Friend, Mallory, Victim, World};
use super::arena::{Arena, Case, FRIENDS, HOSTS, OPEN, SPORT, Step, WORLDS};

const UNKNOWN: u8 = FIRST_LOGICAL_DATAGRAM_FRAGMENT_NOT_FOUND;

/// Fragments of datagrams from the attacker to the victim, with a unique identification for each case.
struct Pieces {
    own: IpAddr,
    victim: IpAddr,
    next_id: u32,
}

impl Pieces {
    fn id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    fn datagram(&self, port: u16) -> Packet {
        Packet::udp(self.own, self.victim, (SPORT, port))
    }
}

fn step(packet: Packet, fate: Fate) -> Step {
    Step::new(Mallory, packet, fate)
}

/// A legitimate datagram of two fragments.
fn lawful(open: &Packet, id: u32) -> Vec<Step> {
    vec![step(open.clone().first(id), At(Victim)), step(open.clone().later(id, 4, false), At(Victim))]
}

/// The part that both families share.
pub(crate) fn of_both_families(arena: &Arena) -> Vec<Case> {
    let mut cases = Vec::new();
    for ipv6 in [false, true] {
        let [own, victim, friend, world] =
            [Mallory, Victim, Friend, World].map(|place| arena.ip(place, ipv6));
        let mut pieces = Pieces { own, victim, next_id: 1000 };
        let (open, closed) = (pieces.datagram(OPEN), pieces.datagram(FRIENDS));
        let mut case = |name: &str, attack: Vec<Step>, twin: Vec<Step>| {
            cases.push(Case::new(format!("{name}, IPv6 {ipv6}"), attack, twin));
        };
        let twin = |pieces: &mut Pieces| lawful(&open, pieces.id());

        let id = pieces.id();
        case(
            "a later piece without a first",
            vec![
                step(open.clone().later(id, 4, false), Drop(UNKNOWN)),
                step(open.clone().later(id, 4, true), Drop(UNKNOWN)),
                step(open.clone().later(id, 0x1fff, false), Drop(UNKNOWN)),
            ],
            twin(&mut pieces),
        );
        let id = pieces.id();
        case(
            "a denied datagram in pieces",
            vec![
                step(closed.clone().first(id), Drop(POLICY_DENIED)),
                step(closed.clone().later(id, 4, false), Drop(POLICY_DENIED)),
            ],
            twin(&mut pieces),
        );
        let id = pieces.id();
        case(
            "pieces before the first one",
            vec![
                step(open.clone().later(id, 8, false), Drop(UNKNOWN)),
                step(open.clone().later(id, 4, true), Drop(UNKNOWN)),
            ],
            [lawful(&open, id), vec![step(open.clone().later(id, 8, false), At(Victim))]].concat(),
        );
        let id = pieces.id();
        case(
            "a denied datagram under the identification of an allowed one",
            [
                lawful(&open, id),
                vec![
                    step(closed.clone().first(id), Drop(POLICY_DENIED)),
                    step(closed.clone().later(id, 4, false), Drop(POLICY_DENIED)),
                ],
            ]
            .concat(),
            // An allowed datagram reuses the identification.
            lawful(&open, id),
        );
        let id = pieces.id();
        case(
            "a later piece of another protocol under the identification of an allowed datagram",
            vec![
                step(open.clone().first(id), At(Victim)),
                step(open.clone().later(id, 4, false).with(|p| p.protocol = TCP), Drop(UNKNOWN)),
            ],
            lawful(&open, id),
        );
        let id = pieces.id();
        let trusted = Packet::udp(friend, victim, (SPORT, FRIENDS));
        case(
            "a later piece under the identification of another sender's datagram",
            vec![
                Step::new(Friend, trusted.clone().first(id), At(Victim)),
                step(closed.clone().later(id, 4, false), Drop(UNKNOWN)),
                step(trusted.clone().later(id, 4, false), Drop(INVALID_SOURCE_IP)),
                step(trusted.clone().first(id), Drop(INVALID_SOURCE_IP)),
            ],
            vec![Step::new(Friend, trusted.clone().later(id, 4, false), At(Victim))],
        );
        let id = pieces.id();
        let outside = |port| Packet::udp(world, victim, (SPORT, port));
        case(
            "pieces from the world",
            vec![
                Step::new(World, outside(WORLDS).later(id, 4, false), Drop(UNKNOWN)),
                Step::new(World, outside(HOSTS).first(id), Drop(POLICY_DENIED)),
                Step::new(World, outside(HOSTS).later(id, 4, false), Drop(POLICY_DENIED)),
            ],
            vec![
                Step::new(World, outside(WORLDS).first(id), At(Victim)),
                Step::new(World, outside(WORLDS).later(id, 4, false), At(Victim)),
            ],
        );
        let id = pieces.id();
        case(
            "a first piece too short for ports",
            vec![step(
                open.clone().first(id).with(|p| p.payload.truncate(3)),
                Drop(CT_TRUNCATED_OR_INVALID_HEADER),
            )],
            twin(&mut pieces),
        );
        let id = pieces.id();
        let tcp = |port| Packet::tcp(own, victim, (SPORT, port), 2);
        case(
            "a first piece with TCP's ports and no flags (RFC 1858)",
            vec![
                step(
                    tcp(OPEN).first(id).with(|p| p.payload.truncate(8)),
                    Drop(CT_TRUNCATED_OR_INVALID_HEADER),
                ),
                step(tcp(OPEN).later(id, 1, false), Drop(UNKNOWN)),
            ],
            vec![step(tcp(OPEN).first(id), At(Victim)), step(tcp(OPEN).later(id, 4, false), At(Victim))],
        );
        // Cilium compares no offsets: what overlaps belongs to the allowed datagram, and the receiver discards it.
        let id = pieces.id();
        case(
            "a second beginning with ports of another over an allowed one",
            vec![
                step(open.clone().first(id), At(Victim)),
                step(closed.clone().first(id), Drop(POLICY_DENIED)),
                step(open.clone().later(id, 4, false), Drop(POLICY_DENIED)),
            ],
            vec![
                step(open.clone().first(id), At(Victim)),
                step(open.clone().later(id, 1, true), At(Victim)),
                step(open.clone().later(id, 4, false), At(Victim)),
            ],
        );
        let id = pieces.id();
        case(
            "pieces beyond the longest datagram, of a denied one",
            vec![
                step(closed.clone().first(id), Drop(POLICY_DENIED)),
                step(closed.clone().later(id, 0x1fff, true), Drop(POLICY_DENIED)),
            ],
            vec![
                step(open.clone().first(id), At(Victim)),
                step(open.clone().later(id, 0x1fff, false), At(Victim)),
            ],
        );
        // The ports are those of the first fragment, not the bytes at their offset in a later one.
        let id = pieces.id();
        let looks_open = |p: Packet| {
            p.with(|p| {
                let ports = [SPORT, OPEN, 16, 0].map(u16::to_be_bytes).concat();
                p.payload = [ports, p.payload.clone()].concat();
            })
        };
        case(
            "a later piece that begins like an allowed datagram",
            vec![
                step(closed.clone().first(id), Drop(POLICY_DENIED)),
                step(looks_open(closed.clone().later(id, 4, false)), Drop(POLICY_DENIED)),
                step(looks_open(closed.clone().later(id + 500, 4, false)), Drop(UNKNOWN)),
            ],
            twin(&mut pieces),
        );
        let id = pieces.id();
        case(
            "an atomic fragment to a port of another",
            vec![step(whole_fragment(closed.clone(), id), Drop(POLICY_DENIED))],
            vec![step(whole_fragment(open.clone(), id), At(Victim))],
        );
        let id = pieces.id();
        case(
            "an atomic fragment opens no datagram",
            vec![
                step(whole_fragment(open.clone(), id), At(Victim)),
                step(open.clone().later(id, 4, false), Drop(UNKNOWN)),
            ],
            twin(&mut pieces),
        );
    }
    cases
}

/// All of a datagram, with a Fragment header in IPv6.
fn whole_fragment(packet: Packet, id: u32) -> Packet {
    packet.with(|p| p.fragment = Some(Fragment { id, offset: 0, more: false, next: None }))
}

type Headers = Vec<(u8, Vec<u8>)>;

/// IPv6 extension headers around the Fragment header, and without one.
pub(crate) fn of_extension_headers(arena: &Arena) -> Vec<Case> {
    let [own, victim] = [Mallory, Victim].map(|place| arena.ip(place, true));
    let mut pieces = Pieces { own, victim, next_id: 5000 };
    let (open, closed) = (pieces.datagram(OPEN), pieces.datagram(FRIENDS));
    let mut cases = Vec::new();
    // A Routing header of type 4 with no segments left.
    let routing = vec![4, 0, 0, 0, 0, 0];
    let before: [(&str, Headers); 5] = [
        ("Destination Options", vec![(DESTINATION_OPTIONS, padding())]),
        ("Hop-by-Hop Options", vec![(HOP_BY_HOP, padding())]),
        ("Routing", vec![(ROUTING, routing.clone())]),
        (
            "Hop-by-Hop and Destination Options",
            vec![(HOP_BY_HOP, padding()), (DESTINATION_OPTIONS, padding())],
        ),
        ("Hop-by-Hop Options and Routing", vec![(HOP_BY_HOP, padding()), (ROUTING, routing)]),
    ];
    for (name, headers) in &before {
        let under = |p: Packet| p.with(|p| p.before.clone_from(headers));
        let id = pieces.id();
        cases.push(Case::new(
            format!("{name} before the Fragment header of a denied datagram"),
            vec![
                step(under(open.clone().later(id, 4, false)), Drop(UNKNOWN)),
                step(under(closed.clone().first(id)), Drop(POLICY_DENIED)),
                step(under(closed.clone().later(id, 4, false)), Drop(POLICY_DENIED)),
                // Only the first fragment had the headers.
                step(closed.clone().later(id, 6, false), Drop(POLICY_DENIED)),
            ],
            vec![
                step(under(open.clone().first(id)), At(Victim)),
                step(under(open.clone().later(id, 4, true)), At(Victim)),
                step(open.clone().later(id, 6, false), At(Victim)),
            ],
        ));
        cases.push(Case::simple(
            format!("{name} before a datagram to a port of another"),
            under(closed.clone()),
            Drop(POLICY_DENIED),
            under(open.clone()),
        ));
        cases.push(Case::simple(
            format!("{name} behind the Fragment header of an atomic fragment to a port of another"),
            whole_fragment(closed.clone(), id).with(|p| p.behind.clone_from(headers)),
            Drop(POLICY_DENIED),
            whole_fragment(open.clone(), id).with(|p| p.behind.clone_from(headers)),
        ));
    }
    let id = pieces.id();
    let behind = |p: Packet| p.with(|p| p.behind = vec![(DESTINATION_OPTIONS, padding())]);
    cases.push(Case::new(
        "Destination Options behind the Fragment header of a denied first piece",
        vec![step(behind(closed.clone().first(id)), Drop(POLICY_DENIED))],
        vec![step(behind(open.clone().first(id)), At(Victim))],
    ));
    let id = pieces.id();
    let claims =
        |next| open.clone().later(id, 4, false).with(|p| p.fragment.as_mut().unwrap().next = Some(next));
    cases.push(Case::new(
        "later pieces that claim to be something else",
        [
            vec![step(open.clone().first(id), At(Victim))],
            [TCP, ICMPV6, NO_NEXT_HEADER, 255].map(|next| step(claims(next), Drop(UNKNOWN))).into(),
        ]
        .concat(),
        vec![step(claims(UDP), At(Victim))],
    ));
    // A nested Fragment header: Cilium uses the last one; dropping the packet is equally safe.
    let id = pieces.id();
    let inner = |more: u8, offset: u16| {
        let field = (offset << 3 | u16::from(more)).to_be_bytes();
        [&field[..], &(id + 300).to_be_bytes()].concat()
    };
    let nested = |packet: Packet, more, offset| packet.with(|p| p.behind = vec![(44, inner(more, offset))]);
    cases.push(Case::new(
        "a Fragment header inside another",
        vec![
            step(nested(closed.clone().first(id), 0, 0), Fate::BLOCKED),
            step(nested(closed.clone().first(id), 1, 0), Fate::BLOCKED),
            step(nested(closed.clone().first(id), 0, 4), Fate::BLOCKED),
            step(nested(open.clone().first(id + 1), 0, 4).with(|p| p.behind[0].1[5] ^= 0xff), Fate::BLOCKED),
            step(closed.clone().later(id, 4, false), Drop(UNKNOWN)),
        ],
        vec![step(whole_fragment(open.clone(), id), At(Victim))],
    ));
    let chain = |packet: Packet, count: usize| {
        packet.with(|p| p.before = vec![(DESTINATION_OPTIONS, padding()); count])
    };
    cases.push(Case::simple(
        "more extension headers than are followed",
        chain(open.clone(), 6),
        Drop(INVALID_IPV6_EXTENSION_HEADER),
        chain(open.clone(), 2),
    ));
    cases.push(Case::simple(
        "so many extension headers that the port lies beyond what a program looks at",
        chain(closed.clone(), 20),
        Drop(INVALID_IPV6_EXTENSION_HEADER),
        chain(open.clone(), 1),
    ));
    cases.push(Case::simple(
        "an extension header longer than the packet",
        chain(open.clone(), 1).with(|p| p.overwritten = vec![(41, vec![255])]),
        Drop(CT_TRUNCATED_OR_INVALID_HEADER),
        chain(open.clone(), 1),
    ));
    cases.push(Case::simple(
        "an extension header behind the end of the packet",
        chain(open.clone(), 2).with(|p| p.overwritten = vec![(41, vec![200])]),
        Drop(INVALID_PACKET_DROPPED),
        chain(open.clone(), 2),
    ));
    cases.push(Case::simple(
        "a packet that ends within an extension header",
        chain(open.clone(), 1).with(|p| p.cut = Some(41)),
        Drop(INVALID_PACKET_DROPPED),
        chain(open.clone(), 1),
    ));
    cases.push(Case::simple(
        "no next header, and something behind it",
        open.clone().with(|p| p.overwritten = vec![(6, vec![NO_NEXT_HEADER])]),
        Drop(INVALID_IPV6_EXTENSION_HEADER),
        open.clone(),
    ));
    cases.push(Case::simple(
        "a Fragment header that is cut",
        open.clone().first(id).with(|p| p.cut = Some(44)),
        Drop(INVALID_PACKET_DROPPED),
        open.clone().first(id),
    ));
    cases
}
