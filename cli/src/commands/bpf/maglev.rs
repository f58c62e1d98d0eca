//! `bpf lb maglev`: the backends in the Maglev table of a frontend.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context as _, bail};
use bpf::{Map, RawMap, bytes_of, values_of};
use clap::Subcommand;

use super::pinned::{is_missing, open, pairs};
use crate::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum MaglevCommand {
    /// List Maglev lookup tables
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Get Maglev lookup table for given service by ID
    Get {
        /// Number of the service, as `bpf lb list --revnat` shows it
        #[arg(value_name = "service id")]
        id: u16,
        #[command(flatten)]
        output: Output,
    },
}

const TITLES: &str = "SVC ID\tLOOKUP TABLE";
const FAMILIES: [(&str, &str); 2] = [("cilium_lb4_maglev", "v4"), ("cilium_lb6_maglev", "v6")];

/// Ids of backends by frontend, as `[3]/v4`.
type Tables = BTreeMap<String, Vec<String>>;

pub(crate) fn run(command: &MaglevCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        MaglevCommand::List { output } => pairs(TITLES, &tables(|_| true)?, output, out),
        MaglevCommand::Get { id, output } => {
            let tables = tables(|found| found == *id)?;
            if tables.is_empty() {
                bail!(
                    "service {id} has no Maglev lookup table; `bpf lb maglev list` shows those that there are"
                );
            }
            pairs(TITLES, &tables, output, out)
        }
    }
}

/// Returns the tables of these frontends. A map that does not exist has none: its family or the algorithm is disabled.
fn tables(wanted: impl Fn(u16) -> bool) -> anyhow::Result<Tables> {
    let mut tables = Tables::new();
    for (name, family) in FAMILIES {
        let outer: Map<u16, u32> = match open(name) {
            Ok(map) => Map::new(map)?,
            Err(error) if is_missing(&error) => continue,
            Err(error) => return Err(error),
        };
        for (key, inner) in outer.entries()? {
            let id = u16::from_be(key);
            if wanted(id) {
                let backends = RawMap::open_id(inner)
                    .map_err(Into::into)
                    .and_then(|map| read(&map))
                    .with_context(|| format!("cannot read table {id} of {name}"))?;
                tables.insert(format!("[{id}]/{family}"), vec![text(&backends)]);
            }
        }
    }
    Ok(tables)
}

/// Returns the backends in an inner map, by position.
pub(in crate::commands) fn read(map: &RawMap) -> anyhow::Result<Vec<u32>> {
    let mut value = vec![0; map.value_len()];
    map.lookup(bytes_of(&[0_u32]), &mut value)?;
    Ok(values_of(&value))
}

fn text(backends: &[u32]) -> String {
    let numbers: Vec<String> = backends.iter().map(u32::to_string).collect();
    format!("[{}]", numbers.join(" "))
}
