//! The table `health` and the history in Cilium's form.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hive::prelude::*;
use hive::{HealthTree, Level};
use local_node::StateConfig;
use statedb::{RwTable, Table, TableDisplay, TableSpec};
use status::Report;

/// One second after the epoch.
fn then() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1)
}

/// A module with reporters that use each operation.
fn reporters(tree: Arc<HealthTree>, health: Health) {
    tree.set_clock(then);
    health.child("c0").ok("ok");
    let closed = health.child("degraded-closed");
    closed.degraded("broken", "err2");
    closed.close();
    health.child("degraded").degraded("broken", "err2");
    health.child("stopped").ok("ok");
    health.child("stopped").stopped("now stopped");
}

fn hive(folder: &std::path::Path) -> TestHive {
    let cells = [
        statedb::cell(),
        config::<StateConfig>(),
        module("agent", "x", module("m", "Reports", invoke(reporters))),
        module("test", "The table", [status::table(), invoke(|_: Arc<Table<Report>>| ())]),
    ];
    TestHive::new(cells).set("state-dir", folder.display())
}

#[tokio::test]
async fn a_row_for_each_reporter() {
    let folder = tempfile::tempdir().unwrap();
    let mut hive = hive(folder.path());
    hive.start().await;
    tokio::task::yield_now().await;
    let table = hive.get::<Table<Report>>();
    let snapshot = table.snapshot();
    let mut rows: Vec<Vec<String>> = table.all(&snapshot).map(|row| row.row()).collect();
    rows.iter_mut().for_each(|row| drop(row.drain(5..7)));
    assert_eq!(
        rows,
        [
            ["agent.m", "c0", "OK", "ok", "", "1"],
            ["agent.m", "degraded", "Degraded", "broken", "err2", "1"],
            ["agent.m", "stopped", "Stopped", "ok", "", "1"],
            ["test", "job-module-status-metrics", "OK", "Running", "", "1"],
        ]
    );
    let degraded = table.list(&snapshot, Report::by_level(Level::Degraded));
    assert_eq!(degraded.map(|row| row.key().to_owned()).collect::<Vec<_>>(), ["agent.m.degraded"]);
    let stopped = table.get(&snapshot, Report::by_identifier("agent.m.stopped")).unwrap();
    assert_eq!(
        serde_json::to_value(&**stopped).unwrap(),
        serde_json::json!({
            "ID": {"Module": ["agent", "m"], "Component": ["stopped"]},
            "Level": "Stopped", "Message": "ok", "Error": "", "LastOK": "1970-01-01T00:00:01Z",
            "Updated": "1970-01-01T00:00:01Z", "Stopped": "1970-01-01T00:00:01Z", "Final": "now stopped", "Count": 1
        })
    );
    hive.stop().await;
}

/// A report inside of a transaction of the same database becomes a row once the transaction has ended, in its order.
#[tokio::test]
async fn a_report_inside_of_a_transaction_becomes_a_row() {
    let folder = tempfile::tempdir().unwrap();
    let kept: Arc<std::sync::OnceLock<Health>> = Arc::default();
    let keep = kept.clone();
    let cells = [
        statedb::cell(),
        config::<StateConfig>(),
        statedb::table::<Other>(),
        module("agent", "x", module("m", "Reports", invoke(move |health: Health| drop(keep.set(health))))),
        module(
            "test",
            "The table",
            [status::table(), invoke(|_: Arc<RwTable<Other>>, _: Arc<Table<Report>>| ())],
        ),
    ];
    let mut hive = TestHive::new(cells).set("state-dir", folder.path().display());
    hive.start().await;
    let (table, health) = (hive.get::<Table<Report>>(), kept.get().unwrap());
    hive.get::<RwTable<Other>>().transact(|_| {
        health.child("c").degraded("broken", "first");
        health.child("c").ok("mended");
    });
    let by = Report::by_identifier("agent.m.c");
    loop {
        let snapshot = table.snapshot();
        let (row, watch) = table.get_watch(&snapshot, by.clone());
        match row {
            Some(row) => {
                assert_eq!(row.row()[2..4], ["OK", "mended"]);
                break;
            }
            None => watch.changed().await,
        }
    }
    assert!(!table.db().in_transaction());
    hive.stop().await;
}

/// A row of another table.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
struct Other(u32);

impl TableSpec for Other {
    const NAME: &'static str = "others";
    type Key<'a> = u32;

    fn key(&self) -> u32 {
        self.0
    }
}

impl TableDisplay for Other {
    fn columns() -> &'static [&'static str] {
        &["Id"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.0.to_string()]
    }
}

#[tokio::test]
async fn history_continues_across_restarts() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut hive = hive(folder.path());
        hive.start().await;
        hive.stop().await;
    }
    let file = folder.path().join("state/cilium-agent-health-history.log");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&file).unwrap();
    let run = [
        "Degraded         | agent.m.degraded-closed: broken | err2",
        "Closed(Degraded) | agent.m.degraded-closed: broken | err2",
        "Degraded         | agent.m.degraded: broken | err2",
        "Stopped          | agent.m.stopped: now stopped",
        "Started | 1.20.0",
        "Stopped | 1.20.0",
    ];
    let expected: Vec<String> =
        run.iter().chain(&run).map(|line| format!("1970-01-01T00:00:01Z | {line}")).collect();
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}

/// The history includes reports of start hooks before the hook of the table's cell, and of stop hooks after it.
#[tokio::test]
async fn a_run_begins_and_ends_the_history() {
    let folder = tempfile::tempdir().unwrap();
    let hooks = |tree: Arc<HealthTree>, health: Health, lifecycle: Lifecycle| {
        tree.set_clock(then);
        let (start, stop) = (health.child("start"), health.child("stop"));
        start.ok("ok");
        stop.ok("ok");
        lifecycle
            .hook("early")
            .on_start(move |_| async move {
                start.stopped("done");
                Ok(())
            })
            .on_stop(move |_| async move {
                stop.stopped("done");
                Ok(())
            })
            .add();
    };
    let cells = [
        statedb::cell(),
        config::<StateConfig>(),
        module("agent", "x", module("m", "Has hooks", invoke(hooks))),
        module("test", "The table", [status::table(), invoke(|_: Arc<Table<Report>>| ())]),
    ];
    let mut hive = TestHive::new(cells).set("state-dir", folder.path().display());
    hive.start().await;
    hive.stop().await;
    let text = std::fs::read_to_string(folder.path().join("state/cilium-agent-health-history.log")).unwrap();
    let lines: Vec<_> =
        text.lines().map(|line| line.split(" | ").skip(1).collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "Started 1.20.0",
        "Stopped          agent.m.start: done",
        "Stopped          agent.m.stop: done",
        "Stopped 1.20.0",
    ];
    assert_eq!(lines, expected);
}

/// A history that cannot be written is reported, and the agent still starts.
#[tokio::test]
async fn a_folder_in_the_place_of_the_file_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("state/cilium-agent-health-history.log/x")).unwrap();
    let mut hive = hive(folder.path());
    hive.start().await;
    let tree = hive.hive().health().clone();
    let mut changes = tree.watch();
    let is_degraded =
        || tree.at("test.job-module-status-metrics").is_some_and(|s| s.level == Level::Degraded);
    while !is_degraded() {
        tokio::time::timeout(Duration::from_secs(10), changes.changed()).await.unwrap().unwrap();
    }
    let error = hive.try_stop().await.unwrap_err().to_string();
    assert!(error.contains("health-history"), "{error}");
}
