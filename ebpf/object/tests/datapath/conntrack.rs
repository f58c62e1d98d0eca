//! Connections: what is remembered, for how long, and what passes because of it. Pod A and a stranger outside.

use crate::events::{Ring, split};
use crate::kit::*;
use crate::packet::*;
use anyhow::{Context as _, Result};
use datapath_abi::event::TraceNotify;
use datapath_abi::trace::{aggregation, reason};
use datapath_abi::{
    CtEntry, CtTuple4, CtTuple6, NodeConfig, Pod as Plain, ct_flag, direction, drop, identity, ipv4_word,
    ipv6_words, trace, tuple_flag,
};
use std::net::IpAddr;

const CLIENT_PORT: u16 = 40000;
const PORT: u16 = 443;

/// Everything that monitors may hear of, but verdicts.
fn config() -> NodeConfig {
    NodeConfig { policy_verdict_notify: 0, ..default_config() }
}

/// Seconds on the clock of the programs.
fn now() -> Result<u32> {
    let uptime = std::fs::read_to_string("/proc/uptime")?;
    Ok(uptime.split('.').next().context("no uptime")?.parse()?)
}

/// Both ends of a connection, and the row of it.
struct Connection {
    datapath: Datapath,
    pod: IpAddr,
    peer: IpAddr,
}

/// A family, and which side opens the connection.
const FAMILIES: [(IpAddr, IpAddr); 2] =
    [(IpAddr::V4(A.ipv4), IpAddr::V4(OUTSIDE_V4)), (IpAddr::V6(A.ipv6), IpAddr::V6(OUTSIDE_V6))];

impl Connection {
    fn new(config: &NodeConfig, (pod, peer): (IpAddr, IpAddr)) -> Result<Self> {
        let mut datapath = Datapath::load(config)?;
        datapath.add(&A)?;
        Ok(Self { datapath, pod, peer })
    }

    fn out(&self, flags: u8) -> Result<u32> {
        let packet = ip(self.pod, self.peer, TCP, &tcp(CLIENT_PORT, PORT, flags));
        Ok(self.datapath.sends(&packet)?.verdict)
    }

    fn back(&self, flags: u8) -> Result<u32> {
        let packet = ip(self.peer, self.pod, TCP, &tcp(PORT, CLIENT_PORT, flags));
        Ok(self.datapath.receives(identity::WORLD_IPV4, &packet)?.verdict)
    }

    /// Every row of a map with its tuple flags.
    fn rows(&mut self, tcp: bool) -> Result<Vec<(u8, CtEntry)>> {
        let row = |flags: u8, value: [u8; 56]| Some((flags, CtEntry::from_bytes(&value)?));
        let rows: Option<Vec<_>> = if self.pod.is_ipv4() {
            let map = if tcp { "cilium_ct4_global" } else { "cilium_ct_any4_global" };
            self.datapath.rows::<14, 56>(map)?.into_iter().map(|(key, value)| row(key[13], value)).collect()
        } else {
            let map = if tcp { "cilium_ct6_global" } else { "cilium_ct_any6_global" };
            self.datapath.rows::<38, 56>(map)?.into_iter().map(|(key, value)| row(key[37], value)).collect()
        };
        rows.context("short row")
    }

    /// The only row of TCP.
    fn row(&mut self) -> Result<CtEntry> {
        let rows = self.rows(true)?;
        anyhow::ensure!(rows.len() == 1, "{rows:?}");
        Ok(rows[0].1)
    }

    /// Seconds until the row ends; exact but for the second that may pass.
    fn assert_lifetime(&mut self, expected: u32, what: &str) -> Result<()> {
        let left = self.row()?.lifetime - now()?;
        assert!((expected - 1..=expected).contains(&left), "{what}: {left} and not {expected} s");
        Ok(())
    }

    /// Writes the row back with a change.
    fn change(&mut self, change: impl FnOnce(&mut CtEntry)) -> Result<()> {
        let mut row = self.row()?;
        change(&mut row);
        if self.pod.is_ipv4() {
            let (key, _) = self.datapath.rows::<14, 56>("cilium_ct4_global")?[0];
            let key = CtTuple4::from_bytes(&key).context("short key")?;
            self.datapath.put::<14, 56>("cilium_ct4_global", &key, &row)
        } else {
            let (key, _) = self.datapath.rows::<38, 56>("cilium_ct6_global")?[0];
            let key = CtTuple6::from_bytes(&key).context("short key")?;
            self.datapath.put::<38, 56>("cilium_ct6_global", &key, &row)
        }
    }
}

