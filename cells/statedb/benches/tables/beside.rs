//! Reads while somebody writes.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::time::ClockId;

use crate::measure::{ROUNDS, computed, wanted};
use crate::rows::Plain;
use crate::{MANY, by_id, peer, table};

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % MANY
    }
}

/// How much longer a get takes while the other processor writes the same table: in time of the reader's thread, which
/// does not count what others on the machine do. Each snapshot is good for a hundred gets.
pub(crate) fn measure() {
    const NAME: &str = "X_RandomLookup beside a writer";
    if !wanted(NAME) {
        return;
    }
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
    let (mut alone, mut beside) = (0.0, 0.0);
    for _ in 0..ROUNDS {
        alone += get();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random(7919);
                while !stop.load(Ordering::Relaxed) {
                    plain.transact(|w| (0..10).for_each(|_| drop(w.insert(Plain { id: random.next() }))));
                }
            });
            beside += get();
            stop.store(true, Ordering::Relaxed);
        });
    }
    let ratio = beside / alone;
    let met = if ratio <= 1.2 { "yes" } else { "no" };
    let peer = match peer::ask(NAME).as_deref() {
        Some(&[ratio]) => format!("cilium/statedb {ratio:.2}"),
        _ => "-".to_owned(),
    };
    println!("statedb: {NAME}\t{ratio:.2}\ttimes alone\t1.2\t{met}\t{peer}");
}
