//! Direct server return by IPIP: packets leave with the frontend as their destination, in an outer IP header to the backend.

use crate::kit::*;
use crate::l4::*;
use crate::nodeport::*;
use crate::nodeport_remote::{Entry, assert_time_exceeded, with_hops};
use crate::packet::checksum;
use crate::service::*;
use crate::xdp::{self, GATEWAY_MAC, MTU, UPLINK_MAC, XDP_TX, cases, datagram};
use anyhow::{Context as _, Result};
use datapath_abi::{
    NodeConfig, before_services, direction, drop, dsr, ipv4_word, ipv6_words, lb_flag2, mark, metric,
};
use datapath_object::FROM_NETDEV;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;
use test_kit::{NetNs, try_wait_until};

use crate::entry::IPIP_DEVICES;
pub(crate) use crate::entry::by_ipip;

fn by_xdp() -> NodeConfig {
    NodeConfig { before_services: before_services::XDP, ..by_ipip() }
}

/// Source, destination and content of an outer header, of which every field must be right.
pub(crate) fn unwrapped(family: Family, packet: &[u8]) -> ((IpAddr, IpAddr), Vec<u8>) {
    let (protocol, len) = family.outer();
    let word = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    match family {
        Family::V4 => {
            assert_eq!((packet[0], packet[8], packet[9]), (0x45, 64, protocol));
            assert_eq!((word(2), word(6), checksum(&packet[..20])), (packet.len(), 0, 0));
        }
        Family::V6 => {
            assert_eq!((packet[0] >> 4, packet[6], packet[7]), (6, protocol, 64));
            assert_eq!(word(4), packet.len() - len);
        }
    }
    (addresses(packet), packet[len..].to_vec())
}

/// Scenario 40 by tc, up to the device: the packet has the frontend still.
#[test]
fn a_request_keeps_the_frontend_and_leaves_by_the_device_of_outer_headers() -> Result<()> {
    test_kit::require_root!();
    for (family, device) in FAMILIES.into_iter().zip(IPIP_DEVICES) {
        for protocol in [TCP, UDP, SCTP] {
            let mut entry = Entry::new(&by_ipip(), family, protocol)?;
            let client = entry.client(CLIENT_PORT);
            for flags in [SYN, ACK] {
                let packet = segment(client, family.vip(), protocol, flags);
                let outcome = entry.arrive(&packet)?;
                assert_eq!(outcome.verdict, REDIRECT, "{family:?} {protocol} {outcome:?}");
                // One hop less, and nothing else.
                assert_eq!(outcome.packet[14..], with_hops(packet, 63), "{family:?} {device}");
                assert_eq!(outcome.mark & mark::MAGIC_MASK, mark::SNAT_DONE);
            }
            assert_eq!(entry.rows()?, [], "no translation of the source");
            assert_eq!(entry.node.connections()?, 1, "the choice of the backend alone");
            let last = entry.arrive(&with_hops(entry.request(client), 1))?;
            if protocol != SCTP {
                assert_time_exceeded(&last, family, (client, family.vip()));
            }
        }
        // The twin: a service that chooses the node's address.
        let config = NodeConfig { dsr: dsr::BY_SERVICE, ..by_ipip() };
        let mut entry = Entry::new(&config, family, TCP)?;
        let request = entry.request(entry.client(CLIENT_PORT));
        let seen = seen_at(&entry.arrive(&request)?);
        assert_eq!((seen.source, seen.destination), (family.host(CLIENT_PORT), family.remote()));
        entry.node.set_flags(NODE_PORT, lb_flag2::FORWARDING_DSR)?;
        assert_eq!(seen_at(&entry.arrive(&request)?).destination, family.vip());
        // No device, no way: an untranslated packet must not go back to where it came from.
        let config = NodeConfig { ipip_ifindex_ipv4: 0, ipip_ifindex_ipv6: 0, ..by_ipip() };
        let mut entry = Entry::new(&config, family, TCP)?;
        let request = entry.request(entry.client(CLIENT_PORT));
        let why = entry.dropped(direction::EGRESS, &request)?;
        assert_eq!(why, Some(drop::NO_TUNNEL_OR_ENCAPSULATION_ENDPOINT));
    }
    Ok(())
}

