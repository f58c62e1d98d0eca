//! The same benchmarks in Cilium's statedb, if Go and its module are available: a program that is built in a temporary
//! folder, and requested to run one row at a time, alternating with ours.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};

/// None without Go, which is reported once.
static PEER: LazyLock<Mutex<Option<Peer>>> = LazyLock::new(|| {
    let started = Peer::start();
    Mutex::new(started.map_err(|error| println!("statedb: the original is not measured: {error}")).ok())
});

/// Returns the results of a row, if the peer has it and is available.
pub(crate) fn ask(name: &str) -> Option<Vec<f64>> {
    let mut peer = PEER.lock().unwrap_or_else(PoisonError::into_inner);
    match peer.as_mut()?.ask(name) {
        Ok(numbers) => Some(numbers).filter(|numbers| !numbers.is_empty()),
        Err(error) => {
            println!("statedb: {name}: the original is not measured any more: {error}");
            *peer = None;
            None
        }
    }
}

/// The running program. It reads names of rows from its input, and ends when that is closed.
struct Peer {
    process: Child,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    fn start() -> io::Result<Peer> {
        let folder = tempfile::tempdir()?;
        let files = [
            ("go.mod", include_str!("go.mod")),
            ("go.sum", include_str!("go.sum")),
            ("main.go", include_str!("main.go")),
            ("tables.go", include_str!("tables.go")),
            ("lpm.go", include_str!("lpm.go")),
            ("wake_ups.go", include_str!("wake_ups.go")),
            ("reconciler.go", include_str!("reconciler.go")),
        ];
        for (name, text) in files {
            fs::write(folder.path().join(name), text)?;
        }
        let mut go = Command::new("go");
        let built = go.args(["build", "-buildvcs=false", "-o", "tables", "."]).current_dir(&folder).output();
        let built = built.map_err(|error| io::Error::new(error.kind(), format!("go: {error}")))?;
        if !built.status.success() {
            let error = String::from_utf8_lossy(&built.stderr);
            return Err(io::Error::other(error.trim().lines().next_back().unwrap_or_default().to_owned()));
        }
        let mut program = Command::new(folder.path().join("tables"));
        let mut process = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let answers = process.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Peer { process, answers: BufReader::new(answers) })
    }

    fn ask(&mut self, name: &str) -> io::Result<Vec<f64>> {
        writeln!(self.process.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?, "{name}")?;
        let mut answer = String::new();
        if self.answers.read_line(&mut answer)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let numbers = answer.split_whitespace().map(|number| number.parse().map_err(io::Error::other));
        numbers.collect()
    }
}
