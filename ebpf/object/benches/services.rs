//! Nanoseconds a packet of services at devices, translations to the world, host routing and the tunnel, as ratios to a
//! packet from pod to pod in the same run.
//!
//! All packets are of established connections. As in `paths.rs`, a small program puts the packet's headers back and jumps
//! into the program under test, and its own time is subtracted; rounds of all ways alternate, the best one counts.
//! Prints one row a number (name, measured, unit, goal, met, peer), tab separated.
#![expect(clippy::print_stdout, reason = "a benchmark prints its rows")]

#[path = "../tests/datapath/kit.rs"]
#[expect(dead_code, reason = "a part of what the tests need")]
mod kit;
#[path = "../tests/datapath/l4.rs"]
#[expect(dead_code, reason = "a part of what the tests need")]
mod l4;
#[path = "../tests/datapath/packet.rs"]
#[expect(dead_code, reason = "a part of what the tests need")]
mod packet;
#[path = "../tests/datapath/service.rs"]
#[expect(dead_code, reason = "a part of what the tests need")]
mod service;
#[path = "../tests/datapath/uplink.rs"]
mod uplink;

use anyhow::{Context as _, Result, ensure};
use aya::maps::{Array, MapData, ProgramArray};
use aya::programs::{SchedClassifier, TestRun, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader, VerifierLogLevel};
use datapath_abi::trace::aggregation;
use datapath_abi::{
    DIRECT_ROUTING, MAGLEV_TEMPLATE_SIZE, MasqueradeAddresses, NodeConfig, before_services, dsr, ipv4_word,
    ipv6_words, lb_flag,
};
use datapath_object::{FROM_CONTAINER, FROM_NETDEV, FROM_OVERLAY, PROGRAMS, TO_NETDEV};
use kit::{
    A, B, Datapath, HOST_V4, HOST_V6, IFINDEX, Incoming, PASS, REDIRECT, REMOTE, REMOTE_IDENTITY, SHOT,
    default_config, host_routing_config, tunnel_config,
};
use l4::{ACK, TCP, frame, seen, segment};
use service::{FAMILIES, Family, Node};
use std::net::{IpAddr, SocketAddr};
use test_kit::{NetNs, Sandbox};
use uplink::{UPLINK, routed};

/// Packets of a round and rounds: short rounds, as others share the machine.
const PACKETS: u32 = 2000;
const ROUNDS: usize = 100;

const MIN_PORT: u16 = 32768;
const BACKEND_PORT: u16 = 8080;
const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xd2];

const REPLAY: &[u8] = {
    #[repr(align(8))]
    struct Aligned<T: ?Sized>(T);
    static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!("../prebuilt/replay.o"));
    &OBJECT.0
};

fn main() -> Result<()> {
    if !test_kit::is_root() {
        return Ok(());
    }
    let sandbox = Sandbox::new()?;
    // Replies come in at pod B's interface, which has to exist.
    sandbox.host().ip(&format!("link add lxc_b index {} type veth peer name peer_b", B.ifindex))?;
    let ns = routed()?;
    ns.ip(&format!("link add lxc_b index {} type veth peer name peer_b", B.ifindex))?;
    for family in FAMILIES {
        measure(family, &ns).with_context(|| format!("{family:?}"))?;
        accelerated(family, &ns).with_context(|| format!("{family:?}"))?;
    }
    verified()
}

/// Prints the verifier's work for the largest program with everything on.
fn verified() -> Result<()> {
    const GOAL: u32 = 100_000;
    let datapath = Datapath::load(&NodeConfig {
        nodeport: 1,
        host_firewall: 1,
        dsr: dsr::BY_SERVICE,
        dsr_icmp: 1,
        masquerade_ipv4: 1,
        masquerade_ipv6: 1,
        ip_masq_agent: 1,
        remote_node_masquerade: 1,
        snat_min_port: MIN_PORT,
        maglev: 1,
        algorithm_annotation: 1,
        maglev_table_size: MAGLEV_TEMPLATE_SIZE,
        host_routing: 1,
        sctp: 1,
        extended_protocols: 1,
        ct_accounting: 1,
        monitor_aggregation: aggregation::NONE,
        ..tunnel_config()
    })?;
    let mut most = 0;
    for program in PROGRAMS {
        let count = datapath.program(program.name)?.info()?.verified_instruction_count();
        most = most.max(count.with_context(|| format!("{}: the kernel does not count", program.name))?);
    }
    let met = if most <= GOAL { "yes" } else { "no" };
    println!(
        "datapath: verified instructions, largest program, everything on\t{most}\tinsns\t{GOAL}\t{met}\t-"
    );
    Ok(())
}

