use k8s_types::Key;
use k8s_types::core::Pod;
use proptest::prelude::*;

use super::*;

const FILES: [&str; 3] = ["a.yaml", "b.yaml", "c.yaml"];
const PODS: [&str; 3] = ["p", "q", "r"];

fn pod(name: &str, app: &str) -> String {
    format!("kind: Pod\nmetadata: {{name: {name}, labels: {{app: {app}}}}}\n---\n")
}

type Objects = BTreeMap<ObjectKey, Raw>;

fn manifests() -> Manifests {
    Manifests::new("s", Kind::ALL, "n1")
}

fn apply(table: &mut Objects, outcome: Outcome) -> Vec<SourceFile> {
    for change in outcome.changes {
        match change {
            Change::Set(kind, key, object) => _ = table.insert(ObjectKey { kind, key }, object),
            Change::Delete(kind, key) => _ = table.remove(&ObjectKey { kind, key }),
        }
    }
    outcome.rows
}

/// Returns `name=app@file` of all pods.
fn shown(table: &Objects) -> String {
    let show = |(key, raw): (&ObjectKey, &Raw)| {
        let pod: Pod = k8s_types::decode(&raw.json).unwrap();
        let file = raw.origin.split(',').next().unwrap();
        format!("{}={}@{file}", key.key.name, pod.metadata.labels.get("app").unwrap())
    };
    table.iter().map(show).collect::<Vec<_>>().join(" ")
}

fn set(manifests: &mut Manifests, file: &str, text: &str) -> Outcome {
    manifests.set(file, Ok(text.as_bytes()))
}

#[test]
fn the_last_file_wins_and_the_others_are_reported() {
    let (mut m, mut table) = (manifests(), BTreeMap::new());
    apply(&mut table, set(&mut m, "b.yaml", &pod("p", "b")));
    let rows = apply(&mut table, set(&mut m, "a.yaml", &pod("p", "a")));
    assert_eq!(shown(&table), "p=b@b.yaml");
    assert_eq!(
        rows[0].faults[0].to_string(),
        "document 1, line 1: Pod default/p: is also in document 1 of b.yaml, which counts; remove one of them"
    );
    assert!(rows[1].faults.is_empty());
    let rows = apply(&mut table, m.leave("b.yaml"));
    assert_eq!(shown(&table), "p=a@a.yaml");
    assert!(rows.iter().all(|row| row.faults.is_empty()), "{rows:?}");
    apply(&mut table, m.remove("b.yaml"));
    assert_eq!(shown(&table), "p=a@a.yaml");
    let rows = apply(&mut table, set(&mut m, "a.yaml", &(pod("p", "a") + &pod("p", "z"))));
    assert_eq!(shown(&table), "p=z@a.yaml");
    assert!(rows[0].faults[0].problem.reason.contains("is in document 1 too, of which this one counts"));
}

#[test]
fn objects_of_the_previous_run_are_kept_until_the_file_is_valid() {
    let mut m = manifests();
    let outcome = set(&mut m, "a.yaml", &(pod("p", "v1") + &pod("q", "v1")));
    let Some((_, Some(good))) = outcome.good.into_iter().next() else { panic!() };
    assert!(good.kept.is_empty());
    let before = LastGood { manifests: good.taken };

    for broken in ["kind: [\n", "kind: Pod\nmetadata: {name: p, labels: []}\n"] {
        let (mut m, mut table) = (manifests(), BTreeMap::new());
        apply(&mut table, m.restore("a.yaml", &before));
        assert_eq!(shown(&table), "p=v1@a.yaml q=v1@a.yaml");
        let text = pod("q", "v2") + broken;
        let outcome = set(&mut m, "a.yaml", &text);
        assert_eq!(outcome.good[0].1.as_ref().unwrap().kept.len(), 1, "it is right of one of them");
        let rows = apply(&mut table, outcome);
        assert_eq!((shown(&table).as_str(), rows[0].kept), ("p=v1@a.yaml q=v2@a.yaml", 1), "{broken}");
        assert!(m.restore("a.yaml", &before).is_empty(), "the file was read already");
        apply(&mut table, set(&mut m, "a.yaml", &pod("q", "v3")));
        assert_eq!((shown(&table).as_str(), m.count(Kind::Pod)), ("q=v3@a.yaml", 1));
    }
    let mut m = Manifests::new("s", &[Kind::CiliumNetworkPolicy], "n1");
    assert!(m.restore("a.yaml", &before).changes.is_empty(), "kinds that are not read any more");
}

