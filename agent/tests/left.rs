//! No job and no object of the hive outlives a stopped agent.

use std::fs;
use std::process::Stdio;

use datapath_api::Datapath;
use hive::prelude::*;
use integration_tests::Node;
use test_kit::require_root;
use tokio::signal::unix::{SignalKind, signal};

/// Environment variable: runs this test binary as an agent on that configuration folder, until SIGTERM.
const CONFIG: &str = "AGENT_THAT_LEAVES_NOTHING";

/// Environment variable: makes that agent leak an object of the hive, as a control.
const KEEPS: &str = "AGENT_THAT_KEEPS_ITS_DATAPATH";

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
        let _kept = std::env::var_os(KEEPS).map(|_| datapath);
        terminated.recv().await;
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

    // Control: a leaked object is reported.
    spawn(&mut node, true);
    assert!(!node.terminate().success());
    let log = node.log();
    let left = "something is left of the hive\n  object Arc<dyn datapath_api::datapath::Datapath>";
    assert!(log.contains(left), "{log}");
    assert!(!log.contains("\n  job "), "{log}");
}