/// Scenario 40, the tunnel's key. Kernels without devices of IPIP have those of VXLAN, which read the same key: what it
/// sends to arrives at the backend.
#[test]
fn the_devices_key_has_the_backends_address() -> Result<()> {
    test_kit::require_root!();
    const PORT: u16 = 4789;
    /// Of the device that the client sends to, and of the one that packets come out of.
    const MAC: &str = "02:00:00:00:00:aa";
    let (host, client, machine) = (NetNs::detached()?, NetNs::detached()?, NetNs::detached()?);
    host.veth("in0", &client, "eth0")?;
    host.veth("out0", &machine, "eth0")?;
    host.ip_batch(&format!(
        "link set in0 address {MAC}
         addr add 198.51.100.1/24 dev in0
         addr add 2001:db8:ffff::1/64 dev in0 nodad
         addr add 203.0.113.1/24 dev out0
         addr add 2001:db8:1::1/64 dev out0 nodad
         route add {}/32 via 203.0.113.9
         route add {}/128 via 2001:db8:1::9
         link add vx0 type vxlan external dstport {PORT} udp6zerocsumrx
         link set vx0 up",
        REMOTE[0], REMOTE[1],
    ))?;
    client.ip_batch(
        "addr add 198.51.100.9/24 dev eth0
         addr add 2001:db8:ffff::9/64 dev eth0 nodad
         route add default via 198.51.100.1
         route add default via 2001:db8:ffff::1",
    )?;
    machine.ip_batch(&format!(
        "addr add 203.0.113.9/24 dev eth0
         addr add 2001:db8:1::9/64 dev eth0 nodad
         link set lo up
         addr add {}/32 dev lo
         addr add {}/128 dev lo nodad
         addr add {}/32 dev lo
         addr add {}/128 dev lo nodad
         link add vx0 type vxlan external dstport {PORT} udp6zerocsumrx
         link set vx0 address {MAC} up",
        REMOTE[0],
        REMOTE[1],
        Family::V4.vip().ip(),
        Family::V6.vip().ip(),
    ))?;
    for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        host.set_sysctl(key, "1")?;
    }
    let index = host.run(|| ifindex("vx0"))?;
    for family in FAMILIES {
        let config = NodeConfig { ipip_ifindex_ipv4: index, ipip_ifindex_ipv6: index, ..by_ipip() };
        let mut node = Node::frontend(&config, family, UDP, &[family.remote()])?;
        host.run(|| node.datapath.attach(FROM_NETDEV, "in0", aya::programs::TcAttachType::Ingress))?;
        let backend = machine.run(|| -> Result<UdpSocket> {
            let socket = UdpSocket::bind(family.vip())?;
            socket.set_read_timeout(Some(Duration::from_millis(200)))?;
            Ok(socket)
        })?;
        let any = if family == Family::V4 { "0.0.0.0:0" } else { "[::]:0" };
        let asks = client.run(|| UdpSocket::bind(any))?;
        let mut received = None;
        try_wait_until(Duration::from_secs(10), || {
            asks.send_to(b"question", family.vip()).map_err(|error| error.to_string())?;
            let mut question = [0; 16];
            let (len, client) = backend.recv_from(&mut question).map_err(|error| error.to_string())?;
            received = Some((question[..len].to_vec(), client.ip()));
            Ok(())
        })
        .map_err(anyhow::Error::msg)
        .with_context(|| format!("{family:?} {:?}", node.datapath.counters()))?;
        let client: IpAddr =
            if family == Family::V4 { [198, 51, 100, 9].into() } else { "2001:db8:ffff::9".parse()? };
        assert_eq!(received, Some((b"question".to_vec(), client)), "{family:?}");
    }
    Ok(())
}

