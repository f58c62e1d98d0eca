//! `make run KUBERNETES=1`: the demonstration with a real API server, and nothing of it left.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use integration_tests::binary;
use tempfile::TempDir;
use test_kit::{MachineState, Process, require_command, require_root, wait_until};

const LIMIT: Duration = Duration::from_secs(120);

/// A folder in the place of the target folder; its name is in the environment of all processes of a playground.
struct Playground {
    target: TempDir,
}

impl Playground {
    fn new() -> Playground {
        Playground { target: tempfile::tempdir().unwrap() }
    }

    fn command(&self, verb: &str) -> Command {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        // A terminal's processes take interrupts; the background jobs of a script, which tests may be, ignore them, and what
        // they start does as well.
        let mut command = Command::new("env");
        command
            .arg("--default-signal=INT")
            .arg(root.join("tools/playground"))
            .arg(verb)
            .env("KUBERNETES", "1")
            .env("APIARY_BINARIES", binary("agent").parent().unwrap())
            .env("CARGO_TARGET_DIR", self.target.path())
            .stdin(Stdio::null());
        command
    }

    fn output_path(&self) -> PathBuf {
        self.target.path().join("output")
    }

    /// Returns what a playground has printed so far.
    fn output(&self) -> String {
        fs::read_to_string(self.output_path()).unwrap_or_default()
    }

    /// Starts a playground in a process group of its own, as a terminal does.
    fn start(&self, environment: &[(&str, &str)]) -> Process {
        let file = File::create(self.output_path()).unwrap();
        let mut command = self.command("run");
        command
            .envs(environment.iter().copied())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .process_group(0);
        Process::start(&mut command).unwrap()
    }

    /// Names of processes that belong to a playground.
    fn processes(&self) -> Vec<String> {
        let marker = format!("CARGO_TARGET_DIR={}", self.target.path().display());
        let folders = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let belongs = |folder: &PathBuf| {
            let environment = fs::read(folder.join("environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == marker.as_bytes())
        };
        folders
            .filter(belongs)
            .map(|folder| fs::read_to_string(folder.join("comm")).unwrap_or_default())
            .collect()
    }

    fn assert_gone(&self) {
        wait_until("all its processes are gone", LIMIT, || self.processes().is_empty());
        assert!(!self.target.path().join("playground").exists(), "its folder is gone");
    }
}

#[test]
fn a_playground_with_an_api_server_shows_its_pods_and_leaves_nothing() {
    require_root!();
    for command in ["ping", "iptables", "openssl"] {
        require_command!(command);
    }
    let before = MachineState::capture();
    let playground = Playground::new();
    let mut process = playground.start(&[("ONCE", "1")]);
    let status = process.wait(4 * LIMIT).unwrap_or_else(|error| panic!("{error}\n{}", playground.output()));
    let text = playground.output();
    assert!(status.success(), "{status}\n{text}");
    for line in [
        "The operator has given node-1 the range 10.0.0.0/24.",
        "client reaches server (10.0.0.",
        "A policy lets only clients in",
        "DENIED: default/stranger -> default/server 8080/TCP",
        "The pods are deleted, nothing is left of them.",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    playground.assert_gone();

    // Ctrl-C, as soon as the servers run.
    let mut process = playground.start(&[]);
    wait_until("the servers run", LIMIT, || playground.output().contains("The cluster is up"));
    assert!(
        playground.processes().iter().any(|name| name.starts_with("kube-apiserver")),
        "{:?}",
        playground.processes()
    );
    let interrupted =
        Command::new("kill").args(["-INT", "--", &format!("-{}", process.id())]).status().unwrap();
    assert!(interrupted.success());
    let status = process.wait(LIMIT).unwrap_or_else(|error| panic!("{error}\n{}", playground.output()));
    assert_eq!(status.code(), Some(130), "{}", playground.output());
    playground.assert_gone();
    let changes = before.changes(&MachineState::capture());
    assert!(changes.is_empty(), "{changes:?}");
}
