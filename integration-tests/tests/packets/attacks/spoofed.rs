//! Spoofed sources, link-layer addresses, VLAN tags, marks, mixed families.

use std::net::IpAddr;

use datapath_abi::drop::{
    INVALID_PACKET_DROPPED, INVALID_SOURCE_IP, POLICY_DENIED, STALE_OR_UNROUTABLE_IP, UNSUPPORTED_L3_PROTOCOL,
};
use datapath_abi::mark;
use integration_tests::frames::{Packet, Token};

use super::arena::Fate::{self, At, AtMost, Drop};
use super::arena::Place::{Friend, Host, Mallory, Victim, World};
use super::arena::{AT_HOST, Arena, Case, FRIENDS, HOSTS, OPEN, SPORT, Step, VXLAN, WORLDS};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A pod with every foreign source: to the victim, the world and the host.
pub(crate) fn sources(arena: &Arena) -> Vec<Case> {
    let mut cases = Vec::new();
    for ipv6 in [false, true] {
        let [own, victim, friend, world, host] =
            [Mallory, Victim, Friend, World, Host].map(|place| arena.ip(place, ipv6));
        let mut sources = vec![
            ("the victim itself", victim),
            ("a pod that the victim trusts", friend),
            ("the world", world),
            ("the node", host),
            ("the router", arena.router(ipv6)),
        ];
        let others = if ipv6 {
            let IpAddr::V4(v4) = arena.ip(Mallory, false) else { unreachable!() };
            let IpAddr::V4(friends_v4) = arena.ip(Friend, false) else { unreachable!() };
            vec![
                ("loopback", ip("::1")),
                ("unspecified", ip("::")),
                ("all nodes", ip("ff02::1")),
                ("link-local", ip("fe80::2")),
                ("the loopback address of services", ip("fe80::1")),
                ("its own IPv4 address, mapped", v4.to_ipv6_mapped().into()),
                ("the trusted pod's IPv4 address, mapped", friends_v4.to_ipv6_mapped().into()),
                ("its own IPv4 address, compatible", v4.to_ipv6_compatible().into()),
                ("NAT64", ip("64:ff9b::a00:1")),
                ("its own with one bit changed", flipped(own)),
            ]
        } else {
            vec![
                ("loopback", ip("127.0.0.1")),
                ("unspecified", ip("0.0.0.0")),
                ("multicast", ip("224.0.0.1")),
                ("limited broadcast", ip("255.255.255.255")),
                ("broadcast of the pods", ip("10.244.0.255")),
                ("link-local", ip("169.254.1.1")),
                ("the loopback address of services", ip("169.254.42.1")),
                ("class E", ip("240.0.0.1")),
                ("its own with one bit changed", flipped(own)),
            ]
        };
        sources.extend(others);
        let targets = [
            ("the victim's open port", victim, OPEN, Victim),
            ("a port of the trusted pod", victim, FRIENDS, Victim),
            ("the world", world, OPEN, World),
            ("the host", host, AT_HOST, Host),
        ];
        for (name, source) in sources {
            for (target, destination, port, place) in targets {
                // The trusted pod's port has no lawful twin; the open one stands for it.
                let open = if port == FRIENDS { OPEN } else { port };
                cases.push(Case::new(
                    format!("source {name} ({source}) to {target}"),
                    vec![Step::new(
                        Mallory,
                        Packet::udp(source, destination, (SPORT, port)),
                        Drop(INVALID_SOURCE_IP),
                    )],
                    vec![Step::new(Mallory, Packet::udp(own, destination, (SPORT, open)), At(place))],
                ));
            }
        }
        // From outside: a source address of the node does not give the host's identity.
        let outside = |source, port| Packet::udp(source, victim, (SPORT, port));
        cases.push(Case::new(
            format!("the world as the node ({host}) to the host's port"),
            vec![Step::new(World, outside(host, HOSTS), Fate::BLOCKED)],
            vec![Step::new(World, outside(world, WORLDS), At(Victim))],
        ));
        cases.push(Case::new(
            format!("the world as the router to the host's port, IPv6 {ipv6}"),
            vec![Step::new(World, outside(arena.router(ipv6), HOSTS), Fate::BLOCKED)],
            vec![Step::new(World, outside(world, WORLDS), At(Victim))],
        ));
        cases.push(Case::new(
            format!("the world under its own address to ports of others, IPv6 {ipv6}"),
            [OPEN, FRIENDS, HOSTS]
                .map(|port| Step::new(World, outside(world, port), Drop(POLICY_DENIED)))
                .into(),
            vec![Step::new(World, outside(world, WORLDS), At(Victim))],
        ));
    }
    cases
}

fn flipped(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => IpAddr::V4((u32::from(ip) ^ 64).into()),
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) ^ 1 << 127 >> 40).into()),
    }
}

