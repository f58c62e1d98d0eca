//! Answers to packets of pods that policy denies (`policy-deny-response`).

use crate::kit::*;
use crate::l4::{l4_offset, seen};
use crate::packet::*;
use anyhow::Result;
use datapath_abi::{NodeConfig, direction, drop, identity};
use std::net::IpAddr;

const FAMILIES: [(IpAddr, IpAddr); 2] =
    [(IpAddr::V4(A.ipv4), IpAddr::V4(OUTSIDE_V4)), (IpAddr::V6(A.ipv6), IpAddr::V6(OUTSIDE_V6))];
/// Errors of ICMPv6 in a second, as in Cilium.
const RATE: usize = 100;

/// A datapath where the pod may reach port 80 only; a rule denies port 81.
fn datapath(policy_deny_response: u8) -> Result<Datapath> {
    let mut datapath = Datapath::load(&NodeConfig { policy_deny_response, ..default_config() })?;
    datapath.add(&A)?;
    let port = |port, kind| row(OUT, 0, TCP, Some((port, 16)), kind);
    let deny_all = row(IN, 0, TCP, None, Kind::Deny(0));
    datapath.set_policy(&A, &[port(80, Kind::Allow(0)), port(81, Kind::Deny(0)), deny_all])?;
    Ok(datapath)
}

fn sent(pod: IpAddr, peer: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    [&A.node_mac[..], &A.mac, &ip(pod, peer, protocol, payload)[12..]].concat()
}

#[test]
fn denied_packets_are_answered_and_counted() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = datapath(1)?;
    for (pod, peer) in FAMILIES {
        let is_v4 = pod.is_ipv4();
        let (prohibited, icmp_protocol, echo) = if is_v4 { ([3, 13], 1, 8) } else { ([1, 1], 58, 128) };
        let cases = [
            (drop::POLICY_DENIED, TCP, tcp(1024, 443, SYN)),
            (drop::POLICY_DENY, TCP, tcp(1024, 81, SYN)),
            (drop::POLICY_DENIED, UDP, udp_ports(1024, 53)),
            (drop::POLICY_DENIED, icmp_protocol, icmp(echo, 0, 1)),
        ];
        for (reason, protocol, payload) in cases {
            let before = datapath.counted(reason, direction::EGRESS)?;
            let packet = sent(pod, peer, protocol, &payload);
            let outcome = datapath.sends(&packet)?;
            assert_eq!(outcome.verdict, REDIRECT, "{pod} {protocol}");
            assert_eq!(datapath.counted(reason, direction::EGRESS)?, before + 1, "{pod} {protocol}");
            let error = seen(&outcome.packet);
            assert_eq!((error.source.ip(), error.destination.ip()), (peer, pod));
            assert!(error.protocol == icmp_protocol && error.checksums, "{pod} {protocol}");
            assert_eq!(outcome.packet[..12], [A.mac, A.node_mac].concat());
            let at = l4_offset(&outcome.packet);
            assert_eq!(outcome.packet[at..at + 2], prohibited);
            // The header of the packet and the ports: enough for the sender to find its socket.
            let header_len = if is_v4 { 20 } else { 40 };
            assert_eq!(outcome.packet[at + 8..][..header_len + 8], packet[14..][..header_len + 8]);
        }
        let allowed = sent(pod, peer, TCP, &tcp(1024, 80, SYN));
        assert_eq!(datapath.sends(&allowed)?.verdict, PASS, "{pod}");
    }
    Ok(())
}

/// No answer: to packets into a pod, to several receivers, to ICMP errors, and of any kind without the option.
#[test]
fn other_packets_are_dropped_without_an_answer() -> Result<()> {
    test_kit::require_root!();
    let mut on = datapath(1)?;
    let mut off = datapath(0)?;
    for (pod, peer) in FAMILIES {
        let denied = sent(pod, peer, TCP, &tcp(1024, 443, SYN));
        assert_eq!(off.dropped(direction::EGRESS, |d| d.sends(&denied))?, Some(drop::POLICY_DENIED));
        let into = ip(peer, pod, TCP, &tcp(1024, 22, SYN));
        let reason = on.dropped(direction::INGRESS, |d| d.receives(identity::WORLD, &into))?;
        assert_eq!(reason, Some(drop::POLICY_DENY), "{pod}");
        let (group, protocol, unreachable) = match pod {
            IpAddr::V4(_) => ("239.1.2.3", 1, 3),
            IpAddr::V6(_) => ("ff0e::7", 58, 1),
        };
        let to_group = sent(pod, group.parse()?, UDP, &udp_ports(1024, 53));
        assert_eq!(on.sends(&to_group)?.verdict, SHOT, "{pod}");
        let about = [&[unreachable, 0, 0, 0, 0, 0, 0, 0][..], &denied[14..]].concat();
        assert_eq!(on.sends(&sent(pod, peer, protocol, &about))?.verdict, SHOT, "{pod}");
    }
    Ok(())
}

#[test]
fn errors_of_icmpv6_are_limited() -> Result<()> {
    test_kit::require_root!();
    let datapath = datapath(1)?;
    let [v4, v6] = FAMILIES.map(|(pod, peer)| sent(pod, peer, TCP, &tcp(1024, 443, SYN)));
    let answers = |packet: &[u8]| -> Result<usize> {
        let verdicts = (0..3 * RATE).map(|_| Ok(datapath.sends(packet)?.verdict));
        let verdicts: Vec<u32> = verdicts.collect::<Result<_>>()?;
        Ok(verdicts.into_iter().filter(|verdict| *verdict == REDIRECT).count())
    };
    let limited = answers(&v6)?;
    // A second may end meanwhile.
    assert!((RATE..=2 * RATE).contains(&limited), "{limited}");
    assert_eq!(answers(&v4)?, 3 * RATE, "IPv4 is not limited");
    Ok(())
}
