//! XDP: what leaves by a device with XDP is completed, what a pod of the node gets is translated, all else is left to the
//! device's tc program as it is.

use crate::dsr::without_option;
use crate::kit::*;
use crate::l4::*;
use crate::nodeport::*;
use crate::nodeport_remote::native;
use crate::random::{Choices as _, Numbers};
use crate::service::*;
use crate::uplink::{UPLINK, routed};
use anyhow::{Context as _, Result};
use datapath_abi::mark::xdp_transfer::NO_SERVICE;
use datapath_abi::{
    MAGLEV_TEMPLATE_SIZE, NodeConfig, Pod as Plain, PrefilterKey4, PrefilterKey6, before_services, direction,
    drop, dsr, ipv4_word, ipv6_words, lb_flag, lb_flag2, metric,
};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

pub(crate) use crate::entry::{
    Entry, GATEWAY_MAC, UPLINK_MAC, XDP_DROP, XDP_PASS, XDP_REDIRECT, XDP_TX, text,
};

fn config() -> NodeConfig {
    NodeConfig { before_services: before_services::XDP, ..native() }
}

impl Entry {
    fn drops(&mut self, packet: &[u8], reason: u8) -> Result<()> {
        let datapath = &mut self.node.datapath;
        let before = datapath.counted(reason, direction::INGRESS)?;
        let outcome = self.arrive(packet)?;
        anyhow::ensure!(outcome.verdict == XDP_DROP, "{outcome:?}");
        let after = self.node.datapath.counted(reason, direction::INGRESS)?;
        anyhow::ensure!(after == before + 1, "not dropped for {reason}");
        Ok(())
    }
}

pub(crate) fn cases(mut test: impl FnMut(Family, u8) -> Result<()>) -> Result<()> {
    FAMILIES.into_iter().try_for_each(|family| [TCP, UDP].into_iter().try_for_each(|p| test(family, p)))
}

/// Scenarios 47 and 50, and that both are counted as forwarded.
#[test]
fn a_request_leaves_with_the_nodes_address_and_its_reply_to_the_client() -> Result<()> {
    test_kit::require_root!();
    cases(|family, protocol| {
        let mut entry = Entry::remote(&config(), family, protocol)?;
        for flags in [SYN, ACK] {
            let seen = seen_at(&entry.sends_back(&entry.request(flags))?);
            let host = family.host(50000);
            assert_eq!((seen.source, seen.destination), (host, family.remote()));
            assert!(seen.checksums, "{family:?} {protocol}");
            let reply = segment(family.remote(), host, protocol, flags | ACK);
            let seen = seen_at(&entry.sends_back(&reply)?);
            assert_eq!((seen.source, seen.destination), (family.vip(), entry.client()));
            assert!(seen.checksums, "{family:?} {protocol}");
        }
        assert_eq!(entry.node.datapath.counted(metric::FORWARDED, direction::EGRESS)?, 4);
        // Its twins: nobody has asked this port, and another host is not the node.
        entry.leaves(&segment(family.remote(), family.host(50001), protocol, ACK))?;
        entry.leaves(&segment(family.remote(), SocketAddr::new(family.other_node(), 50000), protocol, ACK))
    })
}

