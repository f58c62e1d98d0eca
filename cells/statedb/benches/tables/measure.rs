//! Measurement, comparison and output of rows.

use std::time::{Duration, Instant};

use crate::peer;

/// The minimum duration of a round, and the number of rounds, as in the peer.
const ROUND: Duration = Duration::from_millis(5);
pub(crate) const ROUNDS: usize = 30;

/// The goal of a row.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    /// A factor relative to the peer.
    Times(f64),
    /// Nanoseconds.
    Nanos(f64),
}

/// A measured cost.
#[derive(Clone, Copy, Default)]
pub(crate) struct Took {
    /// Wall time.
    wall: Duration,
    /// Processor time.
    cpu: Duration,
}

impl std::ops::AddAssign for Took {
    fn add_assign(&mut self, other: Took) {
        self.wall += other.wall;
        self.cpu += other.cpu;
    }
}

/// The start of a measurement, on both clocks.
pub(crate) struct Begin(Instant, Duration);

impl Begin {
    pub(crate) fn now() -> Begin {
        Begin(Instant::now(), computed(rustix::time::ClockId::ProcessCPUTime))
    }

    pub(crate) fn took(&self) -> Took {
        let now = computed(rustix::time::ClockId::ProcessCPUTime);
        Took { wall: self.0.elapsed(), cpu: now - self.1 }
    }
}

/// Returns the processor time of this process or thread.
pub(crate) fn computed(by: rustix::time::ClockId) -> Duration {
    let time = rustix::time::clock_gettime(by);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Whether the command line selects a row: by a part of its name, or without arguments.
pub(crate) fn wanted(name: &str) -> bool {
    std::env::args().skip(1).find(|arg| !arg.starts_with('-')).is_none_or(|part| name.contains(&part))
}

/// Measures and prints the time per item of calls of `f`.
pub(crate) fn row(name: &str, recorded: f64, goal: Goal, mut f: impl FnMut(), items: u64) {
    let times = |times: u64| {
        let begin = Begin::now();
        (0..times).for_each(|_| f());
        begin.took()
    };
    rounds(name, recorded, goal, times, items);
}

/// As [`row`], with a function that measures its time itself.
pub(crate) fn timed(name: &str, recorded: f64, goal: Goal, mut f: impl FnMut() -> Took, items: u64) {
    let times = |times: u64| {
        let mut sum = Took::default();
        (0..times).for_each(|_| sum += f());
        sum
    };
    rounds(name, recorded, goal, times, items);
}

/// Runs rounds of as many calls as a round needs. Takes the fastest wall time, since other load only adds to it, and
/// the median processor time, so that it includes the average garbage collection.
fn rounds(name: &str, recorded: f64, goal: Goal, mut f: impl FnMut(u64) -> Took, items: u64) {
    if !wanted(name) {
        return;
    }
    let mut times = 1;
    while f(times).cpu < ROUND {
        times *= 2;
    }
    let rounds: Vec<Took> = (0..ROUNDS).map(|_| f(times)).collect();
    let sorted = |clock: fn(&Took) -> Duration| {
        let mut rounds: Vec<Duration> = rounds.iter().map(clock).collect();
        rounds.sort_unstable();
        rounds
    };
    let each = |round: Duration| round.as_nanos() as f64 / (times * items) as f64;
    let ours = (each(sorted(|took| took.wall)[0]), each(sorted(|took| took.cpu)[ROUNDS / 2]));
    match peer::ask(name).as_deref() {
        // Uses the clock that favours the peer: its garbage collector runs on another processor.
        Some(&[wall, cpu]) if wall / ours.0 <= cpu / ours.1 => {
            let also = format!("; of all processors {:.1} and {cpu:.1}, {:.1}x", ours.1, cpu / ours.1);
            print(name, ours.0, goal, wall, &also);
        }
        Some(&[wall, cpu]) => {
            let also = format!(" of all processors; {:.1} and {wall:.1}, {:.1}x", ours.0, wall / ours.0);
            print(name, ours.1, goal, cpu, &also);
        }
        _ => print(name, ours.1, goal, recorded, ", recorded"),
    }
}

/// Prints a delay that involves several threads or a runtime.
pub(crate) fn delay(name: &str, ours: f64, goal: Goal, recorded: f64) {
    match peer::ask(name).as_deref() {
        Some(&[wall]) => print(name, ours, goal, wall, ""),
        _ => print(name, ours, goal, recorded, ", recorded"),
    }
}

/// Prints a line; `also` is appended to the peer's column.
fn print(name: &str, ours: f64, goal: Goal, peer: f64, also: &str) {
    let goal = match goal {
        Goal::Times(times) => peer / times,
        Goal::Nanos(nanos) => nanos,
    };
    let met = match goal.is_nan() {
        true => "-",
        false if ours <= goal => "yes",
        false => "no",
    };
    let ratio = peer / ours;
    let readme = std::env::args().any(|arg| arg == "--readme");
    match (readme, peer.is_nan()) {
        (true, true) => println!("| `{name}` | {ours:.1} | - | - |"),
        (true, false) => println!("| `{name}` | {ours:.1} | {peer:.1} | {ratio:.1} x |"),
        (false, true) => println!("statedb: {name}\t{ours:.1}\tns\t{goal:.0}\t{met}\t-"),
        (false, false) => println!(
            "statedb: {name}\t{ours:.1}\tns\t{goal:.1}\t{met}\tcilium/statedb {peer:.1} ns, {ratio:.1}x{also}"
        ),
    }
}
