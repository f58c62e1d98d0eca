//! The protocol of `shell.sock`: a line out, an answer with its end mark back.

use std::io::{BufRead as _, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// The timeout for an agent that does not listen yet.
const WAIT: Duration = Duration::from_secs(15);

/// The timeout of answers for callers that cannot be interrupted.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

const END: &str = "<<end>>";
const ERROR: &str = "<<error>>";

/// The result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Done,
    /// Its last line was an error.
    Failed,
}

/// A connection to the agent's shell.
pub(crate) struct Connection {
    read: BufReader<UnixStream>,
}

impl Connection {
    /// Connects, with retries for an agent that is starting.
    pub(crate) fn open(socket: &Path) -> anyhow::Result<Self> {
        let begin = Instant::now();
        loop {
            match UnixStream::connect(socket) {
                Ok(stream) => return Ok(Self { read: BufReader::new(stream) }),
                Err(error) => {
                    // A retry does not help against missing permissions.
                    let waits =
                        error.kind() != std::io::ErrorKind::PermissionDenied && begin.elapsed() < WAIT;
                    if !waits {
                        return Err(error).with_context(|| format!("cannot connect to {}", socket.display()));
                    }
                    let mut note = std::io::stderr();
                    let _ = writeln!(note, "Dialing failed: {error}. Retrying...");
                    std::thread::sleep(Duration::from_secs(1));
                }
            }
        }
    }

    /// Connects once; an answer that does not continue for 10 s is an error.
    pub(crate) fn open_once(socket: &Path) -> anyhow::Result<Self> {
        let stream =
            UnixStream::connect(socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self { read: BufReader::new(stream) })
    }

    /// Returns the socket, to wait for an answer.
    pub(crate) fn stream(&self) -> &UnixStream {
        self.read.get_ref()
    }

    /// Whether a part of an answer is buffered but not processed.
    pub(crate) fn has_more(&self) -> bool {
        !self.read.buffer().is_empty()
    }

    /// Sends a command.
    pub(crate) fn send(&mut self, line: &str) -> anyhow::Result<()> {
        if line.contains('\n') {
            bail!("a command is one line");
        }
        self.stream().write_all(format!("{line}\n").as_bytes()).context("the agent closed the shell")
    }

    /// Writes the next line of the answer; returns the result of the command if it was the last.
    pub(crate) fn next_line(&mut self, out: &mut dyn Write) -> anyhow::Result<Option<Reply>> {
        let mut bytes = vec![];
        if self.read.read_until(b'\n', &mut bytes)? == 0 {
            bail!("the agent closed the shell");
        }
        let text = String::from_utf8_lossy(&bytes);
        let line = text.trim_end_matches('\n');
        if matches!(line, "[stdout]" | "[stderr]") {
            return Ok(None);
        }
        for (mark, reply) in [(END, Reply::Done), (ERROR, Reply::Failed)] {
            if let Some(last) = line.strip_suffix(mark) {
                if !last.is_empty() {
                    let error = if reply == Reply::Failed { "error: " } else { "" };
                    writeln!(out, "{error}{last}")?;
                }
                out.flush()?;
                return Ok(Some(reply));
            }
        }
        writeln!(out, "{line}")?;
        // An answer may be endless: the part received so far is flushed before the next blocking read.
        if !self.has_more() {
            out.flush()?;
        }
        Ok(None)
    }

    /// Sends a command and writes its answer.
    pub(crate) fn command(&mut self, line: &str, out: &mut dyn Write) -> anyhow::Result<Reply> {
        self.send(line)?;
        loop {
            if let Some(reply) = self.next_line(out)? {
                return Ok(reply);
            }
        }
    }

    /// Returns whole lines that complete the text.
    pub(crate) fn completions(&mut self, typed: &str) -> Vec<String> {
        let question = match typed.split_once(' ') {
            None => format!("help -a {typed}"),
            Some((command, arguments)) => {
                format!("{command} --autocomplete='{}'", arguments.replace('\'', "''"))
            }
        };
        let mut answer = vec![];
        match self.command(question.trim_end(), &mut answer) {
            Ok(Reply::Done) => String::from_utf8_lossy(&answer).lines().map(str::to_owned).collect(),
            Ok(Reply::Failed) | Err(_) => vec![],
        }
    }
}
