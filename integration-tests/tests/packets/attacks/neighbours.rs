//! Forged neighbours: ARP and neighbour discovery that claim foreign addresses.

use std::net::IpAddr;

use datapath_abi::drop::{INVALID_PACKET_DROPPED, UNKNOWN_L3_TARGET_ADDRESS};
use integration_tests::frames::{HOP_BY_HOP, ICMPV6, Mac, Packet, padding};

use super::arena::Fate::{self, AtMost, Drop};
use super::arena::Place::{Friend, Host, Mallory, Victim, World};
use super::arena::{Arena, Case, HOSTS, OPEN, SPORT};

/// The forged MAC address of a foreign IP address.
const FORGED: Mac = [2, 0x66, 0x66, 0x66, 0x66, 0x66];
const FORGED_TEXT: &str = "02:66:66:66:66:66";

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// The flags router, solicited and override.
const ALL_FLAGS: u32 = 0xe000_0000;

pub(crate) fn of_arp(arena: &Arena) -> Vec<Case> {
    let [own, victim, friend, world, host] =
        [Mallory, Victim, Friend, World, Host].map(|place| arena.ip(place, false));
    let router = arena.router(false);
    let open = || Packet::udp(own, victim, (SPORT, OPEN));
    let mut cases = Vec::new();
    let claimed = [
        ("the victim", victim),
        ("the trusted pod", friend),
        ("the router", router),
        ("the node", host),
        ("the world", world),
        ("unspecified", IpAddr::from([0, 0, 0, 0])),
        ("everybody", IpAddr::from([255, 255, 255, 255])),
    ];
    for (name, ip) in claimed {
        let forms = [
            ("a reply", 2, [(FORGED, ip), ([0; 6], own)]),
            ("a reply to the node", 2, [(FORGED, ip), ([0; 6], host)]),
            ("a gratuitous reply", 2, [(FORGED, ip), (FORGED, ip)]),
            ("a gratuitous request", 1, [(FORGED, ip), ([0; 6], ip)]),
            ("a request for the router", 1, [(FORGED, ip), ([0; 6], router)]),
            ("a request for the node", 1, [(FORGED, ip), ([0; 6], host)]),
            ("a request for the victim", 1, [(FORGED, ip), ([0; 6], victim)]),
            ("a request for its own address", 1, [(FORGED, ip), ([0; 6], own)]),
            ("a reverse request", 3, [(FORGED, ip), (FORGED, ip)]),
        ];
        for (form, operation, [sender, target]) in forms {
            for (to, mac) in
                [("everybody", Some([0xff; 6])), ("the node", None), ("the victim", Some(arena.mac(Victim)))]
            {
                cases.push(Case::simple(
                    format!("ARP: {form} to {to} that claims {name}"),
                    Packet::arp(operation, sender, target).with(|p| p.destination_mac = mac),
                    Fate::BLOCKED,
                    open(),
                ));
            }
        }
    }
    let request = || Packet::arp(1, (FORGED, victim), ([0; 6], router));
    for (name, at, value) in [
        ("another hardware", 1, 6),
        ("IPv6", 2, 0x86),
        ("hardware addresses of eight bytes", 4, 8),
        ("addresses of sixteen bytes", 5, 16),
        ("an unknown operation", 7, 9),
    ] {
        let changed = request().with(|p| p.raw.as_mut().unwrap()[at] = value);
        cases.push(Case::simple(format!("ARP for {name}"), changed, Fate::BLOCKED, open()));
    }
    for length in [0, 7, 27] {
        let cut = request().with(|p| p.raw.as_mut().unwrap().truncate(length));
        cases.push(Case::simple(format!("ARP of {length} bytes"), cut, Fate::BLOCKED, open()));
    }
    cases
}

pub(crate) fn of_ndp(arena: &Arena) -> Vec<Case> {
    let [own, victim, friend, host] = [Mallory, Victim, Friend, Host].map(|place| arena.ip(place, true));
    let router = arena.router(true);
    let open = || Packet::udp(own, victim, (SPORT, OPEN));
    let everybody: IpAddr = "ff02::1".parse().unwrap();
    let unspecified: IpAddr = "::".parse().unwrap();
    let mut cases = Vec::new();
    for (name, claimed) in
        [("the victim", victim), ("the trusted pod", friend), ("the router", router), ("the node", host)]
    {
        for (sender, source) in
            [("itself", own), ("the claimed", claimed), ("the router", router), ("unspecified", unspecified)]
        {
            for (receiver, destination, fate) in [
                ("the victim", victim, Fate::BLOCKED),
                // It has no policy: the stack may forward it, with a hop limit at which no neighbour believes it.
                ("the trusted pod", friend, AtMost(&[Friend])),
                ("the node", host, Fate::BLOCKED),
                ("the router", router, Fate::BLOCKED),
                ("all nodes", everybody, Fate::BLOCKED),
            ] {
                for hops in [255, 64] {
                    cases.push(Case::simple(
                        format!("NDP: {sender} advertises {name} to {receiver}, hop limit {hops}"),
                        Packet::neighbour([source, destination], ADVERTISEMENT, ALL_FLAGS, claimed, FORGED)
                            .with(|p| p.hops = hops),
                        fate,
                        open(),
                    ));
                    cases.push(Case::simple(
                        format!("NDP: {sender} solicits {name} from {receiver}, hop limit {hops}"),
                        Packet::neighbour([source, destination], SOLICITATION, 0, claimed, FORGED)
                            .with(|p| p.hops = hops),
                        fate,
                        open(),
                    ));
                }
            }
        }
    }
    let unknown: IpAddr = "fd00:10:244::fb".parse().unwrap();
    cases.push(Case::simple(
        "a solicitation for an unused address",
        Packet::neighbour([own, router], SOLICITATION, 0, unknown, FORGED),
        Drop(UNKNOWN_L3_TARGET_ADDRESS),
        open(),
    ));
    cases.push(Case::simple(
        "a solicitation that ends before its target",
        Packet::new(own, router, ICMPV6, vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0]).with(|p| p.hops = 255),
        Drop(INVALID_PACKET_DROPPED),
        open(),
    ));
    for kind in [SOLICITATION, ADVERTISEMENT] {
        let message = || {
            Packet::neighbour([router, victim], kind, ALL_FLAGS, router, FORGED)
                .with(|p| p.before = vec![(HOP_BY_HOP, padding())])
        };
        cases.push(Case::simple(
            format!("ICMPv6 type {kind} as the router behind a Hop-by-Hop Options header"),
            message(),
            Fate::BLOCKED,
            open(),
        ));
    }
    cases
}

/// Asserts that no neighbour table has the forged address, and that earlier connections continue.
///
/// # Panics
/// The error if one has.
pub(crate) fn assert_unchanged(arena: &mut Arena) {
    let pods = [&arena.victim.ns, &arena.friend.ns].map(|ns| ns.clone());
    for ns in pods.iter().chain([arena.node.host(), arena.node.world()]) {
        let known = ns.ip("neigh show").unwrap();
        // Behind the attacker's own interface the host may believe it what it says: no route to a pod leads there.
        let own = arena.mallory.result["interfaces"][0]["name"].as_str().unwrap();
        let forged: Vec<&str> = known
            .lines()
            .filter(|line| line.contains(FORGED_TEXT) && !line.contains(&format!("dev {own} ")))
            .collect();
        assert!(forged.is_empty(), "{forged:?}");
    }
    for ipv6 in [false, true] {
        assert!(arena.host_reaches(Victim, ipv6, HOSTS), "{}", arena.node.log());
    }
}
