//! The prober in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use super::core::{CHECK_TIMEOUT, Event, MAX_IN_FLIGHT, ProbeId, Prober};
use super::echo::Echo;
use super::schedule::BATCH_INTERVAL;
use super::target::{Key, Target};
use crate::config::cycle;
use crate::row::{CheckResult, Failure};

const BASE: Duration = Duration::from_secs(60);
const MILLISECOND: Duration = Duration::from_millis(1);

fn target(number: u32, addresses: u32) -> (Arc<str>, Target) {
    let name: Arc<str> = format!("node{number}").into();
    let ip = |at| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number * 4 + at));
    let host = (0..addresses).map(ip).collect();
    (name.clone(), Target { name, local: number == 0, host, endpoint: vec![] })
}

/// A prober with a network of nodes that answer after a millisecond, but for those in `dead`.
struct Bench {
    prober: Prober,
    now: Duration,
    dead: BTreeSet<IpAddr>,
    /// Answers on their way.
    answers: Vec<(Duration, Answer)>,
    /// When each address was probed.
    probed: BTreeMap<Key, Vec<Duration>>,
    /// When each probe began.
    begun: Vec<Duration>,
    results: Vec<(Key, Option<CheckResult>, CheckResult)>,
    pings: usize,
    /// Rounds of the loop: events, timers and answers that come at one time are one.
    wakeups: usize,
    rounds: usize,
    most_in_flight: usize,
}

#[derive(Clone, Copy)]
enum Answer {
    Reply(IpAddr, Echo),
    Http(ProbeId, bool),
}

impl Bench {
    fn new() -> Self {
        Self {
            prober: Prober::new(BASE, 3),
            now: Duration::from_secs(1000),
            dead: BTreeSet::new(),
            answers: Vec::new(),
            probed: BTreeMap::new(),
            begun: Vec::new(),
            results: Vec::new(),
            pings: 0,
            wakeups: 0,
            rounds: 0,
            most_in_flight: 0,
        }
    }

    fn add(&mut self, numbers: impl IntoIterator<Item = u32>, addresses: u32) {
        for number in numbers {
            let (name, target) = target(number, addresses);
            self.prober.set(self.now, &name, Some(target));
        }
    }

    fn remove(&mut self, number: u32) {
        let (name, _) = target(number, 1);
        assert!(self.prober.set(self.now, &name, None));
    }

    /// Lets time pass until `end`, from one event to the next.
    fn run_until(&mut self, end: Duration) {
        loop {
            self.wakeups += 1;
            self.prober.handle_time(self.now);
            self.events();
            self.most_in_flight = self.most_in_flight.max(self.prober.in_flight());
            let answer = self.answers.iter().map(|(at, _)| *at).min();
            let next = self.prober.due().into_iter().chain(answer).min().unwrap_or(end).max(self.now);
            if next >= end {
                self.now = end;
                return;
            }
            self.now = next;
            let (due, later) = std::mem::take(&mut self.answers).into_iter().partition(|(at, _)| *at <= next);
            self.answers = later;
            for (_, answer) in due {
                match answer {
                    Answer::Reply(from, echo) => self.prober.handle_reply(from, echo, next),
                    Answer::Http(probe, ok) => {
                        let result = if ok { Ok(MILLISECOND) } else { Err(Failure::TimedOut) };
                        self.prober.handle_http(probe, result);
                    }
                }
            }
            self.events();
        }
    }