/// Destinations without an owner, multicast ones, and those that only the host may use.
pub(crate) fn destinations(arena: &Arena) -> Vec<Case> {
    let mut cases = Vec::new();
    let own = [false, true].map(|ipv6| arena.ip(Mallory, ipv6));
    let victim = [false, true].map(|ipv6| arena.ip(Victim, ipv6));
    let IpAddr::V4(victims_v4) = victim[0] else { unreachable!() };
    let unused = arena.node.unused_ipv4().to_string();
    // Packets that the stack routes by the default route leave the node with the pod's own source.
    let destinations = [
        ("an unused address of the pods' range", &*unused, Drop(STALE_OR_UNROUTABLE_IP)),
        ("the same for IPv6", "fd00:10:244::fa", Drop(STALE_OR_UNROUTABLE_IP)),
        ("loopback of the host", "127.0.0.1", Fate::BLOCKED),
        ("another address of loopback", "127.8.8.8", Fate::BLOCKED),
        ("loopback of the host, IPv6", "::1", Fate::BLOCKED),
        ("loopback, mapped", "::ffff:127.0.0.1", AtMost(&[World])),
        ("the victim, mapped", &victims_v4.to_ipv6_mapped().to_string(), AtMost(&[World])),
        ("unspecified", "0.0.0.0", Fate::STAYS_AT_HOST),
        ("unspecified, IPv6", "::", AtMost(&[World])),
        ("limited broadcast", "255.255.255.255", Fate::STAYS_AT_HOST),
        ("broadcast of the uplink", "192.0.2.255", Fate::STAYS_AT_HOST),
        ("all systems", "224.0.0.1", Fate::STAYS_AT_HOST),
        ("all nodes", "ff02::1", Fate::STAYS_AT_HOST),
        ("all nodes of the interface", "ff01::1", Fate::BLOCKED),
        ("multicast beyond the link", "ff0e::1234", Fate::STAYS_AT_HOST),
    ];
    for (name, destination, fate) in destinations {
        let destination = ip(destination);
        let family = usize::from(destination.is_ipv6());
        for port in [OPEN, AT_HOST] {
            cases.push(Case::simple(
                format!("to {name} ({destination}), port {port}"),
                Packet::udp(own[family], destination, (SPORT, port)),
                fate,
                Packet::udp(own[family], victim[family], (SPORT, OPEN)),
            ));
        }
    }
    cases
}

