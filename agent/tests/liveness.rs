//! Liveness probes of a whole agent: they succeed while all jobs make progress and fail when one is stuck, even if it
//! blocks all threads of the runtime.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hive::prelude::*;
use integration_tests::Node;
use test_kit::require_root;

/// Deadline of jobs in these tests.
const DEADLINE: Duration = Duration::from_secs(6);
/// Timeout that allows for a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// Environment variable: runs this test binary as an agent with an additional cell, on that configuration folder.
const CONFIG: &str = "AGENT_WITH_A_CELL_OF_OTHERS";

/// A third-party cell with jobs that hang or block while the file contains `wait` or `block`.
fn moody(file: PathBuf) -> Cell {
    let hang = move |jobs: JobGroup| {
        let says = |file: &Path, word: &str| fs::read_to_string(file).is_ok_and(|said| said == word);
        let waits = file.clone();
        jobs.one_shot("waits", move |cx: JobCx| async move {
            while !cx.is_cancelled() {
                let _working = cx.working();
                while says(&waits, "wait") && !cx.is_cancelled() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                drop(_working);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        })
        .add();
        // More jobs than the runtime has threads, so that blocking starves it.
        let threads = std::thread::available_parallelism().map_or(4, usize::from) + 2;
        for hog in 0..threads {
            let blocks = file.clone();
            jobs.one_shot(format!("hogs-{hog}"), move |cx: JobCx| async move {
                while !cx.is_cancelled() {
                    while says(&blocks, "block") {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Ok(())
            })
            .add();
        }
    };
    module("moody", "A cell of others", [invoke(hang)])
}

/// Not a test by itself: the agent of the tests below, in a separate process.
#[test]
fn agent_with_a_cell_of_others() {
    let Some(config) = std::env::var_os(CONFIG) else { return };
    let config = config.to_str().unwrap().to_owned();
    let mood = Path::new(&config).with_file_name("mood");
    let hive = hive::Hive::builder([agent::cells(), moody(mood)])
        .args(["--config-dir", &config])
        .config_files()
        .foreign(agent::known_options())
        .build()
        .unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let outcome = runtime.block_on(hive.run());
    assert!(outcome.errors.is_empty(), "{:?}", outcome.errors);
}

struct Subject {
    node: Node,
}

impl Subject {
    fn start() -> Self {
        let mut node = Node::new();
        node.config.insert("status-collector-interval".into(), "1s".into());
        node.config.insert("status-collector-failure-threshold".into(), format!("{}s", DEADLINE.as_secs()));
        let itself = std::env::current_exe().unwrap();
        // Called for its side effect: writes the configuration folder. The path is passed in the environment, because
        // the test harness would parse arguments.
        drop(node.agent_command());
        let mut command = node.host().command(itself);
        let log = fs::File::create(node.sandbox().dir().join("agent.log")).unwrap();
        command
            .args(["--exact", "agent_with_a_cell_of_others", "--nocapture", "--test-threads=1"])
            .env(CONFIG, node.sandbox().dir().join("config"))
            .stdin(std::process::Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        node.spawn_command(command);
        node.wait_ready();
        Self { node }
    }

    fn mood(&self, word: &str) {
        fs::write(self.node.sandbox().dir().join("mood"), word).unwrap();
    }

    fn probe(&self) -> u16 {
        self.node.host().run(|| {
            let mut stream = TcpStream::connect("127.0.0.1:9879").unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer.split(' ').nth(1).unwrap().parse().unwrap()
        })
    }

    fn turns(&self, status: u16) {
        let begin = Instant::now();
        while self.probe() != status {
            assert!(begin.elapsed() < PATIENCE, "not {status}:\n{}", self.node.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn stays_green(&self, time: Duration) {
        let begin = Instant::now();
        while begin.elapsed() < time {
            let stale = || self.node.get("/v1/healthz")["stale"].to_string();
            assert_eq!(self.probe(), 200, "{}\n{}", stale(), self.node.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn a_stuck_job_turns_the_probes_red_by_name_until_it_goes_on() {
    require_root!();
    let mut subject = Subject::start();
    let pods = subject.node.add_pods(3);
    subject.stays_green(DEADLINE + Duration::from_secs(3));

    subject.mood("wait");
    subject.turns(503);
    let status = subject.node.get("/v1/healthz");
    assert_eq!(status["cilium"]["state"], "Warning");
    let stale: Vec<&String> = status["stale"].as_object().unwrap().keys().collect();
    assert_eq!(stale, ["moody.job-waits"]);
    // The rest of the agent works.
    let more = subject.node.add_pod("meanwhile");
    subject.node.delete_pod(more);
    subject.mood("go");
    subject.turns(200);

    // No thread of the runtime is free to run a job; the probes are answered nevertheless.
    subject.mood("block");
    subject.turns(503);
    subject.mood("go");
    subject.turns(200);
    for pod in pods {
        subject.node.delete_pod(pod);
    }
    subject.node.stop();
}

#[test]
fn a_process_that_was_stopped_accuses_nobody() {
    require_root!();
    let mut subject = Subject::start();
    let _pods = subject.node.add_pods(2);
    for _ in 0..2 {
        subject.node.signal("STOP");
        std::thread::sleep(DEADLINE + Duration::from_secs(1));
        subject.node.signal("CONT");
        subject.stays_green(Duration::from_secs(2));
    }
    assert!(!subject.node.log().contains("makes no progress"), "{}", subject.node.log());
    subject.node.stop();
}