    fn run(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    fn events(&mut self) {
        while let Some(event) = self.prober.poll_event() {
            match event {
                Event::Ping { to, echo } => {
                    self.pings += 1;
                    if !self.dead.contains(&to) {
                        self.answers.push((self.now + MILLISECOND, Answer::Reply(to, echo)));
                    }
                }
                Event::Hello { probe, to } => {
                    self.begun.push(self.now);
                    let dead = self.dead.contains(&to);
                    let after = if dead { CHECK_TIMEOUT } else { MILLISECOND };
                    self.answers.push((self.now + after, Answer::Http(probe, !dead)));
                }
                Event::Probed { key, icmp, http } => {
                    self.probed.entry(key.clone()).or_default().push(self.now);
                    self.results.push((key, icmp, http));
                }
                Event::AllProbed => self.rounds += 1,
            }
        }
    }
}

#[test]
fn addresses_can_be_probed_before_their_turn() {
    let mut bench = Bench::new();
    bench.add(0..100, 2);
    let (name, target) = target(0, 2);
    // One that another node or no node has is ignored.
    let unknown = (name, "192.0.2.1".parse().unwrap());
    bench.prober.probe_now(target.keys().into_iter().chain([unknown]));
    bench.run(10 * MILLISECOND);
    let probed: Vec<&Key> = bench.probed.keys().collect();
    assert_eq!(probed, target.keys().iter().collect::<Vec<_>>());
    bench.run(cycle(BASE, 200));
    assert_eq!(bench.probed.len(), 200, "the others have their turn");
}

#[test]
fn a_cycle_probes_each_address_once_evenly_spaced() {
    for (nodes, addresses) in [(1, 1), (1, 2), (10, 2), (200, 1)] {
        let mut bench = Bench::new();
        bench.add(0..nodes, addresses);
        let count = (nodes * addresses) as usize;
        let length = cycle(BASE, count);
        bench.run(3 * length - length / (2 * count as u32));
        assert_eq!(bench.probed.len(), count);
        assert!(bench.probed.values().all(|times| times.len() == 3), "{nodes} nodes: {:?}", bench.probed);
        let spacing = length / count as u32;
        for pair in bench.begun.windows(2) {
            let apart = pair[1] - pair[0];
            assert!(apart.abs_diff(spacing) < MILLISECOND, "{apart:?} instead of {spacing:?}");
        }
        assert_eq!(bench.pings, 3 * count, "one ping is enough where there is an answer");
        assert!(
            bench
                .results
                .iter()
                .all(|(_, icmp, http)| { *icmp == Some(Ok(MILLISECOND)) && *http == Ok(MILLISECOND) })
        );
    }
}

#[test]
fn a_burst_of_nodes_is_no_burst_of_packets() {
    let mut bench = Bench::new();
    bench.add([0], 1);
    bench.run(Duration::from_secs(30));
    assert_eq!(bench.begun.len(), 1);
    bench.begun.clear();
    bench.add(1..5000, 1);
    let length = cycle(BASE, 5000);
    let spacing = length / 5000;
    bench.run(length + Duration::from_secs(1));
    assert_eq!(bench.probed.len(), 5000, "all in the first cycle after they came");
    let per_batch = (BATCH_INTERVAL.as_secs_f64() / spacing.as_secs_f64()) as usize + 1;
    let mut batches: BTreeMap<Duration, usize> = BTreeMap::new();
    bench.begun.iter().for_each(|at| *batches.entry(*at).or_default() += 1);
    assert!(batches.values().all(|count| *count <= per_batch), "{per_batch}: {batches:?}");
    let times: Vec<Duration> = batches.into_keys().collect();
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= BATCH_INTERVAL), "each batch is one wakeup");
    assert!(
        bench.begun[0] - Duration::from_secs(1030) < Duration::from_secs(1),
        "without a wait for the old cycle"
    );
    assert!(bench.most_in_flight <= per_batch);
    // The next cycle has the regular length: each address once more.
    bench.run(length);
    let twice = bench.probed.values().filter(|times| times.len() == 2).count();
    assert!((4800..=5000).contains(&twice), "{twice}");
}

/// In a large cluster half of which is unreachable, probes, their pings and their time limits share wakeups.
#[test]
fn wakeups_do_not_grow_with_the_cluster() {
    let per_second = |nodes: u32| {
        let mut bench = Bench::new();
        bench.add(0..nodes, 2);
        bench.dead = (0..nodes).filter_map(|number| target(number, 2).1.host.pop()).collect();
        let time = Duration::from_secs(200);
        bench.run(time);
        assert!(
            bench.begun.len() as f64 / time.as_secs_f64()
                > 0.9 * f64::from(2 * nodes) / cycle(BASE, 2 * nodes as usize).as_secs_f64()
        );
        bench.wakeups as f64 / time.as_secs_f64()
    };
    let (many, more) = (per_second(5000), per_second(10_000));
    // A batch: its start, the answers, three pings of those without one, and their time limit.
    assert!(many <= 14.0 && more <= 14.0, "{many} {more}");
}