/// A datagram without a checksum still has none, and one whose checksum becomes zero does not look like that.
#[test]
fn checksums_of_udp_are_optional() -> Result<()> {
    test_kit::require_root!();
    let entry = Entry::remote(&config(), Family::V4, UDP)?;
    let mut packet = entry.request(0);
    packet[26..28].copy_from_slice(&[0, 0]);
    let outcome = entry.sends_back(&packet)?;
    assert_eq!(outcome.packet[14 + 26..14 + 28], [0, 0]);
    // Every sum occurs among these payloads, so zero does.
    for payload in 0..=u16::MAX {
        let mut packet = entry.request(0);
        let last = packet.len() - 2;
        let (old, new) = (u16::from_be_bytes([packet[last], packet[last + 1]]), payload);
        packet[last..].copy_from_slice(&new.to_be_bytes());
        let sum = u16::from_be_bytes([packet[26], packet[27]]);
        let moved = u32::from(!sum) + u32::from(!old) + u32::from(new);
        let moved = (moved & 0xffff) + (moved >> 16);
        let moved = !(((moved & 0xffff) + (moved >> 16)) as u16);
        packet[26..28].copy_from_slice(&(if moved == 0 { u16::MAX } else { moved }).to_be_bytes());
        let outcome = entry.sends_back(&packet)?;
        assert_ne!(outcome.packet[14 + 26..14 + 28], [0, 0], "{payload}");
        if outcome.packet[14 + 26..14 + 28] == [0xff, 0xff] {
            assert!(seen_at(&outcome).checksums);
            return Ok(());
        }
    }
    anyhow::bail!("no payload has led to a sum of zero")
}

/// Scenario 48: translated, with the flag that tells the device's program.
#[test]
fn a_pod_of_the_node_gets_the_packet_by_the_devices_program() -> Result<()> {
    test_kit::require_root!();
    cases(|family, protocol| {
        let mut entry = Entry::new(&config(), family, protocol, &[family.b(BACKEND_PORT)])?;
        entry.node.datapath.set_address(family.b(0).ip(), &Plain::zeroed())?;
        let outcome = entry.arrive(&entry.request(SYN))?;
        let seen = seen_at(&outcome);
        assert_eq!((outcome.verdict, outcome.mark), (XDP_PASS, NO_SERVICE), "{family:?}");
        assert_eq!((seen.source, seen.destination), (entry.client(), family.b(BACKEND_PORT)));
        assert!(seen.checksums, "{family:?} {protocol}");
        Ok(())
    })
}

/// Scenarios 49, 51 and 52, and what else the stack or the device's program has to do.
#[test]
fn what_xdp_cannot_complete_is_left_as_it_is() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut entry = Entry::remote(&config(), family, TCP)?;
        let request = entry.request(SYN);
        // The control.
        entry.sends_back(&request)?;
        let cases = [
            (NODE_PORT | lb_flag::EXT_LOCAL_SCOPE, 0),
            (NODE_PORT, lb_flag2::L7_LOAD_BALANCER),
            (lb_flag::HOST_PORT | lb_flag::ROUTABLE, 0),
        ];
        for (flags, flags2) in cases {
            entry.node.set_flags(flags, flags2)?;
            entry.leaves(&request).with_context(|| format!("{flags:#x} {flags2:#x}"))?;
        }
        entry.node.set_flags(NODE_PORT, 0)?;
        let mut last_hop = request.clone();
        match family {
            Family::V4 => {
                last_hop[8] = 1;
                last_hop[10..12].copy_from_slice(&[0, 0]);
                let sum = crate::packet::checksum(&last_hop[..20]);
                last_hop[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            Family::V6 => last_hop[7] = 1,
        }
        entry.leaves(&last_hop)?;
        entry.leaves(&family.echo())?;
        let mut beside = family.vip();
        beside.set_port(81);
        entry.leaves(&segment(entry.client(), beside, TCP, SYN))?;
        // The kernel has yet to resolve the next hop.
        let version = if family == Family::V4 { "203.0.113.9" } else { "2001:db8:1::9" };
        entry.ns.ip(&format!("neigh del {version} dev out0"))?;
        entry.leaves(&request)?;
        entry.node.set_backends(&[])?;
        entry.node.set_flags(NODE_PORT, 0)?;
        let other = SocketAddr::new(entry.family.outside(), 50002);
        entry.leaves(&segment(other, family.vip(), TCP, SYN))?;
    }
    Ok(())
}

pub(crate) const MTU: usize = 1280;

/// A datagram of the client to the frontend, of this length with its IP header.
pub(crate) fn datagram(family: Family, len: usize) -> Vec<u8> {
    let (client, vip) = (SocketAddr::new(family.outside(), 50000), family.vip());
    let len = len - if family == Family::V4 { 20 } else { 40 };
    let mut udp = [client.port().to_be_bytes(), vip.port().to_be_bytes()].concat();
    udp.extend((len as u16).to_be_bytes());
    udp.resize(len, 0);
    ip(client.ip(), vip.ip(), UDP, &udp)
}

