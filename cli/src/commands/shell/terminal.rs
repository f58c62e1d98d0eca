//! The prompt on a terminal.

use std::io::{self, Read as _, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

use super::editor::{Editor, Key, Step, decode};
use super::with_format;
use crate::client::shell::{Connection, Reply};

const PROMPT: &str = "apiary> ";

/// The terminal without echo and line mode; as it was when dropped.
struct Raw(Termios);

impl Raw {
    fn new() -> io::Result<Self> {
        let stdin = io::stdin();
        let before = tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        // Output is still processed, so that a newline begins a line.
        raw.output_modes = before.output_modes;
        tcsetattr(&stdin, OptionalActions::Now, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Reads lines and runs them until the user leaves.
pub(super) fn converse(socket: &Path, json: bool, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let mut connection = Connection::open(socket)?;
    let _raw = Raw::new()?;
    let (mut editor, mut typed) = (Editor::default(), Vec::new());
    loop {
        show(&editor, out)?;
        let Some(key) = next_key(&mut typed)? else { return leave(out) };
        match editor.key(key) {
            Step::Edit if key == Key::Interrupt => writeln!(out, "^C")?,
            Step::Edit => {}
            Step::Complete => {
                let candidates = connection.completions(&editor.before_cursor());
                if !editor.complete(&candidates) && candidates.len() > 1 {
                    writeln!(out, "\n{}", candidates.join("   "))?;
                }
            }
            Step::Leave => return leave(out),
            Step::Line(line) => {
                writeln!(out)?;
                match line.trim() {
                    "" => continue,
                    "exit" | "quit" | "stop" => return Ok(ExitCode::SUCCESS),
                    line => {
                        let ended = run(&mut connection, &with_format(line, json), &mut typed, out);
                        if !matches!(ended, Ok(Some(_))) {
                            // The user has interrupted the command, or the agent is gone, perhaps to come back.
                            if let Err(error) = ended {
                                writeln!(out, "Error: {error:#}")?;
                            }
                            connection = Connection::open(socket)?;
                        }
                    }
                }
            }
        }
    }
}

fn leave(out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    writeln!(out)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs a command; `None` if Ctrl-C ended it.
fn run(
    connection: &mut Connection,
    line: &str,
    typed: &mut Vec<u8>,
    out: &mut dyn Write,
) -> anyhow::Result<Option<Reply>> {
    connection.send(line)?;
    loop {
        if !connection.has_more() {
            out.flush()?;
            let stdin = io::stdin();
            let ready = wait(&[stdin.as_fd(), connection.stream().as_fd()])?;
            if ready[0] {
                read_some(typed)?;
                if let Some(at) = typed.iter().position(|byte| *byte == 3) {
                    typed.drain(..=at);
                    writeln!(out, "^C")?;
                    return Ok(None);
                }
            }
            if !ready[1] {
                continue;
            }
        }
        if let Some(reply) = connection.next_line(out)? {
            return Ok(Some(reply));
        }
    }
}

/// Which of these can be read.
fn wait(descriptors: &[BorrowedFd<'_>]) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> =
        descriptors.iter().map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN)).collect();
    loop {
        match poll(&mut polled, None) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(polled.iter().map(|polled| !polled.revents().is_empty()).collect()),
        }
    }
}

/// The next key; none at the end of the input.
fn next_key(typed: &mut Vec<u8>) -> io::Result<Option<Key>> {
    loop {
        if let Some(key) = decode(typed) {
            return Ok(Some(key));
        }
        if !read_some(typed)? {
            return Ok(None);
        }
    }
}

fn read_some(typed: &mut Vec<u8>) -> io::Result<bool> {
    let mut bytes = [0; 256];
    let count = io::stdin().lock().read(&mut bytes)?;
    typed.extend_from_slice(&bytes[..count]);
    Ok(count > 0)
}

fn show(editor: &Editor, out: &mut dyn Write) -> io::Result<()> {
    let behind = editor.text().chars().count() - editor.cursor();
    write!(out, "\r\x1b[K{PROMPT}{}", editor.text())?;
    if behind > 0 {
        write!(out, "\x1b[{behind}D")?;
    }
    out.flush()
}