#[test]
fn removed_nodes_are_not_probed_and_their_results_are_dropped() {
    let mut bench = Bench::new();
    bench.add(0..4, 1);
    bench.dead.extend(target(0, 1).1.host);
    bench.run(MILLISECOND);
    assert_eq!(bench.prober.in_flight(), 1, "the dead one");
    bench.remove(0);
    bench.remove(3);
    bench.run(Duration::from_secs(300));
    let names: BTreeSet<_> = bench.probed.keys().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["node1", "node2"].into());
    assert_eq!(bench.prober.in_flight(), 0);

    // Back with another address while a probe of the old one runs.
    bench.add([0], 1);
    bench.run(Duration::from_secs(60));
    bench.probed.clear();
    let (name, mut moved) = target(0, 1);
    moved.host = vec![[10, 9, 9, 9].into()];
    bench.prober.set(bench.now, &name, Some(moved));
    bench.run(Duration::from_secs(200));
    let ips: BTreeSet<_> = bench.probed.keys().filter(|key| key.0 == name).map(|key| key.1).collect();
    assert_eq!(ips, [[10, 9, 9, 9].into()].into());
}

#[test]
fn without_nodes_there_is_nothing_to_wait_for() {
    let mut bench = Bench::new();
    assert_eq!(bench.prober.due(), None);
    bench.add(0..2, 1);
    bench.run(Duration::from_secs(100));
    bench.remove(0);
    bench.remove(1);
    bench.run(CHECK_TIMEOUT);
    assert_eq!(bench.prober.due(), None);
    let before = bench.begun.len();
    bench.run(Duration::from_secs(1000));
    assert_eq!(bench.begun.len(), before);
    // The same node again is probed at once.
    bench.add([1], 1);
    bench.run(MILLISECOND);
    assert_eq!(bench.begun.len(), before + 1);
}

#[test]
fn an_unreachable_address_costs_three_pings_and_ten_seconds() {
    let mut bench = Bench::new();
    bench.add([0], 1);
    bench.dead.extend(target(0, 1).1.host);
    let begin = bench.now;
    bench.run(Duration::from_secs(20));
    assert_eq!(bench.pings, 3);
    let failed = (target(0, 1).1.keys().remove(0), Some(Err(Failure::TimedOut)), Err(Failure::TimedOut));
    assert_eq!(bench.results, [failed]);
    assert_eq!(bench.probed.values().next().unwrap(), &[begin + CHECK_TIMEOUT]);
}

#[test]
fn only_the_reply_to_the_ping_counts() {
    let mut prober = Prober::new(BASE, 3);
    let (name, node) = target(0, 1);
    let now = Duration::from_secs(5);
    prober.set(now, &name, Some(node));
    prober.handle_time(now);
    let (mut ping, mut hello) = (None, None);
    while let Some(event) = prober.poll_event() {
        match event {
            Event::Ping { to, echo } => ping = Some((to, echo)),
            Event::Hello { probe, .. } => hello = Some(probe),
            other => panic!("{other:?}"),
        }
    }
    let ((to, echo), hello) = (ping.unwrap(), hello.unwrap());
    prober.handle_http(hello, Ok(MILLISECOND));
    prober.handle_http(hello, Err(Failure::TimedOut));
    prober.handle_http(hello + 1, Ok(MILLISECOND));
    let later = now + 5 * MILLISECOND;
    prober.handle_reply(to, Echo { id: echo.id ^ 1, ..echo }, later);
    prober.handle_reply(to, Echo { sequence: echo.sequence.wrapping_add(1), ..echo }, later);
    prober.handle_reply(to, Echo { nonce: echo.nonce ^ 1, ..echo }, later);
    prober.handle_reply([10, 7, 7, 7].into(), echo, later);
    assert_eq!(prober.poll_event(), None);
    prober.handle_reply(to, echo, later);
    let probed = Event::Probed { key: (name, to), icmp: Some(Ok(5 * MILLISECOND)), http: Ok(MILLISECOND) };
    assert_eq!(prober.poll_event(), Some(probed));
    prober.handle_reply(to, echo, later);
    assert_eq!(prober.poll_event(), None, "a second reply");
}

