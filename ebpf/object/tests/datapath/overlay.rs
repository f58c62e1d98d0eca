//! The tunnel: packets that leave by it, and those that came by it, with keys of friends and of others.

use crate::kit::*;
use crate::packet::*;
use anyhow::Result;
use datapath_abi::{
    NodeConfig, PolicyEntry, PolicyKey, ct_flag, direction, drop, identity, ipcache_flag, mark, metric,
};
use datapath_object::{FROM_CONTAINER, FROM_HOST, FROM_OVERLAY, TO_OVERLAY};
use std::net::{IpAddr, Ipv4Addr};

const LOCAL: [IpAddr; 2] = [IpAddr::V4(A.ipv4), IpAddr::V6(A.ipv6)];
/// A node with a tunnel, whose peers have a pod at [`REMOTE`].
fn node(config: &NodeConfig, flags: u8) -> Result<Datapath> {
    let mut datapath = Datapath::with_pods(config)?;
    for (ip, node) in
        REMOTE.into_iter().zip([IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)), "2001:db8::7".parse()?])
    {
        datapath.set_ipcache(ip, &behind(REMOTE_IDENTITY, node, flags))?;
    }
    Ok(datapath)
}

/// UDP as another node's pod sends it to a pod or to the host here.
fn arriving(source: IpAddr, destination: IpAddr) -> Vec<u8> {
    ip(source, destination, UDP, &udp_ports(4000, 5000))
}

/// The offset of the hop limit.
fn hops(ip: IpAddr) -> usize {
    ETH_LEN + if ip.is_ipv4() { 8 } else { 7 }
}

#[test]
fn packets_to_pods_of_other_nodes_leave_by_the_tunnel() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = node(&tunnel_config(), 0)?;
    for (source, destination) in LOCAL.into_iter().zip(REMOTE) {
        let packet = ip(source, destination, UDP, &udp_ports(4000, 5000));
        for _ in 0..2 {
            let outcome = datapath.sends(&packet)?;
            assert_eq!(outcome.verdict, REDIRECT, "{destination}");
            assert_eq!(outcome.packet, packet, "{destination}: the receiver's node routes it");
        }
    }
    assert_eq!(datapath.counted(metric::FORWARDED, direction::EGRESS)?, 4);
    // The controls: another destination, and the same one without a tunnel.
    let outside = ip(A.ipv4.into(), OUTSIDE_V4.into(), UDP, &udp_ports(4000, 5000));
    assert_eq!(datapath.sends(&outside)?.verdict, PASS);
    let native = node(&NodeConfig { tunnel: 0, ..tunnel_config() }, 0)?;
    let packet = ip(A.ipv4.into(), REMOTE_V4.into(), UDP, &udp_ports(4000, 5000));
    assert_eq!(native.sends(&packet)?.verdict, PASS);
    Ok(())
}

#[test]
fn policy_decides_before_encapsulation() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = node(&tunnel_config(), 0)?;
    datapath.deny(&A)?;
    let packet = ip(A.ipv4.into(), REMOTE_V4.into(), UDP, &udp_ports(4000, 5000));
    let reason = datapath.dropped(direction::EGRESS, |datapath| datapath.sends(&packet))?;
    assert_eq!(reason, Some(drop::POLICY_DENIED));
    Ok(())
}

#[test]
fn without_a_tunnel_device_packets_to_other_nodes_are_dropped() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = node(&NodeConfig { tunnel_ifindex: 0, ..tunnel_config() }, 0)?;
    let packet = ip(A.ipv4.into(), REMOTE_V4.into(), UDP, &udp_ports(4000, 5000));
    let reason = datapath.dropped(direction::EGRESS, |datapath| datapath.sends(&packet))?;
    assert_eq!(reason, Some(drop::NO_TUNNEL_OR_ENCAPSULATION_ENDPOINT));
    Ok(())
}

