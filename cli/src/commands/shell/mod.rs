//! `apiary shell`: runs a single command of the agent over its `shell.sock`, or opens a prompt for commands.

mod line;
mod prompt;

use std::io::{self, BufRead as _, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::client::shell::{Connection, Reply};
use line::{from_words, quoted, with_format};

/// Where the agent's shell listens.
#[derive(Debug, Args)]
pub(crate) struct ShellSocket {
    /// Path to the shell UNIX socket
    #[arg(long, global = true, value_name = "PATH", default_value = "/var/run/cilium/shell.sock")]
    shell_sock_path: PathBuf,
}

impl ShellSocket {
    /// Returns the path of the socket.
    pub(crate) fn path(&self) -> &Path {
        &self.shell_sock_path
    }
}

/// Talks to the agent's shell: runs the command if one is given, else the commands in the lines of standard input.
#[derive(Debug, Args)]
pub(crate) struct ShellOptions {
    #[command(flatten)]
    socket: ShellSocket,
    /// Answers as JSON (--format=json), for commands that support it
    #[arg(long)]
    json: bool,
    /// The command and its arguments; `help` lists commands
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Runs the command in the arguments, or lines from the terminal or a pipe.
pub(crate) fn run(options: &ShellOptions, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let socket = &options.socket.shell_sock_path;
    if let Some(line) = from_words(&options.words) {
        let mut connection = Connection::open(socket)?;
        return finish(connection.command(&with_format(&line, options.json), out)?);
    }
    if !io::stdin().is_terminal() {
        let mut connection = Connection::open(socket)?;
        for line in io::stdin().lock().lines() {
            let reply = connection.command(&with_format(&line?, options.json), out)?;
            if matches!(reply, Reply::Failed) {
                return finish(reply);
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    prompt::run(socket, options.json, out)
}

/// Runs one command of several words.
pub(crate) fn run_words(
    socket: &ShellSocket,
    words: &[String],
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    let mut connection = Connection::open(&socket.shell_sock_path)?;
    finish(connection.command(&quoted(words), out)?)
}

fn finish(reply: Reply) -> anyhow::Result<ExitCode> {
    Ok(if matches!(reply, Reply::Failed) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
