//! Commands that steer the script: time, its end, its help.

use std::sync::Arc;

use anyhow::{Context, ensure};
use hive::config::parse_duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::command::{Call, Command, Output, Run};
use crate::engine::Engine;
use crate::error::Stop;
use crate::flags::Flag;
use crate::regexp::whole_text;
use crate::session::Session;

pub(super) fn commands() -> Vec<Command> {
    vec![
        Command::new("sleep", "sleep for a specified duration", sleep)
            .takes("duration")
            .detail("The duration is written as in Go: 1.5s, 200ms.")
            .in_background(),
        Command::new("stop", "stop execution of the script", stop)
            .takes("[msg]")
            .detail("The script ends with success."),
        Command::made("wait", "wait for completion of background commands", Run::Wait)
            .detail("Their outputs become the buffers, in the order in which they were begun."),
        Command::made("break", "break into interactive prompt", Run::Break)
            .detail("Lines come from the terminal; an empty one goes on with the script."),
        help_command(),
    ]
}

pub(super) fn help_command() -> Command {
    Command::made("help", "log help text for commands and conditions", Run::Help)
        .takes("(regexp)")
        .detail("Commands whose name the expression matches, or all of them.")
        .regexp()
        .flag(Flag::switch("verbose", "all about them").short('v'))
        .flag(Flag::switch("autocomplete-names", "only names that begin so").short('a'))
}

async fn sleep(call: Call) -> anyhow::Result<Output> {
    let [duration] = call.exactly()?;
    let duration = parse_duration(duration).map_err(anyhow::Error::msg).context("invalid duration")?;
    tokio::select! {
        () = tokio::time::sleep(duration) => Ok(Output::text("")),
        interrupt = call.state.interrupted() => Err(interrupt.into()),
    }
}

async fn stop(call: Call) -> anyhow::Result<Output> {
    Err(Stop(call.at_most_one()?.unwrap_or_default().to_owned()).into())
}

pub(crate) fn help(engine: &Arc<Engine>, call: &Call) -> anyhow::Result<Output> {
    let wanted = call.at_most_one()?;
    if call.flags.is_on("autocomplete-names") {
        let begins = |command: &&Command| command.name().starts_with(wanted.unwrap_or_default());
        let names = engine.commands().filter(begins).map(|command| format!("{}\n", command.name()));
        return Ok(Output::text(names.collect::<String>()));
    }
    let verbose = call.flags.is_on("verbose");
    let Some(wanted) = wanted else {
        let conditions = engine.describe_conditions(|_| true);
        let conditions =
            if conditions.is_empty() { conditions } else { format!("conditions:\n\n{conditions}\n") };
        let commands = engine.describe(verbose, |_| true);
        return Ok(Output::text(format!("{conditions}commands:\n\n{commands}")));
    };
    let expression = whole_text(wanted)?;
    let matches = |name: &str| expression.is_match(name.as_bytes());
    let exact = engine.command(wanted).is_some();
    let text = engine.describe_conditions(matches) + &engine.describe(verbose || exact, matches);
    ensure!(!text.is_empty(), "no command or condition matches {wanted}");
    Ok(Output::text(text))
}

/// Runs lines from the terminal until an empty one.
pub(crate) async fn prompt(session: &mut Session) -> anyhow::Result<Output> {
    let terminal = tokio::fs::OpenOptions::new().read(true).write(true).open("/dev/tty").await;
    let (lines, mut out) = tokio::io::split(terminal.context("break needs a terminal")?);
    let mut lines = BufReader::new(lines).lines();
    let mut said = 0;
    loop {
        let log = session.state.log().text();
        out.write_all(log.get(said..).unwrap_or_default().as_bytes()).await?;
        said = log.len();
        out.write_all(b"break> ").await?;
        out.flush().await?;
        let line = tokio::select! {
            line = lines.next_line() => line?.unwrap_or_default(),
            interrupt = session.state.interrupted() => return Err(interrupt.into()),
        };
        if line.trim().is_empty() {
            return Ok(Output::none());
        }
        if let Err(error) = Box::pin(session.line(&line)).await {
            session.state.log().write(&format!("{error}\n"));
        }
    }
}
