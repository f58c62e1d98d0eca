//! Sets of watches, in virtual time.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::FutureExt;
use proptest::prelude::*;
use statedb::{Db, RwTable, Snapshot, Watch, WatchSet};
use tokio::time::{Instant, sleep, timeout};

use crate::rows::*;

const SECOND: Duration = Duration::from_secs(1);

fn table() -> RwTable<Pod> {
    let pods = Db::new().table::<Pod>().unwrap();
    pods.transact(|w| (0..100).for_each(|id| drop(w.insert(pod(id, "a", &[])))));
    pods
}

fn row_watch(pods: &RwTable<Pod>, snapshot: &Snapshot, id: u8) -> Watch {
    pods.get_watch(snapshot, by_id(id)).1
}

fn all_rows(pods: &RwTable<Pod>) -> WatchSet<u8> {
    let snapshot = pods.snapshot();
    let mut set = WatchSet::new();
    set.extend((0..100).map(|id| (id, row_watch(pods, &snapshot, id))));
    set
}

fn change(pods: &RwTable<Pod>, id: u8) {
    pods.transact(|w| w.insert(pod(id, "b", &[])));
}

#[tokio::test(start_paused = true)]
async fn wait_takes_the_whole_settle_time_after_the_first_close() {
    let pods = table();
    let mut set = all_rows(&pods);
    let begin = Instant::now();
    let writer = async {
        for (second, id) in [(3, 5), (1, 9), (5, 5), (3, 40), (2, 7)] {
            sleep(second * SECOND).await;
            change(&pods, id);
        }
    };
    let (keys, ()) = tokio::join!(
        async {
            let keys = set.wait(10 * SECOND).await;
            assert_eq!(begin.elapsed(), 13 * SECOND, "ten seconds after the first, whatever comes");
            keys
        },
        writer
    );
    assert_eq!(keys, [5, 9, 40], "in order, each once");
    assert_eq!((set.len(), set.contains(&5), set.contains(&6)), (97, false, true));
    // All remaining watches have closed at once: it still waits for the whole `settle`.
    pods.transact(|w| w.delete_all());
    let begin = Instant::now();
    assert_eq!(set.wait(2 * SECOND).await.len(), 97);
    assert_eq!(begin.elapsed(), 2 * SECOND);
    assert!(timeout(3600 * SECOND, set.wait(SECOND)).await.is_err(), "an empty set waits for ever");
}

