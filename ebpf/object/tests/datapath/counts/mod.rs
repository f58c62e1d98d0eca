//! Instructions and helper calls of every kind of packet, held by `counts.tsv`.
//!
//! The numbers do not depend on the machine's load: the object is rewritten to count them ([`instrument`]) and runs in the
//! kernel. Instructions are those of the object, before the kernel removes what is switched off and inlines lookups.

mod instrument;

use crate::kit::*;
use crate::l4::*;
use crate::packet;
use crate::service::{FAMILIES, Family, Node};
use crate::uplink::{UPLINK, routed};
use anyhow::{Context as _, Result, ensure};
use aya::maps::{Array, Map, MapData};
use aya::{EbpfLoader, VerifierLogLevel};
use datapath_abi::{NodeConfig, Pod as _};
use datapath_object::{FROM_HOST, FROM_NETDEV, NODE_CONFIG, TO_HOST};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _};

/// One kind of packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) packet: String,
    pub(crate) instructions: u64,
    pub(crate) helper_calls: u64,
}

/// Returns the recorded counts.
pub(crate) fn recorded() -> Result<Vec<Count>> {
    parse(include_str!("../counts.tsv"))
}

fn parse(table: &str) -> Result<Vec<Count>> {
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| {
        let mut fields = line.split('\t');
        let mut next = || fields.next().with_context(|| format!("counts.tsv: short row {line:?}"));
        let (packet, instructions, helper_calls) = (next()?.to_owned(), next()?.parse()?, next()?.parse()?);
        Ok(Count { packet, instructions, helper_calls })
    })
    .collect()
}

/// Counts every kind of packet, each after what came before it.
pub(crate) fn measure() -> Result<Vec<Count>> {
    let mut counts = Vec::new();
    for family in FAMILIES {
        let mut meter = Meter::new(&default_config(), family)?;
        meter.connections()?;
        meter.services()?;
        meter.refused()?;
        meter.neighbors()?;
        counts.extend(meter.counts);
        let mut meter = Meter::new(&host_routing_config(), family)?;
        meter.past_the_stack()?;
        counts.extend(meter.counts);
        let mut meter = Meter::new(&tunnel_config(), family)?;
        meter.tunnel()?;
        counts.extend(meter.counts);
    }
    Ok(counts)
}

/// A node whose programs count.
struct Meter {
    family: Family,
    node: Node,
    counters: Array<MapData, [u64; 2]>,
    counts: Vec<Count>,
}

impl Meter {
    fn new(config: &NodeConfig, family: Family) -> Result<Self> {
        const ARRAY: u32 = 2;
        let definition = aya_obj::Map::new_from_params(ARRAY, 4, size_of::<[u64; 2]>() as u32, 1, 0);
        let counters = MapData::create(definition, "counters", None)?;
        let fd = counters.fd().as_fd().as_raw_fd();
        let object = instrument::instrument(datapath_object::datapath(), fd)?;
        let mut loader = EbpfLoader::new();
        loader
            .override_global(NODE_CONFIG, config.as_bytes(), true)
            .verifier_log_level(VerifierLogLevel::DISABLE);
        let mut datapath = Datapath::load_object(&mut loader, &object)?;
        datapath.add_pods_and_host()?;
        let node = Node::on(datapath, family, TCP, &[family.b(8080)])?;
        Ok(Self { family, node, counters: Map::Array(counters).try_into()?, counts: Vec::new() })
    }

    /// Runs a packet, which must get this verdict, and counts it.
    fn count(&mut self, name: &str, verdict: u32, run: impl Fn(&Node) -> Result<Outcome>) -> Result<()> {
        let packet = format!("{name}, {}", if self.family == Family::V4 { "IPv4" } else { "IPv6" });
        self.counters.set(0, [0; 2], 0)?;
        let outcome = run(&self.node).with_context(|| packet.clone())?;
        ensure!(outcome.verdict == verdict, "{packet}: verdict {} and not {verdict}", outcome.verdict);
        let [instructions, helper_calls] = self.counters.get(&0, 0)?;
        self.counts.push(Count { packet, instructions, helper_calls });
        Ok(())
    }

    /// The first packet of a connection, which writes its rows, and the next one.
    fn connection(
        &mut self,
        name: &str,
        verdict: u32,
        run: impl Fn(&Node, u8) -> Result<Outcome>,
    ) -> Result<()> {
        self.count(&format!("{name}, new"), verdict, |node| run(node, SYN))?;
        self.count(&format!("{name}, established"), verdict, |node| run(node, ACK))
    }

