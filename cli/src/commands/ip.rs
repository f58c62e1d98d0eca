//! `ip`: addresses and prefixes with their identities.

use crate::client::Agent;
use crate::commands::identity;
use crate::output::{Output, table};
use anyhow::Context as _;
use api_client::escape;
use api_models::IpListEntry;
use clap::{Args, Subcommand};
use std::fmt::Write as _;
use std::io::Write;
use std::net::IpAddr;

#[derive(Debug, Subcommand)]
pub(crate) enum IpCommand {
    /// List IP addresses in the userspace IPcache
    #[command(visible_alias = "ls")]
    List(IpOptions),
    /// Display IP information
    Get {
        /// An address or a prefix
        #[arg(required_unless_present = "labels", conflicts_with = "labels")]
        prefix: Option<String>,
        /// Everything with these labels
        #[arg(short, long, value_delimiter = ',')]
        labels: Vec<String>,
        #[command(flatten)]
        options: IpOptions,
    },
}

#[derive(Debug, Args)]
pub(crate) struct IpOptions {
    /// Print numeric identities
    #[arg(short, long)]
    pub(crate) numeric: bool,
    /// Print all fields of ipcache
    #[arg(short, long)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Runs a verb of `ip`.
pub(crate) fn run(agent: &mut Agent, command: &IpCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        IpCommand::List(options) => list(agent, options, out),
        IpCommand::Get { prefix, labels, options } => get(agent, prefix.as_deref(), labels, options, out),
    }
}

fn list(agent: &mut Agent, options: &IpOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    let found: Option<Vec<IpListEntry>> = agent.find("/ip").context("cannot get ipcache entries")?;
    print(agent, found.unwrap_or_default(), options, out)
}

/// Entries of a prefix, or of all identities with the labels.
fn get(
    agent: &mut Agent,
    prefix: Option<&str>,
    labels: &[String],
    options: &IpOptions,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let (found, what): (anyhow::Result<Option<Vec<IpListEntry>>>, String) = match prefix {
        Some(prefix) => {
            let whole = match prefix.parse::<IpAddr>() {
                Ok(IpAddr::V4(address)) => format!("{address}/32"),
                Ok(IpAddr::V6(address)) => format!("{address}/128"),
                Err(_) => prefix.to_owned(),
            };
            (agent.find(&format!("/ip?cidr={}", escape(&whole))), prefix.to_owned())
        }
        None => (agent.find_by_labels("/ip", labels), labels.join(",")),
    };
    let found = found.and_then(|found| found.context("not found"));
    let found = found.with_context(|| format!("cannot get ipcache entries of {what}"))?;
    match prefix {
        None if options.output.format.is_none() && !options.numeric && !options.verbose => {
            print_pods(found, labels, out)
        }
        _ => print(agent, found, options, out),
    }
}

/// Prints the entries of labels: their nodes and pods.
fn print_pods(mut entries: Vec<IpListEntry>, labels: &[String], out: &mut dyn Write) -> anyhow::Result<()> {
    entries.sort_by_cached_key(|entry| prefix_order(&entry.cidr));
    let line = "===========================";
    writeln!(out, "{line}\nLabels:")?;
    labels.iter().try_for_each(|label| writeln!(out, "    {label}"))?;
    writeln!(out, "{line}")?;
    let mut text = "IP\tHOST\tIDENTITY\tPOD\tNAMESPACE\n".to_owned();
    for entry in entries {
        let pod = entry.metadata.unwrap_or_default();
        let (cidr, host, identity) = (&entry.cidr.0, &entry.host_ip, entry.identity.0);
        let _ = writeln!(text, "{cidr}\t{host}\t{identity}\t{}\t{}", pod.name, pod.namespace);
    }
    Ok(table(&text, 5, out)?)
}

fn print(
    agent: &mut Agent,
    mut entries: Vec<IpListEntry>,
    options: &IpOptions,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    entries.sort_by_cached_key(|entry| prefix_order(&entry.cidr));
    if options.output.write(&entries, out)? {
        return Ok(());
    }
    let mut text =
        if options.verbose { "IP\tIDENTITY\tSOURCE\tHOST\tENCRYPT_KEY\n" } else { "IP\tIDENTITY\tSOURCE\n" }
            .to_owned();
    for entry in &entries {
        let mut identities = identities(agent, entry, options.numeric).into_iter();
        let first = identities.next().unwrap_or_default();
        let source = entry.metadata.as_ref().map_or("", |metadata| metadata.source.as_str());
        let _ = write!(text, "{}\t{first}\t{source}", entry.cidr.0);
        if options.verbose {
            let _ = write!(text, "\t{}\t{}", entry.host_ip, entry.encrypt_key);
        }
        text.push('\n');
        for identity in identities {
            let _ = writeln!(text, "\t{identity}\t");
        }
    }
    Ok(table(&text, 5, out)?)
}

/// Orders by length, then IPv4 before IPv6, then by address.
fn prefix_order(cidr: &str) -> (Option<u8>, Option<IpAddr>) {
    let (address, length) = cidr.split_once('/').unwrap_or((cidr, ""));
    (length.parse().ok(), address.parse().ok())
}

/// Returns the lines of the column IDENTITY: labels, or the id.
fn identities(agent: &mut Agent, entry: &IpListEntry, numeric: bool) -> Vec<String> {
    let number = entry.identity.0;
    let plain = vec![number.to_string()];
    let Some(number) = u32::try_from(number).ok().filter(|_| !numeric) else { return plain };
    identity::labels_of(agent, number).ok().flatten().unwrap_or(plain)
}
