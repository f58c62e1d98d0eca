//! `apiary shell`: the agent's commands over its `shell.sock`, one of them or a prompt.

mod editor;
mod terminal;

use std::io::{self, BufRead as _, IsTerminal as _, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::client::shell::{Connection, Reply};

/// Where the agent's shell listens.
#[derive(Debug, Args)]
pub(crate) struct ShellSocket {
    /// Path to the shell UNIX socket
    #[arg(long, global = true, value_name = "PATH", default_value = "/var/run/cilium/shell.sock")]
    shell_sock_path: PathBuf,
}

/// Talks to the agent's shell: with a command it is run, without one lines are read.
#[derive(Debug, Args)]
pub(crate) struct ShellOptions {
    #[command(flatten)]
    socket: ShellSocket,
    /// Answers as JSON, of commands that can (--format=json)
    #[arg(long)]
    json: bool,
    /// The command and its arguments; `help` lists commands
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Runs a command, or those that are typed or come from a pipe.
pub(crate) fn run(options: &ShellOptions, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let socket = &options.socket.shell_sock_path;
    if let Some(line) = line_of(&options.words) {
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
    terminal::converse(socket, options.json, out)
}

/// Runs one command of several words.
pub(crate) fn run_words(
    socket: &ShellSocket,
    words: &[String],
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    let mut connection = Connection::open(&socket.shell_sock_path)?;
    let line = words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ");
    finish(connection.command(&line, out)?)
}

fn finish(reply: Reply) -> anyhow::Result<ExitCode> {
    Ok(if matches!(reply, Reply::Failed) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The words as a line; a single one is a line already, several are quoted where the agent would split them.
fn line_of(words: &[String]) -> Option<String> {
    match words {
        [] => None,
        [line] => Some(line.clone()),
        words => Some(words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")),
    }
}

fn quote(word: &str) -> String {
    if word.is_empty() || word.contains([' ', '\t', '\r', '\n', '#', '\'', '$']) {
        format!("'{}'", word.replace('\'', "''").replace('\n', " "))
    } else {
        word.to_owned()
    }
}

fn with_format(line: &str, json: bool) -> String {
    if json && !line.trim().is_empty() { format!("{line} --format=json") } else { line.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_they_would_be_split() {
        let line = |words: &[&str]| line_of(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert_eq!(line(&[]), None);
        assert_eq!(line(&["db/show health"]).as_deref(), Some("db/show health"));
        assert_eq!(
            line(&["db/cmp", "--grep=a b", "it's", "", "$x"]).as_deref(),
            Some("db/cmp '--grep=a b' 'it''s' '' '$x'")
        );
        assert_eq!(with_format("metrics", true), "metrics --format=json");
    }
}
