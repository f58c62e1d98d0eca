//! How rows are measured, compared and printed.

use std::time::{Duration, Instant};

use crate::peer;

/// How much a round computes at least, and how many there are; the peer's are the same.
const ROUND: Duration = Duration::from_millis(5);
pub(crate) const ROUNDS: usize = 30;

/// The memory budget of a row.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    /// So much less than the peer.
    Times(f64),
    /// Nanoseconds.
    Nanos(f64),
}

/// A measured cost.
#[derive(Clone, Copy, Default)]
pub(crate) struct Took {
    /// On the wall's clock.
    wall: Duration,
    /// Of all processors.
    cpu: Duration,
}

impl std::ops::AddAssign for Took {
    fn add_assign(&mut self, other: Took) {
        self.wall += other.wall;
        self.cpu += other.cpu;
    }
}

/// A moment.
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

/// Returns this process's processor time so far: other processes do not count.
pub(crate) fn computed(by: rustix::time::ClockId) -> Duration {
    let time = rustix::time::clock_gettime(by);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Whether the command line asks for a row: by a part of its name, or by none.
pub(crate) fn wanted(name: &str) -> bool {
    std::env::args().skip(1).find(|arg| !arg.starts_with('-')).is_none_or(|part| name.contains(&part))
}

/// Returns the time of an item at each call of `f`.
pub(crate) fn row(name: &str, recorded: f64, goal: Goal, mut f: impl FnMut(), items: u64) {
    let times = |times: u64| {
        let begin = Begin::now();
        (0..times).for_each(|_| f());
        begin.took()
    };
    rounds(name, recorded, goal, times, items);
}

/// The same with a function that takes the time itself.
pub(crate) fn timed(name: &str, recorded: f64, goal: Goal, mut f: impl FnMut() -> Took, items: u64) {
    let times = |times: u64| {
        let mut sum = Took::default();
        (0..times).for_each(|_| sum += f());
        sum
    };
    rounds(name, recorded, goal, times, items);
}

/// Rounds of as many times as a round needs: the quickest by the wall's clock, as others on the machine only add to it, and
/// the median of all processors, so that garbage is collected in it.
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
        // The clock that is better for the peer counts: its garbage is collected beside it on another processor.
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

/// How long something took that more than one thread, or a runtime, has a part in.
pub(crate) fn delay(name: &str, ours: f64, goal: Goal, recorded: f64) {
    match peer::ask(name).as_deref() {
        Some(&[wall]) => print(name, ours, goal, wall, ""),
        _ => print(name, ours, goal, recorded, ", recorded"),
    }
}

/// One line; the peer's part ends with what there is to add.
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
