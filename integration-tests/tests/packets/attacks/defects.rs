//! Regression tests: legitimate packets and attacks that got a wrong verdict by former defects of the datapath.

use std::net::IpAddr;
use std::time::Duration;

use integration_tests::frames::{DESTINATION_OPTIONS, ICMPV6, Packet, padding};
use test_kit::wait_until;

use super::arena::Fate::{self, At};
use super::arena::Place::{Host, Mallory, Victim, World};
use super::arena::{AT_HOST, Arena, Case, OPEN, SPORT, Step};

/// IPv6 datagrams with Destination Options after the Fragment header: later fragments belong to the first one.
pub(crate) fn options_behind_the_fragment_header(arena: &Arena) -> Vec<Case> {
    let [own, victim] = [Mallory, Victim].map(|place| arena.ip(place, true));
    let open = Packet::udp(own, victim, (SPORT, OPEN));
    let behind = |p: Packet| p.with(|p| p.behind = vec![(DESTINATION_OPTIONS, padding())]);
    let claims = |p: Packet| p.with(|p| p.fragment.as_mut().unwrap().next = Some(DESTINATION_OPTIONS));
    vec![Case::new(
        "Destination Options behind the Fragment header",
        vec![Step::new(Mallory, claims(open.clone().later(90, 5, false)), Fate::BLOCKED)],
        vec![
            Step::new(Mallory, behind(open.clone().first(91)), At(Victim)),
            Step::new(Mallory, claims(open.clone().later(91, 5, false)), At(Victim)),
        ],
    )]
}

/// Packets to the node's own addresses are not forwarded, and a router decrements the hop limit once, not twice.
pub(crate) fn hops_of_the_stack(arena: &Arena) -> Vec<Case> {
    let mut cases = Vec::new();
    for ipv6 in [false, true] {
        let [own, host, world] = [Mallory, Host, World].map(|place| arena.ip(place, ipv6));
        let udp = |destination, hops| Packet::udp(own, destination, (SPORT, AT_HOST)).with(|p| p.hops = hops);
        cases.push(Case::new(
            format!("the last hop, IPv6 {ipv6}"),
            vec![Step::new(Mallory, udp(world, 1), Fate::BLOCKED)],
            vec![
                Step::new(Mallory, udp(host, 1), At(Host)),
                Step::new(Mallory, udp(arena.router(ipv6), 1), At(Host)),
                Step::new(Mallory, udp(world, 2), At(World)),
            ],
        ));
    }
    cases
}

/// A late SYN|ACK belongs to the closed connection; it does not open one, which would be subject to policy.
pub(crate) fn late_answers(arena: &Arena) -> Vec<Case> {
    const SYN: u8 = 2;
    const SYN_ACK: u8 = 0x12;
    const FIN_ACK: u8 = 0x11;
    let mut cases = Vec::new();
    for ipv6 in [false, true] {
        let [victim, world] = [Victim, World].map(|place| arena.ip(place, ipv6));
        let out = |flags| Step::new(Victim, Packet::tcp(victim, world, (SPORT, OPEN), flags), At(World));
        let back =
            |port, flags, fate| Step::new(World, Packet::tcp(world, victim, (port, SPORT), flags), fate);
        cases.push(Case::new(
            format!("a late SYN|ACK, IPv6 {ipv6}"),
            vec![back(OPEN + 1, SYN_ACK, Fate::Drop(datapath_abi::drop::POLICY_DENIED))],
            vec![
                out(SYN),
                back(OPEN, SYN_ACK, At(Victim)),
                out(FIN_ACK),
                back(OPEN, FIN_ACK, At(Victim)),
                back(OPEN, SYN_ACK, At(Victim)),
            ],
        ));
    }
    cases
}

/// The host answers a pod's solicitation for one of its addresses. Linux does so for those of the receiving interface.
///
/// # Panics
/// When it does not.
pub(crate) fn assert_host_is_a_neighbour(arena: &mut Arena) {
    const ADVERTISEMENT: u8 = 136;
    let (own, host) = (arena.ip(Mallory, true), arena.ip(Host, true));
    let mac = arena.mac(Mallory);
    let device = arena.mallory.result["interfaces"][0]["name"].as_str().unwrap();
    arena.node.host().ip(&format!("addr add {host}/128 dev {device} nodad")).unwrap();
    for target in [arena.router(true), host] {
        let solicitation = Packet::neighbour([own, target], 135, 0, target, mac);
        wait_until(&format!("an advertisement of {target}"), Duration::from_secs(3), || {
            let frame = arena.frame(Mallory, &solicitation);
            let answers = |frame: &[u8]| {
                let IpAddr::V6(target) = target else { return false };
                frame.len() >= 78
                    && frame[12..14] == [0x86, 0xdd]
                    && frame[20] == ICMPV6
                    && frame[54] == ADVERTISEMENT
                    && frame[62..78] == target.octets()
            };
            let link = arena.socket(Mallory);
            link.received();
            link.send(&frame).unwrap();
            std::thread::sleep(Duration::from_millis(30));
            link.received().iter().any(|frame| answers(frame))
        });
    }
}
