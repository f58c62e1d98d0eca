//! `statedb`: dumps of the agent's tables.

use crate::client::Agent;
use crate::output::Output;
use anyhow::{Context as _, bail};
use api_client::escape;
use clap::Args;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::io::Write;

#[derive(Debug, Args)]
pub(crate) struct TablesOptions {
    /// Tables; all of them if none is named
    pub(crate) tables: Vec<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Prints all tables, or the named ones; without `-o` in the agent's own format.
pub(crate) fn run(agent: &mut Agent, options: &TablesOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut tables = Map::new();
    for name in options.tables.iter().map(Some).chain(options.tables.is_empty().then_some(None)) {
        let (path, named) = match name {
            Some(name) => (format!("/statedb/dump/{}", escape(name)), name.as_str()),
            None => ("/statedb/dump".to_owned(), ""),
        };
        let answer = agent.call_plain("GET", &path)?;
        if answer.status != 200 {
            bail!("cannot read table {named}: {}", answer.words());
        }
        let read: Map<String, Value> =
            serde_json::from_slice(&answer.body).context("the agent's answer cannot be decoded")?;
        if name.is_some() && !read.contains_key(named) {
            bail!("there is no table {named}");
        }
        if options.output.format.is_none() {
            out.write_all(&answer.body)?;
        }
        tables.extend(read);
    }
    options.output.write(&tables, out)?;
    Ok(())
}

/// Returns the rows of a table.
pub(crate) fn rows<T: for<'a> Deserialize<'a>>(agent: &mut Agent, table: &str) -> anyhow::Result<Vec<T>> {
    let response = agent.call_plain("GET", &format!("/statedb/dump/{table}"))?;
    if response.status != 200 {
        bail!("cannot read table {table}: {}", response.words());
    }
    let mut tables: Map<String, Value> =
        serde_json::from_slice(&response.body).context("the agent's answer cannot be decoded")?;
    let rows = tables.remove(table).unwrap_or_default();
    Ok(serde_json::from_value::<Option<Vec<T>>>(rows)
        .with_context(|| format!("table {table} cannot be decoded"))?
        .unwrap_or_default())
}
