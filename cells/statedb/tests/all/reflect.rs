//! Tables that mirror a source.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::channel::mpsc;
use hive::prelude::*;
use proptest::prelude::*;
use statedb::{Applied, Db, Event, Query, Reflector, RwTable};
use tokio::time::sleep;

use crate::rows::*;

const SECOND: Duration = Duration::from_secs(1);

fn table() -> RwTable<Pod> {
    Db::new().table::<Pod>().unwrap()
}

fn rows(pods: &RwTable<Pod>) -> Vec<(u8, u16, u64)> {
    pods.all(&pods.snapshot()).map(|pod| (pod.id, pod.ports[0], pod.revision())).collect()
}

fn of(id: u8, port: u16) -> Pod {
    pod(id, "a", &[port])
}

#[test]
fn a_list_is_applied_in_one_transaction_and_initializes_the_table() {
    let pods = table();
    pods.transact(|w| (1..=3).for_each(|id| drop(w.insert(of(id, 80)))));
    let mut reflector = Reflector::new("source", &pods);
    assert!(!pods.initialized(&pods.snapshot()));
    let watch = pods.watch(&pods.snapshot());
    reflector.apply(vec![Event::Replace(vec![of(2, 80), of(3, 81), of(4, 80)])]);
    assert!(watch.is_closed() && pods.initialized(&pods.snapshot()));
    assert_eq!(rows(&pods), [(2, 80, 2), (3, 81, 5), (4, 80, 6)], "the equal row is not written");
    let watch = pods.watch(&pods.snapshot());
    reflector.apply(vec![Event::Replace(vec![of(4, 80), of(3, 81), of(2, 80)])]);
    assert!(!watch.is_closed(), "nothing has changed, no watch closes");
}

#[test]
fn rows_of_a_batch_are_written_in_the_order_in_which_they_arrived() {
    let pods = table();
    let mut reflector = Reflector::new("source", &pods);
    reflector.apply(vec![Event::Replace(vec![of(5, 80)])]);
    let upserts = [9, 1, 7, 9, 3].map(|id| Event::Upsert(of(id, 80)));
    let events = upserts.into_iter().chain([Event::Delete(Query::primary(5)), Event::Upsert(of(1, 81))]);
    reflector.apply(events.collect());
    let snapshot = pods.snapshot();
    let order: Vec<(u8, u16)> = pods.by_revision(&snapshot, 0).map(|pod| (pod.id, pod.ports[0])).collect();
    assert_eq!(order, [(9, 80), (1, 81), (7, 80), (3, 80)], "a row that comes again keeps its place");
}

#[test]
fn a_list_of_several_events_is_invisible_until_complete() {
    let pods = table();
    let mut reflector = Reflector::new("source", &pods);
    reflector.apply(vec![Event::Restart, Event::Upsert(of(1, 80)), Event::Upsert(of(2, 80))]);
    reflector.apply(vec![Event::Upsert(of(3, 80)), Event::Delete(Query::primary(2))]);
    assert!(rows(&pods).is_empty() && !pods.initialized(&pods.snapshot()));
    reflector.apply(vec![Event::Listed, Event::Upsert(of(4, 80))]);
    assert_eq!(rows(&pods), [(1, 80, 1), (3, 80, 2), (4, 80, 3)]);
    // The second list is interrupted, restarted, and contains a row that is deleted meanwhile.
    reflector.apply(vec![Event::Restart, Event::Upsert(of(9, 80))]);
    reflector.apply(vec![Event::Restart, Event::Upsert(of(1, 80)), Event::Upsert(of(4, 81))]);
    pods.transact(|w| w.delete(by_id(1)));
    reflector.apply(vec![Event::Listed]);
    assert_eq!(rows(&pods).iter().map(|row| (row.0, row.1)).collect::<Vec<_>>(), [(1, 80), (4, 81)]);
}

#[test]
fn a_list_is_compared_with_earlier_events_of_the_batch() {
    let pods = table();
    let mut reflector = Reflector::new("source", &pods);
    reflector.apply(vec![Event::Replace(vec![of(1, 80)])]);
    // The first upsert is not written yet when the list contains the row as it is stored.
    reflector.apply(vec![Event::Upsert(of(1, 81)), Event::Restart, Event::Upsert(of(1, 80))]);
    reflector.apply(vec![Event::Listed]);
    assert_eq!(rows(&pods), [(1, 80, 3)]);
}

