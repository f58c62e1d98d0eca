//! `bpf policy`: the policy maps of endpoints.

use super::format;
use super::pinned::{globals, open, rows};
use crate::client::Agent;
use crate::commands::identity;
use crate::output::{Output, table};
use bpf::PerCpuMap;
use clap::{Args, Subcommand};
use datapath_abi::{PolicyEntry, PolicyKey, PolicyStatsKey, PolicyStatsValue};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Get contents of a policy BPF map
    Get(PolicyGetOptions),
    /// List all policy BPF maps with their contents
    #[command(visible_alias = "ls")]
    List {
        /// Do not resolve IDs
        #[arg(short, long)]
        numeric: bool,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub(crate) struct PolicyGetOptions {
    /// Number of the endpoint
    #[arg(required_unless_present = "all")]
    pub(crate) id: Option<u16>,
    /// Do not resolve IDs
    #[arg(short, long)]
    pub(crate) numeric: bool,
    /// Dump all policy maps
    #[arg(long, conflicts_with = "id")]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Runs a verb of `bpf policy`.
pub(super) fn run(agent: &mut Agent, command: &PolicyCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        PolicyCommand::Get(options) => get(agent, options, out),
        PolicyCommand::List { numeric, output } => list(agent, *numeric, output, out),
    }
}

const POLICY_PREFIX: &str = "cilium_policy_v2_";

/// An entry of a policy map with its counters, with the field names of Cilium's JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct PolicyRow {
    proxy_port_network: u16,
    flags: u8,
    auth_requirement: u8,
    precedence: u32,
    cookie: u32,
    packets: u64,
    bytes: u64,
    key: PolicyRowKey,
    #[serde(skip)]
    raw: (PolicyKey, PolicyEntry),
    #[serde(skip)]
    counted: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct PolicyRowKey {
    prefixlen: u32,
    identity: u32,
    traffic_direction: u8,
    nexthdr: u8,
    dest_port_network: u16,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct PolicyMap {
    #[serde(rename = "EndpointID")]
    endpoint_id: String,
    path: PathBuf,
    content: Vec<PolicyRow>,
}

fn get(agent: &mut Agent, options: &PolicyGetOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    let stats = policy_stats();
    if let Some(id) = options.id {
        let content = policy_rows(&format!("{POLICY_PREFIX}{id:05}"), id, stats.as_ref())?;
        return if options.output.write(&content, out)? {
            Ok(())
        } else {
            policy_table(agent, &content, options.numeric, out)
        };
    }
    list(agent, options.numeric, &options.output, out)
}

/// Prints the policy maps of all endpoints.
fn list(agent: &mut Agent, numeric: bool, output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let stats = policy_stats();
    let globals = globals()?;
    let mut maps = Vec::new();
    for name in bpf::names_in(&globals)?.into_iter().filter(|name| name.starts_with(POLICY_PREFIX)) {
        let Ok(id) = name[POLICY_PREFIX.len()..].parse() else { continue };
        let content = policy_rows(&name, id, stats.as_ref())?;
        maps.push(PolicyMap { endpoint_id: id.to_string(), path: globals.join(&name), content });
    }
    if output.write(&maps, out)? {
        return Ok(());
    }
    if maps.is_empty() {
        writeln!(out, "no maps found")?;
    }
    for map in &maps {
        writeln!(out, "Endpoint ID: {}\nPath: {}\n", map.endpoint_id, map.path.display())?;
        policy_table(agent, &map.content, numeric, out)?;
        writeln!(out, "\n")?;
    }
    Ok(())
}

type PolicyStats = PerCpuMap<PolicyStatsKey, PolicyStatsValue>;

/// Opens the counters of all policy maps; `None` if policy accounting is off.
fn policy_stats() -> Option<PolicyStats> {
    PerCpuMap::new(open("cilium_policystats").ok()?).ok()
}

/// Returns the entries, denying ones first, then by direction and identity.
fn policy_rows(name: &str, id: u16, stats: Option<&PolicyStats>) -> anyhow::Result<Vec<PolicyRow>> {
    let mut rows = rows::<PolicyKey, PolicyEntry>(name)?;
    rows.sort_by_key(|(key, entry)| {
        (!entry.deny(), key.egress, key.sec_label, key.protocol, u16::from_be(key.dport))
    });
    Ok(rows.iter().map(|(key, entry)| policy_row(*key, *entry, count(id, key, stats))).collect())
}

fn count(id: u16, key: &PolicyKey, stats: Option<&PolicyStats>) -> Option<PolicyStatsValue> {
    let stats_key = PolicyStatsKey {
        endpoint_id: id,
        pad1: 0,
        prefix_len: u8::try_from(format::prefix_length(key)).ok()?,
        sec_label: key.sec_label,
        egress: key.egress,
        protocol: key.protocol,
        dport: key.dport,
    };
    let values = stats?.lookup(&stats_key).ok().flatten().unwrap_or_default();
    let (packets, bytes) =
        (values.iter().map(|value| value.packets).sum(), values.iter().map(|value| value.bytes).sum());
    Some(PolicyStatsValue { packets, bytes })
}

fn policy_row(key: PolicyKey, entry: PolicyEntry, count: Option<PolicyStatsValue>) -> PolicyRow {
    // Cilium prints this value as "not available".
    let value = count.unwrap_or(PolicyStatsValue { packets: u64::MAX, bytes: u64::MAX });
    PolicyRow {
        proxy_port_network: entry.proxy_port,
        flags: entry.flags,
        auth_requirement: entry.auth_type,
        precedence: entry.precedence,
        cookie: entry.cookie,
        packets: value.packets,
        bytes: value.bytes,
        key: PolicyRowKey {
            prefixlen: key.prefixlen,
            identity: key.sec_label,
            traffic_direction: key.egress & 1,
            nexthdr: key.protocol,
            dest_port_network: key.dport,
        },
        raw: (key, entry),
        counted: count.is_some(),
    }
}

fn policy_table(
    agent: &mut Agent,
    rows: &[PolicyRow],
    numeric: bool,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    const AUTH_TYPES: [&str; 3] = ["disabled", "spire", "test-always-fail"];
    let peer = if numeric { "IDENTITY" } else { "LABELS (source:key[=value])" };
    let mut text = format!(
        "POLICY\tDIRECTION\t{peer}\tPORT/PROTO\tPROXY PORT\tAUTH TYPE\tBYTES\tPACKETS\tPREFIX\tCOOKIE\n"
    );
    for row in rows {
        let (key, entry) = &row.raw;
        let number = key.sec_label;
        let mut labels = vec![number.to_string()];
        if !numeric && let Ok(Some(found)) = identity::labels_of(agent, number) {
            labels = found;
        }
        let verdict = if entry.deny() { "Deny" } else { "Allow" };
        let proxy = match u16::from_be(entry.proxy_port) {
            0 => "NONE".to_owned(),
            port => port.to_string(),
        };
        let auth = usize::from(entry.auth_type & !datapath_abi::policy_flag::EXPLICIT_AUTH);
        let auth = AUTH_TYPES.get(auth).copied().unwrap_or("unknown");
        let counter =
            |value: u64| if row.counted && row.packets > 0 { value.to_string() } else { "-".to_owned() };
        let _ = writeln!(
            text,
            "{verdict}\t{}\t{}\t{}\t{proxy}\t{auth}\t{}\t{}\t{}\t{}",
            format::direction(key),
            labels[0],
            format::port_and_protocol(key),
            counter(row.bytes),
            counter(row.packets),
            format::prefix_length(key),
            row.cookie,
        );
        for label in &labels[1..] {
            let _ = writeln!(text, "\t\t{label}\t\t\t\t\t\t\t");
        }
    }
    table(&text, 5, out)?;
    if rows.is_empty() {
        writeln!(out, "Policy stats empty. Perhaps the policy enforcement is disabled?")?;
    }
    Ok(())
}
