//! The command `skiplbmap` of scripts and of the shell.

use std::fmt::Write;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use hive::prelude::*;
use hive_command::{Call, Command, Output};

use crate::skip_map::SkipMapsProvider;

pub(crate) fn commands(maps: Arc<SkipMapsProvider>) -> Member<Command> {
    let dump = Command::new("skiplbmap", "dump the skip maps", move |call: Call| {
        let maps = maps.clone();
        async move {
            let file = call.at_most_one()?.context("invalid usage: output file needed")?;
            call.write(file, dump(&maps)?)?;
            Ok(Output::none())
        }
    });
    Member(dump.takes("file"))
}

fn dump(maps: &SkipMapsProvider) -> anyhow::Result<String> {
    let rows = maps.maps().and_then(|maps| maps.rows()).map_err(|error| anyhow!(error))?;
    let mut lines: Vec<String> = rows.iter().map(ToString::to_string).collect();
    lines.sort();
    lines.dedup();
    let mut text = String::new();
    for line in lines {
        let _ = writeln!(text, "{line}");
    }
    Ok(text)
}
