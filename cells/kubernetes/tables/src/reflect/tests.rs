use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt;
use hive::prelude::*;
use k8s_types::core::{Namespace, Node, Pod, Service};
use proptest::prelude::*;
use statedb::{Db, Table};

use super::*;
use crate::numbers::Numbers;
use crate::row::Row;
use crate::{Change, InMemorySource, Raw, Sources, selected, table};

fn pod(name: &str, phase: &str) -> Change {
    let json = format!(
        r#"{{"metadata": {{"name": "{name}", "namespace": "default"}}, "status": {{"phase": {phase}}}}}"#
    );
    let raw = Raw { json: json.into(), origin: "f.yaml, document 1".into() };
    Change::Set(Kind::Pod, Key::new("default", name), raw)
}

fn set(name: &str, version: u8) -> Change {
    pod(name, &format!("\"{version}\""))
}

fn wrong(name: &str) -> Change {
    pod(name, "[]")
}

fn delete(name: &str) -> Change {
    Change::Delete(Kind::Pod, Key::new("default", name))
}

/// Returns `name=phase@source` of all rows.
fn shown(table: &RwTable<Row<Pod>>) -> String {
    let snapshot = table.snapshot();
    let text = |row: &Row<Pod>| format!("{}={}@{}", row.metadata.name, row.status.phase, row.source);
    table.all(&snapshot).map(|row| text(row)).collect::<Vec<_>>().join(" ")
}

/// A source and its rows, without a job.
struct Lone {
    shelf: InMemorySource,
    reflection: Reflection<Row<Pod>>,
    events: Box<dyn Stream<Item = Result<ObjectEvent<Row<Pod>>, SourceError>> + Send + Unpin>,
}

impl Lone {
    fn new(name: &str, table: &RwTable<Row<Pod>>) -> Lone {
        let shelf = InMemorySource::new(name, &[Kind::Pod]);
        let selection = Selection::all(Kind::Pod);
        let reflection =
            Reflection::new(Arc::new(shelf.clone()), selection, table.clone(), Numbers::default());
        let events = Box::new(reflection.watch());
        Lone { shelf, reflection, events }
    }

    /// Applies pending events in chunks.
    fn take(&mut self, chunk: usize) {
        loop {
            let mut events = Vec::new();
            while events.len() < chunk
                && let Some(Some(event)) = self.events.next().now_or_never()
            {
                events.push(event);
            }
            if events.is_empty() {
                break;
            }
            self.reflection.apply(events);
        }
    }

    /// Handles released rows of other sources, like the job.
    fn see_to_foreign(&mut self) -> bool {
        let Reflection { table, foreign, selection, source, .. } = &mut self.reflection;
        let again = freed(table, foreign, selection.kind, source.name()).now_or_never().is_some();
        if again {
            self.cut();
        }
        again
    }

    fn cut(&mut self) {
        self.events = Box::new(self.reflection.watch());
    }
}

#[test]
fn a_change_of_a_pruned_part_is_no_change_of_the_row() {
    let table = Db::new().table::<Row<Pod>>().unwrap();
    let mut a = Lone::new("a", &table);
    a.reflection.prune = Arc::new(|row: &mut Row<Pod>| row.object.status.phase = "".into());
    a.cut();
    a.shelf.write(vec![set("p", 1)], true);
    a.take(100);
    assert_eq!(shown(&table), "p=@a");
    let revision = || {
        let snapshot = table.snapshot();
        table.get(&snapshot, Row::by_name("default", "p")).map(|row| row.revision())
    };
    let before = revision();
    a.shelf.write(vec![set("p", 2)], false);
    a.take(100);
    assert!(before.is_some() && revision() == before);
}

#[test]
fn an_invalid_object_keeps_its_last_good_version_until_it_is_valid() {
    let table = Db::new().table::<Row<Pod>>().unwrap();
    let mut a = Lone::new("a", &table);
    a.shelf.write(vec![set("p", 1), set("q", 1), wrong("never")], true);
    a.take(100);
    assert_eq!(shown(&table), "p=1@a q=1@a");
    assert!(table.initialized(&table.snapshot()));
    let (message, error) = a.reflection.status();
    assert_eq!(message, "2 upserted, 0 deleted, 2 total objects");
    let error = error.unwrap();
    assert!(error.starts_with("Pod default/never (f.yaml, document 1): "), "{error}");

    a.shelf.write(vec![wrong("p"), delete("never"), set("q", 2)], false);
    a.take(100);
    assert_eq!(shown(&table), "p=1@a q=2@a");
    assert!(a.reflection.status().1.unwrap().starts_with("Pod default/p "));
    // Another list keeps it, and deletes objects that it does not contain.
    a.shelf.list_again();
    a.take(2);
    assert_eq!(shown(&table), "p=1@a q=2@a");
    assert!(a.reflection.status().1.is_some());
    a.shelf.write(vec![set("p", 3)], false);
    a.take(100);
    assert_eq!((shown(&table).as_str(), a.reflection.status().1), ("p=3@a q=2@a", None));
    a.shelf.write(vec![wrong("p")], false);
    a.shelf.write(vec![delete("p")], false);
    a.take(1);
    assert_eq!((shown(&table).as_str(), a.reflection.status().1), ("q=2@a", None));
    assert_eq!(a.reflection.status().0, "0 upserted, 1 deleted, 1 total objects");
}

