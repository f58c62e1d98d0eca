//! Redirects to proxies: marks, connections and events, both ways of pod A and in both families.

use crate::events::{Ring, split};
use crate::kit::*;
use crate::l4::{ACK, SCTP, SYN, TCP, UDP, ip as l4_ip};
use crate::packet::{eth, ip, tcp, udp_ports};
use anyhow::{Context as _, Result};
use datapath_abi::event::{PolicyVerdictNotify, TraceNotify};
use datapath_abi::mark::{self, cb, delivery};
use datapath_abi::{
    CtEntry, NodeConfig, Pod as Plain, ct_flag, direction, drop, event, identity, metric, trace,
};
use datapath_object::{FROM_CONTAINER, FROM_HOST, LXC_POLICY, TO_CONTAINER, TO_HOST};
use std::net::IpAddr;

const PROXY_PORT: u16 = 10_053;
const DNS: u16 = 53;
const WEB: u16 = 80;
const CLIENT: u16 = 40_000;
const PEER: u32 = 70_000;

/// The mark of packets to the proxy.
const TO_PROXY: u32 = 0x0200 | (PROXY_PORT.to_be() as u32) << 16;
/// The mark of replies, for which the stack finds the socket.
const TO_SOCKET: u32 = 0x0200;

fn families() -> [(IpAddr, IpAddr); 2] {
    [(A.ipv4.into(), OUTSIDE_V4.into()), (A.ipv6.into(), OUTSIDE_V6.into())]
}

/// Pods, of which A has web and DNS traffic of both directions redirected, and all other traffic allowed.
fn datapath(config: &NodeConfig) -> Result<Datapath> {
    let mut datapath = Datapath::with_pods(config)?;
    for (_, peer) in families() {
        datapath.set_identity(peer, PEER)?;
    }
    redirect(&mut datapath, Kind::Proxy(PROXY_PORT))?;
    Ok(datapath)
}

fn redirect(datapath: &mut Datapath, kind: Kind) -> Result<()> {
    let mut rows = ALLOW_ALL.to_vec();
    for (protocol, port) in [(TCP, WEB), (UDP, DNS), (SCTP, WEB)] {
        rows.extend([OUT, IN].map(|way| row(way, 0, protocol, Some((port, 16)), kind)));
    }
    datapath.set_policy(&A, &rows)
}

/// Runs a packet to pod A on its way from another program, with flags of the delivery.
fn delivered(datapath: &Datapath, packet: &[u8], flags: u32) -> Result<Outcome> {
    let call = flags | u32::from(A.id) << delivery::ENDPOINT_SHIFT;
    let incoming = Incoming { ingress_ifindex: IFINDEX, cb: [PEER, call, 0, 0, 0], ..Incoming::default() };
    datapath.run_with(LXC_POLICY, packet, incoming)
}

/// The flags of all entries of connections, without those of ICMP errors.
fn flags(datapath: &mut Datapath, ipv4: bool, tcp: bool) -> Result<Vec<u16>> {
    let (suffix, related) = (if ipv4 { "4" } else { "6" }, 2);
    let map = format!("cilium_ct{}{suffix}_global", if tcp { "" } else { "_any" });
    let values: Vec<(u8, [u8; 56])> = match ipv4 {
        true => datapath.rows::<14, 56>(&map)?.into_iter().map(|(key, value)| (key[13], value)).collect(),
        false => datapath.rows::<38, 56>(&map)?.into_iter().map(|(key, value)| (key[37], value)).collect(),
    };
    let values = values.into_iter().filter(|(tuple, _)| tuple & related == 0);
    values.map(|(_, value)| Ok(CtEntry::from_bytes(&value).context("short entry")?.flags)).collect()
}

fn is_proxied(datapath: &mut Datapath, peer: IpAddr, tcp: bool) -> Result<Vec<bool>> {
    let flags = flags(datapath, peer.is_ipv4(), tcp)?;
    Ok(flags.into_iter().map(|flags| flags & ct_flag::PROXY_REDIRECT != 0).collect())
}

