//! The command `subnet/map-dump` of scripts and of the shell.

use std::fmt::Write as _;
use std::sync::Arc;

use hive::prelude::*;
use hive_command::{Call, Command, Output};
use maps::Maps;

use crate::map;

pub(crate) fn commands(maps: Arc<Maps>) -> Members<Command> {
    let dump = Command::new("subnet/map-dump", "dump the map of subnets", move |call: Call| {
        let maps = maps.clone();
        async move {
            let mut entries: Vec<(String, u32)> =
                map::entries(&maps)?.into_iter().map(|(prefix, group)| (prefix.to_string(), group)).collect();
            entries.sort();
            let text = entries.iter().fold(String::new(), |mut text, (prefix, group)| {
                let _ = writeln!(text, "PREFIX={prefix} IDENTITY=identity={group}");
                text
            });
            match call.at_most_one()? {
                None => Ok(Output::text(text)),
                Some(file) => {
                    call.write(file, text)?;
                    Ok(Output::none())
                }
            }
        }
    });
    Members(vec![dump.takes("[file]")])
}