#[tokio::test(start_paused = true)]
async fn cancellation_at_any_await_loses_nothing() {
    let pods = table();
    let mut set = all_rows(&pods);
    assert!(timeout(SECOND, set.wait(SECOND)).await.is_err());
    change(&pods, 1);
    assert!(timeout(SECOND, set.wait(5 * SECOND)).await.is_err(), "in the settling time");
    change(&pods, 2);
    assert_eq!((set.len(), set.contains(&1)), (100, true));
    assert_eq!(set.wait(Duration::ZERO).now_or_never().unwrap(), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn removed_and_replaced_watches_are_not_returned() {
    let pods = table();
    let mut set = all_rows(&pods);
    for id in 1..=4 {
        change(&pods, id);
    }
    assert!(set.remove(&1) && !set.remove(&1));
    set.add(2, row_watch(&pods, &pods.snapshot(), 2));
    assert_eq!(set.wait(SECOND).await, [3, 4]);
    change(&pods, 2);
    assert_eq!(set.wait(SECOND).await, [2]);
    set.add(7, Watch::closed());
    assert_eq!(set.wait(SECOND).await, [7], "closed when it came");
    change(&pods, 8);
    set.clear();
    assert!(set.is_empty() && timeout(SECOND, set.wait(SECOND)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn sets_are_merged() {
    let pods = table();
    let snapshot = pods.snapshot();
    let (mut set, mut other) = (WatchSet::new(), WatchSet::new());
    set.extend([1, 2].map(|id| (id, row_watch(&pods, &snapshot, id))));
    change(&pods, 2);
    other.extend([2, 3, 4].map(|id| (id, row_watch(&pods, &pods.snapshot(), id))));
    change(&pods, 4);
    set.merge(other);
    assert_eq!(set.keys().copied().collect::<BTreeSet<_>>(), BTreeSet::from([1, 2, 3, 4]));
    assert_eq!(set.wait(SECOND).await, [4], "the other's watch of 2 has not closed");
    change(&pods, 3);
    change(&pods, 1);
    assert_eq!(set.wait(SECOND).await, [3, 1]);
}

/// Of a hundred thousand watches one closes: it is found without checking the others.
#[tokio::test(start_paused = true)]
async fn one_of_a_hundred_thousand() {
    let table = Db::new().table::<Numbered>().unwrap();
    table.transact(|w| (0..100_000).for_each(|id| drop(w.insert(Numbered(id)))));
    let snapshot = table.snapshot();
    let mut set = WatchSet::new();
    set.extend((0..100_000).map(|id| (id, table.get_watch(&snapshot, statedb::Query::primary(id)).1)));
    for round in 0..1000_u32 {
        let id = round.wrapping_mul(7919) % 100_000;
        table.transact(|w| w.insert(Numbered(id)));
        assert_eq!(set.wait(SECOND).await, [id]);
        set.add(id, table.get_watch(&table.snapshot(), statedb::Query::primary(id)).1);
    }
    assert_eq!(set.len(), 100_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_close_is_lost_under_concurrent_writes() {
    const ROUNDS: u64 = 20_000;
    let pods = table();
    let mut set = all_rows(&pods);
    let mut last = [0; 100];
    let writer = {
        let pods = pods.clone();
        tokio::task::spawn_blocking(move || (0..ROUNDS).for_each(|round| change(&pods, (round % 100) as u8)))
    };
    let read = async {
        loop {
            for id in set.wait(Duration::ZERO).await {
                let snapshot = pods.snapshot();
                let (row, watch) = pods.get_watch(&snapshot, by_id(id));
                let revision = row.unwrap().revision();
                assert!(revision > last[usize::from(id)]);
                last[usize::from(id)] = revision;
                set.add(id, watch);
            }
            // The revision of each row's last write; the initial ones are 100 at most.
            if last.iter().all(|revision| *revision > ROUNDS) {
                return;
            }
        }
    };
    timeout(30 * SECOND, read).await.expect("each last write is seen");
    writer.await.unwrap();
}

#[derive(Clone, Debug)]
enum Step {
    Add(u8),
    Remove(u8),
    Change(u8),
    Wait,
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..8u8).prop_map(Step::Add),
        1 => (0..8u8).prop_map(Step::Remove),
        4 => (0..8u8).prop_map(Step::Change),
        2 => Just(Step::Wait),
        1 => Just(Step::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::cases(256)))]

    #[test]
    fn behaves_as_a_plain_list(steps in prop::collection::vec(step(), 1..80)) {
        let pods = table();
        let mut set = WatchSet::new();
        let mut model: Vec<(u8, Watch)> = Vec::new();
        for step in steps {
            match step {
                Step::Add(id) => {
                    let watch = row_watch(&pods, &pods.snapshot(), id);
                    set.add(id, watch.clone());
                    model.retain(|(other, _)| *other != id);
                    model.push((id, watch));
                }
                Step::Remove(id) => {
                    let before = model.len();
                    model.retain(|(other, _)| *other != id);
                    prop_assert_eq!(set.remove(&id), model.len() < before);
                }
                Step::Change(id) => change(&pods, id),
                Step::Wait => {
                    let mut given = set.wait(Duration::ZERO).now_or_never().unwrap_or_default();
                    given.sort_unstable();
                    let mut closed: Vec<_> = model.extract_if(.., |(_, watch)| watch.is_closed()).map(|(id, _)| id).collect();
                    closed.sort_unstable();
                    prop_assert_eq!(given, closed);
                }
                Step::Clear => {
                    set.clear();
                    model.clear();
                }
            }
            prop_assert_eq!(set.len(), model.len());
        }
    }
}