/// One way of a packet through the programs.
struct Way {
    name: &'static str,
    datapath: Datapath,
    program: &'static str,
    /// The packet that is measured, the index of its interface, and the verdict.
    packet: Vec<u8>,
    at: u32,
    verdict: u32,
    /// Its addresses behind the programs.
    expected: (SocketAddr, SocketAddr),
    /// It comes with a tunnel's key.
    is_tunnelled: bool,
    /// The most that it may take, in packets from pod to pod.
    goal: Option<f64>,
}

fn measure(family: Family, ns: &NetNs) -> Result<()> {
    let ways = ns.run(|| ways(family))?;
    let (mut direct, mut tunnelled) = (Replay::new("replay")?, Replay::new("replay")?);
    let mut inner = Replay::new("tunnelled")?;
    tunnelled.jump_to(inner.program()?)?;
    let mut best = vec![f64::INFINITY; ways.len()];
    let mut alone = [f64::INFINITY; 2];
    for _ in 0..ROUNDS {
        for (way, best) in ways.iter().zip(&mut best) {
            let program = way.datapath.program(way.program)?;
            let replay = if way.is_tunnelled {
                inner.jump_to(program)?;
                &mut tunnelled
            } else {
                direct.jump_to(program)?;
                &mut direct
            };
            let nanoseconds = ns.run(|| replay.round(way)).with_context(|| way.name)?;
            *best = best.min(nanoseconds);
        }
        // Without a program under test each replay takes its own time, the tunnel's with the key.
        direct.stop()?;
        inner.stop()?;
        for (replay, alone) in [&mut direct, &mut tunnelled].into_iter().zip(&mut alone) {
            *alone = alone.min(ns.run(|| replay.alone(&ways[0]))?);
        }
    }
    let times = best.iter().zip(&ways).map(|(best, way)| best - alone[usize::from(way.is_tunnelled)]);
    let times: Vec<f64> = times.collect();
    for (way, time) in ways.iter().zip(&times) {
        let name = if family == Family::V4 { "IPv4" } else { "IPv6" };
        let ratio = time / times[0];
        let (goal, met) = match way.goal {
            Some(goal) => (goal.to_string(), if ratio <= goal { "yes" } else { "no" }),
            None => ("-".to_owned(), "-"),
        };
        println!(
            "datapath: {}, {name}\t{ratio:.2}\tx\t{goal}\t{met}\t{time:.0} ns, pod to pod {:.0} ns",
            way.name, times[0]
        );
    }
    Ok(())
}

