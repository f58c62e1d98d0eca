//! The datapath in numbers: nanoseconds a packet (BPF_PROG_TEST_RUN), verified instructions, time to load, size.
//! Packets are of established connections, with policy that allows everything. Beside the prototype: `paths.rs`.
//! Prints one row a number (name, measured, unit, goal, met, peer), tab separated.
#![expect(clippy::print_stdout, reason = "a benchmark prints its rows")]

#[path = "../tests/datapath/counts/mod.rs"]
mod counts;
#[path = "../tests/datapath/kit.rs"]
#[expect(dead_code, reason = "a part of what the tests need")]
mod kit;
#[path = "../tests/datapath/l4.rs"]
mod l4;
#[path = "../tests/datapath/packet.rs"]
#[expect(dead_code, reason = "a part of what the tests need")]
mod packet;
#[path = "../tests/datapath/service.rs"]
#[expect(dead_code, reason = "a part of what the tests need")]
mod service;
#[path = "../tests/datapath/uplink.rs"]
mod uplink;

use anyhow::{Result, ensure};
use aya::programs::{TestRun, TestRunOptions};
use aya::{EbpfLoader, VerifierLogLevel};
use bpf::RawMap;
use bpf::perf::{Record, Rings, Wakeups};
use datapath_abi::{NodeConfig, Pod as _, trace};
use datapath_object::{FROM_CONTAINER, FROM_HOST, FROM_NETDEV, NODE_CONFIG, PROGRAMS};
use kit::{
    A, B, Datapath, HOST_V4, HOST_V6, IFINDEX, Incoming, OUTSIDE_V4, OUTSIDE_V6, PASS, REDIRECT,
    default_config,
};
use packet::{eth, ipv4, ipv6};
use std::time::Instant;

/// Packets in one run: each of them takes one hop of the 255.
const PACKETS: u32 = 250;
const RUNS: usize = 2000;
/// Pages of a ring of events, as in the agent: those of one run fit.
const RING_PAGES: usize = 64;

fn main() -> Result<()> {
    if !test_kit::is_root() {
        return Ok(());
    }
    packets(&default_config(), "")?;
    packets(&NodeConfig { trace_notify: 0, ..default_config() }, ", no traces")?;
    events()?;
    instructions()?;
    loading()?;
    row("datapath: object", datapath_object::datapath().len() as f64 / 1024.0, "KB", 320.0);
    Ok(())
}

/// Prints a row; `goal` is an upper bound.
fn row(name: &str, measured: f64, unit: &str, goal: f64) {
    let met = if measured <= goal { "yes" } else { "no" };
    println!("{name}\t{measured:.1}\t{unit}\t{goal}\t{met}\t-");
}

fn packets(config: &NodeConfig, variant: &str) -> Result<()> {
    let datapath = Datapath::with_pods(config)?;
    let past_stack = Datapath::with_pods(&NodeConfig { host_routing: 1, ..*config })?;
    let v4 = |source, destination| eth(A.node_mac, A.mac, 0x0800, &ipv4(source, destination, 255));
    let v6 = |source, destination| eth(A.node_mac, A.mac, 0x86dd, &ipv6(source, destination, 255));
    let cases = [
        ("pod to pod, IPv4", FROM_CONTAINER, v4(A.ipv4, B.ipv4), REDIRECT, 500.0),
        ("pod to pod, IPv6", FROM_CONTAINER, v6(A.ipv6, B.ipv6), REDIRECT, 500.0),
        ("pod to outside, IPv4", FROM_CONTAINER, v4(A.ipv4, OUTSIDE_V4), PASS, 350.0),
        ("pod to outside, IPv6", FROM_CONTAINER, v6(A.ipv6, OUTSIDE_V6), PASS, 350.0),
        ("host to pod, IPv4", FROM_HOST, v4(HOST_V4, B.ipv4), REDIRECT, 400.0),
        ("host to pod, IPv6", FROM_HOST, v6(HOST_V6, B.ipv6), REDIRECT, 400.0),
        ("network to pod, IPv4", FROM_NETDEV, v4(OUTSIDE_V4, B.ipv4), REDIRECT, 400.0),
        ("network to pod, IPv6", FROM_NETDEV, v6(OUTSIDE_V6, B.ipv6), REDIRECT, 400.0),
    ];
    for (name, program, packet, verdict, goal) in cases {
        // Devices deliver only where packets bypass the host's stack.
        let datapath = if program == FROM_NETDEV { &past_stack } else { &datapath };
        let nanoseconds = measure(datapath, program, &packet, verdict)?;
        row(&format!("datapath: {name}{variant}"), nanoseconds, "ns/packet", goal);
    }
    Ok(())
}

