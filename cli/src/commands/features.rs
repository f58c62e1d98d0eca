//! `encrypt`, `bgp`, `prefilter` and `cgroups`: features that scripts ask for whether they are on or off.

use std::fmt::Write as _;
use std::io::Write;

use anyhow::{Context as _, bail};
use api_models::{CgroupDumpMetadata, EncryptionStatus, Prefilter, PrefilterSpec, StatusResponse};
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::client::Agent;
use crate::commands::absent::{Anything, Feature, refuse};
use crate::commands::list::{List, Listing};
use crate::output::{Output, table};

#[derive(Debug, Subcommand)]
pub(crate) enum EncryptCommand {
    /// Display the current encryption state
    Status(Listing),
    /// Remove all states and policies of xfrm
    #[command(hide = true)]
    Flush(Anything),
    /// Dump states and policies of xfrm
    #[command(name = "dump-xfrm", hide = true)]
    DumpXfrm(Anything),
}

#[derive(Debug, Subcommand)]
pub(crate) enum BgpCommand {
    /// List state of all peers
    Peers(BgpPeers),
    /// List routes: those that are available or advertised, of all peers
    Routes(BgpRoutes),
    /// List route policies
    RoutePolicies(Listing),
}

#[derive(Debug, Args)]
pub(crate) struct BgpPeers {
    /// List capabilities of each peer, which are in the answer anyway
    #[arg(short, long)]
    capabilities: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct BgpRoutes {
    /// Table and address family, as `available ipv4 unicast`
    words: Vec<String>,
    #[command(flatten)]
    output: Output,
}

/// Runs a verb of `encrypt`.
pub(crate) fn encrypt(
    agent: &mut Agent,
    command: &EncryptCommand,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let EncryptCommand::Status(options) = command else { return refuse(Feature::Ipsec) };
    let status: StatusResponse = agent.get("/healthz").context("cannot get daemon encryption status")?;
    let off = || EncryptionStatus { mode: "Disabled".to_owned(), ..Default::default() };
    let status = status.encryption.unwrap_or_else(off);
    if options.output.write(&status, out)? {
        return Ok(());
    }
    Ok(writeln!(out, "Encryption: {:<26}", status.mode)?)
}

/// Runs a verb of `bgp`.
pub(crate) fn bgp(agent: &mut Agent, command: &BgpCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    let (path, output) = match command {
        BgpCommand::Peers(options) => ("/bgp/peers".to_owned(), &options.output),
        BgpCommand::RoutePolicies(options) => ("/bgp/route-policies".to_owned(), &options.output),
        BgpCommand::Routes(BgpRoutes { words, output }) => {
            let word = |n: usize, other: &'static str| words.get(n).map_or(other, String::as_str);
            if words.is_empty() && output.format.is_none() {
                writeln!(
                    out,
                    "(Defaulting to `available ipv4 unicast` routes, please see help for more options)\n"
                )?;
            }
            let table = match word(0, "available") {
                "available" => "loc-rib",
                "advertised" => "adj-rib-out",
                other => other,
            };
            let (kind, afi, safi) = (table, word(1, "ipv4"), word(2, "unicast"));
            let escaped = [kind, afi, safi].map(api_client::escape);
            let [kind, afi, safi] = &escaped;
            (format!("/bgp/routes?table_type={kind}&afi={afi}&safi={safi}"), output)
        }
    };
    let answer = agent.call("GET", &path, &[], None)?;
    match answer.status {
        200 => {
            let value: Value = serde_json::from_slice(&answer.body)?;
            if !output.write(&value, out)? {
                writeln!(out, "{value:#}")?;
            }
            Ok(())
        }
        // As a state of the feature, not as an error, which scripts rely on.
        501 => Ok(writeln!(out, "BGP Control Plane is disabled")?),
        _ => bail!(answer.words()),
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum PrefilterCommand {
    /// List the ranges of senders that are dropped
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Add ranges
    Update(PrefilterChange),
    /// Remove ranges
    Delete(PrefilterChange),
}

#[derive(Debug, Args)]
pub(crate) struct PrefilterChange {
    /// Ranges, such as 192.0.2.0/24, separated by commas
    #[arg(long, required = true, value_delimiter = ',')]
    cidr: Vec<String>,
    /// Revision of the list that is to be changed, as `list` shows it
    #[arg(long)]
    revision: i64,
}

/// Runs `prefilter`.
pub(crate) fn prefilter(
    agent: &mut Agent,
    command: &PrefilterCommand,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let (method, change) = match command {
        PrefilterCommand::List(options) => {
            let list: Prefilter = agent.get("/prefilter").context("cannot get CIDR list")?;
            if options.output.write(&list, out)? {
                return Ok(());
            }
            let spec = list.status.and_then(|status| status.realized).unwrap_or_default();
            writeln!(out, "Revision: {}", spec.revision)?;
            return Ok(spec.deny.iter().try_for_each(|range| writeln!(out, "{range}"))?);
        }
        PrefilterCommand::Update(change) => ("PATCH", change),
        PrefilterCommand::Delete(change) => ("DELETE", change),
    };
    let spec = PrefilterSpec { deny: change.cidr.clone().into(), revision: change.revision };
    agent
        .change(method, "/prefilter", Some(&serde_json::to_value(&spec)?))
        .context("cannot change CIDR list")?;
    Ok(())
}

#[derive(Debug, Args)]
pub(crate) struct CgroupsListing {
    /// Do not print headers
    #[arg(long)]
    no_headers: bool,
    #[command(flatten)]
    output: Output,
}

/// Runs `cgroups list`.
pub(crate) fn cgroups(
    agent: &mut Agent,
    List::List(options): &List<CgroupsListing>,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let metadata: CgroupDumpMetadata =
        agent.get("/cgroup-dump-metadata").context("cannot get metadata of cgroups")?;
    if options.output.write(&metadata.pod_metadatas, out)? {
        return Ok(());
    }
    let header = if options.no_headers { "" } else { "POD NAME\tPOD NAMESPACE\tCGROUP IDS\t\n" };
    let mut text = header.to_owned();
    for pod in metadata.pod_metadatas.iter() {
        for (n, container) in pod.containers.iter().enumerate() {
            let (name, namespace) = if n == 0 { (&*pod.name, &*pod.namespace) } else { ("", "") };
            let _ = writeln!(text, "{name}\t{namespace}\t{}\t", container.cgroup_id);
        }
    }
    Ok(table(&text, 5, out)?)
}
