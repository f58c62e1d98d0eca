//! Unsolicited ICMP errors, and other messages that change the state of a stack.

use datapath_abi::drop::{CT_TRUNCATED_OR_INVALID_HEADER, INVALID_SOURCE_IP, POLICY_DENIED};
use integration_tests::frames::Packet;

use super::arena::Fate::{self, At, Drop};
use super::arena::Place::{Friend, Mallory, Victim, World};
use super::arena::{Arena, Case, FRIENDS, OPEN, SPORT, Step, WORLDS};

/// Before the victim has sent anything to the attacker: no error belongs to a connection of its own.
pub(crate) fn errors(arena: &Arena) -> Vec<Case> {
    let mut cases = Vec::new();
    for ipv6 in [false, true] {
        let [own, victim, friend, world] =
            [Mallory, Victim, Friend, World].map(|place| arena.ip(place, ipv6));
        let open = || Packet::udp(own, victim, (SPORT, OPEN));
        // The victim's part of its connection with the trusted pod, as an error would quote it.
        let others = Packet::udp(victim, friend, (FRIENDS, SPORT)).bytes();
        let own_part = Packet::udp(victim, own, (OPEN, SPORT)).bytes();
        let piece = Packet::udp(victim, friend, (FRIENDS, SPORT)).later(9, 4, false).bytes();
        let about_error = Packet::icmp(victim, friend, if ipv6 { [1, 0] } else { [3, 1] }, 0, &[]).bytes();
        let header = others[..if ipv6 { 40 } else { 20 }].to_vec();
        let kinds: &[(&str, [u8; 2], u32)] = if ipv6 {
            &[
                ("destination unreachable", [1, 0], 0),
                ("port unreachable", [1, 4], 0),
                ("packet too big", [2, 0], 1280),
                ("packet too big for anything", [2, 0], 1),
                ("time exceeded", [3, 0], 0),
                ("parameter problem", [4, 1], 6),
                ("an unknown error", [100, 0], 0),
                ("redirect", [137, 0], 0),
                ("router advertisement", [134, 0], 0x4000_0708),
                ("router solicitation", [133, 0], 0),
                ("multicast listener report", [131, 0], 0),
                ("router renumbering", [138, 0], 0),
                ("node information", [139, 0], 0),
                ("echo request", [128, 0], 7),
                ("echo reply", [129, 0], 7),
                ("type 255", [255, 255], 0),
            ]
        } else {
            &[
                ("host unreachable", [3, 1], 0),
                ("port unreachable", [3, 3], 0),
                ("administratively prohibited", [3, 13], 0),
                ("source quench", [4, 0], 0),
                ("redirect", [5, 1], u32::from_be_bytes([10, 244, 0, 1])),
                ("router advertisement", [9, 0], 0),
                ("time exceeded", [11, 0], 0),
                ("parameter problem", [12, 0], 0),
                ("timestamp", [13, 0], 0),
                ("address mask", [17, 0], 0),
                ("echo request", [8, 0], 7),
                ("echo reply", [0, 0], 7),
                ("type 255", [255, 255], 0),
            ]
        };
        let quotes: [(&str, &[u8]); 6] = [
            ("another's connection", &others),
            ("its own connection", &own_part),
            ("nothing", &[]),
            ("a header without a payload", &header),
            ("a later piece", &piece),
            ("an ICMP error", &about_error),
        ];
        for (name, kind, word) in kinds {
            for (quote, inner) in quotes {
                cases.push(Case::simple(
                    format!("{name} about {quote}, IPv6 {ipv6}"),
                    Packet::icmp(own, victim, *kind, *word, inner),
                    Drop(POLICY_DENIED),
                    open(),
                ));
            }
        }
        let unreachable = if ipv6 { [1, 0] } else { [3, 1] };
        for (name, source) in
            [("the router", arena.router(ipv6)), ("the trusted pod", friend), ("the victim", victim)]
        {
            cases.push(Case::simple(
                format!("an ICMP error as {name}, IPv6 {ipv6}"),
                Packet::icmp(source, victim, unreachable, 0, &others),
                Drop(INVALID_SOURCE_IP),
                open(),
            ));
        }
        cases.push(Case::simple(
            format!("an ICMP error of six bytes, IPv6 {ipv6}"),
            Packet::icmp(own, victim, unreachable, 0, &[]).with(|p| p.payload.truncate(6)),
            Drop(CT_TRUNCATED_OR_INVALID_HEADER),
            open(),
        ));
        cases.push(Case::new(
            format!("an ICMP error from the world about another's connection, IPv6 {ipv6}"),
            vec![
                Step::new(World, Packet::icmp(world, victim, unreachable, 0, &others), Drop(POLICY_DENIED)),
                Step::new(World, Packet::icmp(world, victim, unreachable, 0, &[]), Drop(POLICY_DENIED)),
            ],
            vec![Step::new(World, Packet::udp(world, victim, (SPORT, WORLDS)), At(Victim))],
        ));
        // Multicast messages of neighbour and group discovery end at the node.
        if ipv6 {
            let everybody = "ff02::1".parse().unwrap();
            for (name, kind) in
                [("router advertisement", 134), ("redirect", 137), ("multicast listener query", 130)]
            {
                let message = Packet::icmp(own, everybody, [kind, 0], 0, &[]).with(|p| p.hops = 255);
                cases.push(Case::simple(
                    format!("{name} to all nodes"),
                    message,
                    Fate::STAYS_AT_HOST,
                    open(),
                ));
            }
        } else {
            // allow-icmp-frag-needed: path MTU discovery works regardless of policy, in IPv4.
            let needed = |source, mtu| Packet::icmp(source, victim, [3, 4], mtu, &others);
            cases.push(Case::simple(
                "fragmentation needed as the router",
                needed(arena.router(false), 68),
                Drop(INVALID_SOURCE_IP),
                needed(own, 68),
            ));
            cases.push(Case::simple(
                "the code of fragmentation needed with the type of another",
                Packet::icmp(own, victim, [11, 4], 68, &others),
                Drop(POLICY_DENIED),
                needed(own, 0),
            ));
        }
    }
    cases
}

