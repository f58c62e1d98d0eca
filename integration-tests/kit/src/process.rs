//! Child processes that do not outlive their test.

use std::io;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use crate::{sys, try_wait_until};

/// A child process; killed and waited for on drop.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts `command`.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let child = command.spawn().map_err(|e| io::Error::new(e.kind(), format!("{command:?}: {e}")))?;
        Ok(Self { child })
    }

    /// Returns its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the child, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Requests its termination (SIGTERM).
    pub fn terminate(&self) -> io::Result<()> {
        self.signal(libc::SIGTERM)
    }

    /// Suspends all its threads (SIGSTOP).
    pub fn suspend(&self) -> io::Result<()> {
        self.signal(libc::SIGSTOP)
    }

    /// Resumes them (SIGCONT).
    pub fn resume(&self) -> io::Result<()> {
        self.signal(libc::SIGCONT)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        sys::kill(self.child.id(), signal)
    }

    /// Kills it at once (SIGKILL) and waits for its end.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        self.child.wait()
    }

    /// Waits until it has ended, at most `limit`. The error lists where each of its threads waits in the kernel.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus, String> {
        let child = &mut self.child;
        try_wait_until(limit, || match child.try_wait() {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Err(format!("process {} still runs:\n{}", child.id(), threads(child.id()))),
            Err(error) => Err(error.to_string()),
        })
    }
}

/// Returns a line for each thread of a process: name, kernel function and system call.
fn threads(process: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task"));
    let lines = tasks.into_iter().flatten().flatten().map(|task| {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        format!("{}: {} {}", read("comm").trim(), read("wchan").trim(), read("syscall").trim())
    });
    lines.collect::<Vec<_>>().join("\n")
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