#[test]
fn sources_do_not_touch_each_others_rows() {
    let table = Db::new().table::<Row<Pod>>().unwrap();
    let (mut a, mut b) = (Lone::new("a", &table), Lone::new("b", &table));
    a.shelf.write(vec![set("x", 1)], true);
    a.take(10);
    assert!(!table.initialized(&table.snapshot()));
    b.shelf.write(vec![set("x", 2), set("y", 2)], true);
    b.take(10);
    assert!(table.initialized(&table.snapshot()));
    assert_eq!(shown(&table), "x=1@a y=2@b");
    b.shelf.write(vec![set("x", 3)], false);
    b.shelf.list_again();
    b.take(10);
    assert_eq!(shown(&table), "x=1@a y=2@b");
    // When the first source deletes it, the other one's object takes its place.
    a.shelf.write(vec![delete("x")], false);
    a.take(10);
    assert!(b.see_to_foreign());
    b.take(10);
    assert_eq!(shown(&table), "x=3@b y=2@b");
    assert!(!b.see_to_foreign());
    a.shelf.write(vec![delete("y")], false);
    a.take(10);
    assert_eq!(shown(&table), "x=3@b y=2@b");
}

#[test]
fn equal_rows_are_not_written() {
    let table = Db::new().table::<Row<Pod>>().unwrap();
    let mut a = Lone::new("a", &table);
    a.shelf.write(vec![set("x", 1)], true);
    a.take(10);
    let before = table.revision(&table.snapshot());
    a.shelf.list_again();
    a.take(10);
    assert_eq!(table.revision(&table.snapshot()), before);
    assert_eq!(a.reflection.status().0, "0 upserted, 0 deleted, 1 total objects");
    a.shelf.write(vec![set("x", 2)], false);
    a.take(10);
    assert_ne!(table.revision(&table.snapshot()), before);
}

/// An operation of a source: a write, another list, a lost connection, a failure, a refresh.
#[derive(Debug, Clone)]
enum Step {
    Set(usize, u8),
    Wrong(usize),
    Delete(usize),
    List,
    Cut,
    Fail,
    Take(usize),
}

const NAMES: [&str; 4] = ["p", "q", "r", "s"];

fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let name = || 0..NAMES.len();
    let step = prop_oneof![
        4 => (name(), 1..4u8).prop_map(|(name, version)| Step::Set(name, version)),
        2 => name().prop_map(Step::Wrong),
        2 => name().prop_map(Step::Delete),
        1 => Just(Step::List),
        1 => Just(Step::Cut),
        1 => Just(Step::Fail),
        4 => (1..5usize).prop_map(Step::Take),
    ];
    prop::collection::vec((0..2usize, step), 1..60)
}

/// The objects of a source: each in its current version, none for an invalid one.
type Truth = BTreeMap<usize, Option<u8>>;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// For any events, batches and interruptions, the table finally equals the sources.
    #[test]
    fn the_table_converges_to_the_sources(steps in steps()) {
        let table = Db::new().table::<Row<Pod>>().unwrap();
        let mut sources = [Lone::new("a", &table), Lone::new("b", &table)];
        let mut truth: [Truth; 2] = Default::default();
        sources.iter().for_each(|source| source.shelf.write(Vec::new(), true));
        for (at, step) in steps {
            let (source, truth) = (&mut sources[at], &mut truth[at]);
            match step {
                Step::Set(name, version) => {
                    source.shelf.write(vec![set(NAMES[name], version)], false);
                    truth.insert(name, Some(version));
                }
                Step::Wrong(name) => {
                    source.shelf.write(vec![wrong(NAMES[name])], false);
                    truth.insert(name, None);
                }
                Step::Delete(name) => {
                    source.shelf.write(vec![delete(NAMES[name])], false);
                    truth.remove(&name);
                }
                Step::List => source.shelf.list_again(),
                Step::Cut => source.cut(),
                Step::Fail => source.shelf.fail("away"),
                Step::Take(chunk) => {
                    source.take(chunk);
                    source.see_to_foreign();
                }
            }
        }
        // Until nothing changes any more.
        loop {
            sources.iter_mut().for_each(|source| source.take(3));
            let again: Vec<bool> = sources.iter_mut().map(Lone::see_to_foreign).collect();
            if again == [false, false] {
                break;
            }
        }
        let snapshot = table.snapshot();
        for (at, name) in NAMES.iter().enumerate() {
            let row = table.get(&snapshot, Row::<Pod>::by_name("default", name));
            let of = [truth[0].get(&at), truth[1].get(&at)];
            match row {
                // The row's source has the object, in this version if that is valid.
                Some(row) => {
                    let owner = usize::from(&*row.source == "b");
                    prop_assert!(of[owner].is_some(), "{} is left over", name);
                    if let Some(Some(version)) = of[owner] {
                        prop_assert_eq!(&*row.status.phase, version.to_string());
                    }
                }
                // No source has it in a valid version.
                None => prop_assert!(!of.iter().any(|of| matches!(of, Some(Some(_)))), "{} is missing", name),
            }
        }
        for (source, truth) in sources.iter().zip(&truth) {
            let wrong = truth.values().any(Option::is_none);
            prop_assert_eq!(source.reflection.faults.summary().is_some(), wrong);
        }
    }
}

