//! The commands `health`, `health/ok` and `health/history` of scripts and of the shell.

use std::sync::Arc;
use std::time::SystemTime;

use anyhow::ensure;
use hive::prelude::*;
use hive::{HealthTree, Status};
use hive_command::{Call, Command, Flag, FlagKind, Output};
use statedb::{Prefix, Table};

use crate::report::Report;
use crate::tree;

/// Returns the commands. The first two read the table, which includes rows written by hand.
pub(crate) fn commands(table: Arc<Table<Report>>, tree: Arc<HealthTree>) -> Members<Command> {
    let (shown, judged) = (table.clone(), table.clone());
    let complete = |table: &Table<Report>| {
        let snapshot = table.snapshot();
        table.all(&snapshot).map(|report| report.status().path()).collect()
    };
    let (known, asked) = (table.clone(), table);
    let matching = || Flag::text("match", "only reporters whose id contains this").short('m');
    let out = || Flag::text("output", "file to write to instead of the log").short('o');
    Members(vec![
        Command::new("health", "show the health of all modules", move |call: Call| {
            let table = shown.clone();
            async move { show(&table, &call) }
        })
        .takes("[reporter-id-prefix]")
        .flag(matching())
        .flag(Flag::new("levels", FlagKind::Texts, "", "only these levels: ok,degraded,stopped").short('s'))
        .flag(out())
        .completes(move |_| complete(&known)),
        Command::new("health/ok", "check that nothing is degraded", move |call: Call| {
            let table = judged.clone();
            async move { judge(&table, &call) }
        })
        .takes("[reporter-id-prefix]")
        .flag(matching())
        .completes(move |_| complete(&asked)),
        Command::new("health/history", "show what went wrong or ended", move |call: Call| {
            let tree = tree.clone();
            async move {
                let lines: String = tree.history().iter().map(|line| format!("{line}\n")).collect();
                call.to_file_or_log("output", &lines)
            }
        })
        .flag(out()),
    ])
}

/// Returns the reports that match the arguments.
fn wanted(table: &Table<Report>, call: &Call) -> Vec<Status> {
    let prefix = call.args.first().map_or("", String::as_str);
    let (text, levels) = (call.flags.text("match"), call.flags.texts("levels"));
    let snapshot = table.snapshot();
    let found = table.prefix(&snapshot, Prefix::primary(prefix)).map(|report| report.status());
    let found = found.filter(|status| {
        let level = status.level.to_string();
        status.path().contains(text)
            && (levels.is_empty() || levels.iter().any(|wanted| wanted.eq_ignore_ascii_case(&level)))
    });
    found.cloned().collect()
}

fn show(table: &Table<Report>, call: &Call) -> anyhow::Result<Output> {
    let found = wanted(table, call);
    let shown = call.to_file_or_log("output", &tree::draw(&found, SystemTime::now()))?;
    let narrowed =
        call.args.first().is_some_and(|prefix| !prefix.is_empty()) || !call.flags.text("match").is_empty();
    ensure!(!narrowed || !found.is_empty(), "no health status found for the filter");
    Ok(shown)
}

fn judge(table: &Table<Report>, call: &Call) -> anyhow::Result<Output> {
    let mut bad = wanted(table, call);
    bad.retain(|status| status.level == Level::Degraded);
    call.log_text(&tree::draw(&bad, SystemTime::now()));
    ensure!(bad.is_empty(), "found {} degraded health reports", bad.len());
    Ok(Output::none())
}
