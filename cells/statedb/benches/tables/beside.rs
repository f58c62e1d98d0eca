//! Reads during concurrent writes.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::time::ClockId;

use crate::measure::{ROUNDS, computed, wanted};
use crate::rows::Plain;
use crate::{MANY, by_id, peer, table};

/// A pseudo-random number generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % MANY
    }
}

/// Transactions per second of Cilium's writer in the same loop, on an idle machine.
const RECORDED: f64 = 12_000.0;

/// Measures the slowdown of a get while another processor writes the same table, in processor time of the reader's
/// thread, which other load does not affect. A new snapshot is taken every hundred gets. A writer at full speed commits
/// many times as often as Cilium's, and the reader has to fetch the written nodes from the other processor's cache; so
/// the second row has a writer that is limited to the rate of Cilium's.
pub(crate) fn measure() {
    const NAME: &str = "X_RandomLookup beside a writer";
    if !wanted(NAME) {
        return;
    }
    let peer = peer::ask(NAME).and_then(|numbers| <[f64; 2]>::try_from(numbers).ok());
    let [_, pace] = peer.unwrap_or([f64::NAN, RECORDED]);
    for (name, pause) in [
        (NAME.to_owned(), Duration::ZERO),
        (format!("{NAME} as fast as the original's"), Duration::from_secs_f64(1.0 / pace)),
    ] {
        let (ratio, commits) = ratio(pause);
        let met = if ratio <= 1.2 { "yes" } else { "no" };
        let peer = match peer {
            Some([ratio, pace]) => format!("cilium/statedb {ratio:.2} beside {pace:.0}"),
            None => "-".to_owned(),
        };
        println!(
            "statedb: {name}\t{ratio:.2}\ttimes alone\t1.2\t{met}\t{commits:.0} commits a second; {peer}"
        );
    }
}

/// Returns the slowdown and the transactions per second. `pause` is the minimum time between the starts of two
/// transactions.
fn ratio(pause: Duration) -> (f64, f64) {
    let plain = table::<Plain>();
    plain.transact(|w| (0..MANY).for_each(|id| drop(w.insert(Plain { id }))));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut get = || {
        let begin = computed(ClockId::ThreadCPUTime);
        for _ in 0..1000 {
            let snapshot = plain.snapshot();
            (0..100).for_each(|_| assert!(plain.get(&snapshot, by_id(black_box(random.next()))).is_some()));
        }
        (computed(ClockId::ThreadCPUTime) - begin).as_secs_f64()
    };
    get();
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let (mut commits, mut writing) = (0, Duration::ZERO);
    for _ in 0..ROUNDS {
        alone.push(get());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut random = Random(7919);
                let (begin, mut due, mut commits) = (Instant::now(), Duration::ZERO, 0);
                while !stop.load(Ordering::Relaxed) {
                    if begin.elapsed() < due {
                        spin_loop();
                        continue;
                    }
                    plain.transact(|w| (0..10).for_each(|_| drop(w.insert(Plain { id: random.next() }))));
                    due += pause;
                    commits += 1;
                }
                (commits, begin.elapsed())
            });
            beside.push(get());
            stop.store(true, Ordering::Relaxed);
            let (more, took) = writer.join().expect("a writer without panics");
            commits += more;
            writing += took;
        });
    }
    (median(beside) / median(alone), f64::from(commits) / writing.as_secs_f64())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}
