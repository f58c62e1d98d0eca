//! `health`: the connectivity between nodes, from the agent's `health.sock`; `cilium-health` is the same.

use super::status;
use crate::client::Agent;
use crate::output::{Output, table};
use anyhow::{Context as _, bail};
use api_client::Address;
use api_models::{ConnectivityStatus, HealthResponse, HealthStatusResponse, List, NodeStatus, PathStatus};
use clap::{Args, Subcommand};
use std::fmt::Write as _;
use std::io::Write;

/// The default socket of clients of the health API.
const DEFAULT_SOCKET: &str = "/var/run/cilium/health.sock";

/// The most nodes that `status` of the agent lists.
const MAX_NODES: usize = 10;

#[derive(Debug, Subcommand)]
pub(crate) enum HealthCommand {
    /// Display local cilium agent status
    Get(Output),
    /// Check whether the cilium-health API is up
    Ping,
    /// Display cilium connectivity to other nodes
    Status(StatusOptions),
}

#[derive(Debug, Args)]
pub(crate) struct StatusOptions {
    /// Synchronously probe connectivity status
    #[arg(long)]
    probe: bool,
    /// Print the result succinctly (one node per line)
    #[arg(long)]
    succinct: bool,
    /// Print more information in results
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    output: Output,
}

/// Runs a command against the API at `host`, or at the address in `CILIUM_HEALTH_SOCK`.
pub(crate) fn run(host: Option<&str>, command: &HealthCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    let address = host.map(str::to_owned).or_else(from_env).unwrap_or_else(|| DEFAULT_SOCKET.to_owned());
    let agent = &mut Agent::at(Address::parse(&address));
    match command {
        HealthCommand::Get(output) => get(agent, output, out),
        HealthCommand::Ping => {
            call::<HealthResponse>(agent, "GET", "/healthz")?;
            Ok(writeln!(out, "OK")?)
        }
        HealthCommand::Status(options) => {
            let status: HealthStatusResponse = match options.probe {
                true => call(agent, "PUT", "/status/probe")?,
                false => call(agent, "GET", "/status")?,
            };
            if options.output.write(&status, out)? {
                return Ok(());
            }
            // As in Cilium, one node a line is the default.
            let verbose = options.verbose && !options.succinct;
            Ok(table(&text(&status, Nodes::All { verbose }), 2, out)?)
        }
    }
}

fn get(agent: &mut Agent, output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let health: HealthResponse = call(agent, "GET", "/healthz")?;
    if output.write(&health, out)? {
        return Ok(());
    }
    let mut text = format!("Daemon uptime:\t{}\n", health.uptime);
    if let Some(load) = &health.system_load {
        let (one, five, fifteen) = (&load.last_1_min, &load.last_5_min, &load.last_15_min);
        let _ = writeln!(text, "Node load:\t{one} {five} {fifteen}");
    }
    text += &status::text(&health.cilium);
    Ok(table(&text, 2, out)?)
}

/// Returns the address in `CILIUM_HEALTH_SOCK`.
fn from_env() -> Option<String> {
    std::env::var("CILIUM_HEALTH_SOCK").ok().filter(|text| !text.is_empty())
}

fn call<T: serde::de::DeserializeOwned>(agent: &mut Agent, method: &str, path: &str) -> anyhow::Result<T> {
    let answer = agent.call_plain(method, &format!("/v1beta{path}"))?;
    if answer.status != 200 {
        bail!("Cannot get status: {}", answer.words());
    }
    serde_json::from_slice(&answer.body).context("the answer of the health API cannot be decoded")
}

/// Returns the lines about nodes for the status of the agent at this address; `None` if the health API, on a socket
/// beside the agent's, does not answer.
pub(crate) fn cluster_health(agent: &Agent, all: bool) -> Option<String> {
    let beside = || Some(agent.socket()?.with_file_name("health.sock").to_str()?.to_owned());
    let health = &mut Agent::at(Address::parse(&from_env().or_else(beside)?));
    let status = call(health, "GET", "/status").ok()?;
    Some(text(&status, if all { Nodes::All { verbose: false } } else { Nodes::Failing }))
}

/// The nodes that are listed.
#[derive(Clone, Copy)]
enum Nodes {
    All {
        verbose: bool,
    },
    /// Those that cannot be reached, ten at most.
    Failing,
}