/// A packet leaves by the device of its route if that has XDP; the control is the same packet while it does not.
#[test]
fn packets_leave_by_another_device_with_xdp() -> Result<()> {
    test_kit::require_root!();
    const OTHER: u32 = 41;
    const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x41];
    cases(|family, protocol| {
        let mut entry = Entry::remote(&config(), family, protocol)?;
        entry.ns.ip_batch(&format!(
            "link add other0 index {OTHER} type veth peer name other1
             link set other1 up
             link set other0 address {own} up
             addr add 198.18.0.1/24 dev other0
             addr add 2001:db8:9::1/64 dev other0 nodad
             neigh replace 198.18.0.9 lladdr {gateway} dev other0 nud permanent
             neigh replace 2001:db8:9::9 lladdr {gateway} dev other0 nud permanent
             route add {}/32 via 198.18.0.9
             route add {}/128 via 2001:db8:9::9
             route add {outside_v4}/32 via 203.0.113.9
             route add {outside_v6}/128 via 2001:db8:1::9",
            REMOTE[0],
            REMOTE[1],
            own = text(OTHER_MAC),
            gateway = text(GATEWAY_MAC),
            outside_v4 = OUTSIDE_V4,
            outside_v6 = OUTSIDE_V6,
        ))?;
        entry.leaves(&entry.request(SYN))?;
        entry.node.datapath.put::<4, 4>("xdp_devices", &OTHER, &1u32)?;
        let outcome = entry.arrive(&entry.request(SYN))?;
        assert_eq!(outcome.verdict, XDP_REDIRECT, "{outcome:?}");
        assert_eq!(outcome.packet[..12], [GATEWAY_MAC, OTHER_MAC].concat());
        let (seen, host) = (seen_at(&outcome), family.host(50000));
        assert_eq!((seen.source, seen.destination, seen.checksums), (host, family.remote(), true));
        // Its reply leaves by the device that it comes by in this test.
        entry.sends_back(&segment(family.remote(), host, protocol, SYN | ACK))?;
        // Longer than the route takes: the stack answers.
        if protocol == UDP {
            entry.ns.ip(&format!("link set other0 mtu {MTU}"))?;
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert_eq!(entry.arrive(&datagram(family, MTU))?.verdict, XDP_REDIRECT);
            entry.leaves(&datagram(family, MTU + 1))?;
        }
        Ok(())
    })
}

/// Scenario 55: a client with affinity has one backend, whatever its port.
#[test]
fn a_client_with_affinity_has_one_backend() -> Result<()> {
    test_kit::require_root!();
    cases(|family, protocol| {
        let backends = [8081, 8082, 8083].map(|port| SocketAddr::new(family.remote().ip(), port));
        let mut entry = Entry::new(&config(), family, protocol, &backends)?;
        let reached = |entry: &Entry, ports: std::ops::Range<u16>| -> Result<BTreeSet<SocketAddr>> {
            let packets = ports
                .map(|port| segment(SocketAddr::new(family.outside(), port), family.vip(), protocol, SYN));
            packets.map(|packet| Ok(seen_at(&entry.sends_back(&packet)?).destination)).collect()
        };
        assert!(reached(&entry, 40_000..40_040)?.len() > 1, "{family:?}: the control");
        entry.node.set_affinity(3600)?;
        entry.node.set_first_word(NODE_PORT | lb_flag::SESSION_AFFINITY, 3600)?;
        let one = reached(&entry, 41_000..41_040)?;
        assert_eq!(one.len(), 1, "{family:?}");
        // A backend that affinity has left for the client is not the one any more.
        let left = *one.first().unwrap();
        entry.node.refuse_affinity(left)?;
        let others = reached(&entry, 42_000..42_040)?;
        assert!(others.iter().any(|backend| *backend != left), "{family:?}");
        Ok(())
    })
}

