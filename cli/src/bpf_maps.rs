//! `bpf`: pinned maps, read from the kernel whether an agent runs or not.

use crate::agent::Agent;
use crate::args::{Output, PolicyGetOptions};
use crate::identity;
use crate::output::table;
use crate::words;
use anyhow::{Context as _, bail};
use bpf::{Map, PerCpuMap, RawMap};
use datapath_abi::{
    EndpointInfo, EndpointKey, IpcacheKey, MetricsKey, MetricsValue, Pod, PolicyEntry, PolicyKey,
    PolicyStatsKey, PolicyStatsValue, RemoteEndpointInfo, direction, drop, file, metric,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Where agents mount the bpf file system unless told otherwise, the second when the first is not one.
const ROOTS: [&str; 2] = ["/sys/fs/bpf", "/run/cilium/bpffs"];
const POLICY_PREFIX: &str = "cilium_policy_v2_";

pub(crate) fn require_root() -> anyhow::Result<()> {
    match fs::metadata("/proc/self") {
        Ok(process) if process.uid() != 0 => bail!("please run this command with root privileges"),
        _ => Ok(()),
    }
}

/// The folder of the maps: on a bpf file system in one of the usual places, else on the first of the mount table.
fn globals() -> anyhow::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read the mount table")?;
    let usual = ROOTS.iter().map(Path::new).find(|root| bpf::is_bpffs(root)).map(Path::to_owned);
    let root = usual.or_else(|| first_bpffs(&mounts)).context("no bpf file system is mounted")?;
    Ok(root.join("tc/globals"))
}

fn first_bpffs(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        (kind == "bpf").then(|| path.replace("\\040", " ").into())
    })
}

pub(crate) fn open(name: &str) -> anyhow::Result<RawMap> {
    let path = globals()?.join(name);
    RawMap::open(&path).with_context(|| format!("cannot open map {}", path.display()))
}

pub(crate) fn rows<K: Pod, V: Pod>(name: &str) -> anyhow::Result<Vec<(K, V)>> {
    Ok(Map::new(open(name)?)?.entries()?)
}

/// Two columns: a key and what it is.
pub(crate) fn pairs(
    titles: &str,
    rows: &BTreeMap<String, Vec<String>>,
    output: &Output,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    if output.write(rows, out)? {
        return Ok(());
    }
    let mut text = format!("{titles}\t\n");
    for (key, values) in rows {
        for (n, value) in values.iter().enumerate() {
            let _ = writeln!(text, "{}\t{value}\t", if n == 0 { key.as_str() } else { "" });
        }
    }
    Ok(table(&text, 5, out)?)
}

pub(crate) fn endpoints(output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let rows = rows::<EndpointKey, EndpointInfo>("cilium_lxc")?;
    let show = |(key, info): &(EndpointKey, EndpointInfo)| {
        Some((format!("{}:{}", key.ip()?, key.cluster_id), vec![words::endpoint(info)]))
    };
    pairs("IP ADDRESS\tLOCAL ENDPOINT INFO", &rows.iter().filter_map(show).collect(), output, out)
}

pub(crate) fn ipcache(output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let rows = rows::<IpcacheKey, RemoteEndpointInfo>("cilium_ipcache_v2")?;
    let show = |(key, info): &(IpcacheKey, RemoteEndpointInfo)| {
        let cluster = if key.cluster_id == 0 { String::new() } else { format!("@{}", key.cluster_id) };
        Some((format!("{}/{}{cluster}", key.ip()?, key.bits()), vec![words::remote_endpoint(info)]))
    };
    pairs("IP PREFIX/ADDRESS\tIDENTITY", &rows.iter().filter_map(show).collect(), output, out)
}

/// The kernel finds the longest prefix itself.
pub(crate) fn ipcache_get(ip: IpAddr, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let map: Map<IpcacheKey, RemoteEndpointInfo> = Map::new(open("cilium_ipcache_v2")?)?;
    let bits = if ip.is_ipv4() { 32 } else { 128 };
    match map.lookup(&IpcacheKey::new(ip, bits))? {
        Some(info) => {
            writeln!(out, "{ip} maps to identity {}", words::remote_endpoint(&info))?;
            Ok(ExitCode::SUCCESS)
        }
        None => {
            writeln!(out, "{ip} does not map to any identity")?;
            Ok(ExitCode::FAILURE)
        }
    }
}