/// Ethernet: MAC addresses, VLAN tags, types that are not the packet's.
pub(crate) fn link_layer(arena: &Arena) -> Vec<Case> {
    let mut cases = Vec::new();
    for ipv6 in [false, true] {
        let [own, victim, friend, host] = [Mallory, Victim, Friend, Host].map(|place| arena.ip(place, ipv6));
        let lawful = || Packet::udp(own, victim, (SPORT, OPEN));
        let forged = || Packet::udp(friend, victim, (SPORT, FRIENDS));
        let (broadcast, multicast) = ([0xff; 6], [1, 0, 0x5e, 0, 0, 1]);
        let macs = [
            ("the victim's", arena.mac(Victim)),
            ("the trusted pod's", arena.mac(Friend)),
            ("a broadcast", broadcast),
            ("a multicast", multicast),
            ("no", [0; 6]),
        ];
        // Cilium does not check MAC addresses of pods: they do not affect verdicts.
        for (name, mac) in macs {
            for (field, set) in [
                ("source", (|p: &mut Packet, mac| p.source_mac = Some(mac)) as fn(&mut Packet, _)),
                ("destination", |p, mac| p.destination_mac = Some(mac)),
            ] {
                cases.push(Case::simple(
                    format!("{field} MAC address {name} under a forged source, IPv6 {ipv6}"),
                    forged().with(|p| set(p, mac)),
                    Drop(INVALID_SOURCE_IP),
                    lawful().with(|p| set(p, mac)),
                ));
            }
            cases.push(Case::simple(
                format!("{name} MAC address as destination, to a port of another, IPv6 {ipv6}"),
                Packet::udp(own, victim, (SPORT, FRIENDS)).with(|p| p.destination_mac = Some(mac)),
                Drop(POLICY_DENIED),
                lawful().with(|p| p.destination_mac = Some(mac)),
            ));
        }
        for tag in [0, 1, 100, 0xffff] {
            cases.push(Case::simple(
                format!("VLAN tag {tag:#x} before a forged source, IPv6 {ipv6}"),
                forged().with(|p| p.vlan = Some(tag)),
                Drop(INVALID_SOURCE_IP),
                lawful(),
            ));
            cases.push(Case::simple(
                format!("VLAN tag {tag:#x} before a port of another, IPv6 {ipv6}"),
                Packet::udp(own, victim, (SPORT, FRIENDS)).with(|p| p.vlan = Some(tag)),
                Drop(POLICY_DENIED),
                lawful(),
            ));
        }
        let types = [
            ("MPLS", 0x8847, UNSUPPORTED_L3_PROTOCOL),
            ("PPPoE", 0x8864, UNSUPPORTED_L3_PROTOCOL),
            ("an unknown type", 0x88b5, UNSUPPORTED_L3_PROTOCOL),
            ("MACsec", 0x88e5, UNSUPPORTED_L3_PROTOCOL),
        ];
        for (name, ethertype, reason) in types {
            cases.push(Case::simple(
                format!("{name} instead of the family's Ethernet type, IPv6 {ipv6}"),
                lawful().with(|p| p.ethertype = Some(ethertype)),
                Drop(reason),
                lawful(),
            ));
        }
        // Read as the other family, the addresses lie elsewhere.
        let (other, reason) = if ipv6 { (0x0800, INVALID_SOURCE_IP) } else { (0x86dd, INVALID_SOURCE_IP) };
        cases.push(Case::simple(
            format!("the other family's Ethernet type, IPv6 {ipv6}"),
            lawful().with(|p| p.ethertype = Some(other)),
            Drop(reason),
            lawful(),
        ));
        cases.push(Case::simple(
            format!("a frame that ends within the IP header, IPv6 {ipv6}"),
            lawful().with(|p| p.cut = Some(19)),
            Drop(INVALID_PACKET_DROPPED),
            lawful(),
        ));
        // Marks that a pod sets are cleared at its interface.
        let denied = || Packet::udp(own, victim, (SPORT, HOSTS));
        let marks = [
            ("the host's", mark::HOST),
            ("the trusted pod's identity", mark::with_identity(mark::IDENTITY, 1)),
            ("the ingress proxy's", mark::with_identity(mark::PROXY_INGRESS, 1)),
            ("the egress proxy's", mark::with_identity(mark::PROXY_EGRESS, 1)),
            ("decrypted", mark::DECRYPT),
            ("to the proxy", mark::TO_PROXY),
            ("everything", u32::MAX),
        ];
        for (name, mark) in marks {
            cases.push(Case::new(
                format!("the mark of {name} to the host's port, IPv6 {ipv6}"),
                vec![
                    Step::new(Mallory, denied(), Drop(POLICY_DENIED)).marked(mark),
                    Step::new(Mallory, forged(), Drop(INVALID_SOURCE_IP)).marked(mark),
                ],
                vec![Step::new(Mallory, lawful(), At(Victim)).marked(mark)],
            ));
        }
        // Tunnels that do not exist: the inner frame is not delivered.
        let inner = Packet::udp(friend, victim, (SPORT, FRIENDS)).frame(arena.mac(Friend), arena.mac(Victim));
        let vxlan = |destination| {
            let header = [0x08, 0, 0, 0, 0, 0, 6, 0];
            Packet::udp(own, destination, (SPORT, VXLAN)).with(|p| {
                p.payload.truncate(8);
                p.payload.extend([&header[..], &inner, &Token::PLACEHOLDER].concat());
                let length = (p.payload.len() as u16).to_be_bytes();
                p.payload[4..6].copy_from_slice(&length);
            })
        };
        cases.push(Case::new(
            format!("VXLAN with a trusted pod's packet inside, IPv6 {ipv6}"),
            vec![
                Step::new(Mallory, vxlan(host), At(Host)),
                Step::new(Mallory, vxlan(arena.router(ipv6)), At(Host)),
                Step::new(Mallory, vxlan(victim), Drop(POLICY_DENIED)),
            ],
            vec![Step::new(Friend, Packet::udp(friend, victim, (SPORT, FRIENDS)), At(Victim))],
        ));
    }
    cases
}

/// One packet inside another that no program looks into.
pub(crate) fn encapsulated(arena: &Arena) -> Vec<Case> {
    use datapath_abi::drop::CT_UNKNOWN_L4_PROTOCOL;
    let mut cases = Vec::new();
    for ipv6 in [false, true] {
        let [own, victim, world] = [Mallory, Victim, World].map(|place| arena.ip(place, ipv6));
        for inner_ipv6 in [false, true] {
            let [friend, target] = [Friend, Victim].map(|place| arena.ip(place, inner_ipv6));
            let inner = Packet::udp(friend, target, (SPORT, FRIENDS)).bytes();
            let protocol = if inner_ipv6 { 41 } else { 4 };
            for (name, destination) in [("the victim", victim), ("the world", world)] {
                cases.push(Case::simple(
                    format!("IP in IP ({protocol}) to {name}, IPv6 {ipv6}"),
                    Packet::new(own, destination, protocol, inner.clone()),
                    Drop(CT_UNKNOWN_L4_PROTOCOL),
                    Packet::udp(own, victim, (SPORT, OPEN)),
                ));
            }
        }
    }
    cases
}