#[test]
fn frontends_that_do_not_serve_a_client_drop_its_packets() -> Result<()> {
    test_kit::require_root!();
    cases(|family, protocol| {
        let mut entry = Entry::remote(&config(), family, protocol)?;
        let request = entry.request(SYN);
        entry.node.set_flags(0, 0)?;
        entry.drops(&request, drop::IS_A_CLUSTERIP)?;
        entry.node.set_flags(NODE_PORT | lb_flag::SOURCE_RANGE, 0)?;
        entry.drops(&request, drop::DENIED_BY_LB_SRC_RANGE_CHECK)?;
        entry.node.set_flags(NODE_PORT | lb_flag::SOURCE_RANGE, lb_flag2::QUARANTINED_OR_DENY)?;
        entry.sends_back(&request)?;
        Ok(())
    })
}

/// Scenario 53: the same bytes as by the device's program.
#[test]
fn direct_server_return_names_the_frontend() -> Result<()> {
    test_kit::require_root!();
    let config = NodeConfig { dsr: dsr::ALL, ..config() };
    cases(|family, protocol| {
        let entry = Entry::remote(&config, family, protocol)?;
        let outcome = entry.sends_back(&entry.request(SYN))?;
        let (option, plain) = without_option(family, &outcome);
        assert_eq!(option, family.option(family.vip(), protocol), "{family:?} {protocol}");
        let seen = seen(&plain);
        assert_eq!((seen.source, seen.destination), (entry.client(), family.remote()));
        assert!(seen.checksums, "{family:?} {protocol}");
        if protocol == TCP {
            let later = seen_at(&entry.sends_back(&entry.request(ACK))?);
            assert_eq!((later.source, later.destination), (entry.client(), family.remote()));
        }
        // Too long with the option: the device's program answers.
        if protocol == UDP {
            entry.ns.ip(&format!("link set out0 mtu {MTU}"))?;
            let largest = MTU - family.option_len();
            entry.sends_back(&datagram(family, largest))?;
            entry.leaves(&datagram(family, largest + 1))?;
            // The length that the header claims, which the option adds to, counts as well as what has arrived.
            for (claimed, leaves) in [(largest as u16, false), (largest as u16 + 1, true), (u16::MAX, true)] {
                let mut packet = datagram(family, largest - 8);
                let (at, claimed) = match family {
                    Family::V4 => (2, claimed),
                    Family::V6 => (4, claimed - 40),
                };
                packet[at..at + 2].copy_from_slice(&claimed.to_be_bytes());
                if leaves { entry.leaves(&packet)? } else { drop(entry.sends_back(&packet)?) }
            }
        }
        Ok(())
    })
}

#[test]
fn listed_senders_are_dropped() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        // The prefilter works without services.
        let config = NodeConfig { xdp_prefilter: 1, nodeport: 0, ..config() };
        let mut entry = Entry::remote(&config, family, TCP)?;
        let request = entry.request(SYN);
        entry.leaves(&request)?;
        let datapath = &mut entry.node.datapath;
        match family.outside() {
            IpAddr::V4(ip) => {
                let key = PrefilterKey4 { prefixlen: 24, address: ipv4_word(ip) };
                datapath.put_prefix::<4>("cilium_cidr_v4_dyn", 24, &key)?;
            }
            IpAddr::V6(ip) => {
                let key = PrefilterKey6 { prefixlen: 64, address: ipv6_words(ip) };
                datapath.put_prefix::<16>("cilium_cidr_v6_dyn", 64, &key)?;
            }
        }
        entry.drops(&request, drop::POLICY_DENIED)?;
        // A single address, beside the ranges.
        let other = SocketAddr::new(family.other_node(), 50000);
        let packet = segment(other, family.vip(), TCP, SYN);
        entry.leaves(&packet)?;
        let datapath = &mut entry.node.datapath;
        match other.ip() {
            IpAddr::V4(ip) => {
                let key = PrefilterKey4 { prefixlen: 32, address: ipv4_word(ip) };
                datapath.put::<8, 1>("cilium_cidr_v4_fix", &key, &0u8)?;
            }
            IpAddr::V6(ip) => {
                let key = PrefilterKey6 { prefixlen: 128, address: ipv6_words(ip) };
                datapath.put::<20, 1>("cilium_cidr_v6_fix", &key, &0u8)?;
            }
        }
        entry.drops(&packet, drop::POLICY_DENIED)?;
    }
    Ok(())
}

