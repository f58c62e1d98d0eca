//! The commands `health`, `health/ok` and `health/history` of scripts and of the shell.

use std::sync::Arc;
use std::time::SystemTime;

use anyhow::ensure;
use hive::prelude::*;
use hive::{HealthTree, Status};
use hive_script::{Call, Command, Flag, FlagKind, Output};

use crate::tree;

pub(crate) fn commands(tree: Arc<HealthTree>) -> Members<Command> {
    let (shown, judged, told) = (tree.clone(), tree.clone(), tree.clone());
    let complete = move |tree: &HealthTree| tree.snapshot().iter().map(Status::path).collect();
    let (known, asked) = (tree.clone(), tree);
    let matching = || Flag::text("match", "only reports that contain this").short('m');
    let out = || Flag::text("output", "file to write to instead of the log").short('o');
    Members(vec![
        Command::new("health", "show the health of all modules", move |call: Call| {
            let tree = shown.clone();
            async move { show(&tree, &call) }
        })
        .takes("[reporter-id-prefix]")
        .flag(matching())
        .flag(Flag::new("levels", FlagKind::Texts, "", "only these levels: ok,degraded,stopped").short('s'))
        .flag(out())
        .completes(move |_| complete(&known)),
        Command::new("health/ok", "check that nothing is degraded", move |call: Call| {
            let tree = judged.clone();
            async move { judge(&tree, &call) }
        })
        .takes("[reporter-id-prefix]")
        .flag(matching())
        .completes(move |_| complete(&asked)),
        Command::new("health/history", "show what went wrong or ended", move |call: Call| {
            let tree = told.clone();
            async move {
                let [] = call.exactly()?;
                let lines: String = tree.history().iter().map(|line| format!("{line}\n")).collect();
                call.to_file_or_log("output", &lines)
            }
        })
        .flag(out()),
    ])
}

/// The reports that the arguments ask for.
fn wanted(tree: &HealthTree, call: &Call) -> anyhow::Result<Vec<Status>> {
    let prefix = call.at_most_one()?.unwrap_or_default();
    let (text, levels) = (call.flags.text("match"), call.flags.texts("levels"));
    let mut found = tree.snapshot();
    found.retain(|status| {
        let level = status.level.to_string();
        status.path().starts_with(prefix)
            && (levels.is_empty() || levels.iter().any(|wanted| wanted.eq_ignore_ascii_case(&level)))
            && format!("{}: [{level}] {} {}", status.path(), status.message, status.error).contains(text)
    });
    Ok(found)
}

fn show(tree: &HealthTree, call: &Call) -> anyhow::Result<Output> {
    let found = wanted(tree, call)?;
    let narrowed = !call.args.is_empty() || call.flags.given("match");
    ensure!(!narrowed || !found.is_empty(), "no health reports match");
    call.to_file_or_log("output", &tree::draw(&found, SystemTime::now()))
}

fn judge(tree: &HealthTree, call: &Call) -> anyhow::Result<Output> {
    let mut bad = wanted(tree, call)?;
    bad.retain(|status| status.level == Level::Degraded);
    let names: Vec<String> = bad.iter().map(|s| format!("{}: {} {}", s.path(), s.message, s.error)).collect();
    ensure!(bad.is_empty(), "degraded: {}", names.join("; "));
    Ok(Output::none())
}
