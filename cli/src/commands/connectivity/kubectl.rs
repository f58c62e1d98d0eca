//! Requests to the API server, by kubectl.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, ensure};
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};

/// A program with the arguments and errors of kubectl, and whether the user has interrupted this process.
#[derive(Debug)]
pub(super) struct Kubectl {
    program: PathBuf,
    interrupted: Arc<AtomicBool>,
}

impl Kubectl {
    /// Returns a client. From this call SIGINT and SIGTERM do not end this process but are reported by
    /// [`Kubectl::check_interrupt`].
    pub(super) fn new(program: &Path) -> anyhow::Result<Kubectl> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, interrupted.clone())?;
        }
        Ok(Kubectl { program: program.to_owned(), interrupted })
    }

    /// Fails once the process was interrupted.
    pub(super) fn check_interrupt(&self) -> anyhow::Result<()> {
        ensure!(!self.interrupted.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }

    /// Runs kubectl with a text at its standard input; returns its standard output.
    pub(super) fn run(&self, arguments: &[&str], input: &str) -> anyhow::Result<String> {
        let mut child = Command::new(&self.program)
            .args(arguments)
            // Of its own group: an interrupt at the terminal must not end the removal of the objects.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| {
                format!("cannot run {}: install kubectl or name it with --kubectl", self.program.display())
            })?;
        if let Some(mut stdin) = child.stdin.take() {
            // If it ends before it has read everything, its exit code and error output are the result.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {}: {}", arguments.join(" "), error.trim());
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Returns the items of a list of objects, or the one object that is named.
    pub(super) fn list(&self, arguments: &[&str]) -> anyhow::Result<Vec<Value>> {
        let text = self.run(&[&["get", "-o", "json"], arguments].concat(), "")?;
        if text.trim().is_empty() {
            return Ok(vec![]);
        }
        let mut list: Value = serde_json::from_str(&text)?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            _ => Ok(vec![list]),
        }
    }
}
