//! One server of the stage: how it is started and killed, and how its log is shown.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use test_kit::{Keeper, Process, try_wait_until};

/// How long a server may take until it is ready.
const LIMIT: Duration = Duration::from_secs(180);

/// A server's command line, and its process while it runs.
#[derive(Debug)]
pub(crate) struct Server {
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    process: Option<Process>,
}

impl Server {
    /// A server that writes its log into `folder`.
    pub(crate) fn new(program: PathBuf, arguments: Vec<String>, folder: &Path) -> Self {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let log = folder.join(format!("{name}.log"));
        Self { program, arguments, log, process: None }
    }

    /// Starts it and waits until `ready` says so.
    pub(crate) fn start(&mut self, keeper: &Keeper, mut ready: impl FnMut() -> Result<()>) -> Result<()> {
        if self.process.is_some() {
            bail!("{} runs already", self.program.display());
        }
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            // Memory is plenty for as long as a test takes: a fifth of the processor's time is the garbage collector's.
            .env("GOGC", "400")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .current_dir("/");
        let mut process = keeper.start(command)?;
        let result = try_wait_until(LIMIT, || {
            if let Ok(Some(status)) = process.child().try_wait() {
                return Ok(Err(format!("ended: {status}")));
            }
            ready().map(Ok).map_err(|error| format!("{error:#}"))
        });
        if let Err(error) | Ok(Err(error)) = result {
            bail!("{}: {error}\nend of its log:\n{}", self.program.display(), self.end_of_log());
        }
        self.process = Some(process);
        Ok(())
    }

    /// Kills it (kill -9).
    pub(crate) fn kill(&mut self) -> Result<()> {
        let mut process =
            self.process.take().with_context(|| format!("{} does not run", self.program.display()))?;
        process.kill()?;
        Ok(())
    }

    /// Its process id, while it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    fn end_of_log(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}