/// Returns the ways, the first of which is the unit. Their connections are established.
fn ways(family: Family) -> Result<Vec<Way>> {
    let (client, b, outside) = (family.client(), family.b(BACKEND_PORT), family.outside());
    let from_pod = |to| frame(A.node_mac, A.mac, &segment(client, to, TCP, ACK));
    let from_network = |from, to| frame(A.mac, ROUTER_MAC, &segment(from, to, TCP, ACK));
    let way = |name, datapath, program, packet, verdict, expected, goal| Way {
        name,
        datapath,
        program,
        packet,
        at: A.ifindex,
        verdict,
        expected,
        is_tunnelled: false,
        goal,
    };
    let world = SocketAddr::new(outside, 41000);
    let mut ways = Vec::new();

    let pods = Datapath::with_pods(&default_config())?;
    ways.push(way("pod to pod", pods, FROM_CONTAINER, from_pod(b), REDIRECT, (client, b), None));
    let service = Node::new(family, TCP, &[b])?.datapath;
    let packet = from_pod(family.vip());
    ways.push(way("pod to service", service, FROM_CONTAINER, packet, REDIRECT, (client, b), None));

    let nodeport = NodeConfig { nodeport: 1, snat_min_port: MIN_PORT, ..default_config() };
    let bypass = NodeConfig { host_routing: 1, ..nodeport };
    for (name, config, verdict) in
        [("NodePort to a pod, by the stack", nodeport, PASS), ("NodePort to a pod", bypass, REDIRECT)]
    {
        let datapath = frontend(&config, family, b)?;
        let packet = from_network(world, family.vip());
        ways.push(way(name, datapath, FROM_NETDEV, packet, verdict, (world, b), Some(1.6)));
    }
    let datapath = frontend(&bypass, family, b)?;
    datapath.run(FROM_NETDEV, &from_network(world, family.vip()))?;
    let reply = Way {
        packet: frame(B.node_mac, B.mac, &segment(b, world, TCP, ACK)),
        at: B.ifindex,
        ..way(
            "NodePort, reply of the pod",
            datapath,
            FROM_CONTAINER,
            vec![],
            REDIRECT,
            (family.vip(), world),
            None,
        )
    };
    ways.push(reply);

    let remote = REMOTE.into_iter().find(|ip| ip.is_ipv4() == outside.is_ipv4()).context("no address")?;
    let remote = SocketAddr::new(remote, BACKEND_PORT);
    let datapath = frontend(&nodeport, family, remote)?;
    let request = from_network(world, family.vip());
    let source = seen(&datapath.run(FROM_NETDEV, &request)?.packet).source;
    ways.push(way(
        "SNAT to a remote backend",
        datapath,
        FROM_NETDEV,
        request,
        REDIRECT,
        (source, remote),
        Some(2.2),
    ));
    let datapath = frontend(&nodeport, family, remote)?;
    let source = seen(&datapath.run(FROM_NETDEV, &from_network(world, family.vip()))?.packet).source;
    let reply = from_network(remote, source);
    let expected = (family.vip(), world);
    ways.push(way("SNAT, reply to the client", datapath, FROM_NETDEV, reply, REDIRECT, expected, Some(1.8)));

    let masquerade =
        NodeConfig { masquerade_ipv4: 1, masquerade_ipv6: 1, snat_min_port: MIN_PORT, ..default_config() };
    let host = if family == Family::V4 { IpAddr::from(HOST_V4) } else { HOST_V6.into() };
    let server = SocketAddr::new(outside, 443);
    let own = SocketAddr::new(host, client.port());
    let datapath = masquerading(&masquerade)?;
    ways.push(way("masquerade", datapath, TO_NETDEV, from_pod(server), PASS, (own, server), Some(1.8)));
    let datapath = masquerading(&masquerade)?;
    datapath.run_with(TO_NETDEV, &from_pod(server), incoming(IFINDEX))?;
    let packet = from_network(server, own);
    ways.push(way("masquerade, reply", datapath, FROM_NETDEV, packet, PASS, (server, client), Some(1.8)));

    let mut datapath = Datapath::with_pods(&host_routing_config())?;
    datapath.add_device(UPLINK)?;
    let expected = (client, server);
    ways.push(way(
        "pod to world, past the stack",
        datapath,
        FROM_CONTAINER,
        from_pod(server),
        REDIRECT,
        expected,
        None,
    ));
    let datapath = Datapath::with_pods(&host_routing_config())?;
    let packet = from_network(server, client);
    ways.push(way(
        "world to pod, past the stack",
        datapath,
        FROM_NETDEV,
        packet,
        REDIRECT,
        (server, client),
        None,
    ));

    let mut datapath = Datapath::with_pods(&tunnel_config())?;
    datapath.set_ipcache(remote.ip(), &kit::behind(REMOTE_IDENTITY, HOST_V4.into(), 0))?;
    let expected = (client, remote);
    ways.push(way(
        "overlay, egress",
        datapath,
        FROM_CONTAINER,
        from_pod(remote),
        REDIRECT,
        expected,
        Some(1.4),
    ));
    let datapath = Datapath::with_pods(&tunnel_config())?;
    let packet = from_network(remote, client);
    ways.push(Way {
        is_tunnelled: true,
        ..way("overlay, ingress", datapath, FROM_OVERLAY, packet, REDIRECT, (remote, client), Some(1.4))
    });
    Ok(ways)
}

