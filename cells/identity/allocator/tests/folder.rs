//! CiliumIdentities without an API server: those of other nodes beside the ones that this node allocates. Time is virtual.

use std::sync::Arc;

use hive::prelude::*;
use identity::{Identities, Identity, IdentityRequest};
use k8s_fake_apiserver::Tracker;
use k8s_tables::cilium::CiliumIdentity;
use k8s_types::Source;
use labels::Labels;
use local_node::{LocalNodeConfig, StateConfig};
use maps::FamilyConfig;
use serde_json::{Value, json};
use statedb::{Db, Table};

struct Agent {
    hive: TestHive,
    identities: Arc<Identities>,
    table: Arc<Table<Identity>>,
}

impl Agent {
    async fn start(tracker: &Arc<Tracker>, state: &std::path::Path) -> Agent {
        let source: Arc<dyn Source> = tracker.clone();
        let mut hive = TestHive::new([
            statedb::cell(),
            metrics::cell(),
            config::<StateConfig>(),
            config::<LocalNodeConfig>(),
            config::<FamilyConfig>(),
            supply(Member(source)),
            module("k8s", "Objects", [k8s_tables::table::<CiliumIdentity>()]),
            k8s_writer::cell(),
            identity::cell(),
            invoke(|_: Arc<Identities>, _: Arc<Table<Identity>>, _: Arc<Table<IdentityRequest>>| ()),
        ])
        .set("state-dir", state.display());
        hive.start().await;
        let table = hive.get::<Table<Identity>>();
        table.wait_initialized().await;
        Agent { identities: hive.get(), table, hive }
    }

    /// The labels and the number of users of an identity.
    fn row(&self, id: u32) -> Option<(String, usize)> {
        let snapshot = self.table.snapshot();
        let row = self.table.get(&snapshot, Identity::by_id(id))?;
        Some((row.labels.texts().join(","), row.users.names().count()))
    }

    async fn until_row(&self, id: u32, wanted: Option<(&str, usize)>) {
        let wanted = wanted.map(|(labels, users)| (labels.to_owned(), users));
        self.hive.until(&format!("{id} is {wanted:?}"), || self.row(id) == wanted).await;
    }

    /// The error of the row of health about objects that are left out.
    fn ignored(&self) -> String {
        let row = self.hive.hive().health().at("identity.ignored-ciliumidentities");
        row.map(|row| row.error.clone()).unwrap_or_default()
    }

    async fn finish(self) {
        let Agent { hive, identities, table } = self;
        drop((identities, table));
        hive.finish().await;
    }
}

fn put(tracker: &Tracker, name: &str, labels: Value) {
    let mut object =
        json!({"apiVersion": "cilium.io/v2", "kind": "CiliumIdentity", "metadata": {"name": name}});
    object["security-labels"] = labels;
    tracker.add(&object.to_string()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn identities_of_other_nodes_are_there_from_the_start_and_follow_their_objects() {
    let tracker = Arc::new(Tracker::new(&Db::new().table().unwrap()));
    let state = tempfile::tempdir().unwrap();
    put(&tracker, "7000", json!({"k8s:app": "db"}));
    put(&tracker, "host", json!({"k8s:app": "host"}));
    put(&tracker, "1", json!({"reserved:host": ""}));
    let agent = Agent::start(&tracker, state.path()).await;
    assert_eq!(agent.row(7000), Some(("k8s:app=db".to_owned(), 0)), "no packet is judged before");
    assert_eq!(agent.row(1), Some(("reserved:host".to_owned(), 0)));
    // A workload of this node with these labels has the identity that other nodes know; one with other labels another.
    assert_eq!(agent.identities.allocate(&Labels::parse(["k8s:app=db"]), "endpoint/1").unwrap(), 7000);
    let web = agent.identities.allocate(&Labels::parse(["k8s:app=web"]), "endpoint/2").unwrap();
    assert_ne!(web, 7000);

    // The id of a workload stays the workload's until it has gone.
    put(&tracker, &web.to_string(), json!({"k8s:app": "thief"}));
    put(&tracker, "7001", json!({"k8s:app": "late"}));
    agent.until_row(7001, Some(("k8s:app=late", 0))).await;
    agent.until_row(web, Some(("k8s:app=web", 1))).await;
    for line in [
        "1: its number is outside of",
        "host: its name is no decimal number",
        &format!("{web}: a workload of this node has its id"),
    ] {
        agent.hive.until(line, || agent.ignored().contains(line)).await;
    }
    agent.identities.release(web, "endpoint/2");
    agent.until_row(web, Some(("k8s:app=thief", 0))).await;
    agent.hive.until("it is left out no more", || !agent.ignored().contains(&format!("{web}: "))).await;

    // The labels of an object change; the users of this node keep theirs.
    put(&tracker, "7000", json!({"k8s:app": "other"}));
    put(&tracker, "7001", json!({"k8s:app": "later"}));
    agent.until_row(7001, Some(("k8s:app=later", 0))).await;
    assert_eq!(agent.row(7000), Some(("k8s:app=db".to_owned(), 1)));
    agent.finish().await;

    // The next run has what there is now; the file has nothing of other nodes.
    let text = std::fs::read_to_string(state.path().join("state/identities.json")).unwrap();
    assert!(text.contains("\"web\"") && !text.contains("late"), "{text}");
    let agent = Agent::start(&tracker, state.path()).await;
    agent.until_row(7001, Some(("k8s:app=later", 0))).await;
    agent.until_row(7000, Some(("k8s:app=other", 0))).await;
    agent.finish().await;
}