#[test]
fn a_new_connection_has_two_rows() -> Result<()> {
    test_kit::require_root!();
    let mut c = Connection::new(&config(), FAMILIES[0])?;
    assert_eq!(c.out(SYN)?, PASS);
    let tuple = CtTuple4 {
        // Addresses the other way round, ports as in the packet.
        daddr: ipv4_word(A.ipv4),
        saddr: ipv4_word(OUTSIDE_V4),
        dport: PORT.to_be(),
        sport: CLIENT_PORT.to_be(),
        nexthdr: TCP,
        flags: tuple_flag::OUT,
    };
    let rows = c.datapath.rows::<14, 56>("cilium_ct4_global")?;
    assert_eq!(rows.iter().map(|row| row.0.to_vec()).collect::<Vec<_>>(), [tuple.as_bytes()]);
    let row = c.row()?;
    let expected = CtEntry {
        lifetime: row.lifetime,
        src_sec_id: A.identity,
        tx_flags_seen: SYN,
        last_tx_report: row.last_tx_report,
        ..CtEntry::default()
    };
    assert_eq!(row, expected);
    assert!(now()? - row.last_tx_report <= 1);
    c.assert_lifetime(config().ct_syn_timeout, "SYN")?;
    let errors = c.datapath.rows::<14, 56>("cilium_ct_any4_global")?;
    let flags = tuple_flag::OUT | tuple_flag::RELATED;
    let tuple = CtTuple4 { dport: 0, sport: 0, nexthdr: 1, flags, ..tuple };
    assert_eq!(errors.iter().map(|row| row.0.to_vec()).collect::<Vec<_>>(), [tuple.as_bytes()]);
    let errors = CtEntry::from_bytes(&errors[0].1).context("short row")?;
    assert_eq!(errors, CtEntry { flags: ct_flag::SEEN_NON_SYN, ..row });
    Ok(())
}

#[test]
fn a_connection_into_the_pod_is_of_its_sender() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut c = Connection::new(&config(), family)?;
        let (peer, pod) = (c.peer, c.pod);
        let sent = ip(peer, pod, TCP, &tcp(PORT, CLIENT_PORT, SYN));
        assert_eq!(c.datapath.receives(4711, &sent)?.verdict, PASS);
        let rows = c.rows(true)?;
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].0, rows[0].1.src_sec_id), (tuple_flag::IN, 4711));
        assert_eq!((rows[0].1.rx_flags_seen, rows[0].1.tx_flags_seen), (SYN, 0));
        // The pod's answer is a reply to it: no row of its own.
        let answer = ip(pod, peer, TCP, &tcp(CLIENT_PORT, PORT, SYN | ACK));
        assert_eq!(c.datapath.sends(&answer)?.verdict, PASS);
        assert_eq!(c.row()?.tx_flags_seen, SYN);
    }
    Ok(())
}

#[test]
fn tcp_lives_and_ends_by_its_flags() -> Result<()> {
    test_kit::require_root!();
    let times = config();
    for family in FAMILIES {
        let mut c = Connection::new(&times, family)?;
        c.out(SYN)?;
        c.back(SYN | ACK)?;
        // A packet with SYN alone does not make it last; nor the answer's.
        c.assert_lifetime(times.ct_syn_timeout, "SYN, SYN")?;
        c.out(ACK)?;
        c.assert_lifetime(times.ct_tcp_lifetime, "established")?;
        assert_eq!(c.row()?.flags, ct_flag::SEEN_NON_SYN);
        c.out(FIN | ACK)?;
        assert_eq!(c.row()?.flags, ct_flag::SEEN_NON_SYN | ct_flag::TX_CLOSING);
        c.assert_lifetime(times.ct_tcp_lifetime, "one side closed")?;
        c.back(FIN | ACK)?;
        let closed = ct_flag::SEEN_NON_SYN | ct_flag::TX_CLOSING | ct_flag::RX_CLOSING;
        assert_eq!(c.row()?.flags, closed);
        c.assert_lifetime(times.ct_close_timeout, "both closed")?;
        // Later packets do not prolong it.
        c.change(|row| row.lifetime -= 5)?;
        c.out(ACK)?;
        c.assert_lifetime(times.ct_close_timeout - 5, "packet of a closed connection")?;
        // The same ports again: a connection of its own.
        c.out(SYN)?;
        let row = c.row()?;
        assert_eq!((row.flags, row.tx_flags_seen, row.rx_flags_seen), (0, SYN, 0));
        c.assert_lifetime(times.ct_syn_timeout, "reopened")?;
    }
    Ok(())
}