/// Measures packets to a backend of another node and replies to them by XDP, as ratios to those by tc.
fn accelerated(family: Family, ns: &NetNs) -> Result<()> {
    const GOAL: f64 = 0.7;
    const XDP_TX: u32 = 3;
    ns.ip_batch(
        "neigh replace 203.0.113.9 lladdr 02:00:00:00:00:99 dev out0 nud permanent
         neigh replace 2001:db8:1::9 lladdr 02:00:00:00:00:99 dev out0 nud permanent",
    )?;
    let nodeport = NodeConfig {
        nodeport: 1,
        snat_min_port: MIN_PORT,
        before_services: before_services::XDP,
        ..default_config()
    };
    let outside = family.outside();
    let world = SocketAddr::new(outside, 41000);
    let remote = REMOTE.into_iter().find(|ip| ip.is_ipv4() == outside.is_ipv4()).context("no address")?;
    let remote = SocketAddr::new(remote, BACKEND_PORT);
    let from_network = |from, to| frame(A.mac, ROUTER_MAC, &segment(from, to, TCP, ACK));
    let request = from_network(world, family.vip());

    let by_tc = frontend(&nodeport, family, remote)?;
    let mut xdp = ns.run(|| Datapath::load_xdp(&nodeport, "out0"))?;
    for ip in [IpAddr::from(HOST_V4), HOST_V6.into()] {
        xdp.add_host(ip)?;
    }
    let mut node = Node::on(xdp, family, TCP, &[remote])?;
    node.set_flags(lb_flag::NODE_PORT | lb_flag::ROUTABLE, 0)?;
    node.datapath.put::<4, 64>("ep_masquerade", &DIRECT_ROUTING, &addresses())?;
    let by_xdp = node.datapath;
    let sent = ns.run(|| by_tc.run(FROM_NETDEV, &request))?;
    let source = seen(&sent.packet).source;
    let first = ns.run(|| by_xdp.run_xdp(UPLINK, &request))?;
    ensure!(first.verdict == XDP_TX && seen(&first.packet).source == source, "{first:?}");
    let ways = [
        ("NodePort to a remote backend, XDP against tc", request, (source, remote)),
        (
            "NodePort, reply of a remote backend, XDP against tc",
            from_network(remote, source),
            (family.vip(), world),
        ),
    ];
    let (mut tc, mut replay) = (Replay::new("replay")?, XdpReplay::new()?);
    tc.jump_to(by_tc.program(FROM_NETDEV)?)?;
    let mut way = Way {
        name: "",
        datapath: by_tc,
        program: FROM_NETDEV,
        packet: Vec::new(),
        at: A.ifindex,
        verdict: REDIRECT,
        expected: (world, remote),
        is_tunnelled: false,
        goal: None,
    };
    for (name, packet, expected) in ways {
        (way.packet, way.expected) = (packet, expected);
        let mut best = [f64::INFINITY; 4];
        for _ in 0..ROUNDS {
            let program = way.datapath.program(FROM_NETDEV)?;
            tc.jump_to(program)?;
            best[0] = best[0].min(ns.run(|| tc.round(&way))?);
            tc.stop()?;
            best[1] = best[1].min(ns.run(|| tc.alone(&way))?);
            replay.next.set(0, by_xdp.xdp()?.fd()?, 0)?;
            let (nanoseconds, verdict, out) = ns.run(|| replay.run(&way.packet))?;
            let found = seen(&out);
            ensure!(
                (verdict, found.source, found.destination) == (XDP_TX, expected.0, expected.1),
                "{verdict}"
            );
            best[2] = best[2].min(nanoseconds);
            replay.next.clear_index(&0)?;
            best[3] = best[3].min(ns.run(|| replay.run(&way.packet))?.0);
        }
        let (tc, xdp) = (best[0] - best[1], best[2] - best[3]);
        let family = if family == Family::V4 { "IPv4" } else { "IPv6" };
        let met = if xdp / tc <= GOAL { "yes" } else { "no" };
        println!("datapath: {name}, {family}\t{:.2}\tx\t{GOAL}\t{met}\t{xdp:.0} ns, tc {tc:.0} ns", xdp / tc);
    }
    Ok(())
}

/// As [`Replay`], for programs of XDP.
struct XdpReplay {
    ebpf: Ebpf,
    next: ProgramArray<MapData>,
}

impl XdpReplay {
    fn new() -> Result<Self> {
        let mut ebpf = EbpfLoader::new().verifier_log_level(VerifierLogLevel::DISABLE).load(REPLAY)?;
        let program: &mut Xdp = ebpf.program_mut("replay_xdp").context("no program")?.try_into()?;
        program.load()?;
        let next = ProgramArray::try_from(ebpf.take_map("replay_program").context("no map")?)?;
        Ok(Self { ebpf, next })
    }

    /// Returns the nanoseconds of one of many packets, and the last one with its verdict.
    fn run(&mut self, packet: &[u8]) -> Result<(f64, u32, Vec<u8>)> {
        let mut template = [0u8; 88];
        template[..80].copy_from_slice(&packet[..80]);
        let map = self.ebpf.map_mut("replay_packet").context("no packet")?;
        Array::<_, [u8; 88]>::try_from(map)?.set(0, template, 0)?;
        let mut context = [0; 24];
        context[4..8].copy_from_slice(&(packet.len() as u32).to_ne_bytes());
        context[12..16].copy_from_slice(&UPLINK.to_ne_bytes());
        let mut out = vec![0; 2048];
        let mut options = TestRunOptions::new();
        options.data_in = Some(packet);
        options.data_out = Some(&mut out);
        options.ctx_in = Some(&context);
        options.repeat = PACKETS;
        let program: &Xdp = self.ebpf.program("replay_xdp").context("no program")?.try_into()?;
        let result = program.test_run(options)?;
        out.truncate(result.data_size_out as usize);
        Ok((result.duration.as_nanos() as f64, result.return_value, out))
    }
}