#[test]
fn objects_that_a_fault_may_concern_are_kept() {
    let (mut m, mut table) = (manifests(), BTreeMap::new());
    apply(&mut table, set(&mut m, "a.yaml", &(pod("p", "v1") + &pod("q", "v1"))));
    // The fault names its object: the other one is deleted.
    let rows = apply(&mut table, set(&mut m, "a.yaml", &pod("p", "{}")));
    assert_eq!((shown(&table).as_str(), rows[0].kept), ("p=v1@a.yaml", 1));
    apply(&mut table, set(&mut m, "a.yaml", &(pod("p", "v2") + &pod("q", "v2"))));
    // The fault names no object: nothing is deleted, valid manifests apply.
    for broken in ["kind: [\n", "kind: Pod\nmetadata: {name: Q}\n", "metadata: {name: q}\n", "kind: pdo\n"] {
        let rows = apply(&mut table, set(&mut m, "a.yaml", &(pod("p", "v3") + broken)));
        assert_eq!((shown(&table).as_str(), rows[0].kept), ("p=v3@a.yaml q=v2@a.yaml", 1), "{broken}");
    }
    let rows = apply(&mut table, m.set("a.yaml", Err("cannot be read".to_owned())));
    assert_eq!((rows[0].objects, rows[0].kept, rows[0].faults.len()), (2, 2, 1));
    apply(&mut table, set(&mut m, "a.yaml", ""));
    assert_eq!(shown(&table), "");
}

/// An event of a file: its new pods, each with a version, or its removal.
type Event = (usize, Option<Vec<(usize, u8)>>);

fn events() -> impl Strategy<Value = Vec<Event>> {
    let pods = prop::collection::vec((0..PODS.len(), 0..4u8), 0..4);
    prop::collection::vec((0..FILES.len(), prop::option::weighted(0.8, pods)), 1..30)
}

proptest! {
    /// Without faults the table equals the files in any order of events, and the counts of the rows are correct.
    #[test]
    fn the_table_equals_the_files(events in events()) {
        let (mut m, mut table) = (manifests(), BTreeMap::new());
        let mut files: BTreeMap<usize, Vec<(usize, u8)>> = BTreeMap::new();
        for (file, pods) in events {
            let outcome = match &pods {
                Some(pods) => {
                    let texts = pods.iter().map(|&(p, app)| pod(PODS[p], &format!("v{app}")));
                    set(&mut m, FILES[file], &texts.collect::<String>())
                }
                None => m.remove(FILES[file]),
            };
            for row in apply(&mut table, outcome) {
                prop_assert_eq!(row.kept, 0);
            }
            match pods {
                Some(pods) => _ = files.insert(file, pods),
                None => _ = files.remove(&file),
            }
            let mut expected = BTreeMap::new();
            for (file, pods) in &files {
                for (p, app) in pods {
                    expected.insert(PODS[*p], format!("{}=v{app}@{}", PODS[*p], FILES[*file]));
                }
            }
            let expected: Vec<String> = expected.into_values().collect();
            prop_assert_eq!(shown(&table), expected.join(" "));
            prop_assert_eq!(m.count(Kind::Pod), expected.len());
        }
    }

    /// With faults, valid manifests apply, and no object is deleted while a manifest of it exists, valid or not.
    #[test]
    fn no_object_is_deleted_by_a_fault(events in events()) {
        let (mut m, mut table) = (manifests(), BTreeMap::new());
        for (file, pods) in events {
            let Some(pods) = pods else {
                apply(&mut table, m.remove(FILES[file]));
                continue;
            };
            let before: BTreeSet<ObjectKey> = table.keys().cloned().collect();
            // Version 0 is an invalid manifest.
            let app = |app: u8| if app == 0 { "{}".to_owned() } else { format!("v{app}") };
            let texts: String = pods.iter().map(|&(p, version)| pod(PODS[p], &app(version))).collect();
            apply(&mut table, set(&mut m, FILES[file], &texts));
            for (p, version) in pods {
                let key = ObjectKey { kind: Kind::Pod, key: Key::new("default", PODS[p]) };
                if version != 0 || before.contains(&key) {
                    prop_assert!(table.contains_key(&key), "{} is gone", key);
                }
            }
        }
    }
}