/// Scenarios 41 and 42: no outer header for a backend of this node, and none for a proxy of the service here.
#[test]
fn a_backend_of_the_node_gets_no_outer_header() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let backend = family.b(BACKEND_PORT);
        let mut entry = Entry::new(&by_ipip(), family, TCP)?;
        entry.node.set_backends(&[backend])?;
        entry.node.set_flags(NODE_PORT, 0)?;
        let request = entry.request(entry.client(CLIENT_PORT));
        let outcome = entry.arrive(&request)?;
        let seen = seen_at(&outcome);
        assert_eq!((outcome.verdict, seen.destination, seen.checksums), (PASS, backend, true), "{family:?}");
        entry.node.set_flags(NODE_PORT, lb_flag2::LOOPBACK)?;
        let outcome = entry.arrive(&request)?;
        assert_eq!((outcome.verdict, &outcome.packet[14..]), (PASS, &request[..]), "{family:?}");
    }
    Ok(())
}

/// The limit is the MTU of the route to the backend, less the outer header.
#[test]
fn packets_that_get_too_long_are_answered() -> Result<()> {
    test_kit::require_root!();
    const MTU: usize = 1400;
    for family in FAMILIES {
        let (vip, largest) = (family.vip(), MTU - family.outer().1);
        let mut entry = Entry::new(&by_ipip(), family, UDP)?;
        entry.ns.ip(&format!("link set out0 mtu {MTU}"))?;
        assert_eq!(entry.arrive(&datagram(family, largest))?.verdict, REDIRECT);
        let why = entry.dropped(direction::EGRESS, &datagram(family, largest + 1))?;
        assert_eq!(why, Some(drop::FRAG_NEEDED), "{family:?}");
        // Segments of a large packet have come by a link, and are as long as there.
        let large = frame(DEVICE, ROUTER_MAC, &datagram(family, largest + 1));
        let incoming = Incoming { gso_size: 1200, ingress_ifindex: IFINDEX, ..Incoming::default() };
        let outcome = entry.ns.run(|| entry.node.datapath.run_with(FROM_NETDEV, &large, incoming))?;
        assert_eq!(outcome.verdict, REDIRECT);
        // With enable-pmtu-discovery the client learns the length from the frontend.
        let mut entry = Entry::new(&NodeConfig { dsr_icmp: 1, ..by_ipip() }, family, UDP)?;
        entry.ns.ip(&format!("link set out0 mtu {MTU}"))?;
        let outcome = entry.arrive(&datagram(family, largest + 1))?;
        let seen = seen_at(&outcome);
        assert_eq!((outcome.verdict, seen.protocol, seen.checksums), (REDIRECT, family.icmp(), true));
        assert_eq!((seen.source.ip(), seen.destination.ip()), (vip.ip(), family.outside()));
        assert_eq!(quoted(&outcome.packet).1, vip, "{family:?}");
        let at = l4_offset(&outcome.packet);
        let (kind, length) = (&outcome.packet[at..at + 2], &outcome.packet[at + 4..at + 8]);
        assert_eq!(kind, if family == Family::V4 { [3, 4] } else { [2, 0] });
        assert_eq!(length, (largest as u32).to_be_bytes());
        assert_eq!(entry.node.datapath.counted(drop::FRAG_NEEDED, direction::EGRESS)?, 1);
        // Without a route to the backend there is no way either.
        entry.ns.ip_batch("route del default via 203.0.113.9\n route del default via 2001:db8:1::9")?;
        let why = entry.dropped(direction::EGRESS, &datagram(family, 100))?;
        assert_eq!(why, Some(drop::FIB_LOOKUP_FAILED));
    }
    Ok(())
}