#[test]
fn pods_cannot_encapsulate_themselves() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = node(&tunnel_config(), 0)?;
    for (source, destination) in [(A.ipv4.into(), IpAddr::V4(HOST_V4)), (A.ipv6.into(), HOST_V6.into())] {
        let forged = ip(source, destination, UDP, &udp_ports(4000, VXLAN_PORT));
        let reason = datapath.dropped(direction::EGRESS, |datapath| datapath.sends(&forged))?;
        assert_eq!(reason, Some(drop::ENCAPSULATION_TRAFFIC_IS_PROHIBITED), "{destination}");
        // The controls: another port, another protocol.
        for (protocol, payload) in [(UDP, udp_ports(4000, VXLAN_PORT + 1)), (TCP, tcp(4000, VXLAN_PORT, SYN))]
        {
            assert_eq!(datapath.sends(&ip(source, destination, protocol, &payload))?.verdict, PASS);
        }
    }
    Ok(())
}

#[test]
fn the_host_reaches_pods_of_other_nodes_by_the_tunnel() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = node(&tunnel_config(), 0)?;
    let other_node: IpAddr = Ipv4Addr::new(192, 0, 2, 7).into();
    // A pod that is not known yet, in the range of a node.
    datapath.set_ipcache(OUTSIDE_V4.into(), &behind(identity::WORLD_IPV4, other_node, 0))?;
    for (source, destination) in
        [(HOST_V4.into(), REMOTE[0]), (HOST_V6.into(), REMOTE[1]), (HOST_V4.into(), OUTSIDE_V4.into())]
    {
        let packet = ip(source, destination, UDP, &udp_ports(4000, 5000));
        let outcome = datapath.run_with(FROM_HOST, &packet, Incoming::of_host())?;
        assert_eq!(outcome.verdict, REDIRECT, "{destination}");
        assert_eq!(outcome.packet, packet);
    }
    let nowhere = ip(HOST_V4.into(), Ipv4Addr::new(10, 9, 9, 9).into(), UDP, &udp_ports(4000, 5000));
    let run = |datapath: &Datapath| datapath.run_with(FROM_HOST, &nowhere, Incoming::of_host());
    assert_eq!(datapath.dropped(direction::INGRESS, run)?, Some(drop::STALE_OR_UNROUTABLE_IP));
    Ok(())
}

#[test]
fn a_row_may_skip_the_tunnel_but_for_replies_to_what_came_by_it() -> Result<()> {
    test_kit::require_root!();
    let datapath = node(&tunnel_config(), ipcache_flag::SKIP_TUNNEL)?;
    let peer = Peer::new()?;
    for (local, remote) in LOCAL.into_iter().zip(REMOTE) {
        let sent = ip(local, remote, UDP, &udp_ports(7, 7));
        assert_eq!(datapath.sends(&sent)?.verdict, PASS, "{remote}");
        let received = ip(remote, local, UDP, &udp_ports(4000, 5000));
        let outcome = peer.sends(&datapath, REMOTE_IDENTITY, &received)?;
        assert_eq!(outcome.verdict, REDIRECT, "{remote}");
        let reply = ip(local, remote, UDP, &udp_ports(5000, 4000));
        assert_eq!(datapath.sends(&reply)?.verdict, REDIRECT, "{remote}");
    }
    Ok(())
}