#[test]
fn what_a_pod_sends_goes_to_the_proxy_and_comes_back_from_it() -> Result<()> {
    test_kit::require_root!();
    for (pod, peer) in families() {
        let mut datapath = datapath(&default_config())?;
        let syn = ip(pod, peer, TCP, &tcp(CLIENT, WEB, SYN));
        let sent = datapath.sends(&syn)?;
        assert_eq!((sent.verdict, sent.mark), (PASS, TO_PROXY), "{peer}");
        assert_eq!(sent.packet, syn, "the proxy learns the destination");
        assert_eq!(is_proxied(&mut datapath, peer, true)?, [true]);
        // Of the same connection, and a twin to another port.
        assert_eq!(datapath.sends(&ip(pod, peer, TCP, &tcp(CLIENT, WEB, ACK)))?.mark, TO_PROXY);
        let other = datapath.sends(&ip(pod, peer, TCP, &tcp(CLIENT, WEB + 1, SYN)))?;
        assert_eq!((other.verdict, other.mark), (PASS, mark::with_identity(mark::IDENTITY, A.identity)));

        let query = datapath.sends(&ip(pod, peer, UDP, &udp_ports(CLIENT, DNS)))?;
        assert_eq!((query.verdict, query.mark), (PASS, TO_PROXY), "{peer}");
        assert_eq!(is_proxied(&mut datapath, peer, false)?, [true]);
        // The server's answer to a proxy with the pod's address belongs to the proxy's socket; the proxy's goes on.
        let answer = ip(peer, pod, UDP, &udp_ports(DNS, CLIENT));
        let from_server = delivered(&datapath, &answer, delivery::REDIRECT)?;
        assert_eq!((from_server.verdict, from_server.mark), (PASS, TO_SOCKET), "{peer}");
        let from_proxy = delivered(&datapath, &answer, delivery::REDIRECT | delivery::FROM_EGRESS_PROXY)?;
        assert_eq!((from_proxy.verdict, from_proxy.mark), (REDIRECT, 0), "{peer}");
    }
    Ok(())
}

#[test]
fn entries_follow_a_policy_that_starts_or_ends_to_redirect() -> Result<()> {
    test_kit::require_root!();
    for (pod, peer) in families() {
        let mut datapath = datapath(&default_config())?;
        let [out, back] =
            [ip(pod, peer, TCP, &tcp(CLIENT, WEB, ACK)), ip(peer, pod, TCP, &tcp(CLIENT, WEB, ACK))];
        for (kind, expected) in
            [(Kind::Allow(0), false), (Kind::Proxy(PROXY_PORT), true), (Kind::Allow(0), false)]
        {
            redirect(&mut datapath, kind)?;
            let mark = datapath.sends(&out)?.mark;
            assert_eq!(mark == TO_PROXY, expected, "{peer}: {mark:#x}");
            let mark = delivered(&datapath, &back, delivery::REDIRECT)?.mark;
            assert_eq!(mark == TO_PROXY, expected, "{peer}: {mark:#x}");
            assert_eq!(is_proxied(&mut datapath, peer, true)?, [expected; 2], "{peer}");
        }
    }
    Ok(())
}

#[test]
fn packets_to_a_pod_meet_the_proxy_first() -> Result<()> {
    test_kit::require_root!();
    for (pod, peer) in families() {
        let mut datapath = datapath(&default_config())?;
        let syn = ip(peer, pod, TCP, &tcp(CLIENT, WEB, SYN));
        for from in [0, delivery::FROM_TUNNEL, delivery::FROM_HOST] {
            let outcome = delivered(&datapath, &syn, delivery::REDIRECT | from)?;
            assert_eq!((outcome.verdict, outcome.mark), (PASS, TO_PROXY), "{peer} {from}");
        }
        // At the pod's interface only a redirect keeps it from the pod.
        let outcome = delivered(&datapath, &syn, 0)?;
        assert_eq!((outcome.verdict, outcome.mark), (REDIRECT, TO_PROXY), "{peer}");
        assert_eq!(is_proxied(&mut datapath, peer, true)?, [true]);
        assert_eq!(
            datapath.counted(metric::FORWARDED, direction::INGRESS)?,
            0,
            "nothing has entered the pod"
        );

        // The proxy connects to the pod with the client's address: from another port, a connection of its own.
        let upstream = ip(peer, pod, TCP, &tcp(CLIENT + 1, WEB, SYN));
        let flags = delivery::REDIRECT | delivery::FROM_INGRESS_PROXY;
        assert_eq!(delivered(&datapath, &upstream, flags)?.verdict, REDIRECT);
        assert_eq!(is_proxied(&mut datapath, peer, true)?, [true; 2]);
        for port in [CLIENT, CLIENT + 1] {
            let reply = datapath.sends(&ip(pod, peer, TCP, &tcp(WEB, port, SYN | ACK)))?;
            assert_eq!((reply.verdict, reply.mark), (PASS, TO_SOCKET), "{peer}");
        }
    }
    Ok(())
}

#[test]
fn other_protocols_do_not_bypass_their_proxy() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = datapath(&NodeConfig { sctp: 1, ..default_config() })?;
    for (pod, peer) in families() {
        let mut chunk = tcp(CLIENT, WEB, 0);
        chunk.truncate(16);
        let dropped = datapath
            .dropped(direction::EGRESS, |d| d.sends(&eth_of(pod, &l4_ip(pod, peer, SCTP, &chunk))))?;
        assert_eq!(dropped, Some(drop::PROXY_REDIRECTION_NOT_SUPPORTED_FOR_PROTOCOL), "{peer}");
    }
    Ok(())
}

