//! Commands for control flow: sleep, stop, help.

use std::sync::Arc;

use anyhow::Context;
use hive::config::parse_duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::command::{Run, on_state};
use crate::engine::Engine;
use crate::error::Stop;
use crate::session::Session;
use crate::state::State;
use hive_command::{Call, Command, Output, whole_text};

pub(super) fn commands() -> Vec<Command<Run>> {
    vec![
        on_state("sleep", "sleep for a specified duration", sleep)
            .takes("duration")
            .detail("The duration is written as in Go: 1.5s, 200ms.")
            .in_background(),
        on_state("stop", "stop execution of the script", stop)
            .takes("[msg]")
            .detail("The script ends with success."),
        Command::declared("wait", "wait for completion of background commands", Run::Wait)
            .detail("Their outputs become the buffers, in the order in which they were begun."),
        Command::declared("break", "break into interactive prompt", Run::Break)
            .detail("Lines come from the terminal; an empty one goes on with the script."),
        help_command(),
    ]
}

pub(super) fn help_command() -> Command<Run> {
    Command::declared("help", "log help text for commands and conditions", Run::Help)
        .takes("[-v] (regexp)")
        .detail(
            "All about the commands whose name the expression matches, and about conditions in brackets: `help [name]`. Without \
             one, a list of all; with -v all about them. With -a, the names that begin so.",
        )
        .regexp()
}

async fn sleep(state: State, call: Call) -> anyhow::Result<Output> {
    let [duration] = call.exactly()?;
    let duration = parse_duration(duration).context("invalid duration")?;
    tokio::select! {
        () = tokio::time::sleep(duration) => Ok(Output::text("")),
        interrupt = state.interrupted() => Err(interrupt.into()),
    }
}

async fn stop(_: State, call: Call) -> anyhow::Result<Output> {
    Err(Stop(call.at_most_one()?.unwrap_or_default().to_owned()).into())
}

pub(crate) fn help(engine: &Arc<Engine>, call: &Call) -> anyhow::Result<Output> {
    let (first, rest) =
        call.args.split_first().map_or(("", [].as_slice()), |(first, rest)| (first.as_str(), rest));
    let (verbose, wanted) = match first {
        "-a" => {
            let begun = rest.first().map_or("", String::as_str);
            let names = engine.commands().map(Command::name).filter(|name| name.starts_with(begun));
            return Ok(Output::text(names.map(|name| format!("{name}\n")).collect::<String>()));
        }
        "-v" => (true, rest),
        _ => (!call.args.is_empty(), call.args.as_slice()),
    };
    if wanted.is_empty() {
        let conditions = engine.describe_conditions(|_| true);
        let conditions =
            if conditions.is_empty() { conditions } else { format!("conditions:\n\n{conditions}") };
        let commands = engine.describe(verbose, |_| true);
        return Ok(Output::text(format!("{conditions}\ncommands:\n\n{commands}")));
    }
    let in_brackets = |word: &String| word.strip_prefix('[')?.strip_suffix(']').map(str::to_owned);
    let conditions: Vec<String> = wanted.iter().filter_map(in_brackets).collect();
    let commands: Vec<&str> =
        wanted.iter().filter(|word| in_brackets(word).is_none()).map(String::as_str).collect();
    let mut text = engine.describe_conditions(|name| conditions.iter().any(|wanted| wanted == name));
    if !commands.is_empty() {
        let expression = whole_text(&commands.join(" "))?;
        text += &engine.describe(verbose, |name| expression.is_match(name.as_bytes()));
    }
    Ok(Output::text(text))
}

/// Runs lines from the terminal until an empty one.
pub(crate) async fn prompt(session: &mut Session) -> anyhow::Result<Output> {
    let terminal = tokio::fs::OpenOptions::new().read(true).write(true).open("/dev/tty").await;
    let (lines, mut out) = tokio::io::split(terminal.context("break needs a terminal")?);
    let mut lines = BufReader::new(lines).lines();
    let mut printed = 0;
    loop {
        let log = session.state.log().text();
        out.write_all(log.get(printed..).unwrap_or_default().as_bytes()).await?;
        printed = log.len();
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
