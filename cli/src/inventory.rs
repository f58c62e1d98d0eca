//! `ip`, `node` and `map`: lists of what the agent keeps.

use crate::agent::Agent;
use crate::args::{IpOptions, Listing, Output};
use crate::identity;
use crate::output::table;
use anyhow::Context as _;
use api_client::escape;
use api_models::{BpfMap, BpfMapList, ClusterNodeStatus, IpListEntry, NodeElement};
use std::fmt::Write as _;
use std::io::Write;
use std::net::IpAddr;

pub(crate) fn ips(agent: &mut Agent, options: &IpOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    let found: Option<Vec<IpListEntry>> = agent.find("/ip").context("cannot get ipcache entries")?;
    print_ips(agent, found.unwrap_or_default(), options, out)
}

/// Entries of a prefix, or of all identities with the labels.
pub(crate) fn ip(
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
    print_ips(agent, found.with_context(|| format!("cannot get ipcache entries of {what}"))?, options, out)
}

fn print_ips(
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

/// IPv4 before IPv6, by address, then by length.
fn prefix_order(cidr: &str) -> (bool, Option<IpAddr>, Option<u8>) {
    let (address, length) = cidr.split_once('/').unwrap_or((cidr, ""));
    let address: Option<IpAddr> = address.parse().ok();
    (address.is_none_or(|address| address.is_ipv6()), address, length.parse().ok())
}

/// The lines of the column IDENTITY: a reserved name, labels, or the number.
fn identities(agent: &mut Agent, entry: &IpListEntry, numeric: bool) -> Vec<String> {
    let number = entry.identity.0;
    let plain = vec![number.to_string()];
    let Some(number) = u32::try_from(number).ok().filter(|_| !numeric) else { return plain };
    match datapath_abi::identity::label(number) {
        Some(name) => vec![name.to_owned()],
        None => identity::labels_of(agent, number).ok().flatten().unwrap_or(plain),
    }
}

pub(crate) fn nodes(agent: &mut Agent, options: &Listing, out: &mut dyn Write) -> anyhow::Result<()> {
    let cluster: ClusterNodeStatus = agent.get("/cluster/nodes").context("cannot get nodes")?;
    if options.output.write(&cluster.nodes_added, out)? {
        return Ok(());
    }
    let mut lines: Vec<String> = cluster.nodes_added.iter().map(node_line).collect();
    lines.sort();
    let header = "Name\tIPv4 Address\tEndpoint CIDR\tIPv6 Address\tEndpoint CIDR\tSource\n";
    Ok(table(&(header.to_owned() + &lines.concat()), 0, out)?)
}

fn node_line(node: &NodeElement) -> String {
    let primary = node.primary_address.clone().unwrap_or_default();
    let (ipv4, ipv6) = (primary.ipv4.unwrap_or_default(), primary.ipv6.unwrap_or_default());
    let NodeElement { name, source, .. } = node;
    format!("{name}\t{}\t{}\t{}\t{}\t{source}\n", ipv4.ip, ipv4.alloc_range, ipv6.ip, ipv6.alloc_range)
}

pub(crate) fn maps(
    agent: &mut Agent,
    verbose: bool,
    output: &Output,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
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
        let _ = writeln!(text, "{}\t{}\t{errors}\t{}", name(map), map.cache.len(), map.cache.0.is_some());
    }
    Ok(table(&text, 5, out)?)
}

pub(crate) fn map(agent: &mut Agent, name: &str, output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let map: BpfMap =
        agent.get(&format!("/map/{}", escape(name))).with_context(|| format!("cannot get map {name}"))?;
    if output.write(&map, out)? { Ok(()) } else { entries(&map, out) }
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