/// A SYN|ACK of a connection that has ended, retransmitted or forged, is no new connection: it is judged as the reply it is,
/// and leaves the row as it was.
#[test]
fn a_late_syn_ack_does_not_reopen_a_closed_connection() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        for end in [FIN | ACK, RST] {
            // Nobody may open a connection into the pod.
            let mut c = Connection::new(&config(), family)?;
            c.datapath.set_policy(&A, &ALLOW_ALL[..1])?;
            for flags in [SYN, ACK] {
                c.out(flags)?;
            }
            c.back(SYN | ACK)?;
            c.out(end)?;
            c.back(end)?;
            c.change(|row| row.lifetime -= 5)?;
            let closed = c.row()?;
            assert_eq!(c.back(SYN | ACK)?, PASS, "{family:?}");
            assert_eq!(c.row()?, closed, "{family:?}");
            // The twin is a connection of its own, which policy denies.
            assert_eq!(c.back(SYN)?, SHOT, "{family:?}");

            // The other way: the pod's own SYN|ACK, late.
            let mut c = Connection::new(&config(), family)?;
            c.datapath.set_policy(&A, &ALLOW_ALL[1..])?;
            c.back(SYN)?;
            c.out(SYN | ACK)?;
            c.back(ACK)?;
            c.back(end)?;
            c.out(end)?;
            let closed = c.row()?;
            assert_eq!(c.out(SYN | ACK)?, PASS, "{family:?}");
            assert_eq!(c.row()?, closed, "{family:?}");
            assert_eq!(c.out(SYN)?, SHOT, "{family:?}");
        }
    }
    Ok(())
}

#[test]
fn a_reset_ends_what_was_never_open() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        // Refused: no SYN came back.
        let mut c = Connection::new(&config(), family)?;
        c.out(SYN)?;
        c.back(RST | ACK)?;
        let both = ct_flag::RX_CLOSING | ct_flag::TX_CLOSING;
        assert_eq!(c.row()?.flags & both, both);
        c.assert_lifetime(config().ct_close_timeout, "refused")?;
        // The twin was open: one side ends it, the other may still send.
        let mut c = Connection::new(&config(), family)?;
        c.out(SYN)?;
        c.back(SYN | ACK)?;
        c.back(RST)?;
        assert_eq!(c.row()?.flags & both, ct_flag::RX_CLOSING);
        c.assert_lifetime(config().ct_tcp_lifetime, "reset by one side")?;
    }
    Ok(())
}

#[test]
fn other_protocols_live_shortly() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut c = Connection::new(&config(), family)?;
        let sent = ip(c.pod, c.peer, UDP, &udp_ports(CLIENT_PORT, 53));
        c.datapath.sends(&sent)?;
        let mut rows = c.rows(false)?;
        rows.sort_by_key(|row| row.0);
        assert_eq!(rows.iter().map(|row| row.0).collect::<Vec<_>>(), [tuple_flag::OUT, tuple_flag::RELATED]);
        let left = rows[0].1.lifetime - now()?;
        assert!((59..=60).contains(&left), "{left}");
        assert!(c.rows(true)?.is_empty());
    }
    Ok(())
}