/// A node with a service for clients outside, and its own addresses.
fn frontend(config: &NodeConfig, family: Family, backend: SocketAddr) -> Result<Datapath> {
    let mut node = Node::with(config, family, TCP, &[backend])?;
    node.set_flags(lb_flag::NODE_PORT | lb_flag::ROUTABLE, 0)?;
    node.datapath.put::<4, 64>("ep_masquerade", &DIRECT_ROUTING, &addresses())?;
    Ok(node.datapath)
}

fn masquerading(config: &NodeConfig) -> Result<Datapath> {
    let mut datapath = Datapath::with_pods(config)?;
    datapath.put::<4, 64>("ep_masquerade", &IFINDEX, &addresses())?;
    Ok(datapath)
}

/// The node's addresses; no range is excluded.
fn addresses() -> MasqueradeAddresses {
    MasqueradeAddresses {
        ipv4: ipv4_word(HOST_V4),
        ipv6: ipv6_words(HOST_V6),
        excluded_ipv4: u32::MAX,
        excluded_ipv6: [u32::MAX; 4],
        ..MasqueradeAddresses::default()
    }
}

fn incoming(at: u32) -> Incoming {
    Incoming { ingress_ifindex: at, at: Some(at), ..Incoming::default() }
}

/// A program that puts a packet's headers back and jumps into another one.
struct Replay {
    ebpf: Ebpf,
    name: &'static str,
    next: ProgramArray<MapData>,
}

impl Replay {
    fn new(name: &'static str) -> Result<Self> {
        let mut ebpf = EbpfLoader::new().verifier_log_level(VerifierLogLevel::DISABLE).load(REPLAY)?;
        let program: &mut SchedClassifier = ebpf.program_mut(name).context("no program")?.try_into()?;
        program.load()?;
        let next = ProgramArray::try_from(ebpf.take_map("replay_program").context("no map")?)?;
        Ok(Self { ebpf, name, next })
    }

    fn program(&self) -> Result<&SchedClassifier> {
        Ok(self.ebpf.program(self.name).context("no program")?.try_into()?)
    }

    fn jump_to(&mut self, program: &SchedClassifier) -> Result<()> {
        Ok(self.next.set(0, program.fd()?, 0)?)
    }

    fn stop(&mut self) -> Result<()> {
        Ok(self.next.clear_index(&0)?)
    }

    /// Returns the nanoseconds of one of many packets, and the last one with its verdict.
    fn run(&mut self, way: &Way) -> Result<(f64, u32, Vec<u8>)> {
        let mut template = [0u8; 88];
        template[..80].copy_from_slice(&way.packet[..80]);
        let map = self.ebpf.map_mut("replay_packet").context("no packet")?;
        Array::<_, [u8; 88]>::try_from(map)?.set(0, template, 0)?;
        let (context, mut out) = (kit::context(incoming(way.at)), vec![0; 2048]);
        let mut options = TestRunOptions::new();
        options.data_in = Some(&way.packet);
        options.data_out = Some(&mut out);
        options.ctx_in = Some(&context);
        options.repeat = PACKETS;
        let result = self.program()?.test_run(options)?;
        out.truncate(result.data_size_out as usize);
        Ok((result.duration.as_nanos() as f64, result.return_value, out))
    }

    fn round(&mut self, way: &Way) -> Result<f64> {
        let (nanoseconds, verdict, packet) = self.run(way)?;
        ensure!(verdict != SHOT && verdict == way.verdict, "verdict {verdict} and not {}", way.verdict);
        let found = seen(&packet);
        ensure!(
            (found.source, found.destination) == way.expected,
            "{} to {}, and not {:?}",
            found.source,
            found.destination,
            way.expected
        );
        Ok(nanoseconds)
    }

    /// Returns the nanoseconds of the replay alone.
    fn alone(&mut self, way: &Way) -> Result<f64> {
        const NO_PROGRAM: u32 = u32::MAX;
        let (nanoseconds, verdict, _) = self.run(way)?;
        ensure!(verdict == NO_PROGRAM, "verdict {verdict} of no program");
        Ok(nanoseconds)
    }
}
