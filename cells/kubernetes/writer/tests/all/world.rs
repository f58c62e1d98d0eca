//! A hive with a writer, and the cluster that it writes to.

use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use k8s_types::{Api, Key, Kind};
use k8s_writer::{Target, Write, Writer};
use serde_json::{Value, json};
use statedb::Table;

use crate::cluster::Cluster;
use crate::faults::Faulty;

pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) server: Faulty,
    pub(crate) hive: TestHive,
    pub(crate) writer: Arc<Writer>,
    pub(crate) table: Arc<Table<Write>>,
}

impl World {
    pub(crate) async fn new() -> World {
        World::of(Cluster::default()).await
    }

    /// Starts another run of the agent, with the same cluster.
    pub(crate) async fn of(cluster: Cluster) -> World {
        let server = Faulty::over(cluster.api());
        let api: Arc<dyn Api> = Arc::new(server.clone());
        let mut hive = TestHive::new([
            statedb::cell(),
            metrics::cell(),
            supply(api),
            k8s_writer::cell(),
            invoke(|_: Arc<Writer>, _: Arc<Table<Write>>, _: Arc<metrics::Metrics>| ()),
        ]);
        hive.start().await;
        let (writer, table) = (hive.get::<Writer>(), hive.get::<Table<Write>>());
        World { cluster, server, hive, writer, table }
    }

    /// Waits until the queue is empty.
    pub(crate) async fn idle(&self) {
        let empty =
            |table: &Table<Write>, snapshot: &statedb::Snapshot| table.is_empty(snapshot).then_some(());
        tokio::time::timeout(Duration::from_secs(36_000), self.table.wait_until(empty)).await.unwrap();
    }

    pub(crate) fn row(&self, target: &Target) -> Option<Write> {
        let snapshot = self.table.snapshot();
        self.table.get(&snapshot, Write::by_object(&target.to_string())).map(|row| (**row).clone())
    }

    pub(crate) fn rows(&self) -> usize {
        self.table.len(&self.table.snapshot())
    }

    pub(crate) async fn finish(self) {
        let World { hive, writer, table, .. } = self;
        drop((writer, table));
        hive.finish().await;
    }
}

pub(crate) fn endpoint(name: &str) -> Target {
    Target::new(Kind::CiliumEndpoint, Key::new("shop", name))
}

pub(crate) fn node(name: &str) -> Target {
    Target::new(Kind::CiliumNode, Key::new("", name))
}

/// Returns an edit that sets a value in an object's spec.
pub(crate) fn spec(value: impl Into<Value>) -> impl Fn(&mut Value) + Send + Sync + 'static {
    let value = value.into();
    move |object| object["spec"]["value"] = value.clone()
}

pub(crate) fn object(value: impl Into<Value>) -> Value {
    json!({"spec": {"value": value.into()}})
}