#[test]
fn a_reply_to_an_earlier_ping_counts_with_its_own_latency() {
    let mut prober = Prober::new(BASE, 3);
    let (name, node) = target(0, 1);
    prober.set(Duration::ZERO, &name, Some(node));
    let mut pings = Vec::new();
    for at in [0, 100, 200, 300] {
        prober.handle_time(Duration::from_millis(at));
        while let Some(event) = prober.poll_event() {
            match event {
                Event::Ping { to, echo } => pings.push((to, echo)),
                Event::Hello { probe, .. } => prober.handle_http(probe, Ok(MILLISECOND)),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(pings.len(), 3);
    prober.handle_reply(pings[1].0, pings[1].1, Duration::from_millis(750));
    let Some(Event::Probed { icmp, .. }) = prober.poll_event() else { panic!() };
    assert_eq!(icmp, Some(Ok(Duration::from_millis(650))));
}

#[test]
fn pings_that_cannot_be_sent() {
    // Without the privilege the pings have no result; an error of the network fails them after the last one.
    for (error, expected, sends) in [
        (None, None, 1),
        (Some(Failure::Other("unreachable".into())), Some(Err(Failure::Other("unreachable".into()))), 3),
    ] {
        let mut prober = Prober::new(BASE, 3);
        let (name, node) = target(0, 1);
        prober.set(Duration::ZERO, &name, Some(node));
        let (mut count, mut result) = (0, None);
        for at in 0..20 {
            prober.handle_time(at * Duration::from_millis(50));
            while let Some(event) = prober.poll_event() {
                match event {
                    Event::Ping { echo, .. } => {
                        count += 1;
                        prober.handle_unsent(echo, error.clone());
                    }
                    Event::Hello { probe, .. } => prober.handle_http(probe, Ok(MILLISECOND)),
                    Event::Probed { icmp, .. } => result = Some(icmp),
                    Event::AllProbed => panic!(),
                }
            }
        }
        assert_eq!((result, count), (Some(expected), sends));
    }
}

#[test]
fn a_request_probes_all_nodes_at_once_within_the_bound() {
    let mut bench = Bench::new();
    bench.add(0..1000, 1);
    bench.dead.extend((0..1000).flat_map(|number| target(number, 1).1.host));
    bench.prober.probe_all();
    bench.prober.probe_all();
    bench.run(Duration::from_secs(25));
    assert_eq!(bench.most_in_flight, MAX_IN_FLIGHT);
    assert_eq!(bench.rounds, 0);
    // The rest leaves the cluster: nothing is left to wait for once the probes in flight have ended.
    for number in 0..1000 {
        if !bench.probed.contains_key(&target(number, 1).1.keys()[0]) {
            bench.remove(number);
        }
    }
    bench.run(CHECK_TIMEOUT);
    assert_eq!(bench.rounds, 1, "both requests have joined one round");

    bench.dead.clear();
    let before = bench.begun.len();
    bench.prober.probe_all();
    // Probes in flight that began before have no answer until their time is over.
    bench.run(CHECK_TIMEOUT);
    assert_eq!(bench.rounds, 2);
    assert!(bench.begun.len() >= before + 400);
    let mut none = Bench::new();
    none.prober.probe_all();
    none.run(MILLISECOND);
    assert_eq!(none.rounds, 1, "no node, no wait");
}

#[test]
fn time_in_which_the_machine_slept_is_not_made_up_for() {
    let mut bench = Bench::new();
    bench.add(0..100, 1);
    bench.run(Duration::from_secs(10));
    let before = bench.begun.len();
    bench.now += Duration::from_secs(7200);
    bench.run(Duration::from_secs(1));
    assert!(bench.begun.len() - before <= 3, "{}", bench.begun.len() - before);
}

#[test]
fn one_address_of_two_nodes_has_two_results() {
    let mut bench = Bench::new();
    let (a, mut first) = target(1, 1);
    let (b, mut second) = target(2, 1);
    let shared: IpAddr = [10, 1, 1, 1].into();
    first.host = vec![shared];
    first.endpoint = vec![shared];
    second.host = vec![shared];
    bench.prober.set(bench.now, &a, Some(first));
    bench.prober.set(bench.now, &b, Some(second));
    bench.run(cycle(BASE, 2) - Duration::from_secs(1));
    let counts: Vec<_> = bench.probed.iter().map(|(key, times)| (&*key.0, times.len())).collect();
    assert_eq!(counts, [("node1", 1), ("node2", 1)]);
}