fn eth_of(pod: IpAddr, packet: &[u8]) -> Vec<u8> {
    eth(A.node_mac, A.mac, if pod.is_ipv4() { 0x0800 } else { 0x86dd }, packet)
}

/// The mark says which proxy a packet is from; what it says of the sender holds.
#[test]
fn the_programs_of_the_host_know_packets_of_proxies() -> Result<()> {
    test_kit::require_root!();
    let proxies = [
        (mark::PROXY_INGRESS, delivery::FROM_INGRESS_PROXY),
        (mark::PROXY_EGRESS, delivery::FROM_EGRESS_PROXY),
    ];
    let routes = NodeConfig { endpoint_routes: 1, redirect_peer: 0, host_routing: 0, ..default_config() };
    for (magic, flag) in proxies {
        let marked = Incoming { mark: mark::with_identity(magic, 777), ..Incoming::default() };
        for (pod, peer) in [(IpAddr::from(B.ipv4), families()[0].1), (B.ipv6.into(), families()[1].1)] {
            let packet = ip(peer, pod, TCP, &tcp(CLIENT, WEB, SYN));
            let datapath = datapath(&default_config())?;
            let outcome = datapath.run_with(FROM_HOST, &packet, marked)?;
            assert_eq!(outcome.verdict, REDIRECT);
            assert_eq!(outcome.cb[cb::SRC_LABEL], 777);
            let found =
                outcome.cb[cb::DELIVERY_FLAGS] & (delivery::FROM_INGRESS_PROXY | delivery::FROM_EGRESS_PROXY);
            assert_eq!(found, flag, "{magic:#x} {pod}");
            // To the network: rules of the stack must not take it for one to the proxy's socket.
            let away = ip(pod, peer, TCP, &tcp(CLIENT, WEB, SYN));
            let outcome = datapath.run_with(FROM_HOST, &away, marked)?;
            assert_eq!((outcome.verdict, outcome.mark), (PASS, mark::SKIP_TPROXY), "{magic:#x} {pod}");
            // By the pod's interface: the mark stays until the policy there.
            let datapath = self::datapath(&routes)?;
            let outcome = datapath.run_with(FROM_HOST, &packet, marked)?;
            assert_eq!((outcome.verdict, outcome.mark), (REDIRECT, mark::with_identity(magic, 777)), "{pod}");
        }
        for (pod, peer) in families() {
            let datapath = datapath(&routes)?;
            let syn = ip(peer, pod, TCP, &tcp(CLIENT, WEB, SYN));
            let outcome = datapath.run_with(TO_CONTAINER, &syn, marked)?;
            let expected =
                if flag == delivery::FROM_INGRESS_PROXY { (PASS, marked.mark) } else { (REDIRECT, TO_PROXY) };
            assert_eq!(
                (outcome.verdict, outcome.mark),
                expected,
                "only that of ingress has checked it: {pod}"
            );
        }
    }
    let datapath = datapath(&default_config())?;
    let packet = ip(HOST_V4.into(), A.ipv4.into(), TCP, &tcp(CLIENT, WEB, SYN));
    let outcome = datapath.run_with(TO_HOST, &packet, Incoming { mark: TO_PROXY, ..Incoming::default() })?;
    assert_eq!((outcome.verdict, outcome.mark), (PASS, TO_PROXY));
    Ok(())
}

#[test]
fn monitors_see_the_redirect_and_its_port() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = datapath(&default_config())?;
    let mut ring = Ring::open(&mut datapath)?;
    let (pod, peer) = families()[0];
    let syn = ip(pod, peer, TCP, &tcp(CLIENT, WEB, SYN));
    datapath.run(FROM_CONTAINER, &syn)?;
    let mut events = ring.read();
    events.sort_by_key(|event| std::cmp::Reverse(event[0]));
    let captured = syn.len() as u16;
    let (verdict, _) = split::<PolicyVerdictNotify>(&events[0], captured)?;
    assert_eq!((verdict.header.kind, verdict.verdict), (event::POLICY_VERDICT, PROXY_PORT.to_be().into()));
    let (found, _) = split::<TraceNotify>(&events[1], captured)?;
    assert_eq!(
        (found.header.subtype, found.dst_id, found.src_label),
        (trace::TO_PROXY, PROXY_PORT, A.identity)
    );
    assert_eq!((found.dst_label, events.len()), (identity::UNKNOWN, 2));
    Ok(())
}
