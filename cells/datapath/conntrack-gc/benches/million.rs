//! Passes through maps of a million connections with their translations: the processor's share, and how long they keep
//! the runtime of the agent's other tasks busy. Prints one row a number (name, measured, unit, goal, met, peer), tab
//! separated.
//!
//! A million flows have their addresses and ports: 16 destinations of a node's 32,768 ports do not suffice, 32 do. The
//! maps are larger than their flows, as an LRU map evicts before it is full.

use std::time::{Duration, Instant};

use bpf::{Clock, Map, MapFlags, MapSpec, MapType};
use conntrack_gc::{Collected, Pace, collect_with, purge_orphans};
use datapath_abi::{CtEntry, CtTuple4, NatEntry4, tuple_flag};

const FLOWS: u32 = 1_000_000;
const DESTINATIONS: u32 = 32;
const NODE: u32 = 99;
const BATCH: usize = 10_000;
/// The share of a processor, in percent, and the milliseconds that other tasks may wait.
const SHARE_GOAL: f64 = 5.0;
const STALL_GOAL: f64 = 1.0;
const TICK: Duration = Duration::from_millis(5);

type Connections = Map<CtTuple4, CtEntry>;
type Translations = Map<CtTuple4, NatEntry4>;

/// The key of a flow: its pod, port and destination, as translations have them.
fn flow(number: u32) -> CtTuple4 {
    let (destination, port) = (number % DESTINATIONS, (32_768 + number / DESTINATIONS) as u16);
    CtTuple4 {
        saddr: 1000 + number / 60_000,
        daddr: destination,
        sport: port.to_be(),
        dport: 443u16.to_be(),
        nexthdr: 17,
        flags: tuple_flag::OUT,
    }
}

fn create(lifetime: u32) -> (Connections, Translations) {
    let spec = |name, value| MapSpec::new(name, MapType::LruHash, 14, value, 3 * FLOWS, MapFlags::NONE);
    let connections: Connections = Map::create(&spec("ct", 56)).unwrap();
    let translations: Translations = Map::create(&spec("nat", 40)).unwrap();
    let entry =
        |address, port| NatEntry4 { created: 0, needs_ct: 0, pad1: 0, pad2: 0, address, port, pad: [0; 2] };
    let all: Vec<u32> = (0..FLOWS).collect();
    for numbers in all.chunks(BATCH) {
        let flows = || numbers.iter().map(|number| flow(*number));
        // Keys of connections have the addresses reversed.
        let rows: Vec<_> = flows()
            .map(|key| {
                let key = CtTuple4 { saddr: key.daddr, daddr: key.saddr, ..key };
                (key, CtEntry { lifetime, ..CtEntry::default() })
            })
            .collect();
        connections.update_batch(&rows).unwrap();
        let out = flows().map(|key| (key, entry(NODE, key.sport)));
        let replies = flows().map(|key| {
            let reply = CtTuple4 {
                saddr: key.daddr,
                daddr: NODE,
                sport: key.dport,
                dport: key.sport,
                flags: tuple_flag::IN,
                ..key
            };
            (reply, entry(key.saddr, key.sport))
        });
        translations.update_batch(&out.chain(replies).collect::<Vec<_>>()).unwrap();
    }
    (connections, translations)
}

/// Returns the processor time of the calling thread.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

/// The outcome of a pass: its result, duration, processor time, and the longest time that the runtime's own thread has worked
/// without a turn of another task. That is processor time, so that a busy machine does not count.
struct Pass<T> {
    result: T,
    took: Duration,
    used: Duration,
    stall: Duration,
}

/// Runs a pass as the cell does, beside a task that wakes at each tick.
fn pass<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Pass<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let begin = Instant::now();
        let mut pass = std::pin::pin!(hive::blocking(move || {
            let before = cpu_time();
            let result = work();
            (result, cpu_time() - before)
        }));
        let mut stall = Duration::ZERO;
        loop {
            let before = cpu_time();
            tokio::select! {
                (result, used) = &mut pass => return Pass { result, took: begin.elapsed(), used, stall },
                () = tokio::time::sleep(TICK) => stall = stall.max(cpu_time() - before),
            }
        }
    })
}

#[expect(clippy::print_stdout, reason = "a benchmark prints its rows")]
fn row(name: &str, measured: f64, unit: &str, goal: f64, peer: &str) {
    let met = if measured <= goal { "yes" } else { "no" };
    println!("collection: {name}\t{measured:.2}\t{unit}\t{goal}\t{met}\t{peer}");
}

fn report<T>(name: &str, pass: &Pass<T>, idle: Duration) {
    let (took, used) = (pass.took.as_secs_f64(), pass.used.as_secs_f64());
    let peer = format!("{used:.2} s in {took:.1} s");
    row(&format!("a million {name}, share of a processor"), used / took * 100.0, "%", SHARE_GOAL, &peer);
    // Interrupts count for the thread that they meet.
    let stall = pass.stall.saturating_sub(idle).as_secs_f64() * 1e3;
    row(
        &format!("a million {name}, longest stall of other tasks"),
        stall,
        "ms",
        STALL_GOAL,
        &format!("{idle:?} without"),
    );
}

fn collect(
    connections: Connections,
    translations: Translations,
) -> (Pass<Collected>, Connections, Translations) {
    let pass = pass(move || {
        let mut pace = Pace::regular(Duration::from_secs(600));
        let nat = Some(translations.raw());
        let found = collect_with(connections.raw(), nat, &Clock::Seconds, Duration::ZERO, || {
            pace.rest(|| false);
            true
        });
        (found.unwrap(), connections, translations)
    });
    let (found, connections, translations) = pass.result;
    (Pass { result: found, took: pass.took, used: pass.used, stall: pass.stall }, connections, translations)
}

fn main() {
    // `cargo test --benches` only shows that it builds.
    if !std::env::args().any(|argument| argument == "--bench") || !test_kit::is_root() {
        return;
    }
    let now = Clock::Seconds.now().unwrap();
    let idle = pass(|| std::thread::sleep(Duration::from_secs(30))).stall;
    let (connections, translations) = create(now + 100_000);
    let (living, connections, translations) = collect(connections, translations);
    assert_eq!((living.result.alive, living.result.deleted), (FLOWS as usize, 0));
    report("live connections", &living, idle);
    let purge = pass(move || {
        let all = [connections.raw().try_clone().unwrap()];
        let mut pace = Pace::regular(Duration::from_secs(600));
        purge_orphans(translations.raw(), &all, Duration::ZERO, || {
            pace.rest(|| false);
            true
        })
        .unwrap()
    });
    assert_eq!((purge.result.owned, purge.result.deleted), (2 * FLOWS as usize, 0));
    report("pairs of translations", &purge, idle);
    let (connections, translations) = create(now - 1);
    let (ended, _, translations) = collect(connections, translations);
    assert_eq!((ended.result.alive, ended.result.deleted), (0, FLOWS as usize));
    assert_eq!(translations.entries().unwrap().len(), 0);
    report("ended connections", &ended, idle);
}
