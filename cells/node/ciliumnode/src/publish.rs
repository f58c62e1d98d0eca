//! The job that keeps the object as desired.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hive::{Health, JobCx};
use k8s_tables::Row;
use k8s_types::cilium::CiliumNode;
use k8s_types::{Key, Kind};
use k8s_writer::{Mutation, NotWritten, Step, Target, Writer, Written};
use local_node::LocalNode;
use serde_json::Value;
use statedb::Table;
use tokio::time::{Instant, sleep, sleep_until};

use crate::desired::{Desired, Settings};

/// The least time between two writes, as Cilium's.
const WRITE_INTERVAL: Duration = Duration::from_millis(200);
/// The least time between two corrections of changes by others.
const CORRECTION_INTERVAL: Duration = Duration::from_secs(15);
/// How long after the last correction health reports another writer.
const REPORT_DURATION: Duration = Duration::from_secs(60);
/// The row of health about another writer.
const OTHER_WRITER: &str = "other-writer";

/// Inputs of the job.
pub(crate) struct Publisher {
    pub(crate) settings: Settings,
    pub(crate) nodes: Arc<Table<LocalNode>>,
    pub(crate) objects: Arc<Table<Row<CiliumNode>>>,
    pub(crate) writer: Arc<Writer>,
    pub(crate) health: Health,
}

/// The object as it was last written.
#[derive(Debug, Default)]
struct Last {
    desired: Option<Desired>,
    /// Its version; older rows of the table are no news.
    version: u64,
    /// Whether the table has had the object since.
    is_seen: bool,
    /// Keys of annotations that were ever written.
    annotations: BTreeSet<String>,
    corrected: Option<Instant>,
}

/// The next action of the job.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    Nothing,
    Write,
    /// Another client has changed these fields, or deleted the object.
    Correct(Vec<&'static str>),
}

impl Last {
    /// Compares the object with the desired one.
    fn turn(&mut self, desired: &Desired, object: Option<&CiliumNode>) -> Turn {
        if self.desired.as_ref() != Some(desired) {
            return Turn::Write;
        }
        match object {
            Some(object) if version(&object.metadata.resource_version) < self.version => Turn::Nothing,
            Some(object) => {
                self.is_seen = true;
                match desired.differences(object) {
                    fields if fields.is_empty() => Turn::Nothing,
                    fields => Turn::Correct(fields),
                }
            }
            // The table may not have it yet.
            None if !self.is_seen => Turn::Nothing,
            None => Turn::Correct(vec!["the object itself"]),
        }
    }

    fn written(&mut self, desired: Desired, written: &Written) {
        let object: Option<Value> =
            written.object.as_ref().and_then(|json| serde_json::from_slice(json).ok());
        let text = object.as_ref().and_then(|object| object.pointer("/metadata/resourceVersion")?.as_str());
        self.version = self.version.max(version(text.unwrap_or_default()));
        self.annotations.extend(desired.annotation_keys().cloned());
        self.desired = Some(desired);
        self.is_seen = false;
    }
}

/// Versions of objects are numbers of one sequence (KEP-5504); one that is none counts as old.
fn version(text: &str) -> u64 {
    text.parse().unwrap_or_default()
}