/// Formats lines with tabs, this node first.
fn text(status: &HealthStatusResponse, which: Nodes) -> String {
    let local = status.local.as_ref().map_or("", |local| local.name.as_str());
    let healthy = status.nodes.iter().filter(|node| is_healthy(node)).count();
    let mut text = format!(
        "Cluster health:\t{healthy}/{} reachable\t({})\t(Probe interval: {})\nName\tIP\tNode\tEndpoints\n",
        status.nodes.len(),
        status.timestamp,
        status.probe_interval
    );
    let mut nodes: Vec<&NodeStatus> = status.nodes.iter().collect();
    nodes.sort_by_key(|node| (node.name != local, &node.name));
    let mut listed = 0;
    for node in nodes {
        let is_local = if node.name == local { " (localhost)" } else { "" };
        match which {
            Nodes::All { verbose: true } => {
                let _ = writeln!(text, "  {}{is_local}:", node.name);
                details(&mut text, node);
                continue;
            }
            Nodes::All { verbose: false } => {}
            Nodes::Failing if is_healthy(node) => continue,
            Nodes::Failing if listed == MAX_NODES => {
                text += "  ...\n";
                break;
            }
            Nodes::Failing => listed += 1,
        }
        let (host, endpoint) = (host_paths(node), endpoint_paths(node));
        let ip = host.iter().map(|path| path.ip.as_str()).collect::<Vec<_>>().join(",");
        let _ =
            writeln!(text, "  {}{is_local}\t{ip}\t{}\t{}", node.name, reachable(&host), reachable(&endpoint));
    }
    text
}

fn details(text: &mut String, node: &NodeStatus) {
    for (kind, paths) in [("Host", host_paths(node)), ("Endpoint", endpoint_paths(node))] {
        for (n, path) in paths.into_iter().enumerate() {
            let secondary = if n == 0 { "" } else { "Secondary " };
            let _ = writeln!(text, "    {secondary}{kind} connectivity to {}:", path.ip);
            for (name, check) in [("ICMP to stack", &path.icmp), ("HTTP to agent", &path.http)] {
                let Some(check) = check else { continue };
                let result = match check.status.as_str() {
                    "" => format!("OK, RTT={}", latency(check)),
                    error => error.to_owned(),
                };
                let probed = match check.last_probed.as_str() {
                    "" => String::new(),
                    time => format!("\t(Last probed: {time})"),
                };
                let _ = writeln!(text, "      {name}:\t{result}{probed}");
            }
        }
    }
}

/// Returns the latency as Go writes it: `315.254µs`.
fn latency(check: &ConnectivityStatus) -> String {
    let nanoseconds = u64::try_from(check.latency).unwrap_or_default();
    go_duration::format(std::time::Duration::from_nanos(nanoseconds))
}

fn host_paths(node: &NodeStatus) -> Vec<&PathStatus> {
    node.host
        .iter()
        .flat_map(|host| paths(host.primary_address.as_ref(), &host.secondary_addresses))
        .collect()
}

fn endpoint_paths(node: &NodeStatus) -> Vec<&PathStatus> {
    let health = node.health_endpoint.iter();
    health.flat_map(|health| paths(health.primary_address.as_ref(), &health.secondary_addresses)).collect()
}

fn paths<'a>(primary: Option<&'a PathStatus>, secondary: &'a List<PathStatus>) -> Vec<&'a PathStatus> {
    primary.into_iter().chain(secondary.iter()).collect()
}

/// Whether both checks succeeded, as far as they were done, and one was.
fn is_reachable(path: &PathStatus) -> bool {
    let checks = || [&path.icmp, &path.http].into_iter().flatten();
    checks().count() > 0 && checks().all(|check| check.status.is_empty())
}

/// Returns how many of the paths are reachable: `1/2`.
fn reachable(paths: &[&PathStatus]) -> String {
    format!("{}/{}", paths.iter().filter(|path| is_reachable(path)).count(), paths.len())
}