/// Scenarios 40, 41 and 53 by XDP, without a device: the outer header is as the device would write it.
#[test]
fn xdp_writes_the_outer_header() -> Result<()> {
    test_kit::require_root!();
    cases(|family, protocol| {
        let mut entry = xdp::Entry::remote(&by_xdp(), family, protocol)?;
        let backend = family.remote().ip();
        for flags in [SYN, ACK] {
            let mut request = entry.request(flags);
            // The sender is capable of congestion notification, and the second packet has met congestion.
            let (ecn, outer_ecn) = if flags == SYN { (1, 1) } else { (3, 2) };
            set_ecn(family, &mut request, ecn);
            let outcome = entry.arrive(&request)?;
            assert_eq!(outcome.verdict, XDP_TX, "{family:?} {outcome:?}");
            assert_eq!(outcome.packet[..12], [GATEWAY_MAC, UPLINK_MAC].concat());
            assert_eq!(outcome.packet[12..14], if family == Family::V4 { [8, 0] } else { [0x86, 0xdd] });
            let (ends, inner) = unwrapped(family, &outcome.packet[14..]);
            assert_eq!(ends, (family.host(0).ip(), backend));
            assert_eq!(inner, with_hops(request, 63), "{family:?} {protocol}");
            let class = u16::from_be_bytes([outcome.packet[14], outcome.packet[15]]);
            let class = if family == Family::V4 { class } else { class >> 4 };
            assert_eq!(class & 3, outer_ecn);
        }
        assert_eq!(entry.node.datapath.counted(metric::FORWARDED, direction::EGRESS)?, 2);
        // Frames shorter than 60 bytes have padding behind the packet, which is not a part of it.
        let mut padded = frame(DEVICE, ROUTER_MAC, &entry.request(SYN));
        padded.extend([0; 18]);
        let outcome = entry.ns.run(|| entry.node.datapath.run_xdp(crate::uplink::UPLINK, &padded))?;
        let (_, inner) = unwrapped(family, &outcome.packet[14..outcome.packet.len() - 18]);
        assert_eq!(inner, with_hops(entry.request(SYN), 63));
        // Too long with the header: the device's program answers.
        if protocol == UDP {
            entry.ns.ip(&format!("link set out0 mtu {MTU}"))?;
            let largest = MTU - family.outer().1;
            assert_eq!(entry.arrive(&datagram(family, largest))?.packet.len(), 14 + MTU);
            entry.leaves(&datagram(family, largest + 1))?;
        }
        // A pod of the node.
        let mut entry = xdp::Entry::new(&by_xdp(), family, protocol, &[family.b(BACKEND_PORT)])?;
        entry.node.datapath.set_address(family.b(0).ip(), &Default::default())?;
        assert_eq!(seen_at(&entry.arrive(&entry.request(SYN))?).destination, family.b(BACKEND_PORT));
        Ok(())
    })
}

pub(crate) fn set_ecn(family: Family, packet: &mut [u8], ecn: u8) {
    if family == Family::V4 {
        packet[1] = ecn;
        packet[10..12].fill(0);
        let sum = checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        packet[1] = ecn << 4;
    }
}

/// The range of `bpf-lb-rss-ipv4-src-cidr` and `bpf-lb-rss-ipv6-src-cidr`: a flow has one source, flows have many.
#[test]
fn outer_headers_have_sources_of_the_range() -> Result<()> {
    test_kit::require_root!();
    let range_v4 = Ipv4Addr::new(10, 200, 0, 0);
    let range_v6: Ipv6Addr = "2001:db8:55::".parse()?;
    for family in FAMILIES {
        // Ranges of 10 and of 70 bits.
        let config = NodeConfig {
            rss_ipv4: ipv4_word(range_v4),
            rss_host_ipv4: 0x3ff_u32.to_be(),
            rss_ipv6: ipv6_words(range_v6),
            rss_host_ipv6: [0, 0x3f_u32.to_be(), u32::MAX, u32::MAX],
            ..by_xdp()
        };
        let entry = xdp::Entry::remote(&config, family, UDP)?;
        let source_of = |port: u16| -> Result<IpAddr> {
            let client = SocketAddr::new(family.outside(), port);
            let outcome = entry.arrive(&segment(client, family.vip(), UDP, 0))?;
            let ((source, destination), _) = unwrapped(family, &outcome.packet[14..]);
            assert_eq!(destination, family.remote().ip());
            Ok(source)
        };
        let mut sources = BTreeSet::new();
        for port in 40_000..40_200 {
            let source = source_of(port)?;
            assert_eq!(source, source_of(port)?, "a flow stays in one queue");
            let is_within = match source {
                IpAddr::V4(ip) => u32::from(ip) & !0x3ff == u32::from(range_v4),
                IpAddr::V6(ip) => u128::from(ip) >> 70 == u128::from(range_v6) >> 70,
            };
            assert!(is_within, "{source}");
            sources.insert(source);
        }
        // Of 200 random ones among 1024, 181 differ on average.
        assert!(sources.len() > 160, "{family:?}: {}", sources.len());
    }
    Ok(())
}