#[tokio::test]
async fn tables_follow_sources_in_a_hive() {
    let shelf = InMemorySource::new("daemon-k8s", &[Kind::Pod, Kind::Namespace]);
    let mine = |_: ()| Selection::all(Kind::Pod).with_fields("spec.nodeName=n1");
    let tables = [table::<Namespace>(), selected::<Pod, _>(mine), table::<Service>(), table::<Node>()];
    let readers = |_: Arc<Table<Row<Pod>>>, _: Arc<Table<Row<Service>>>, _: Arc<Sources>| ();
    let source: Arc<dyn Source> = Arc::new(shelf.clone());
    let cells = [
        statedb::cell(),
        metrics::cell(),
        supply(Member(source)),
        supply(Arc::new(Sources::default())),
        provide(|metrics: Arc<metrics::Metrics>| {
            let numbers = Numbers::default();
            numbers.register(&metrics);
            Arc::new(numbers)
        }),
        module("k8s-tables", "Tables of cluster objects", tables),
        invoke(readers),
    ];
    let mut hive = TestHive::new(cells);
    hive.start().await;
    let (pods, services) = (hive.get::<Table<Row<Pod>>>(), hive.get::<Table<Row<Service>>>());
    // No source has services, so they are complete.
    assert!(services.initialized(&services.snapshot()) && !pods.initialized(&pods.snapshot()));
    let on = |name: &str, node: &str| {
        let json = format!(
            r#"{{"metadata": {{"name": "{name}", "namespace": "work"}}, "spec": {{"nodeName": "{node}"}}}}"#
        );
        Change::Set(Kind::Pod, Key::new("work", name), Raw { json: json.into(), origin: "".into() })
    };
    shelf.write(vec![on("bee", "n1"), on("wasp", "n2")], true);
    tokio::time::timeout(Duration::from_secs(10), pods.wait_initialized()).await.unwrap();
    let names = || -> Vec<String> {
        let snapshot = pods.snapshot();
        pods.all(&snapshot).map(|row| row.metadata.name.to_string()).collect()
    };
    assert_eq!(names(), ["bee"]);
    let health = |table: &str| hive.health(&format!("k8s-tables.job-k8s-reflector-{table}-daemon-k8s"));
    hive.until("it is reported", || health("k8s-pods").message == "1 upserted, 0 deleted, 1 total objects")
        .await;
    hive.until("rows of other sources, too", || {
        health("k8s-namespaces").message == "0 upserted, 0 deleted, 0 total objects"
    })
    .await;

    // A refresh finds objects that existed before.
    let sources = hive.get::<Sources>();
    shelf.write(vec![on("bee", "n2"), on("wasp", "n1")], false);
    sources.refresh().await;
    assert_eq!(names(), ["wasp"]);
    shelf.write(vec![Change::Set(Kind::Pod, Key::new("work", "wasp"), Raw {
        json: r#"{"metadata": {"name": "wasp", "namespace": "work"}, "spec": {"nodeName": "n1", "hostNetwork": 1}}"#.into(),
        origin: "".into(),
    })], false);
    sources.refresh().await;
    assert_eq!((names(), health("k8s-pods").level), (vec!["wasp".to_owned()], Level::Degraded));
    let text = hive.get::<metrics::Metrics>().text();
    assert!(text.contains("cilium_k8s_wrong_objects{source=\"daemon-k8s\",kind=\"Pod\"} 1"), "{text}");
    // The bee was created and deleted, the wasp was created and is invalid.
    for line in [
        "kubernetes_events_received_total{scope=\"Pod\",action=\"create\",valid=\"true\",equal=\"false\"} 2",
        "kubernetes_events_received_total{scope=\"Pod\",action=\"update\",valid=\"false\",equal=\"false\"} 1",
        "kubernetes_events_received_total{scope=\"Pod\",action=\"delete\",valid=\"true\",equal=\"false\"} 1",
        "kubernetes_events_total{scope=\"Pod\",action=\"create\",status=\"success\"} 2",
        "kubernetes_events_total{scope=\"Pod\",action=\"update\",status=\"failed\"} 1",
        "kubernetes_events_total{scope=\"Pod\",action=\"delete\",status=\"success\"} 1",
        "event_ts{source=\"k8s\",scope=\"Pod\",action=\"delete\"} ",
        "kubernetes_resource_sync_duration{scope=\"Pod\"} ",
    ] {
        assert!(text.contains(&format!("cilium_{line}")), "{line} is not in\n{text}");
    }
    shelf.fail("the server is away");
    hive.until("it is reported", || health("k8s-pods").error == "the server is away").await;
    shelf.write(vec![on("wasp", "n1")], false);
    hive.until("all is well", || health("k8s-pods").level == Level::Ok).await;
    hive.stop().await;
}