    fn connections(&mut self) -> Result<()> {
        let family = self.family;
        let (client, b) = (family.client(), family.b(8080));
        let outside = SocketAddr::new(family.outside(), 443);
        let host = SocketAddr::new(if client.is_ipv4() { HOST_V4.into() } else { HOST_V6.into() }, 179);
        let sent = move |destination: SocketAddr, protocol: u8, flags: u8| {
            frame(A.node_mac, A.mac, &segment(client, destination, protocol, flags))
        };
        self.connection("pod to pod, TCP", REDIRECT, |node, flags| {
            node.datapath.sends(&sent(b, TCP, flags))
        })?;
        self.count("pod to pod, TCP, reply into the client", PASS, |node| node.answer(b, client, SYN | ACK))?;
        self.connection("pod to pod, UDP", REDIRECT, |node, _| node.datapath.sends(&sent(b, UDP, 0)))?;
        self.connection("pod to outside", PASS, |node, flags| {
            node.datapath.sends(&sent(outside, TCP, flags))
        })?;
        self.connection("pod to host", PASS, |node, flags| node.datapath.sends(&sent(host, TCP, flags)))?;
        let received = move |source: SocketAddr, flags: u8| {
            frame(A.mac, A.node_mac, &segment(source, SocketAddr::new(b.ip(), 80), TCP, flags))
        };
        self.connection("host to pod", REDIRECT, |node, flags| {
            node.datapath.run_with(FROM_HOST, &received(host, flags), Incoming::of_host())
        })?;
        self.count("into the host", PASS, |node| node.datapath.run(TO_HOST, &sent(host, TCP, ACK)))?;
        let echo = if client.is_ipv4() { 8 } else { 128 };
        let echo = family.icmp_packet(client.ip(), b.ip(), packet::icmp(echo, 0, 7));
        let echo = frame(A.node_mac, A.mac, &echo);
        self.connection("pod to pod, ICMP echo", REDIRECT, move |node, _| node.datapath.sends(&echo))?;
        let error = family.error_about(&segment(client, b, TCP, ACK));
        self.count("ICMP error into the client", PASS, move |node| node.receive(&error))?;
        let udp = transport(client, b, UDP, 0);
        let (first, rest) = udp.split_at(64);
        for (name, offset, payload) in [("first fragment", 0, first), ("later fragment", 8, rest)] {
            let id = (9, offset, offset == 0);
            let piece = frame(A.node_mac, A.mac, &ip_fragment(client.ip(), b.ip(), UDP, id, payload));
            self.count(&format!("pod to pod, {name}"), REDIRECT, move |node| node.datapath.sends(&piece))?;
        }
        Ok(())
    }

    /// Packets between pods and the network that bypass the host's stack.
    fn past_the_stack(&mut self) -> Result<()> {
        let (client, b) = (self.family.client(), self.family.b(80));
        let outside = SocketAddr::new(self.family.outside(), 443);
        let ns = routed()?;
        self.node.datapath.add_device(UPLINK)?;
        self.connection("device to pod", REDIRECT, |node, flags| {
            node.datapath.run(FROM_NETDEV, &frame(A.mac, A.node_mac, &segment(outside, b, TCP, flags)))
        })?;
        self.connection("pod to outside, past the stack", REDIRECT, |node, flags| {
            let packet = frame(A.node_mac, A.mac, &segment(client, outside, TCP, flags));
            ns.run(|| node.datapath.sends(&packet))
        })
    }

    /// Packets between nodes, and others on a node with a tunnel.
    fn tunnel(&mut self) -> Result<()> {
        let (family, client) = (self.family, self.family.client());
        let [remote] =
            REMOTE.into_iter().filter(|ip| ip.is_ipv4() == client.is_ipv4()).collect::<Vec<_>>()[..]
        else {
            anyhow::bail!("an address of each family");
        };
        self.node.datapath.set_ipcache(remote, &behind(REMOTE_IDENTITY, HOST_V4.into(), 0))?;
        let sent = move |destination: SocketAddr, flags: u8| {
            frame(A.node_mac, A.mac, &segment(client, destination, TCP, flags))
        };
        let server = SocketAddr::new(remote, 443);
        self.connection("pod to another node", REDIRECT, |node, flags| {
            node.datapath.sends(&sent(server, flags))
        })?;
        let outside = SocketAddr::new(family.outside(), 443);
        self.connection("pod to outside, with a tunnel", PASS, |node, flags| {
            node.datapath.sends(&sent(outside, flags))
        })?;
        let b = family.b(8080);
        self.connection("pod to pod, with a tunnel", REDIRECT, |node, flags| {
            node.datapath.sends(&sent(b, flags))
        })?;
        let peer = Peer::new()?;
        let own = SocketAddr::new(client.ip(), 80);
        let received = move |flags| frame(A.mac, A.node_mac, &segment(server, own, TCP, flags));
        self.connection("another node to pod", REDIRECT, |node, flags| {
            peer.sends(&node.datapath, REMOTE_IDENTITY, &received(flags))
        })?;
        let packet = sent(server, ACK);
        self.count("into the tunnel", PASS, |node| {
            peer.run(&node.datapath, datapath_object::TO_OVERLAY, (REMOTE_IDENTITY, 0), &packet)
        })
    }

