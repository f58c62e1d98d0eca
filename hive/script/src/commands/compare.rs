//! Commands that compare and search files and buffers.

use anyhow::{bail, ensure};
use regex::bytes::Regex;
use similar::TextDiff;

use crate::command::{Run, on_state};
use crate::state::State;
use hive_command::{Call, Command, Flag, FlagKind, Output, multi_line};

pub(super) fn commands() -> Vec<Command<Run>> {
    let quiet = || Flag::switch("quiet", "suppress printing of the difference or the matches").short('q');
    let count = || Flag::new("count", FlagKind::Int, 0, "exact count of matches");
    vec![
        on_state("cmp", "compare files for differences", |state, call| compare(state, call, false))
            .takes("file1 file2")
            .detail("file1 may be `stdout` or `stderr`: the buffers; file2 is always a file.")
            .flag(quiet()),
        on_state("cmpenv", "compare files for differences, with environment expansion", |state, call| {
            compare(state, call, true)
        })
        .takes("file1 file2")
        .flag(quiet()),
        on_state("empty", "check if file is empty", empty)
            .takes("file")
            .flag(quiet())
            .flag(Flag::switch("trim", "leave newlines at both ends out").short('t')),
        on_state("grep", "find lines in a file that match a pattern", |state, call| grep(state, call, None))
            .takes("'pattern' file")
            .regexp()
            .flag(quiet())
            .flag(count()),
        on_state("stdout", "find lines in the stdout buffer that match a pattern", |state, call| {
            grep(state, call, Some("stdout"))
        })
        .takes("'pattern'")
        .regexp()
        .flag(quiet())
        .flag(count()),
        on_state("stderr", "find lines in the stderr buffer that match a pattern", |state, call| {
            grep(state, call, Some("stderr"))
        })
        .takes("'pattern'")
        .regexp()
        .flag(quiet())
        .flag(count()),
    ]
}

async fn compare(state: State, call: Call, expanded: bool) -> anyhow::Result<Output> {
    let [first, second] = call.exactly()?;
    let (mut one, mut other) = (state.read_or_buffer(first)?, state.read(second)?);
    if expanded {
        let expand = |text: &[u8]| state.expand(&String::from_utf8_lossy(text)).into_bytes();
        (one, other) = (expand(&one), expand(&other));
    }
    if one == other {
        return Ok(Output::none());
    }
    if !call.flags.is_on("quiet") {
        let (one, other) = (String::from_utf8_lossy(&one), String::from_utf8_lossy(&other));
        state.log().write(&difference(first, &one, second, &other));
    }
    bail!("{first} and {second} differ")
}

/// Returns the difference of two texts in the format of `diff -u`.
pub(crate) fn difference(first: &str, one: &str, second: &str, other: &str) -> String {
    TextDiff::from_lines(one, other).unified_diff().context_radius(3).header(first, second).to_string()
}

async fn empty(state: State, call: Call) -> anyhow::Result<Output> {
    let [name] = call.exactly()?;
    let data = state.read_or_buffer(name)?;
    let text = String::from_utf8_lossy(&data);
    let text = if call.flags.is_on("trim") { text.trim_matches('\n') } else { &text };
    if text.is_empty() {
        return Ok(Output::none());
    }
    if !call.flags.is_on("quiet") {
        state.log().write(&difference(name, text, "empty", ""));
    }
    bail!("{name} is not empty")
}

async fn grep(state: State, call: Call, buffer: Option<&'static str>) -> anyhow::Result<Output> {
    let (pattern, name) = match buffer {
        Some(name) => {
            let [pattern] = call.exactly()?;
            (pattern, name)
        }
        None => call.exactly().map(|[pattern, name]| (pattern, name))?,
    };
    let wanted = call.flags.int("count");
    let expression = multi_line(pattern)?;
    let text = match buffer {
        Some(name) => state.read_or_buffer(name)?,
        None => state.read(name)?,
    };
    let found = expression.find_iter(&text).count();
    if wanted > 0 {
        ensure!(
            i64::try_from(found) == Ok(wanted),
            "found {found} matches for {pattern} in {name}, want {wanted}"
        );
    } else {
        ensure!(found > 0, "no match for {pattern} in {name}");
    }
    if !call.flags.is_on("quiet") {
        log_matches(&call, &expression, &text);
    }
    Ok(Output::none())
}

fn log_matches(call: &Call, expression: &Regex, text: &[u8]) {
    let mut shown = 0;
    for found in expression.find_iter(text).filter(|found| !found.is_empty()) {
        if found.end() <= shown {
            continue;
        }
        let start =
            text[..found.start()].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1).max(shown);
        let rest = &text[found.end()..];
        let end = found.end() + rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        call.log(format_args!("matched: {}", String::from_utf8_lossy(&text[start..end])));
        shown = end;
    }
}
