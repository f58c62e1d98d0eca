//! Runs programs of iptables: one after the other, each bounded in time, killed when the agent stops.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use tokio_util::sync::CancellationToken;

use crate::error::Error;

/// The time that a program may take besides waiting for the lock: some take seconds with ten thousands of rules.
const LIMIT: Duration = Duration::from_secs(30);
/// The first and the longest interval at which the end of a program is polled.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(1);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Bytes of a program's error output that are reported.
const MAX_REPORTED_OUTPUT: usize = 400;

/// Runs programs of iptables. All methods block.
#[derive(Clone, Debug)]
pub(crate) struct Runner {
    /// The time to wait for the lock.
    lock_timeout: Duration,
    stop: CancellationToken,
}

impl Runner {
    pub(crate) fn new(lock_timeout: Duration, stop: CancellationToken) -> Runner {
        Runner { lock_timeout, stop }
    }

    /// Returns the version of a program and its kind: `iptables v1.8.9 (nf_tables)`.
    pub(crate) fn version(&self, tool: &str) -> Result<String, Error> {
        self.run(tool, &["--version"], "")
    }

    /// Returns the rules of all tables.
    pub(crate) fn save(&self, tool: &str) -> Result<String, Error> {
        self.run(&format!("{tool}-save"), &[], "")
    }

    /// Applies a script; chains that it does not name stay.
    pub(crate) fn restore(&self, tool: &str, script: &str) -> Result<(), Error> {
        // The programs take whole seconds, and wait without end for zero.
        let wait = format!("--wait={}", self.lock_timeout.as_secs().max(1));
        self.run(&format!("{tool}-restore"), &["--noflush", &wait], script).map(drop)
    }

    /// Runs a program with this input. Returns its output.
    fn run(&self, program: &str, arguments: &[&str], input: &str) -> Result<String, Error> {
        let not_run = |source: io::Error| Error::NotRun { program: program.to_owned(), source };
        // Files in memory: a program without readers and writers cannot block on a pipe, and one that outlives
        // a killed agent has its whole input.
        let file = |name: &str, content: &str| -> io::Result<File> {
            let mut file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
            file.write_all(content.as_bytes())?;
            file.rewind()?;
            Ok(file)
        };
        let spawn = || -> io::Result<(Child, File, File)> {
            let (stdin, stdout, stderr) = (file("stdin", input)?, file("stdout", "")?, file("stderr", "")?);
            let mut command = Command::new(program);
            command.args(arguments).stdin(stdin).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
            Ok((command.spawn()?, stdout, stderr))
        };
        if self.stop.is_cancelled() {
            return Err(Error::Stopped { program: program.to_owned() });
        }
        let (mut child, stdout, stderr) = match spawn() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::Missing { program: program.to_owned() });
            }
            spawned => spawned.map_err(not_run)?,
        };
        let status = self.wait(program, &mut child)?;
        if status.success() {
            return read(stdout).map_err(not_run);
        }
        let output = read(stderr).map_err(not_run)?;
        if output.contains("xtables lock") {
            return Err(Error::Locked { program: program.to_owned(), limit: self.lock_timeout });
        }
        let output: String = output.split_whitespace().collect::<Vec<_>>().join(" ");
        let output = output.chars().take(MAX_REPORTED_OUTPUT).collect();
        Err(Error::Failed { program: program.to_owned(), status: status.to_string(), output })
    }

    /// Waits for the end of a program. Kills it after a time, and when the agent stops.
    fn wait(&self, program: &str, child: &mut Child) -> Result<ExitStatus, Error> {
        let (begin, limit) = (Instant::now(), self.lock_timeout + LIMIT);
        let mut interval = MIN_POLL_INTERVAL;
        let program = || program.to_owned();
        let error = loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => {}
                Err(source) => break Error::NotRun { program: program(), source },
            }
            if self.stop.is_cancelled() {
                break Error::Stopped { program: program() };
            }
            if begin.elapsed() >= limit {
                break Error::Timeout { program: program(), limit };
            }
            std::thread::sleep(interval);
            interval = (interval * 2).min(MAX_POLL_INTERVAL);
        };
        let _ = child.kill();
        let _ = child.wait();
        Err(error)
    }
}

/// Reads a file that another process has written; its position is shared with that process.
fn read(mut file: File) -> io::Result<String> {
    let mut content = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut content)?;
    Ok(String::from_utf8_lossy(&content).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runner() -> Runner {
        Runner::new(Duration::from_secs(1), CancellationToken::new())
    }

    fn shell(runner: &Runner, script: &str, input: &str) -> Result<String, Error> {
        runner.run("/bin/sh", &["-c", script], input)
    }

    #[test]
    fn output_and_faults_are_reported() {
        let runner = runner();
        assert_eq!(shell(&runner, "cat; echo end", "begin\n").unwrap(), "begin\nend\n");
        let large = "x".repeat(1 << 20);
        assert_eq!(shell(&runner, "cat", &large).unwrap().len(), 1 << 20);
        let error = shell(&runner, "echo ' no  chain' >&2; exit 2", "").unwrap_err();
        assert_eq!(error.to_string(), "/bin/sh ended with exit status: 2: no chain");
        assert!(error.is_refusal());
        let locked = "echo 'Another app is currently holding the xtables lock.' >&2; exit 4";
        assert!(matches!(shell(&runner, locked, "").unwrap_err(), Error::Locked { .. }));
        let missing = runner.save("/no/such").unwrap_err();
        assert!(missing.to_string().starts_with("/no/such-save is not installed: "), "{missing}");
    }

    #[test]
    fn a_program_ends_with_the_agent() {
        let stop = CancellationToken::new();
        let runner = Runner::new(Duration::from_secs(1000), stop.clone());
        let folder = tempfile::tempdir().unwrap();
        let started = folder.path().join("started");
        std::thread::scope(|scope| {
            let run = scope
                .spawn(|| shell(&runner, &format!("echo $$ >{}; exec sleep 1000", started.display()), ""));
            test_kit::wait_until("the program runs", Duration::from_secs(60), || {
                std::fs::read_to_string(&started).is_ok_and(|pid| pid.ends_with('\n'))
            });
            stop.cancel();
            assert!(matches!(run.join().unwrap().unwrap_err(), Error::Stopped { .. }));
        });
        let pid = std::fs::read_to_string(&started).unwrap();
        assert!(!std::path::Path::new("/proc").join(pid.trim()).exists());
        assert!(matches!(shell(&runner, "exit 0", "").unwrap_err(), Error::Stopped { .. }));
    }
}