/// Whatever bytes a device receives: a packet is sent, dropped and counted, translated with its mark, or left as it is.
#[test]
fn damaged_packets_are_left_as_they_are_or_counted() -> Result<()> {
    test_kit::require_root!();
    const ROUNDS: usize = 6000;
    let mut numbers = Numbers::new(1);
    let direct = NodeConfig { dsr: dsr::BY_SERVICE, ..config() };
    for (family, config) in FAMILIES.into_iter().zip([crate::nodeport_remote::tunnel(), direct]) {
        let config = NodeConfig { before_services: before_services::XDP, extended_protocols: 1, ..config };
        let mut entry = Entry::remote(&config, family, UDP)?;
        if config.tunnel != 0 {
            let row = behind(REMOTE_IDENTITY, [192, 0, 2, 7].into(), 0);
            entry.node.datapath.set_ipcache(family.remote().ip(), &row)?;
        }
        let dropped = |datapath: &mut Datapath| -> Result<u64> {
            let drops = datapath.counters()?.into_iter().filter(|(key, ..)| key.is_drop());
            Ok(drops.map(|(_, packets, _)| packets).sum())
        };
        let before = dropped(&mut entry.node.datapath)?;
        let mut verdicts = [0u64; 5];
        for _ in 0..ROUNDS {
            let mut packet = entry.request(0);
            packet.resize(packet.len() + numbers.below(64), 0);
            // The headers, seldom the addresses: most packets must still be for the frontend.
            for _ in 0..numbers.below(4) {
                let at = numbers.below(48);
                packet[at] = numbers.below(256) as u8;
            }
            packet.truncate(packet.len() - numbers.below(4) * numbers.below(packet.len() / 4));
            let frame = frame(DEVICE, ROUTER_MAC, &packet);
            let outcome = entry.ns.run(|| entry.node.datapath.run_xdp(UPLINK, &frame))?;
            verdicts[outcome.verdict as usize] += 1;
            if outcome.verdict == XDP_PASS {
                anyhow::ensure!(outcome.mark == 0 && outcome.packet == frame, "{packet:02x?} {outcome:?}");
            }
        }
        let [aborted, drops, passed, sent, redirected] = verdicts;
        assert_eq!((aborted, redirected), (0, 0));
        assert!(passed > 100 && sent > 100, "{verdicts:?}");
        assert_eq!(dropped(&mut entry.node.datapath)? - before, drops);
    }
    Ok(())
}

/// The verifier's work for the largest program, with all that it can do.
#[test]
fn programs_are_small_for_the_verifier() -> Result<()> {
    test_kit::require_root!();
    const GOAL: u32 = 100_000;
    let config = NodeConfig {
        before_services: before_services::XDP,
        xdp_prefilter: 1,
        dsr: dsr::BY_SERVICE,
        maglev: 1,
        algorithm_annotation: 1,
        maglev_table_size: MAGLEV_TEMPLATE_SIZE,
        dynamic_source: 1,
        extended_protocols: 1,
        ct_accounting: 1,
        monitor_aggregation: 0,
        ..crate::nodeport_remote::tunnel()
    };
    let ns = routed()?;
    let datapath = ns.run(|| Datapath::load_xdp(&config, "out0"))?;
    for program in datapath_object::xdp::PROGRAMS {
        let count = datapath.xdp_program(program.name)?.info()?.verified_instruction_count();
        let count = count.context("the kernel does not count")?;
        assert!(count <= GOAL, "{}: {count}", program.name);
    }
    Ok(())
}