/// The verdict is [`PASS`] for the routes of the node, [`REDIRECT`] for the tunnel.
#[test]
fn packets_of_pods_within_a_group_of_subnets_skip_the_tunnel() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = node(&NodeConfig { hybrid: 1, ..tunnel_config() }, 0)?;
    let verdicts = |datapath: &Datapath| -> Result<Vec<u32>> {
        let sent = LOCAL.into_iter().zip(REMOTE).map(|(local, remote)| {
            Ok(datapath.sends(&ip(local, remote, UDP, &udp_ports(4000, 5000)))?.verdict)
        });
        sent.collect()
    };
    assert_eq!(verdicts(&datapath)?, [REDIRECT; 2], "without a topology");
    for remote in REMOTE {
        datapath.set_subnet(remote, if remote.is_ipv4() { 16 } else { 32 }, 1)?;
    }
    assert_eq!(verdicts(&datapath)?, [REDIRECT; 2], "only receivers are in a subnet");
    for local in LOCAL {
        datapath.set_subnet(local, if local.is_ipv4() { 24 } else { 64 }, 1)?;
    }
    assert_eq!(verdicts(&datapath)?, [PASS; 2]);
    // Packets that the host routes to cilium_host would loop without the tunnel.
    for (host, remote) in [IpAddr::V4(HOST_V4), HOST_V6.into()].into_iter().zip(REMOTE) {
        datapath.set_subnet(host, 8, 1)?;
        let packet = ip(host, remote, UDP, &udp_ports(4000, 5000));
        let outcome = datapath.run_with(FROM_HOST, &packet, Incoming::of_host())?;
        assert_eq!(outcome.verdict, REDIRECT, "{host}");
    }
    // The longest prefix decides: these receivers are in a subnet of their own.
    datapath.set_subnet(REMOTE_V4.into(), 24, 2)?;
    datapath.set_subnet(REMOTE_V6.into(), 64, 2)?;
    assert_eq!(verdicts(&datapath)?, [REDIRECT; 2]);

    let mut off = node(&tunnel_config(), 0)?;
    for ip in LOCAL.into_iter().chain(REMOTE) {
        off.set_subnet(ip, 8, 1)?;
    }
    assert_eq!(verdicts(&off)?, [REDIRECT; 2], "the control: routing-mode=tunnel");
    Ok(())
}

/// A connection that came by the tunnel stays there: its client's node may not know the topology yet.
#[test]
fn replies_to_packets_of_the_tunnel_stay_in_it_within_a_group() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = node(&NodeConfig { hybrid: 1, ..tunnel_config() }, 0)?;
    for ip in LOCAL.into_iter().chain(REMOTE) {
        datapath.set_subnet(ip, 8, 1)?;
    }
    let peer = Peer::new()?;
    for (local, remote) in LOCAL.into_iter().zip(REMOTE) {
        let outcome = peer.sends(&datapath, REMOTE_IDENTITY, &arriving(remote, local))?;
        assert_eq!(outcome.verdict, REDIRECT, "{remote}");
        let reply = ip(local, remote, UDP, &udp_ports(5000, 4000));
        assert_eq!(datapath.sends(&reply)?.verdict, REDIRECT, "{remote}");
        let other = ip(local, remote, UDP, &udp_ports(5001, 4000));
        assert_eq!(datapath.sends(&other)?.verdict, PASS, "{remote}: the twin that is no reply");
    }
    Ok(())
}

#[test]
fn packets_from_the_tunnel_reach_the_pod_with_the_senders_identity() -> Result<()> {
    test_kit::require_root!();
    let peer = Peer::new()?;
    for (redirect_peer, peer_flag) in [(1, mark::delivery::USE_REDIRECT_PEER), (0, 0)] {
        let mut datapath = node(&NodeConfig { redirect_peer, ..tunnel_config() }, 0)?;
        let cases = [
            (REMOTE_IDENTITY, REMOTE_IDENTITY, REMOTE_IDENTITY),
            // A sender is trusted, whatever the ipcache has of its address.
            (4711, 4711, 4711),
            (identity::WORLD, identity::WORLD_IPV4, identity::WORLD_IPV6),
            (0, 0, 0),
        ];
        for (key, (id, v4, v6)) in cases.into_iter().flat_map(|case| [(0, case), (IPV6_KEY, case)]) {
            for (source, destination) in REMOTE.into_iter().zip(LOCAL) {
                let sent = arriving(source, destination);
                let outcome = peer.run(&datapath, FROM_OVERLAY, (id, key), &sent)?;
                assert_eq!(outcome.verdict, REDIRECT, "{id} from {source}");
                assert_eq!(outcome.packet[..12], [A.mac, A.node_mac].concat());
                assert_eq!(outcome.packet[hops(source)], 63);
                let label = if source.is_ipv4() { v4 } else { v6 };
                assert_eq!(outcome.cb[mark::cb::SRC_LABEL], label, "{id} from {source}");
                let flags = mark::delivery::REDIRECT | mark::delivery::FROM_TUNNEL | peer_flag;
                assert_eq!(outcome.cb[mark::cb::DELIVERY_FLAGS], flags | u32::from(A.id) << 16);
            }
        }
        let count = 2 * 2 * cases.len() as u64;
        assert_eq!(datapath.counted(metric::PLAINTEXT, direction::INGRESS)?, count);
        assert_eq!(datapath.counted(metric::FORWARDED, direction::INGRESS)?, count);
        let entries = datapath.rows::<14, 56>("cilium_ct_any4_global")?;
        let flags = |entry: &[u8; 56]| u16::from_ne_bytes([entry[36], entry[37]]);
        assert!(
            entries.iter().all(|(_, entry)| flags(entry) & ct_flag::FROM_TUNNEL != 0) && !entries.is_empty()
        );
    }
    Ok(())
}