/// Once the victim has sent something to a peer, ICMP errors of that peer belong to its connection, those of others do not.
pub(crate) fn related(arena: &Arena) -> Vec<Case> {
    let mut cases = Vec::new();
    for ipv6 in [false, true] {
        let [own, victim, friend, world] =
            [Mallory, Victim, Friend, World].map(|place| arena.ip(place, ipv6));
        let kind = if ipv6 { [1, 4] } else { [3, 3] };
        let quoted = Packet::udp(victim, world, (SPORT, OPEN)).bytes();
        let error = |source| Packet::icmp(source, victim, kind, 0, &quoted);
        let echo = if ipv6 { [128, 0] } else { [8, 0] };
        cases.push(Case::new(
            format!("an ICMP error about a connection with another, IPv6 {ipv6}"),
            vec![
                Step::new(Victim, Packet::udp(victim, world, (SPORT, OPEN)), At(World)),
                Step::new(Mallory, error(own), Drop(POLICY_DENIED)),
                Step::new(Mallory, error(world), Drop(INVALID_SOURCE_IP)),
                Step::new(Friend, error(friend), Drop(POLICY_DENIED)),
                // An error belongs to it, another message does not.
                Step::new(World, Packet::icmp(world, victim, echo, 7, &[]), Drop(POLICY_DENIED)),
            ],
            vec![Step::new(World, error(world), At(Victim))],
        ));
        let reply = |port| Packet::udp(world, victim, (port, SPORT));
        cases.push(Case::new(
            format!("answers from ports that were not asked, IPv6 {ipv6}"),
            vec![
                Step::new(World, reply(OPEN + 1), Drop(POLICY_DENIED)),
                Step::new(Mallory, Packet::udp(own, victim, (OPEN, SPORT)), Drop(POLICY_DENIED)),
                Step::new(Friend, Packet::udp(friend, victim, (OPEN, SPORT)), Drop(POLICY_DENIED)),
            ],
            vec![Step::new(World, reply(OPEN), At(Victim))],
        ));
    }
    cases
}
