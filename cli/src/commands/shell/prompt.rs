//! The prompt on a terminal: lines edited by rustyline, completed and run by the agent.

use std::cell::RefCell;
use std::io::{self, Read as _, Write};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, poll};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, Helper};
use signal_hook::consts::SIGINT;

use super::line::with_format;
use crate::client::shell::{Connection, Reply};

const PROMPT: &str = "apiary> ";

/// The number of lines in the history of this prompt; none are written to a file, as arguments may be secrets.
const MAX_HISTORY_LINES: usize = 1000;

/// The connection behind the prompt, which also completes lines.
struct Shell {
    /// Behind a cell because the editor completes by a shared reference; never borrowed while the editor runs.
    connection: RefCell<Connection>,
}

/// Reads lines and runs them until the end of input.
pub(super) fn run(socket: &Path, json: bool, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    // Bracketed paste would join several pasted lines into one, but each is a command of its own.
    let config = Config::builder()
        .max_history_size(MAX_HISTORY_LINES)?
        .completion_type(CompletionType::List)
        .bracketed_paste(false)
        .build();
    let history = MemHistory::with_config(&config);
    let mut editor = Editor::with_history(config, history)?;
    editor.set_helper(Some(Shell { connection: RefCell::new(Connection::open(socket)?) }));
    let mut interrupts = interrupts()?;
    loop {
        out.flush()?;
        let line = match editor.readline(PROMPT) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(ExitCode::SUCCESS),
            Err(error) => return Err(error.into()),
        };
        let command = match line.trim() {
            "" => continue,
            "exit" | "quit" | "stop" => return Ok(ExitCode::SUCCESS),
            command => with_format(command, json),
        };
        editor.add_history_entry(line)?;
        let Some(shell) = editor.helper() else { continue };
        let ended = execute(&mut shell.connection.borrow_mut(), &command, &mut interrupts, out);
        if !matches!(ended, Ok(Some(_))) {
            // Interrupted, or disconnected. The rest of the answer must not be read as that of the next command.
            if let Err(error) = ended {
                writeln!(out, "Error: {error:#}")?;
            }
            *shell.connection.borrow_mut() = Connection::open(socket)?;
        }
    }
}

/// Returns the end of a pipe that gets a byte for each SIGINT. At the prompt Ctrl-C is a key and rustyline handles the
/// signal itself; it restores this handler after each line, so that Ctrl-C ends the command that runs, not the process.
fn interrupts() -> io::Result<UnixStream> {
    let (reader, writer) = UnixStream::pair()?;
    reader.set_nonblocking(true)?;
    writer.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(SIGINT, writer)?;
    Ok(reader)
}

/// Runs a command and writes its answer; returns `None` if Ctrl-C ended it.
fn execute(
    connection: &mut Connection,
    line: &str,
    interrupts: &mut UnixStream,
    out: &mut dyn Write,
) -> anyhow::Result<Option<Reply>> {
    // Drain signals from before this command: they must not interrupt it.
    let _ = interrupted(interrupts);
    connection.send(line)?;
    loop {
        if !connection.has_more() {
            out.flush()?;
            wait(interrupts, connection.stream())?;
            if interrupted(interrupts) {
                writeln!(out)?;
                return Ok(None);
            }
        }
        if let Some(reply) = connection.next_line(out)? {
            return Ok(Some(reply));
        }
    }
}

/// Whether there was a signal since the last call.
fn interrupted(interrupts: &mut UnixStream) -> bool {
    let mut bytes = [0; 64];
    interrupts.read(&mut bytes).is_ok_and(|count| count > 0)
}

/// Waits until one of the two is readable.
fn wait(interrupts: &UnixStream, connection: &UnixStream) -> io::Result<()> {
    let mut polled =
        [interrupts, connection].map(|stream| PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN));
    loop {
        match poll(&mut polled, None) {
            // The signal interrupted the poll itself: its byte is in the pipe, so the loop sees it.
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(()),
        }
    }
}

impl Completer for Shell {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        cursor: usize,
        _context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let candidates = self.connection.borrow_mut().completions(&line[..cursor]);
        Ok((0, close_single(candidates)))
    }
}

impl Helper for Shell {}
impl Highlighter for Shell {}
impl Validator for Shell {}

impl Hinter for Shell {
    type Hint = String;
}

/// Appends a blank to a single candidate, unless it is a flag, which may be followed by a value.
fn close_single(mut candidates: Vec<String>) -> Vec<String> {
    if let [only] = &mut candidates[..] {
        let word = only.rsplit(' ').next().unwrap_or_default();
        if !word.starts_with("--") || word.contains('=') {
            only.push(' ');
        }
    }
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_candidate_is_completed_by_a_blank_unless_it_is_a_flag() {
        let closed = |lines: &[&str]| close_single(lines.iter().map(|&line| line.to_owned()).collect());
        assert!(closed(&[]).is_empty());
        assert_eq!(closed(&["db/show"]), ["db/show "]);
        assert_eq!(closed(&["db/show nodes", "db/show n"]), ["db/show nodes", "db/show n"]);
        assert_eq!(closed(&["db/show nodes --columns"]), ["db/show nodes --columns"]);
        assert_eq!(closed(&["db/show nodes --columns=Name"]), ["db/show nodes --columns=Name "]);
    }
}