/// A metric summed over the CPUs, for programs.
#[derive(Debug, Serialize)]
struct Metric {
    reason: String,
    direction: String,
    packets: u64,
    bytes: u64,
    line: u16,
    file: String,
}

pub(crate) fn metrics(output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let map: PerCpuMap<MetricsKey, MetricsValue> = PerCpuMap::new(open("cilium_metrics")?)?;
    let mut rows: Vec<_> = map.entries()?.iter().map(|(key, values)| metric_row(key, values)).collect();
    if output.format.is_some() {
        for row in &mut rows {
            row.direction.make_ascii_lowercase();
        }
        output.write(&rows, out)?;
        return Ok(());
    }
    let mut lines: Vec<[String; 6]> = rows
        .into_iter()
        .map(|row| {
            [
                row.reason,
                row.direction,
                row.packets.to_string(),
                row.bytes.to_string(),
                row.line.to_string(),
                row.file,
            ]
        })
        .collect();
    lines.sort();
    let mut text = "REASON\tDIRECTION\tPACKETS\tBYTES\tLINE\tFILE\n".to_owned();
    for line in &lines {
        let _ = writeln!(text, "{}", line.join("\t"));
    }
    Ok(table(&text, 5, out)?)
}

fn metric_row(key: &MetricsKey, values: &[MetricsValue]) -> Metric {
    let label = if key.is_drop() { drop::label(key.reason) } else { metric::label(key.reason) };
    Metric {
        reason: label.map_or_else(|| key.reason.to_string(), str::to_owned),
        direction: direction::label(key.dir).to_owned(),
        packets: values.iter().map(|value| value.count).sum(),
        bytes: values.iter().map(|value| value.bytes).sum(),
        line: key.line,
        file: file::name(key.file).map_or_else(|| format!("unknown({})", key.file), str::to_owned),
    }
}

/// A policy row with its counters, in the field names that Cilium's JSON has.
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

pub(crate) fn policy(
    agent: &mut Agent,
    options: &PolicyGetOptions,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let stats = policy_stats();
    if let Some(id) = options.id {
        let content = policy_rows(&format!("{POLICY_PREFIX}{id:05}"), id, stats.as_ref())?;
        return if options.output.write(&content, out)? {
            Ok(())
        } else {
            policy_table(agent, &content, options.numeric, out)
        };
    }
    policies(agent, options.numeric, &options.output, out)
}

/// The policy maps of all endpoints.
pub(crate) fn policies(
    agent: &mut Agent,
    numeric: bool,
    output: &Output,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
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

/// The counters of all policy maps; there are none with policy accounting off.
fn policy_stats() -> Option<PolicyStats> {
    PerCpuMap::new(open("cilium_policystats").ok()?).ok()
}

/// Denying rows first, then by direction and identity.
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
        prefix_len: u8::try_from(words::prefix_length(key)).ok()?,
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
    // What Cilium calls "not available".
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
        let counter = |value: u64| if row.counted { value.to_string() } else { "-".to_owned() };
        let _ = writeln!(
            text,
            "{verdict}\t{}\t{}\t{}\t{proxy}\t{auth}\t{}\t{}\t{}\t{}",
            words::direction(key),
            labels[0],
            words::port_and_protocol(key),
            counter(row.bytes),
            counter(row.packets),
            words::prefix_length(key),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_table_names_the_file_system() {
        let mounts =
            "proc /proc proc rw 0 0\nnone /mnt/my\\040bpf bpf rw,mode=700 0 0\nnone /other bpf rw 0 0\n";
        assert_eq!(first_bpffs(mounts), Some("/mnt/my bpf".into()));
        assert_eq!(first_bpffs("proc /proc proc rw 0 0\n"), None);
    }

    #[test]
    fn metrics_are_summed_over_cpus() {
        let key = MetricsKey { reason: 133, dir: direction::INGRESS, line: 7, ..MetricsKey::default() };
        let row =
            metric_row(&key, &[MetricsValue { count: 2, bytes: 20 }, MetricsValue { count: 1, bytes: 10 }]);
        assert_eq!((row.reason.as_str(), row.direction.as_str()), ("Policy denied", "INGRESS"));
        assert_eq!((row.packets, row.bytes, row.line), (3, 30, 7));
    }
}
