//! `start-up`: the steps of the agent's start, and how long each took.

use crate::client::Agent;
use crate::output::{Output, table};
use anyhow::bail;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::fmt::Write as _;
use std::io::Write;

/// Number of steps without `--all`.
const LONGEST: usize = 20;

#[derive(Debug, Args)]
pub(crate) struct StartUpOptions {
    /// All steps in the order in which they began, not only the longest
    #[arg(short, long)]
    all: bool,
    /// Write a picture of the start (SVG): each hook with the hook that it waited for
    #[arg(long, conflicts_with_all = ["all", "format"])]
    svg: bool,
    #[command(flatten)]
    output: Output,
}

/// The answer of the agent.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct StartUp {
    /// `None` while the start runs.
    milliseconds: Option<f64>,
    steps: Vec<Step>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Step {
    module: String,
    function: String,
    hook: Option<String>,
    begin_milliseconds: f64,
    /// `None` while it runs.
    milliseconds: Option<f64>,
    failed: bool,
}

/// Prints the start of the running agent.
pub(crate) fn run(agent: &mut Agent, options: &StartUpOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    if options.svg {
        return Ok(out.write_all(&page(agent, "/apiary/timeline")?)?);
    }
    let mut start: StartUp = serde_json::from_slice(&page(agent, "/apiary/start-up")?)?;
    if options.output.write(&start, out)? {
        return Ok(());
    }
    let count = start.steps.len();
    match start.milliseconds {
        Some(milliseconds) => writeln!(out, "Started in {milliseconds:.1} ms, {count} steps")?,
        None => writeln!(out, "Not started yet, {count} steps so far")?,
    }
    if !options.all {
        // A step that still runs comes first: the start waits for it.
        start
            .steps
            .sort_by_key(|step| Reverse(step.milliseconds.map_or(u64::MAX, |took| (took * 1e3) as u64)));
        start.steps.truncate(LONGEST);
    }
    let mut text = String::from("BEGIN (MS)\tTOOK (MS)\tSTEP\tMODULE\n");
    for step in &start.steps {
        let took = step.milliseconds.map_or_else(|| "runs".to_owned(), |took| format!("{took:.2}"));
        let name = step.hook.as_deref().unwrap_or(&step.function);
        let failed = if step.failed { " (failed)" } else { "" };
        writeln!(text, "{:.2}\t{took}\t{name}{failed}\t{}", step.begin_milliseconds, step.module)?;
    }
    Ok(table(&text, 0, out)?)
}

fn page(agent: &mut Agent, path: &str) -> anyhow::Result<Vec<u8>> {
    let response = agent.call_plain("GET", path)?;
    if response.status != 200 {
        bail!(response.words());
    }
    Ok(response.body)
}
