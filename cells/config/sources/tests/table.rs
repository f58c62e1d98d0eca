//! The cell in a hive, with a fake source of cluster objects.

use std::sync::Arc;

use config_sources::ClusterConfig;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use hive::TestHive;
use hive::prelude::*;
use k8s_types::{Key, Kind, Selection, Source, SourceError, WatchEvent};
use statedb::{Table, TableDisplay as _};
use tokio::sync::broadcast;

/// A fake source of ConfigMaps and Nodes, whose events the test sends.
struct Model {
    said: broadcast::Sender<(Kind, Result<WatchEvent, SourceError>)>,
}

impl Model {
    fn send(&self, kind: Kind, events: impl IntoIterator<Item = WatchEvent>) {
        for event in events {
            self.said.send((kind, Ok(event))).unwrap();
        }
    }
}

impl Source for Model {
    fn name(&self) -> &str {
        "model"
    }

    fn has(&self, kind: Kind) -> bool {
        kind != Kind::CiliumNodeConfig
    }

    fn watch(&self, selection: Selection) -> BoxStream<'static, Result<WatchEvent, SourceError>> {
        assert!(selection.fields.starts_with("metadata.name="), "each object by its name");
        let said = self.said.subscribe();
        futures::stream::unfold(said, |mut said| async { said.recv().await.ok().map(|event| (event, said)) })
            .filter_map(move |(kind, event)| std::future::ready((kind == selection.kind).then_some(event)))
            .boxed()
    }
}

fn applied(json: &'static str) -> WatchEvent {
    WatchEvent::Applied { json: json.into(), origin: "".into() }
}

fn rows(table: &Table<ClusterConfig>) -> Vec<String> {
    table.all(&table.snapshot()).map(|row| row.row().join(" ")).collect()
}

const SOURCES: &str = r#"[{"kind":"config-map","namespace":"a","name":"m"},{"kind":"cilium-node-config","namespace":"a","name":"c"},{"kind":"node","name":"n"}]"#;

fn hive_of(sources: Members<Arc<dyn Source>>, options: &[(&str, &str)]) -> TestHive {
    let given = module("given", "Sources", [supply(sources)]);
    let hive = TestHive::needing::<Table<ClusterConfig>>([statedb::cell(), given, config_sources::cell()]);
    options.iter().fold(hive, |hive, (key, value)| hive.set(key, value))
}

#[tokio::test]
async fn the_table_follows_the_objects() {
    let model = Arc::new(Model { said: broadcast::channel(100).0 });
    let mut hive = hive_of(Members(vec![model.clone()]), &[("config-sources", SOURCES)]);
    hive.start().await;
    let table = hive.get::<Table<ClusterConfig>>();
    hive.until("both objects to be watched", || model.said.receiver_count() == 2).await;

    let m = r#"{"metadata":{"name":"m","namespace":"a"},"data":{"debug":"true","mtu":"9000"}}"#;
    model.send(Kind::ConfigMap, [WatchEvent::Restart, applied(m), WatchEvent::Listed]);
    hive.until("rows of the map", || rows(&table) == ["debug m 3 true", "mtu m 3 9000"]).await;
    assert!(!table.initialized(&table.snapshot()), "the node is not listed yet");
    let n = r#"{"metadata":{"name":"n","annotations":{"config.cilium.io/mtu":"1400"}}}"#;
    model.send(Kind::Node, [WatchEvent::Restart, applied(n), WatchEvent::Listed]);
    table.wait_initialized().await;
    assert_eq!(rows(&table), ["debug m 3 true", "mtu m 3 9000", "mtu n 1 1400"]);
    let snapshot = table.snapshot();
    let counts: Vec<String> =
        ClusterConfig::effective(&table, &snapshot).iter().map(|r| r.object.clone()).collect();
    assert_eq!(counts, ["ConfigMap a/m", "Node n"]);

    model.said.send((Kind::Node, Err(SourceError("connection refused".to_owned())))).unwrap();
    let health = || hive.health("config-sources.job-config-sources");
    hive.until("the error", || health().error == "Node n: connection refused").await;
    model.send(Kind::ConfigMap, [WatchEvent::Deleted(Key::new("a", "m"))]);
    hive.until("the map to go", || rows(&table) == ["mtu n 1 1400"]).await;
    model.send(Kind::Node, [WatchEvent::Progress]);
    hive.until("health", || health().message == "Following 1 objects with configuration").await;
    drop((table, model));
    hive.finish().await;
}

#[tokio::test]
async fn without_sources_the_table_is_initialized_and_empty() {
    let off = [("config-sources", SOURCES), ("enable-dynamic-config", "false")];
    let model: Arc<dyn Source> = Arc::new(Model { said: broadcast::channel(1).0 });
    for (sources, options) in [(vec![], &off[..1]), (vec![model], &off[..])] {
        let mut hive = hive_of(Members(sources), options);
        hive.start().await;
        let table = hive.get::<Table<ClusterConfig>>();
        assert!(table.initialized(&table.snapshot()) && rows(&table).is_empty());
        drop(table);
        hive.finish().await;
    }
}

#[tokio::test]
async fn invalid_options_are_refused_at_the_start() {
    let mut hive = hive_of(Members(vec![]), &[("config-sources", "config-map:kube-system/cilium-config")]);
    let error = hive.try_start().await.unwrap_err().to_string();
    assert!(
        error.contains("option config-sources: \"config-map:kube-system/cilium-config\" is wrong"),
        "{error}"
    );
}