    fn services(&mut self) -> Result<()> {
        let (client, vip) = (self.family.client(), self.family.vip());
        self.connection("pod to service", REDIRECT, Node::send)?;
        let b = self.family.b(8080);
        self.count("reply of a service into the client", PASS, |node| node.answer(b, client, ACK))?;
        self.node.set_backends(&[])?;
        let other = SocketAddr::new(client.ip(), client.port() + 1);
        let syn = frame(A.node_mac, A.mac, &segment(other, vip, TCP, SYN));
        self.count("pod to service without backends", REDIRECT, |node| node.datapath.sends(&syn))
    }

    fn refused(&mut self) -> Result<()> {
        let family = self.family;
        let source = |address: IpAddr| SocketAddr::new(address, 40002);
        let forged = segment(source(family.outside()), family.b(81), TCP, SYN);
        let forged = frame(A.node_mac, A.mac, &forged);
        self.count("dropped: source address", SHOT, |node| node.datapath.sends(&forged))?;
        let (client, b) = (source(family.client().ip()), family.b(81));
        self.node.datapath.deny(&A)?;
        let sent = frame(A.node_mac, A.mac, &segment(client, b, TCP, SYN));
        self.count("dropped: egress policy", SHOT, |node| node.datapath.sends(&sent))?;
        self.count("dropped: ingress policy", SHOT, |node| node.answer(b, client, SYN))
    }

    fn neighbors(&mut self) -> Result<()> {
        let request = match self.family {
            Family::V4 => {
                packet::eth(packet::BROADCAST, A.mac, ETH_ARP, &packet::arp_request(A.mac, A.ipv4, B.ipv4))
            }
            Family::V6 => frame(A.node_mac, A.mac, &packet::solicitation(A.ipv6, ROUTER, Some(A.mac))),
        };
        self.count("neighbor request of a pod", REDIRECT, |node| node.datapath.sends(&request))
    }
}

const ETH_ARP: u16 = 0x0806;

/// The ratchet: a change that costs packets more than the tolerance, or that makes the record obsolete, renews the record.
#[test]
fn packets_cost_what_is_recorded() -> Result<()> {
    /// Percent by which a count may differ from the record.
    const TOLERANCE: u64 = 10;
    test_kit::require_root!();
    let (found, recorded) = (measure()?, recorded()?);
    let differs = |found: u64, recorded: u64| found.abs_diff(recorded) * 100 > recorded * TOLERANCE;
    let mut differences = Vec::new();
    for count in &found {
        match recorded.iter().find(|row| row.packet == count.packet) {
            Some(row)
                if differs(count.instructions, row.instructions)
                    || differs(count.helper_calls, row.helper_calls) =>
            {
                differences.push(format!("recorded {row:?}\n   found {count:?}"));
            }
            Some(_) => {}
            None => differences.push(format!("not recorded {count:?}")),
        }
    }
    if differences.is_empty() && found.len() == recorded.len() {
        return Ok(());
    }
    let heading = include_str!("../counts.tsv").lines().filter(|line| line.starts_with('#'));
    let rows = found.iter().map(|row| format!("{}\t{}\t{}", row.packet, row.instructions, row.helper_calls));
    let table: Vec<String> = heading.map(str::to_owned).chain(rows).collect();
    let file = concat!(env!("CARGO_TARGET_TMPDIR"), "/counts.tsv");
    std::fs::write(file, table.join("\n") + "\n")?;
    anyhow::bail!(
        "{} of {} packets differ by more than {TOLERANCE} % from ebpf/object/tests/datapath/counts.tsv:\n{}\n\
         If that is meant, renew the record and state the reason in the commit:\n\
         cp {file} ebpf/object/tests/datapath/counts.tsv",
        differences.len(),
        found.len(),
        differences.join("\n")
    )
}

/// The control: the same packet through an object that was rewritten gets the same verdict and bytes, and one more branch
/// taken costs more instructions.
#[test]
fn counting_changes_no_packet() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut meter = Meter::new(&default_config(), family)?;
        let plain = Node::new(family, TCP, &[family.b(8080)])?;
        for flags in [SYN, ACK] {
            let (counted, expected) = (meter.node.send(flags)?, plain.send(flags)?);
            assert_eq!(counted.verdict, expected.verdict, "{family:?}");
            assert_eq!(counted.packet, expected.packet, "{family:?}");
            assert_eq!((counted.mark, counted.cb), (expected.mark, expected.cb), "{family:?}");
        }
        meter.connection("twins", REDIRECT, |node, _| {
            node.datapath.sends(&frame(A.node_mac, A.mac, &segment(family.client(), family.b(9), UDP, 0)))
        })?;
        let [new, established] = &meter.counts[..] else { anyhow::bail!("two counts") };
        assert!(new.helper_calls > established.helper_calls, "{new:?} {established:?}");
        assert!(new.instructions > established.instructions, "{new:?} {established:?}");
        assert!(established.instructions > 100, "{established:?}");
    }
    Ok(())
}
