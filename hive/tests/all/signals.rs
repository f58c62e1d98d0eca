//! Signals, each in a process of its own: these tests execute themselves again with the name of a part to play.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use hive::prelude::*;

const PART: &str = "HIVE_SIGNAL_TEST_PART";

fn say(line: &str) {
    use std::io::Write;
    let mut out = std::io::stdout();
    writeln!(out, "\n{line}").unwrap();
    out.flush().unwrap();
}

const WORKERS: usize = 2;

/// Whether a part's stop hook blocks its thread.
fn blocks(part: &str) -> bool {
    ["blocked", "alone", "workers", "log"].iter().any(|start| part.starts_with(start))
}

/// Blocks every worker of the runtime.
#[expect(clippy::disallowed_methods, reason = "a hive would notice")]
fn block_workers() {
    let blocked = Arc::new(Barrier::new(WORKERS + 1));
    for _ in 0..WORKERS {
        let blocked = blocked.clone();
        tokio::spawn(async move {
            blocked.wait();
            std::thread::sleep(Duration::from_secs(60));
        });
    }
    blocked.wait();
    say("all blocked");
}

static LOG_BLOCKS: AtomicBool = AtomicBool::new(false);

/// A log that blocks its writers, as a full pipe does.
struct BlockingLog;

impl std::io::Write for BlockingLog {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        while LOG_BLOCKS.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_secs(60));
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Runs a hive that prints its steps and waits where the part requires it.
fn play(part: &'static str) -> ExitCode {
    let cells = module(
        "m",
        "x",
        [invoke(move |lifecycle: Lifecycle| {
            let stop = move |_| async move {
                say("stopping");
                if part == "log" {
                    LOG_BLOCKS.store(true, Ordering::SeqCst);
                }
                if part.starts_with("workers") {
                    block_workers();
                }
                if blocks(part) {
                    std::thread::sleep(Duration::from_secs(60));
                }
                if part == "stuck" || part == "twice" {
                    std::future::pending::<()>().await;
                }
                Ok(())
            };
            lifecycle.hook("first").on_start(|_| async { Ok(()) }).on_stop(stop).add();
            lifecycle
                .hook("second")
                .on_start(move |_| async move {
                    say("ready");
                    if part == "starting" {
                        std::future::pending::<()>().await;
                    }
                    Ok(())
                })
                .add();
        })],
    );
    if part == "log" {
        tracing_subscriber::fmt().with_writer(|| BlockingLog).init();
    }
    let mut runtime = match part.starts_with("alone") {
        true => tokio::runtime::Builder::new_current_thread(),
        false => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime.worker_threads(WORKERS).enable_all().build().unwrap();
    let twice = part.ends_with("twice");
    let limit = if blocks(part) && !twice { Duration::from_millis(10) } else { Duration::from_secs(60) };
    let hive = Hive::builder(cells).stop_timeout(limit).build().unwrap();
    let outcome = runtime.block_on(hive.run());
    say(&format!("{:?} {}", outcome.signal, outcome.errors.len()));
    outcome.exit_code()
}

struct Player {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Player {
    fn new(part: &str, test: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([&format!("signals::{test}"), "--exact", "--nocapture", "--test-threads=1"])
            .env(PART, part)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Player { child, lines }
    }

    fn expect(&mut self, wanted: &str) {
        let found = self.lines.by_ref().map_while(Result::ok).any(|line| line == wanted);
        assert!(found, "`{wanted}` was not said");
    }

    fn kill(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    fn code(mut self) -> Option<i32> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            if begin.elapsed() > Duration::from_secs(20) {
                self.child.kill().unwrap();
                panic!("it did not end");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// In the child process: plays the part and ends the process with its exit code.
#[expect(clippy::disallowed_methods, reason = "the test harness would give its own exit code")]
fn play_if_asked(part: &'static str) {
    if std::env::var(PART).is_ok_and(|asked| asked == part) {
        let code = play(part);
        std::process::exit(if code == ExitCode::SUCCESS { 0 } else { 255 });
    }
}

#[test]
fn a_signal_stops_in_order() {
    play_if_asked("running");
    for (signal, name) in [("-TERM", "terminated"), ("-INT", "interrupt")] {
        let mut player = Player::new("running", "a_signal_stops_in_order");
        player.expect("ready");
        player.kill(signal);
        player.expect("stopping");
        player.expect(&format!("Some(\"{name}\") 0"));
        assert_eq!(player.code(), Some(0));
    }
}

#[test]
fn a_signal_during_start_rolls_it_back() {
    play_if_asked("starting");
    let mut player = Player::new("starting", "a_signal_during_start_rolls_it_back");
    player.expect("ready");
    player.kill("-TERM");
    player.expect("stopping");
    player.expect("Some(\"terminated\") 0");
    assert_eq!(player.code(), Some(0));
}

#[test]
fn a_second_signal_ends_the_process_at_once() {
    play_if_asked("stuck");
    let mut player = Player::new("stuck", "a_second_signal_ends_the_process_at_once");
    player.expect("ready");
    player.kill("-TERM");
    player.expect("stopping");
    std::thread::sleep(Duration::from_millis(150));
    player.kill("-INT");
    assert_eq!(player.code(), Some(128 + 2));
}

/// A signal to both the process and its group, as some supervisors send it.
#[test]
fn signals_at_the_same_time_are_one() {
    play_if_asked("twice");
    let mut player = Player::new("twice", "signals_at_the_same_time_are_one");
    player.expect("ready");
    let kill = format!("kill -TERM {0}; kill -INT {0}", player.child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    player.expect("stopping");
    std::thread::sleep(Duration::from_millis(300));
    assert!(player.child.try_wait().unwrap().is_none(), "the second ended it");
    player.kill("-TERM");
    assert_eq!(player.code(), Some(128 + 15));
}

/// A stop hook that blocks a thread cannot be cancelled: the process is ended 5 s after the limit.
#[test]
fn a_blocked_stop_ends_the_process() {
    play_if_asked("blocked");
    let mut player = Player::new("blocked", "a_blocked_stop_ends_the_process");
    player.expect("ready");
    player.kill("-TERM");
    player.expect("stopping");
    assert_eq!(player.code(), Some(255));
}

/// The same on a single-threaded runtime, which has no thread left to enforce the limit.
#[test]
fn a_blocked_stop_ends_the_process_on_a_single_thread() {
    play_if_asked("alone");
    let mut player = Player::new("alone", "a_blocked_stop_ends_the_process_on_a_single_thread");
    player.expect("ready");
    player.kill("-TERM");
    player.expect("stopping");
    assert_eq!(player.code(), Some(255));
}

#[test]
fn a_blocked_stop_ends_the_process_with_all_workers_blocked() {
    play_if_asked("workers");
    let mut player = Player::new("workers", "a_blocked_stop_ends_the_process_with_all_workers_blocked");
    player.expect("ready");
    player.kill("-TERM");
    player.expect("all blocked");
    assert_eq!(player.code(), Some(255));
}

/// Also if nothing reads the log.
#[test]
fn a_blocked_stop_ends_the_process_with_a_blocked_log() {
    play_if_asked("log");
    let mut player = Player::new("log", "a_blocked_stop_ends_the_process_with_a_blocked_log");
    player.expect("ready");
    player.kill("-TERM");
    player.expect("stopping");
    assert_eq!(player.code(), Some(255));
}

#[test]
fn a_second_signal_ends_the_process_on_a_single_blocked_thread() {
    play_if_asked("alone-twice");
    let mut player =
        Player::new("alone-twice", "a_second_signal_ends_the_process_on_a_single_blocked_thread");
    player.expect("ready");
    player.kill("-INT");
    player.expect("stopping");
    std::thread::sleep(Duration::from_millis(150));
    player.kill("-INT");
    assert_eq!(player.code(), Some(128 + 2));
}

#[test]
fn a_second_signal_ends_the_process_with_all_workers_blocked() {
    play_if_asked("workers-twice");
    let mut player =
        Player::new("workers-twice", "a_second_signal_ends_the_process_with_all_workers_blocked");
    player.expect("ready");
    player.kill("-INT");
    player.expect("all blocked");
    std::thread::sleep(Duration::from_millis(150));
    player.kill("-INT");
    assert_eq!(player.code(), Some(128 + 2));
}