#[test]
fn nodes_are_looked_up_again_by_their_address() -> Result<()> {
    test_kit::require_root!();
    let (mut datapath, peer) = (node(&tunnel_config(), 0)?, Peer::new()?);
    datapath.set_identity(OUTSIDE_V4.into(), identity::KUBE_APISERVER)?;
    for (source, expected) in
        [(OUTSIDE_V4, identity::KUBE_APISERVER), (Ipv4Addr::new(10, 9, 9, 9), identity::REMOTE_NODE)]
    {
        let outcome =
            peer.sends(&datapath, identity::REMOTE_NODE, &arriving(source.into(), A.ipv4.into()))?;
        assert_eq!(outcome.cb[mark::cb::SRC_LABEL], expected, "{source}");
    }
    Ok(())
}

#[test]
fn ingress_policy_sees_the_identity_of_the_key() -> Result<()> {
    test_kit::require_root!();
    let (mut datapath, peer) = (node(&tunnel_config(), 0)?, Peer::new()?);
    let allowed = PolicyKey { sec_label: 4711, ..PolicyKey::any(false) };
    datapath.set_policy(&A, &[(allowed, PolicyEntry::allow(0))])?;
    let packet = arriving(REMOTE_V4.into(), A.ipv4.into());
    let reason =
        datapath.dropped(direction::INGRESS, |datapath| peer.sends(datapath, REMOTE_IDENTITY, &packet))?;
    assert_eq!(reason, Some(drop::POLICY_DENIED));
    assert_eq!(peer.sends(&datapath, 4711, &packet)?.verdict, REDIRECT);
    Ok(())
}

#[test]
fn forged_and_cut_packets_of_the_tunnel_are_dropped() -> Result<()> {
    test_kit::require_root!();
    let (mut datapath, peer) = (node(&tunnel_config(), 0)?, Peer::new()?);
    for (source, destination) in REMOTE.into_iter().zip(LOCAL) {
        let packet = arriving(source, destination);
        let host =
            datapath.dropped(direction::INGRESS, |datapath| peer.sends(datapath, identity::HOST, &packet))?;
        assert_eq!(host, Some(drop::INVALID_IDENTITY), "{source}");
        let keyless = datapath.dropped(direction::INGRESS, |datapath| datapath.run(FROM_OVERLAY, &packet))?;
        assert_eq!(keyless, Some(drop::ERROR_RETRIEVING_TUNNEL_KEY), "{source}");
        let header = if source.is_ipv4() { 20 } else { 40 };
        for length in [header + 1, header + 3] {
            let cut = &packet[..ETH_LEN + length];
            let reason = datapath
                .dropped(direction::INGRESS, |datapath| peer.sends(datapath, REMOTE_IDENTITY, cut))?;
            assert!(reason.is_some(), "{source} cut to {length} bytes");
        }
        let mut spent = packet.clone();
        spent[hops(source)] = 1;
        let reason =
            datapath.dropped(direction::INGRESS, |datapath| peer.sends(datapath, REMOTE_IDENTITY, &spent))?;
        assert_eq!(reason, Some(drop::TTL_EXCEEDED), "{source}");
        // The control.
        assert_eq!(peer.sends(&datapath, REMOTE_IDENTITY, &packet)?.verdict, REDIRECT);
    }
    Ok(())
}