/// A reply passes a policy that denies its sender; the same packet without a connection does not.
#[test]
fn replies_pass_without_policy() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut c = Connection::new(&config(), family)?;
        c.datapath.set_policy(&A, &ALLOW_ALL[..1])?;
        let denied = |c: &mut Connection, dport: u16| {
            let packet = ip(c.peer, c.pod, TCP, &tcp(PORT, dport, ACK));
            c.datapath.dropped(direction::INGRESS, |d| d.receives(identity::WORLD_IPV4, &packet))
        };
        assert_eq!(denied(&mut c, CLIENT_PORT)?, Some(drop::POLICY_DENIED), "before there is a connection");
        c.out(SYN)?;
        assert_eq!(denied(&mut c, CLIENT_PORT)?, None, "reply");
        assert_eq!(denied(&mut c, CLIENT_PORT + 1)?, Some(drop::POLICY_DENIED), "another port");
    }
    Ok(())
}

/// Policy is asked for packets of established connections, too, but not for replies.
#[test]
fn an_established_connection_obeys_a_new_policy() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut c = Connection::new(&config(), family)?;
        for flags in [SYN, ACK] {
            assert_eq!(c.out(flags)?, PASS);
        }
        c.datapath.set_policy(&A, &[])?;
        let packet = ip(c.pod, c.peer, TCP, &tcp(CLIENT_PORT, PORT, ACK));
        let reason = c.datapath.dropped(direction::EGRESS, |d| d.sends(&packet))?;
        assert_eq!(reason, Some(drop::POLICY_DENIED));
        assert_eq!(c.back(ACK)?, PASS, "a reply that was under way");
        c.datapath.set_policy(&A, &ALLOW_ALL[..1])?;
        assert_eq!(c.out(ACK)?, PASS, "the twin of the denied packet");
    }
    Ok(())
}

/// An ICMP error of the peer about a connection belongs to it; that of another address is a stranger's.
#[test]
fn icmp_errors_about_a_connection_pass() -> Result<()> {
    test_kit::require_root!();
    for ((pod, peer), protocol, kinds, other) in [
        (FAMILIES[0], 1, [(3, 3), (11, 0), (12, 0)], IpAddr::V4([198, 51, 100, 10].into())),
        (FAMILIES[1], 58, [(1, 4), (3, 0), (4, 0)], "2001:db8:ffff::a".parse()?),
    ] {
        let mut c = Connection::new(&config(), (pod, peer))?;
        c.datapath.set_policy(&A, &ALLOW_ALL[..1])?;
        c.out(SYN)?;
        for (kind, code) in kinds {
            let error = |from| ip(from, pod, protocol, &icmp(kind, code, 0));
            for (from, expected) in [(peer, None), (other, Some(drop::POLICY_DENIED))] {
                let packet = error(from);
                let reason = c.datapath.dropped(direction::INGRESS, |d| d.receives(2, &packet))?;
                assert_eq!(reason, expected, "type {kind} from {from}");
            }
        }
    }
    Ok(())
}

#[test]
fn an_echo_is_answered_by_its_identifier() -> Result<()> {
    test_kit::require_root!();
    for ((pod, peer), protocol, request, reply) in [(FAMILIES[0], 1, 8, 0), (FAMILIES[1], 58, 128, 129)] {
        let mut c = Connection::new(&config(), (pod, peer))?;
        c.datapath.set_policy(&A, &ALLOW_ALL[..1])?;
        assert_eq!(c.datapath.sends(&ip(pod, peer, protocol, &icmp(request, 0, 77)))?.verdict, PASS);
        for (identifier, expected) in [(77, None), (78, Some(drop::POLICY_DENIED))] {
            let packet = ip(peer, pod, protocol, &icmp(reply, 0, identifier));
            let reason = c.datapath.dropped(direction::INGRESS, |d| d.receives(2, &packet))?;
            assert_eq!(reason, expected, "identifier {identifier}");
        }
        // A request with the same identifier is none of the connection's.
        let packet = ip(peer, pod, protocol, &icmp(request, 0, 77));
        let reason = c.datapath.dropped(direction::INGRESS, |d| d.receives(2, &packet))?;
        assert_eq!(reason, Some(drop::POLICY_DENIED));
    }
    Ok(())
}

