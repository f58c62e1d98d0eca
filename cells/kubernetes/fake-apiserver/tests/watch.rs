//! Watches where the tracker differs from a server. Common behaviour is tested against both.

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use k8s_fake_apiserver::Tracker;
use k8s_types::{Kind, Selection, Source, SourceError, WatchEvent};
use serde_json::Value;
use statedb::Db;

fn tracker() -> Tracker {
    Tracker::new(&Db::new().table().unwrap())
}

fn namespace(name: &str, labels: &str) -> String {
    format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}, labels: {{{labels}}}}}}}")
}

/// Returns all pending events of a watch.
fn drain(events: &mut BoxStream<'static, Result<WatchEvent, SourceError>>) -> Vec<String> {
    let mut texts = Vec::new();
    while let Some(Some(event)) = events.next().now_or_never() {
        texts.push(match event {
            Ok(WatchEvent::Applied { json, .. }) => {
                let object: Value = serde_json::from_slice(&json).unwrap();
                format!("{} {}", object["metadata"]["name"].as_str().unwrap(), object["metadata"]["labels"])
            }
            Ok(WatchEvent::Deleted(key)) => format!("no {key}"),
            Ok(other) => format!("{other:?}"),
            Err(error) => error.to_string(),
        });
    }
    texts
}

#[tokio::test]
async fn lists_are_in_order_of_names_and_changes_of_revisions() {
    let tracker = tracker();
    for name in ["b", "c", "a"] {
        tracker.add(&namespace(name, "")).unwrap();
    }
    tracker.delete(&namespace("c", "")).unwrap();
    let mut events = tracker.watch(Selection::all(Kind::Namespace));
    assert_eq!(drain(&mut events), ["Restart", "a {}", "b {}", "Listed"]);
    for name in ["b", "a"] {
        tracker.update(&namespace(name, "x: '1'"), false).unwrap();
    }
    tracker.add(&namespace("c", "")).unwrap();
    tracker.delete(&namespace("b", "")).unwrap();
    assert_eq!(drain(&mut events), ["a {\"x\":\"1\"}", "c {}", "no b"], "changes are coalesced by object");
    tracker.add(&namespace("d", "")).unwrap();
    tracker.delete(&namespace("d", "")).unwrap();
    assert_eq!(drain(&mut events), [""; 0], "no delete of an object that was never sent");
}

#[tokio::test]
async fn label_selectors_are_ignored() {
    let tracker = tracker();
    tracker.add(&namespace("a", "team: blue")).unwrap();
    let mut events = tracker.watch(Selection::all(Kind::Namespace).with_labels("team=red"));
    tracker.add(&namespace("b", "")).unwrap();
    assert_eq!(drain(&mut events), ["Restart", "a {\"team\":\"blue\"}", "b {}", "Listed"]);
}

#[tokio::test]
async fn an_invalid_selector_is_an_error() {
    let mut events = tracker().watch(Selection::all(Kind::Pod).with_fields("spec.nodeName"));
    assert_eq!(drain(&mut events), ["invalid selector: 'spec.nodeName'; can't understand 'spec.nodeName'"]);
}

#[tokio::test]
async fn a_watch_from_before_a_resync_lists_again() {
    let tracker = tracker();
    tracker.add(&namespace("a", "")).unwrap();
    tracker.add("{apiVersion: v1, kind: Node, metadata: {name: one}}").unwrap();
    let watch = |kind| tracker.watch(Selection::all(kind));
    let (mut early, mut asleep, mut nodes) =
        (watch(Kind::Namespace), watch(Kind::Namespace), watch(Kind::Node));
    for events in [&mut early, &mut asleep, &mut nodes] {
        assert_eq!(drain(events).len(), 3);
    }
    tracker.resync(&Kind::Namespace.into(), &[namespace("b", "")]).unwrap();
    assert_eq!(drain(&mut early), ["Restart", "b {}", "Listed"]);
    tracker.add(&namespace("b", "x: '1'")).unwrap();
    assert_eq!(drain(&mut early), ["b {\"x\":\"1\"}"]);
    tracker.delete(&namespace("b", "")).unwrap();
    assert_eq!(drain(&mut early), ["no b"]);
    // All rows that the resync wrote were overwritten since: the resync is still detected.
    assert_eq!(drain(&mut asleep), ["Restart", "Listed"]);
    assert_eq!(drain(&mut nodes), [""; 0]);
    tracker.resync::<String>(&Kind::Namespace.into(), &[]).unwrap();
    assert_eq!(drain(&mut early), ["Restart", "Listed"]);
    let wrong = tracker.resync(&Kind::Node.into(), &[namespace("b", "")]).unwrap_err();
    assert_eq!(wrong.to_string(), "b is v1.namespaces, expected v1.nodes");
}
