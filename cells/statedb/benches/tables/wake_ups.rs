//! Commits that wake watchers.

use std::time::Instant;

use statedb::{Db, Query, RwTable, TableDisplay, TableSpec};

use crate::measure::Goal::{Nanos, Times};
use crate::measure::delay;
use crate::rows::Plain;
use crate::table;

pub(crate) fn measure() {
    ping_pong();
    propagation();
}

/// Measures a round trip through two tables: two commits and two wake-ups.
fn ping_pong() {
    const ROUNDS: u64 = 20_000;
    for (name, workers, peer) in [("1 thread", 1, 3900.0), ("2 threads", 2, 5900.0)] {
        let runtime = match workers {
            1 => tokio::runtime::Builder::new_current_thread().build(),
            _ => tokio::runtime::Builder::new_multi_thread().worker_threads(workers).build(),
        };
        let runtime = runtime.expect("a runtime");
        let mut least = f64::MAX;
        for _ in 0..5 {
            let (ping, pong) = (table::<Plain>(), table::<Plain>());
            let start = Instant::now();
            let there = runtime.spawn(answer(ping.clone(), pong.clone(), ROUNDS));
            ping.transact(|w| w.insert(Plain { id: 0 }));
            let back = runtime.spawn(answer(pong, ping, ROUNDS));
            let joined = runtime.block_on(async { (there.await, back.await) });
            assert!(joined.0.is_ok() && joined.1.is_ok());
            least = least.min(start.elapsed().as_nanos() as f64 / ROUNDS as f64);
        }
        delay(&format!("X_PingPong, {name}"), least, Nanos(1500.0), peer);
    }
}

/// Writes to one table after each write of the other.
async fn answer(from: RwTable<Plain>, to: RwTable<Plain>, rounds: u64) {
    for id in 1..=rounds {
        written(&from, 0, id).await;
        to.transact(|w| w.insert(Plain { id: 0 }));
    }
}

async fn written(table: &RwTable<Plain>, id: u64, revision: u64) {
    loop {
        let watch = {
            let snapshot = table.snapshot();
            let (row, watch) = table.get_watch(&snapshot, Query::primary(id));
            if row.is_some_and(|row| row.revision() >= revision) {
                return;
            }
            watch
        };
        watch.changed().await;
    }
}

/// A row of the second table.
#[derive(Clone, serde::Serialize)]
struct Copied {
    id: u64,
}

impl TableSpec for Copied {
    const NAME: &'static str = "copied";
    type Key<'a> = u64;

    fn key(&self) -> u64 {
        self.id
    }
}

impl TableDisplay for Copied {
    fn columns() -> &'static [&'static str] {
        &["ID"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.id.to_string()]
    }
}

/// Measures the propagation of ten objects: a reader of the first table copies them into a second one, which is read.
fn propagation() {
    const BATCHES: u64 = 2000;
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mut least = f64::MAX;
    for _ in 0..5 {
        let db = Db::new();
        let (first, second) = (db.table::<Plain>(), db.table::<Copied>());
        let (first, second) = (first.expect("a new name"), second.expect("a new name"));
        let copy = {
            let (mut changes, second) = (first.changes(), second.clone());
            async move {
                for _ in 0..BATCHES {
                    let batch = changes.next().await;
                    second
                        .transact(|w| batch.iter().for_each(|c| drop(w.insert(Copied { id: c.object.id }))));
                }
            }
        };
        let start = Instant::now();
        let copying = runtime.spawn(copy);
        runtime.block_on(async {
            let mut changes = second.changes();
            for batch in 0..BATCHES {
                first.transact(|w| (0..10).for_each(|id| drop(w.insert(Plain { id: batch * 10 + id }))));
                assert_eq!(changes.next().await.len(), 10);
            }
        });
        assert!(runtime.block_on(copying).is_ok());
        least = least.min(start.elapsed().as_nanos() as f64 / (BATCHES * 10) as f64);
    }
    delay("DB_PropagationDelay", least, Times(3.0), 1040.0);
}