impl Publisher {
    /// Runs until the job is cancelled.
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        tokio::select! {
            () = cx.cancelled() => Ok(()),
            result = self.publish(&cx) => result,
        }
    }

    async fn publish(&self, cx: &JobCx) -> anyhow::Result<()> {
        let mut last = Last::default();
        loop {
            let snapshot = self.nodes.snapshot();
            let (node, node_watch) = self.nodes.get_watch(&snapshot, LocalNode::query());
            let Some(node) = node.filter(|node| !node.uid.is_empty()) else {
                cx.health.ok("Waits for the Node object");
                drop(snapshot);
                node_watch.changed().await;
                continue;
            };
            if node.is_being_deleted {
                cx.health.ok(format!("Node {} is being deleted: its CiliumNode goes with it", node.name));
                drop(snapshot);
                node_watch.changed().await;
                continue;
            }
            let desired = Desired::new(&self.settings, node);
            let object_snapshot = self.objects.snapshot();
            let (object, object_watch) =
                self.objects.get_watch(&object_snapshot, Row::by_name("", &node.name));
            match last.turn(&desired, object.map(|row| &row.object)) {
                Turn::Nothing => {
                    let unreported = last.corrected.map(|corrected| corrected + REPORT_DURATION);
                    drop((snapshot, object_snapshot));
                    tokio::select! {
                        () = node_watch.changed() => {}
                        () = object_watch.changed() => {}
                        () = sleep_until(unreported.unwrap_or_else(Instant::now)), if unreported.is_some() => {
                            last.corrected = None;
                            self.health.child(OTHER_WRITER).close();
                        }
                    }
                    continue;
                }
                Turn::Write => {}
                Turn::Correct(fields) => {
                    self.report(&node.name, &fields);
                    if let Some(corrected) = last.corrected {
                        tokio::select! {
                            () = sleep_until(corrected + CORRECTION_INTERVAL) => {}
                            // The local node itself may change meanwhile.
                            () = node_watch.changed() => continue,
                        }
                    }
                    last.corrected = Some(Instant::now());
                }
            }
            match self.write(&node.name, desired.clone(), last.annotations.clone()).await {
                Ok(written) => {
                    last.written(desired, &written);
                    cx.health.ok(format!("CiliumNode {} is as it should be", node.name));
                }
                Err(error) => cx.health.degraded("The CiliumNode is not written", error),
            }
            sleep(WRITE_INTERVAL).await;
        }
    }

    async fn write(
        &self,
        name: &str,
        desired: Desired,
        former: BTreeSet<String>,
    ) -> Result<Written, NotWritten> {
        let target = Target::new(Kind::CiliumNode, Key::new("", name)).part("node");
        let mutation = Mutation::new(move |present| {
            let Some(present) = present else { return Step::Create(desired.object()) };
            let mut object = present.clone();
            desired.apply(&mut object, &former);
            match object == *present {
                true => Step::Done,
                false => Step::Update(object),
            }
        });
        self.writer.enqueue(target, mutation).done().await
    }

    /// Reports another writer of the fields: it changes what others believe of this node.
    fn report(&self, name: &str, fields: &[&str]) {
        let fields = fields.join(", ");
        let error = format!(
            "changed: {fields}; they are written again. Is there a second agent for node {name}, or a client that edits it?"
        );
        let message = "Another client changes the CiliumNode of this node";
        if self.health.child(OTHER_WRITER).degraded_anew(message, &error) {
            tracing::warn!(node = name, error, "{message}");
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_types::decode;
    use local_node::IpamMode;
    use maps::FamilyConfig;

    use super::*;
    use crate::desired::Demand;

    #[test]
    fn rows_that_are_older_than_the_last_write_are_no_news() {
        let settings = Settings {
            ipam: IpamMode::ClusterPool,
            families: FamilyConfig { enable_ipv4: true, enable_ipv6: false },
            excluded_labels: Vec::new(),
            demand: Demand::default(),
        };
        let node = LocalNode { name: "n1".into(), uid: "u".into(), ..LocalNode::default() };
        let desired = Desired::new(&settings, &node);
        let with_version = |version: &str, mut object: Value| {
            object["metadata"]["name"] = "n1".into();
            object["metadata"]["resourceVersion"] = version.into();
            object
        };
        let row = |object: &Value| decode::<CiliumNode>(object.to_string().as_bytes()).unwrap();
        let (ours, bad) = (desired.object(), serde_json::json!({"metadata": {}, "spec": {"bootid": "x"}}));
        let mut last = Last::default();
        assert_eq!(last.turn(&desired, None), Turn::Write);
        let made = with_version("10", ours.clone()).to_string();
        last.written(desired.clone(), &Written { object: Some(made.into_bytes().into()) });
        assert_eq!(last.turn(&desired, None), Turn::Nothing, "the table has not got it yet");
        assert_eq!(last.turn(&desired, Some(&row(&with_version("9", bad.clone())))), Turn::Nothing, "older");
        assert_eq!(last.turn(&desired, Some(&row(&with_version("10", ours)))), Turn::Nothing);
        let Turn::Correct(fields) = last.turn(&desired, Some(&row(&with_version("11", bad)))) else {
            panic!()
        };
        assert!(
            fields.contains(&"/spec/bootid") && fields.contains(&"/metadata/ownerReferences"),
            "{fields:?}"
        );
        assert_eq!(last.turn(&desired, None), Turn::Correct(vec!["the object itself"]), "deleted");
        let moved = LocalNode { ipv4: Some([192, 0, 2, 1].into()), ..node };
        assert_eq!(last.turn(&Desired::new(&settings, &moved), None), Turn::Write);
    }
}