#[test]
fn a_batch_is_one_transaction_with_the_last_event_of_each_row() {
    let pods = table();
    let mut reflector = Reflector::new("source", &pods);
    let mut changes = pods.changes();
    let watch = pods.watch(&pods.snapshot());
    let port = |at: u16| Event::Upsert(of(1, at));
    reflector.apply(vec![port(1), port(2), Event::Delete(by_id(2)), port(3), Event::Upsert(of(2, 1))]);
    assert!(watch.is_closed());
    assert_eq!(changes.try_next().iter().map(|change| change.revision).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(rows(&pods), [(1, 3, 1), (2, 1, 2)]);
    let by_port = BY_PORT.query(&3);
    reflector.apply(vec![Event::Delete(by_port)]);
    assert_eq!(rows(&pods), [(2, 1, 2)]);
}

#[test]
fn sources_that_share_a_table_delete_nothing_of_each_other() {
    let pods = table();
    let mut even = Reflector::new("even", &pods).owns(|pod| pod.id.is_multiple_of(2));
    let mut odd = Reflector::new("odd", &pods).owns(|pod| !pod.id.is_multiple_of(2));
    even.apply(vec![Event::Replace(vec![of(2, 1), of(4, 1)])]);
    assert_eq!(pods.pending_initializers(&pods.snapshot()).len(), 1);
    odd.apply(vec![Event::Replace(vec![of(1, 1)])]);
    assert!(pods.initialized(&pods.snapshot()));
    even.apply(vec![Event::Replace(vec![of(4, 1)])]);
    assert_eq!(rows(&pods).iter().map(|row| row.0).collect::<Vec<_>>(), [1, 4]);
}

#[test]
fn a_row_of_unknown_content_in_a_list_is_kept() {
    let pods = table();
    let mut reflector = Reflector::new("source", &pods).owns(|pod: &Pod| pod.id < 10);
    let keep = |id: u8| Event::Keep(Query::primary(id));
    let applied = reflector.apply(vec![Event::Replace(vec![of(1, 80), of(2, 80), of(3, 80)])]);
    assert_eq!((applied.upserted, applied.deleted), (3, 0));
    // Upserted before the list, in it, or not at all.
    let events = vec![
        Event::Upsert(of(2, 81)),
        Event::Restart,
        keep(1),
        keep(2),
        Event::Upsert(of(4, 80)),
        keep(4),
        keep(5),
    ];
    reflector.apply(events);
    let applied = reflector.apply(vec![Event::Listed]);
    assert_eq!((applied.upserted, applied.deleted), (1, 1));
    let now: Vec<(u8, u16)> = rows(&pods).into_iter().map(|(id, port, _)| (id, port)).collect();
    assert_eq!(now, [(1, 80), (2, 81), (4, 80)]);
    // Outside of a list `Keep` does nothing; rows of another source cannot be deleted.
    pods.transact(|w| w.insert(of(20, 1)));
    assert_eq!(reflector.apply(vec![keep(1), Event::Delete(Query::primary(20))]), Applied::default());
}

#[test]
fn fields_of_other_writers_can_be_kept() {
    let pods = table();
    let merge = |old: &Pod, new: Pod| (old.ports != new.ports).then(|| Pod { node: old.node.clone(), ..new });
    let mut reflector = Reflector::new("source", &pods).merge(merge);
    reflector.apply(vec![Event::Replace(vec![of(1, 80), of(2, 80)])]);
    pods.transact(|w| w.update(by_id(1), |pod| pod.node = "elsewhere".into()));
    reflector.apply(vec![Event::Replace(vec![of(1, 80), of(2, 80)])]);
    reflector.apply(vec![Event::Restart, Event::Upsert(of(1, 81)), Event::Upsert(of(2, 80)), Event::Listed]);
    reflector.apply(vec![Event::Upsert(of(2, 80))]);
    let snapshot = pods.snapshot();
    let first = pods.get(&snapshot, by_id(1)).unwrap();
    assert_eq!((&*first.node, &*first.ports), ("elsewhere", &[81][..]));
    assert_eq!(pods.revision(&snapshot), 4);
}

async fn follow<T>(name: &'static str) -> (TestHive, Arc<RwTable<T>>, mpsc::Sender<Result<Event<T>, String>>)
where
    T: statedb::TableDisplay + Clone + PartialEq,
{
    let (sender, source) = mpsc::channel(1);
    let source = Arc::new(parking_lot::Mutex::new(Some(source)));
    let job = move |jobs: JobGroup, table: Arc<RwTable<T>>| {
        let source = source.lock().take().expect("built once");
        Reflector::new(name, &table).job(&jobs, source).add();
    };
    let cells = [statedb::table::<T>(), invoke(job)];
    let mut hive = TestHive::new([module("m", "A source", cells), statedb::cell()]);
    hive.start().await;
    let table = hive.get::<RwTable<T>>();
    (hive, table, sender)
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_source_are_reported_and_its_rows_are_kept() {
    let (hive, pods, mut sender) = follow::<Pod>("pods").await;
    let mut send = |event| sender.try_send(event).unwrap();
    send(Err("connection refused".into()));
    sleep(SECOND).await;
    assert_eq!(hive.health("m.job-pods").error, "connection refused");
    send(Ok(Event::Replace(vec![of(1, 80)])));
    sleep(SECOND).await;
    assert_eq!((hive.health("m.job-pods").message, rows(&pods).len()), ("Following".into(), 1));
    send(Err("reset by peer".into()));
    sleep(SECOND).await;
    assert_eq!((hive.health("m.job-pods").error, rows(&pods).len()), ("reset by peer".into(), 1));
    send(Ok(Event::Restart));
    send(Ok(Event::Listed));
    sleep(SECOND).await;
    assert!(rows(&pods).is_empty() && hive.health("m.job-pods").error.is_empty());
    drop((pods, sender));
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_row_with_a_conflicting_unique_key_is_reported_and_retried() {
    let (hive, services, mut sender) = follow::<Service>("services").await;
    let names = || services.all(&services.snapshot()).map(|row| row.name.clone()).collect::<Vec<_>>();
    let both = vec![service("a", Some(1)), service("b", Some(1)), service("c", Some(3))];
    sender.try_send(Ok(Event::Replace(both))).unwrap();
    sleep(SECOND).await;
    assert_eq!(names(), ["a", "c"]);
    let health = hive.health("m.job-services");
    assert_eq!(health.message, "1 rows are refused");
    assert!(health.error.contains("services `b`: table `services`: another object"), "{}", health.error);
    sender.try_send(Ok(Event::Delete(Query::primary("a")))).unwrap();
    sleep(SECOND).await;
    assert_eq!(names(), ["b", "c"]);
    assert!(hive.health("m.job-services").error.is_empty());
    drop((services, sender));
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_source_is_polled_again_once_its_events_are_written() {
    let (hive, pods, mut sender) = follow::<Pod>("pods").await;
    // The channel has a small capacity, and accepts another event once the previous ones are written.
    let mut sent = 0_u32;
    while sent < 10_000 {
        futures::SinkExt::send(&mut sender, Ok(Event::Upsert(of((sent % 200) as u8, 1)))).await.unwrap();
        sent += 1;
        assert!(
            pods.revision(&pods.snapshot()) + 4 >= u64::from(sent.min(200)),
            "one is written before the next"
        );
    }
    drop(sender);
    sleep(SECOND).await;
    assert_eq!(pods.len(&pods.snapshot()), 200);
    assert!(hive.has_logged(hive::LogLevel::DEBUG, "dropped before it was complete"), "no list has come");
    drop(pods);
    hive.finish().await;
}

#[derive(Clone, Debug)]
enum Step {
    Upsert(u8, u16),
    Delete(u8),
    Replace(Vec<(u8, u16)>),
    Restart,
    Listed,
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    let row = || (0..8u8, 0..3u16);
    prop_oneof![
        5 => row().prop_map(|(id, port)| Step::Upsert(id, port)),
        3 => (0..8u8).prop_map(Step::Delete),
        1 => prop::collection::vec(row(), 0..6).prop_map(Step::Replace),
        1 => Just(Step::Restart),
        2 => Just(Step::Listed),
        3 => Just(Step::Flush),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// However events are split into batches, the table equals the source, and is initialized from its first list on.
    #[test]
    fn the_table_equals_the_source(script in prop::collection::vec(step(), 1..60)) {
        let pods = table();
        let mut reflector = Reflector::new("source", &pods);
        let mut model: BTreeMap<u8, u16> = BTreeMap::new();
        let (mut listing, mut complete, mut batch) = (None::<BTreeMap<u8, u16>>, false, Vec::new());
        for step in script.into_iter().chain([Step::Flush]) {
            match step {
                Step::Upsert(id, port) => {
                    listing.as_mut().unwrap_or(&mut model).insert(id, port);
                    batch.push(Event::Upsert(of(id, port)));
                }
                Step::Delete(id) => {
                    listing.as_mut().unwrap_or(&mut model).remove(&id);
                    batch.push(Event::Delete(by_id(id)));
                }
                Step::Replace(rows) => {
                    (listing, complete) = (None, true);
                    model = rows.iter().copied().collect();
                    batch.push(Event::Replace(rows.into_iter().map(|(id, port)| of(id, port)).collect()));
                }
                Step::Restart => {
                    listing = Some(BTreeMap::new());
                    batch.push(Event::Restart);
                }
                Step::Listed => {
                    if let Some(rows) = listing.take() {
                        (model, complete) = (rows, true);
                    }
                    batch.push(Event::Listed);
                }
                Step::Flush => {
                    reflector.apply(std::mem::take(&mut batch));
                    let after: BTreeMap<u8, u16> = rows(&pods).into_iter().map(|row| (row.0, row.1)).collect();
                    prop_assert_eq!(&after, &model);
                    prop_assert_eq!(pods.initialized(&pods.snapshot()), complete);
                }
            }
        }
    }
}
