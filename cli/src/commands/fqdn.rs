//! `fqdn`: the DNS names that endpoints have looked up, with their addresses, and the names that policies select.

use std::fmt::Write as _;
use std::io::{self, BufRead as _, Write};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::client::Agent;
use crate::commands::list::Listing;
use crate::output::{Output, table};

#[derive(Debug, Subcommand)]
pub(crate) enum FqdnCommand {
    /// Manage the cache of DNS names
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Show the names that policies select, with their regular expressions, as JSON
    Names(Listing),
}

#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// List names with their addresses
    #[command(visible_alias = "ls")]
    List(ListOptions),
    /// Remove names: their addresses lose the identities that policies by name gave them
    #[command(visible_alias = "purge")]
    Clean(CleanOptions),
}

#[derive(Debug, Args)]
pub(crate) struct ListOptions {
    /// Only names of the endpoint with this id
    #[arg(short, long, value_name = "ID")]
    endpoint: Option<u16>,
    /// Only names that match this pattern, as `*.example.com`
    #[arg(short = 'p', long = "matchpattern", value_name = "PATTERN")]
    pattern: Option<String>,
    /// Only names by answers (`lookup`), or kept by connections (`connection`)
    #[arg(short, long, value_name = "SOURCE")]
    source: Option<String>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct CleanOptions {
    /// Only names that match this pattern, as `*.example.com`
    #[arg(short = 'p', long = "matchpattern", value_name = "PATTERN")]
    pattern: Option<String>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    force: bool,
}

/// A row of the cache, as the API has it.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Lookup {
    fqdn: String,
    ips: Vec<String>,
    ttl: i64,
    lookup_time: String,
    expiration_time: String,
    endpoint_id: i64,
    source: String,
}

/// Runs a verb of `fqdn`.
pub(crate) fn run(agent: &mut Agent, command: &FqdnCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        FqdnCommand::Cache(CacheCommand::List(options)) => list(agent, options, out),
        FqdnCommand::Cache(CacheCommand::Clean(options)) => clean(agent, options, out),
        FqdnCommand::Names(options) => {
            let names: Value = agent.get("/fqdn/names").context("cannot get the names of policies")?;
            if !options.output.write(&names, out)? {
                writeln!(out, "{names:#}")?;
            }
            Ok(())
        }
    }
}

fn list(agent: &mut Agent, options: &ListOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    let id = options.endpoint.map(|id| format!("/{id}")).unwrap_or_default();
    let filters = [("matchpattern", options.pattern.as_ref()), ("source", options.source.as_ref())];
    let path = format!("/fqdn/cache{id}{}", query(&filters));
    let found: Option<Vec<Lookup>> = agent.find(&path).context("cannot get the cache of DNS names")?;
    let lookups = found.unwrap_or_default();
    if options.output.write(&lookups, out)? {
        return Ok(());
    }
    let mut text = "Endpoint\tSource\tFQDN\tTTL\tExpirationTime\tIPs\n".to_owned();
    for Lookup { fqdn, ips, ttl, expiration_time, endpoint_id, source, .. } in &lookups {
        let ips = ips.join(",");
        let _ = writeln!(text, "{endpoint_id}\t{source}\t{fqdn}\t{ttl}\t{expiration_time}\t{ips}");
    }
    Ok(table(&text, 5, out)?)
}

fn clean(agent: &mut Agent, options: &CleanOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    let which = options.pattern.as_deref().map_or_else(
        || "All names are removed from the cache".to_owned(),
        |pattern| format!("Names that match {pattern} are removed from the cache"),
    );
    if !options.force && !is_confirmed(&which)? {
        return Ok(writeln!(out, "Nothing is removed")?);
    }
    let path = format!("/fqdn/cache{}", query(&[("matchpattern", options.pattern.as_ref())]));
    agent.change("DELETE", &path, None).context("cannot remove names from the cache")?;
    Ok(writeln!(out, "FQDN proxy cache cleared")?)
}

/// Asks on stderr: a script that reads the output must not find the question in it.
fn is_confirmed(which: &str) -> io::Result<bool> {
    write!(io::stderr(), "{which}, and connections to their addresses may be denied. Continue? [y/N] ")?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

/// Returns the query of a request with the parameters that are given.
fn query(parameters: &[(&str, Option<&String>)]) -> String {
    let mut text = String::new();
    for (name, value) in parameters {
        if let Some(value) = value {
            let separator = if text.is_empty() { '?' } else { '&' };
            let _ = write!(text, "{separator}{name}={}", api_client::escape(value));
        }
    }
    text
}
