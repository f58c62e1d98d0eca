//! `map`: the open maps with their cached contents and the agent's writes to them.

use crate::client::Agent;
use crate::output::{Output, table};
use anyhow::{Context as _, bail};
use api_client::escape;
use api_models::{BpfMap, BpfMapList, MapEvent};
use clap::Subcommand;
use std::fmt::Write as _;
use std::io::Write;

#[derive(Debug, Subcommand)]
pub(crate) enum MapCommand {
    /// List all open BPF maps
    #[command(visible_alias = "ls")]
    List {
        /// Print cache contents of all maps
        #[arg(long)]
        verbose: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Display recent writes of the agent to a map
    Events {
        /// Name of the map
        name: String,
        /// Go on with those to come
        #[arg(short, long)]
        follow: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Display cached content of given BPF map
    Get {
        /// Name of the map
        name: String,
        #[command(flatten)]
        output: Output,
    },
}

/// Runs a verb of `map`.
pub(crate) fn run(agent: &mut Agent, command: &MapCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        MapCommand::List { verbose, output } => list(agent, *verbose, output, out),
        MapCommand::Events { name, follow, output } => events(agent, name, *follow, output, out),
        MapCommand::Get { name, output } => get(agent, name, output, out),
    }
}

fn list(agent: &mut Agent, verbose: bool, output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let list: BpfMapList = agent.get("/map").context("cannot get maps")?;
    if output.write(&list, out)? {
        return Ok(());
    }
    if verbose {
        for map in list.maps.iter() {
            writeln!(out, "## Map: {}", name(map))?;
            entries(map, out)?;
            writeln!(out)?;
        }
        return Ok(());
    }
    let mut text = "Name\tNum entries\tNum errors\tCache enabled\n".to_owned();
    for map in list.maps.iter() {
        let errors = map.cache.iter().filter(|entry| !entry.last_error.is_empty()).count();
        let entries =
            map.cache.0.as_ref().map_or_else(|| "unknown".to_owned(), |cache| cache.len().to_string());
        let _ = writeln!(text, "{}\t{entries}\t{errors}\t{}", name(map), map.cache.0.is_some());
    }
    Ok(table(&text, 5, out)?)
}

fn get(agent: &mut Agent, name: &str, output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let map: BpfMap =
        agent.get(&format!("/map/{}", escape(name))).with_context(|| format!("cannot get map {name}"))?;
    if output.write(&map, out)? { Ok(()) } else { entries(&map, out) }
}

fn events(
    agent: &mut Agent,
    name: &str,
    follow: bool,
    output: &Output,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let path = format!("/map/{}/events?follow={follow}", escape(name));
    let mut lines = agent.lines("GET", &path)?;
    match lines.status {
        200 => {}
        404 => bail!("the agent keeps no events of map {name}"),
        status => bail!("cannot get events of map {name}: status {status}"),
    }
    while let Some(line) = lines.next_line()? {
        if line.is_empty() {
            continue;
        }
        let event: MapEvent =
            serde_json::from_slice(&line).context("the agent's answer cannot be decoded")?;
        if !output.write(&event, out)? {
            let MapEvent { key, value, timestamp, action, desired_action, last_error } = event;
            writeln!(
                out,
                "key={key:?} value={value:?} time={} action={action} desiredState={desired_action} \
                 lastError={last_error:?}",
                timestamp.0
            )?;
        }
        out.flush()?;
    }
    Ok(())
}

fn name(map: &BpfMap) -> &str {
    map.path.rsplit('/').next().unwrap_or_default()
}

fn entries(map: &BpfMap, out: &mut dyn Write) -> anyhow::Result<()> {
    match &map.cache.0 {
        None => writeln!(out, "Cache is disabled\n")?,
        Some(cache) if cache.is_empty() => writeln!(out, "Cache is empty\n")?,
        Some(cache) => {
            let mut text = "Key\tValue\tState\tError\n".to_owned();
            for entry in cache {
                let _ = writeln!(
                    text,
                    "{}\t{}\t{}\t{}",
                    entry.key, entry.value, entry.desired_action, entry.last_error
                );
            }
            table(&text, 5, out)?;
        }
    }
    Ok(())
}