/// Measures the cost of traces to a packet beside none: with open rings, into which the events of a run fit, and without.
fn events() -> Result<()> {
    let packet = eth(A.node_mac, A.mac, 0x0800, &ipv4(A.ipv4, B.ipv4, 255));
    let alone =
        |config: &NodeConfig| measure(&Datapath::with_pods(config)?, FROM_CONTAINER, &packet, REDIRECT);
    let nanoseconds = |config: &NodeConfig| -> Result<f64> {
        let datapath = Datapath::with_pods(config)?;
        let map = RawMap::open_id(datapath.map_id("cilium_events")?)?;
        let mut rings = Rings::open(map, RING_PAGES, Wakeups::Paced)?;
        let mut lost = 0;
        // As the agent: the rate of the first run makes it poll the ring.
        let drain = || {
            rings.read(|_, record| lost += if let Record::Lost { count } = record { count } else { 0 })?;
            Ok(())
        };
        let best = measure_with(&datapath, FROM_CONTAINER, &packet, REDIRECT, drain)?;
        ensure!(lost == 0, "{lost} events did not fit into the rings");
        Ok(best)
    };
    let off = nanoseconds(&NodeConfig { trace_notify: 0, ..default_config() })?;
    for (name, monitor_aggregation, goal) in
        [("medium", trace::aggregation::MEDIUM, 1.1), ("none", trace::aggregation::NONE, 1.4)]
    {
        let config = NodeConfig { monitor_aggregation, ..default_config() };
        for (reader, on) in [("", nanoseconds(&config)?), (", without a reader", alone(&config)?)] {
            let (ratio, met) = (on / off, if on <= goal * off { "yes" } else { "no" });
            let name = format!("datapath: traces at aggregation {name}, pod to pod{reader}");
            println!("{name}\t{ratio:.2}\tx of none\t{goal}\t{met}\t-");
        }
    }
    Ok(())
}

/// The best of many runs; others share the machine.
fn measure(datapath: &Datapath, program: &str, packet: &[u8], verdict: u32) -> Result<f64> {
    measure_with(datapath, program, packet, verdict, || Ok(()))
}

/// Measures as [`measure`], with a function that is called after each run.
fn measure_with(
    datapath: &Datapath,
    program: &str,
    packet: &[u8],
    verdict: u32,
    mut after: impl FnMut() -> Result<()>,
) -> Result<f64> {
    let ingress_ifindex = if program == FROM_HOST { 0 } else { IFINDEX };
    let mark = if program == FROM_HOST { Incoming::of_host().mark } else { 0 };
    let context = kit::context(Incoming { mark, ingress_ifindex, ..Incoming::default() });
    let program = datapath.program(program)?;
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let mut options = TestRunOptions::new();
        options.data_in = Some(packet);
        options.ctx_in = Some(&context);
        options.repeat = PACKETS;
        let result = program.test_run(options)?;
        ensure!(result.return_value == verdict, "verdict {} and not {verdict}", result.return_value);
        best = best.min(result.duration.as_nanos() as f64);
        after()?;
    }
    Ok(best)
}

/// Prints what the test `packets_cost_what_is_recorded` compares; the goal is the record.
fn instructions() -> Result<()> {
    let recorded = counts::recorded()?;
    for count in counts::measure()? {
        let goal = recorded.iter().find(|row| row.packet == count.packet);
        let goal = goal.map_or(0.0, |row| row.instructions as f64);
        row(&format!("datapath: {}", count.packet), count.instructions as f64, "insns/packet", goal);
    }
    Ok(())
}

fn loading() -> Result<()> {
    let config = default_config();
    let mut loader = EbpfLoader::new();
    loader
        .override_global(NODE_CONFIG, config.as_bytes(), true)
        .verifier_log_level(VerifierLogLevel::DISABLE);
    let mut best = f64::INFINITY;
    let (mut all, mut most) = (0, 0);
    for _ in 0..10 {
        let begin = Instant::now();
        let datapath = Datapath::load_with(&mut loader)?;
        best = best.min(begin.elapsed().as_secs_f64() * 1000.0);
        (all, most) = (0, 0);
        for program in PROGRAMS {
            let verified = datapath.program(program.name)?.info()?.verified_instruction_count().unwrap_or(0);
            (all, most) = (all + verified, most.max(verified));
        }
    }
    row("datapath: load with maps", best, "ms", 50.0);
    row("datapath: verified instructions, all programs", f64::from(all), "insns", 90_000.0);
    row("datapath: verified instructions, largest program", f64::from(most), "insns", 20_000.0);
    Ok(())
}