#[test]
fn packets_are_counted_if_wanted() -> Result<()> {
    test_kit::require_root!();
    for (ct_accounting, expected) in [(1, 3), (0, 0)] {
        let mut c = Connection::new(&NodeConfig { ct_accounting, ..config() }, FAMILIES[1])?;
        c.out(SYN)?;
        c.back(SYN | ACK)?;
        c.out(ACK)?;
        let len = ip(c.pod, c.peer, TCP, &tcp(1, 2, 0)).len() as u64;
        let row = c.row()?;
        assert_eq!((row.packets, row.bytes), (expected, expected * len));
    }
    Ok(())
}

/// Monitors hear of an established connection when an interval has passed or a flag is new.
#[test]
fn established_connections_are_told_of_from_time_to_time() -> Result<()> {
    test_kit::require_root!();
    for (monitor_aggregation, thinned) in [(aggregation::MEDIUM, true), (aggregation::LOW, false)] {
        let config = NodeConfig { monitor_aggregation, ..config() };
        let mut c = Connection::new(&config, FAMILIES[0])?;
        let mut ring = Ring::open(&mut c.datapath)?;
        let mut told = |c: &mut Connection, what: &str, expected: Option<u8>| -> Result<()> {
            let events = ring.read();
            let found = events.first().map(|event| split::<TraceNotify>(event, 0)).transpose()?;
            let found = found.map(|(event, _)| (event.header.subtype, event.reason));
            let point = if what.contains("back") { trace::TO_LXC } else { trace::TO_STACK };
            assert_eq!(found, expected.map(|reason| (point, reason)), "{what}, level {monitor_aggregation}");
            c.row()?;
            Ok(())
        };
        let quiet = |reason| if thinned { None } else { Some(reason) };
        c.out(SYN)?;
        told(&mut c, "new", Some(reason::POLICY))?;
        c.back(SYN | ACK)?;
        told(&mut c, "first back", Some(reason::CT_REPLY))?;
        c.out(ACK)?;
        told(&mut c, "again", quiet(reason::CT_ESTABLISHED))?;
        c.back(ACK)?;
        told(&mut c, "again back", quiet(reason::CT_REPLY))?;
        c.change(|row| row.last_tx_report -= config.ct_report_interval + 2)?;
        c.out(ACK)?;
        told(&mut c, "after the interval", Some(reason::CT_ESTABLISHED))?;
        c.out(ACK)?;
        told(&mut c, "right after", quiet(reason::CT_ESTABLISHED))?;
        c.out(FIN | ACK)?;
        told(&mut c, "a new flag", Some(reason::CT_ESTABLISHED))?;
    }
    Ok(())
}

/// Both clocks count from a lifetime to the same end: the row's, in their own units.
#[test]
fn times_are_in_units_of_the_clock() -> Result<()> {
    test_kit::require_root!();
    let mut begins = Vec::new();
    for (jiffies_clock, ct_syn_timeout) in [(0, 60), (1, 58)] {
        let mut c = Connection::new(&NodeConfig { jiffies_clock, ct_syn_timeout, ..config() }, FAMILIES[0])?;
        c.out(SYN)?;
        let row = c.row()?;
        assert_eq!(row.lifetime - row.last_tx_report, ct_syn_timeout);
        begins.push(row.last_tx_report);
    }
    assert!(begins[0].abs_diff(now()?) <= 2, "seconds since the start");
    // Jiffies begin 300 s before they overflow 32 bits, so that mistakes show.
    assert!(begins[1] > (u32::MAX - 300 * 1000) >> 8, "{begins:?}");
    Ok(())
}

/// Tuples of IPv6 hold the whole addresses.
#[test]
fn a_row_of_ipv6_holds_the_whole_addresses() -> Result<()> {
    test_kit::require_root!();
    let mut c = Connection::new(&config(), FAMILIES[1])?;
    c.out(SYN)?;
    let tuple = CtTuple6 {
        daddr: ipv6_words(A.ipv6),
        saddr: ipv6_words(OUTSIDE_V6),
        dport: PORT.to_be(),
        sport: CLIENT_PORT.to_be(),
        nexthdr: TCP,
        flags: tuple_flag::OUT,
    };
    let rows = c.datapath.rows::<38, 56>("cilium_ct6_global")?;
    assert_eq!(rows.iter().map(|row| row.0.to_vec()).collect::<Vec<_>>(), [tuple.as_bytes()]);
    Ok(())
}