fn is_healthy(node: &NodeStatus) -> bool {
    let host = host_paths(node);
    !host.is_empty() && host.into_iter().chain(endpoint_paths(node)).all(is_reachable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api_models::{HealthEndpointStatus, HostStatus, SelfStatus};

    /// Returns a status as in the golden files of Cilium: nodes with a health endpoint at the same address.
    fn status(states: &[bool]) -> HealthStatusResponse {
        let node = |(at, ok): (usize, &bool)| {
            let check = ConnectivityStatus {
                latency: if *ok { 10_000_000 } else { 0 },
                status: if *ok { String::new() } else { "failed".to_owned() },
                ..ConnectivityStatus::default()
            };
            let path =
                PathStatus { ip: format!("192.168.1.{at}"), icmp: Some(check.clone()), http: Some(check) };
            NodeStatus {
                name: format!("node{at}"),
                host: Some(HostStatus { primary_address: Some(path.clone()), ..HostStatus::default() }),
                health_endpoint: Some(HealthEndpointStatus {
                    primary_address: Some(path),
                    ..HealthEndpointStatus::default()
                }),
                ..NodeStatus::default()
            }
        };
        HealthStatusResponse {
            local: Some(SelfStatus { name: "node2".to_owned() }),
            nodes: states.iter().enumerate().map(node).collect(),
            probe_interval: "8m5s".to_owned(),
            timestamp: "2023-04-01T12:00:00Z".to_owned(),
        }
    }

    const HEAD: &str =
        "reachable\t(2023-04-01T12:00:00Z)\t(Probe interval: 8m5s)\nName\tIP\tNode\tEndpoints\n";

    #[test]
    fn nodes_are_lines_or_paragraphs_as_cilium_prints_them() {
        let status = status(&[true, false, true]);
        assert_eq!(
            text(&status, Nodes::All { verbose: false }),
            format!(
                "Cluster health:\t2/3 {HEAD}  node2 (localhost)\t192.168.1.2\t1/1\t1/1\n  node0\t192.168.1.0\t1/1\t1/1\n  \
                 node1\t192.168.1.1\t0/1\t0/1\n"
            )
        );
        assert_eq!(
            text(&status, Nodes::Failing),
            format!("Cluster health:\t2/3 {HEAD}  node1\t192.168.1.1\t0/1\t0/1\n")
        );
        let verbose = text(&status, Nodes::All { verbose: true });
        let node = |name: &str, ip: &str, result: &str| {
            format!(
                "  {name}:\n    Host connectivity to {ip}:\n      ICMP to stack:\t{result}\n      HTTP to agent:\t{result}\n    \
                 Endpoint connectivity to {ip}:\n      ICMP to stack:\t{result}\n      HTTP to agent:\t{result}\n"
            )
        };
        let nodes = [
            node("node2 (localhost)", "192.168.1.2", "OK, RTT=10ms"),
            node("node0", "192.168.1.0", "OK, RTT=10ms"),
            node("node1", "192.168.1.1", "failed"),
        ];
        assert_eq!(verbose, format!("Cluster health:\t2/3 {HEAD}{}", nodes.concat()));
    }

    #[test]
    fn many_failing_nodes_are_cut_off() {
        let lines = text(&status(&[false; 11]), Nodes::Failing);
        assert!(lines.ends_with("  node8\t192.168.1.8\t0/1\t0/1\n  ...\n"), "{lines}");
        assert_eq!(lines.lines().count(), 2 + MAX_NODES + 1);
        let none = HealthStatusResponse { nodes: List(None), ..status(&[]) };
        assert_eq!(text(&none, Nodes::All { verbose: false }), format!("Cluster health:\t0/0 {HEAD}"));
    }

    #[test]
    fn a_node_without_results_is_not_healthy() {
        let mut status = status(&[true]);
        let mut node = status.nodes[0].clone();
        node.health_endpoint = None;
        assert!(is_healthy(&node), "no health endpoint, no fault");
        let host = node.host.as_mut().unwrap().primary_address.as_mut().unwrap();
        host.icmp = None;
        assert!(is_healthy(&node), "no pings without the privilege");
        node.host.as_mut().unwrap().primary_address.as_mut().unwrap().http = None;
        assert!(!is_healthy(&node));
        node.host = None;
        assert!(!is_healthy(&node));
        status.nodes = vec![node].into();
        assert!(text(&status, Nodes::All { verbose: false }).contains("\n  node0\t\t0/0\t0/0\n"));
    }
}
