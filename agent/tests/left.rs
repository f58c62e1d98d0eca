//! No job and no object of the hive outlives a stopped agent, and jobs that wait keep no previous version of the tables.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use datapath_api::Datapath;
use hive::prelude::*;
use integration_tests::Node;
use statedb::{Db, TableSpec};
use test_kit::require_root;
use tokio::signal::unix::{SignalKind, signal};

/// Environment variable: runs this test binary as an agent on that configuration folder, until SIGTERM.
const CONFIG: &str = "AGENT_THAT_LEAVES_NOTHING";

/// Environment variable: makes that agent leak an object of the hive and hold a snapshot, as a control.
const KEEPS: &str = "AGENT_THAT_KEEPS_ITS_DATAPATH";

/// A row of a table that no job watches.
#[derive(Clone)]
struct Commit;

impl TableSpec for Commit {
    const NAME: &'static str = "commits-of-a-test";
    type Key<'a> = u8;

    fn key(&self) -> u8 {
        0
    }
}

/// Returns the previous versions of the database that are held although no job has work, as soon as there are none:
/// jobs that wait do not see the commits here, so that they hold what is previous now.
async fn held_while_idle(db: &Db, patience: Duration) -> Vec<u64> {
    let commits = db.table::<Commit>().unwrap();
    let begin = Instant::now();
    loop {
        commits.transact(|w| w.insert(Commit));
        tokio::time::sleep(Duration::from_millis(20)).await;
        let held = db.previous_versions();
        if held.is_empty() || begin.elapsed() > patience {
            return held;
        }
    }
}

/// Not a test by itself: the agent of the test below, in a separate process.
#[test]
fn agent_that_leaves_nothing() {
    let Some(config) = std::env::var_os(CONFIG) else { return };
    let config = config.to_str().unwrap().to_owned();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut terminated = signal(SignalKind::terminate()).unwrap();
        let mut hive = TestHive::new(agent::cells()).with(|builder| {
            builder.args(["--config-dir", &config]).config_files().foreign(agent::known_options())
        });
        hive.start().await;
        let datapath = hive.get::<dyn Datapath>();
        datapath.ready().await;
        let db = hive.get::<Db>();
        let keeps = std::env::var_os(KEEPS).is_some();
        let _kept = keeps.then(|| (datapath, db.snapshot()));
        terminated.recv().await;
        let patience = Duration::from_millis(if keeps { 100 } else { 10_000 });
        let held = held_while_idle(&db, patience).await;
        writeln!(std::io::stdout(), "held versions: {held:?}").unwrap();
        drop(db);
        hive.assert_no_warning();
        hive.assert_healthy();
        hive.finish().await;
    });
}

fn spawn(node: &mut Node, keeps: bool) {
    let itself = std::env::current_exe().unwrap();
    // Called for its side effect: writes the configuration folder. The path is passed in the environment, because the
    // test harness would parse arguments.
    drop(node.agent_command());
    let log = node.sandbox().dir().join("agent.log");
    let log = fs::File::options().create(true).append(true).open(log).unwrap();
    let mut command = node.host().command(itself);
    command
        .args(["--exact", "agent_that_leaves_nothing", "--nocapture", "--test-threads=1"])
        .env(CONFIG, node.sandbox().dir().join("config"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    if keeps {
        command.env(KEEPS, "1");
    }
    node.spawn_command(command);
    node.wait_ready();
}

#[test]
fn no_job_and_no_object_outlives_the_agent() {
    require_root!();
    let mut node = Node::new();
    spawn(&mut node, false);
    for pod in node.add_pods(2) {
        node.delete_pod(pod);
    }
    let _pods = node.add_pods(2);
    node.stop();
    assert!(node.log().contains("held versions: []"), "{}", node.log());

    // Control: a leaked object and a held snapshot are reported.
    spawn(&mut node, true);
    assert!(!node.terminate().success());
    let log = node.log();
    let left = "something is left of the hive\n  object Arc<dyn datapath_api::datapath::Datapath>";
    assert!(log.contains(left), "{log}");
    assert!(!log.contains("\n  job "), "{log}");
    // The log has that of the first agent, too.
    assert_eq!(log.matches("held versions: []").count(), 1, "{log}");
    assert_eq!(log.matches("held versions: [").count(), 2, "{log}");
}