#[test]
fn other_packets_of_the_tunnel_are_left_to_the_stack() -> Result<()> {
    test_kit::require_root!();
    let (datapath, peer) = (node(&NodeConfig { enable_ipv6: 0, ..tunnel_config() }, 0)?, Peer::new()?);
    let arp = eth(BROADCAST, B.mac, 0x0806, &arp_request(B.mac, B.ipv4, A.ipv4));
    for packet in [arp, arriving(REMOTE_V6.into(), A.ipv6.into()), eth(A.mac, B.mac, 0x88cc, &[0; 60])] {
        let outcome = peer.sends(&datapath, REMOTE_IDENTITY, &packet)?;
        assert_eq!((outcome.verdict, &outcome.packet), (PASS, &packet));
    }
    Ok(())
}

#[test]
fn packets_to_the_host_pass_cilium_host() -> Result<()> {
    test_kit::require_root!();
    let (mut datapath, peer) = (node(&tunnel_config(), 0)?, Peer::new()?);
    for (source, destination) in REMOTE.into_iter().zip([IpAddr::V4(HOST_V4), HOST_V6.into()]) {
        let outcome = peer.sends(&datapath, REMOTE_IDENTITY, &arriving(source, destination))?;
        assert_eq!(outcome.verdict, REDIRECT, "{destination}");
        assert_eq!(outcome.packet[..12], [HOST_MAC, TUNNEL_MAC].concat());
        assert_eq!(outcome.packet[hops(source)], 63);
        assert_eq!(outcome.mark, mark::with_identity(mark::IDENTITY, REMOTE_IDENTITY));
    }
    // Pieces of datagrams, without tracking of fragments.
    let piece = eth(A.mac, B.mac, 0x0800, &ipv4_with(REMOTE_V4, HOST_V4, 64, UDP, [1, 0x2000], &[0; 64]));
    assert_eq!(peer.sends(&datapath, REMOTE_IDENTITY, &piece)?.verdict, REDIRECT);
    let mut untracked = node(&NodeConfig { ipv4_fragments: 0, ..tunnel_config() }, 0)?;
    let reason =
        untracked.dropped(direction::INGRESS, |datapath| peer.sends(datapath, REMOTE_IDENTITY, &piece))?;
    assert_eq!(reason, Some(drop::IP_FRAGMENTATION_NOT_SUPPORTED));
    datapath.remove_address(HOST_V4.into())?;
    let outcome = peer.sends(&datapath, REMOTE_IDENTITY, &arriving(REMOTE_V4.into(), HOST_V4.into()))?;
    assert_eq!(outcome.verdict, REDIRECT, "the host's routes decide about unknown addresses");
    Ok(())
}

#[test]
fn packets_that_leave_by_the_tunnel_are_marked() -> Result<()> {
    test_kit::require_root!();
    let (datapath, peer) = (node(&tunnel_config(), 0)?, Peer::new()?);
    let packet = arriving(A.ipv4.into(), REMOTE_V4.into());
    for key in [0, IPV6_KEY] {
        let outcome = peer.run(&datapath, TO_OVERLAY, (0x12_3456, key), &packet)?;
        assert_eq!((outcome.verdict, outcome.mark), (PASS, 0x3456_0412));
    }
    assert_eq!(datapath.run(TO_OVERLAY, &packet)?.mark, mark::OVERLAY);
    Ok(())
}

/// The same packet of the same pod: what leaves the node does not depend on the family between nodes.
#[test]
fn either_family_is_between_nodes() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = Datapath::with_pods(&tunnel_config())?;
    for node in ["192.0.2.7", "2001:db8::7"] {
        let node: IpAddr = node.parse()?;
        for (source, destination) in LOCAL.into_iter().zip(REMOTE) {
            datapath.set_ipcache(destination, &behind(REMOTE_IDENTITY, node, 0))?;
            let outcome =
                datapath.run(FROM_CONTAINER, &ip(source, destination, UDP, &udp_ports(4000, 5000)))?;
            assert_eq!(outcome.verdict, REDIRECT, "{destination} by {node}");
        }
    }
    Ok(())
}
