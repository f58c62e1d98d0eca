//! `trace`: one real packet of a pod, followed through the places of this node's datapath by the events of the monitor.
//!
//! [`probe`] sends it from the pod's network namespace, [`events`] reads the monitor, [`observe`] finds the packet's events,
//! [`mod@report`] has the outcome.

mod events;
mod observe;
mod probe;
mod report;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use api_models::DaemonConfiguration;
use clap::Args;
use serde::Deserialize;

use self::events::Events;
use self::observe::{Step, StepEvent};
use self::probe::{Answer, Packet, Probe, Protocol};
use self::report::{Explained, Names, Outcome, Report};
use crate::client::Agent;
use crate::commands::monitor;
use crate::commands::why::{self, Target};
use crate::output::Output;

#[derive(Debug, Args)]
pub(crate) struct TraceOptions {
    /// Pod of this node that sends, as namespace/name, or the number of its endpoint
    source: String,
    /// Address, or namespace/name of a pod that this node knows
    destination: String,
    /// Destination port and protocol: 80/TCP, 53/UDP; ICMP for an echo request
    #[arg(value_name = "PORT/PROTOCOL", default_value = "ICMP")]
    target: ProbeTarget,
    /// Seconds to wait for an answer
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=60))]
    timeout: u64,
    /// Network namespace of the pod (default: that of the agent's record)
    #[arg(long, value_name = "PATH")]
    netns: Option<PathBuf>,
    /// The monitor's socket (default: CILIUM_MONITOR_SOCK, else beside the agent's socket)
    #[arg(long, value_name = "PATH")]
    monitor_socket: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// The kind of packet and its destination port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProbeTarget {
    protocol: Protocol,
    port: u16,
}

impl std::str::FromStr for ProbeTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "want PORT/TCP, PORT/UDP or ICMP".to_owned();
        if text.eq_ignore_ascii_case("icmp") {
            return Ok(Self { protocol: Protocol::Icmp, port: 0 });
        }
        let (port, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let protocol = match protocol.to_ascii_lowercase().as_str() {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            _ => return Err(wrong()),
        };
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?;
        Ok(Self { protocol, port })
    }
}

/// An endpoint of the agent's table.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Row {
    record: Record,
}

/// The fields of an endpoint's record that a probe needs.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Record {
    #[serde(rename = "ID")]
    id: u16,
    #[serde(default)]
    container_netns_path: String,
    #[serde(rename = "IPv4", default)]
    ipv4: Option<String>,
    #[serde(rename = "IPv6", default)]
    ipv6: Option<String>,
    #[serde(rename = "K8sPodName", default)]
    pod: String,
    #[serde(rename = "K8sNamespace", default)]
    namespace: String,
}

impl Record {
    fn name(&self) -> Option<String> {
        (!self.pod.is_empty()).then(|| format!("{}/{}", self.namespace, self.pod))
    }

    fn address(&self, is_ipv6: bool) -> Option<IpAddr> {
        let text = if is_ipv6 { &self.ipv6 } else { &self.ipv4 };
        text.as_ref()?.parse().ok()
    }
}

/// Sends a probe and prints its way; the outcome is the exit code, too: 0 if it was answered or delivered, 2 if it was
/// dropped, 3 if it left this node without an answer or was not seen.
pub(crate) fn run(
    agent: &mut Agent,
    options: &TraceOptions,
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    let endpoints = endpoints(agent)?;
    let source = endpoints
        .iter()
        .find(|record| {
            record.name().as_deref() == Some(&*options.source) || record.id.to_string() == options.source
        })
        .with_context(|| format!("this node has no endpoint {}: apiary endpoint list", options.source))?;
    let (from, to) = addresses(agent, source, options, &endpoints)?;
    let namespace = match &options.netns {
        Some(path) => path.clone(),
        None if source.container_netns_path.is_empty() => {
            bail!("the network namespace of {} is unknown: give it by --netns", options.source)
        }
        None => {
            let paths = namespaces(&source.container_netns_path, agent.socket());
            // The error names the path of the record.
            let found = paths.iter().find(|path| path.exists()).or_else(|| paths.first());
            found.cloned().unwrap_or_default()
        }
    };
    let ProbeTarget { protocol, port } = options.target;
    let destination = SocketAddr::new(to, port);
    // Connected before the packet is sent: the monitor has no past events.
    let path = options.monitor_socket.clone().unwrap_or_else(|| monitor::usual_socket(agent));
    let events = UnixStream::connect(&path)
        .with_context(|| format!("cannot connect to the monitor at {}", path.display()))?;
    let mut events = Events::new(events)?;
    let probe = Probe::new(&namespace, protocol, from, destination)?;
    events.wait_ready(agent)?;
    let sent = probe.send();
    let (steps, mut answer) = events.follow(&probe, Duration::from_secs(options.timeout))?;
    if let Err(error) = sent {
        answer = answer.or(Some(Answer::Refused(io::Error::from(error).to_string())));
    }
    let report =
        report(agent, options, &probe.packet, &endpoints, Found { steps, answer, lost: events.lost });
    if !options.output.write(&report, out)? {
        out.write_all(report.text().as_bytes())?;
    }
    Ok(match report.outcome {
        Outcome::Answered | Outcome::Refused | Outcome::Delivered | Outcome::Proxied => ExitCode::SUCCESS,
        Outcome::Dropped | Outcome::ReplyDropped => ExitCode::from(2),
        Outcome::Left | Outcome::Unseen => ExitCode::from(3),
    })
}

/// Returns the paths at which a namespace may be: that of the record, which is the agent's in its container, the run folder's
/// and the host's.
fn namespaces(recorded: &str, socket: Option<&Path>) -> Vec<PathBuf> {
    let recorded = PathBuf::from(recorded);
    let in_folder = |folder: PathBuf| recorded.file_name().map(|name| folder.join("netns").join(name));
    let run = socket.and_then(Path::parent).and_then(|folder| in_folder(folder.to_owned()));
    let host = in_folder(PathBuf::from("/var/run"));
    std::iter::once(recorded.clone()).chain(run).chain(host).collect()
}

fn endpoints(agent: &mut Agent) -> anyhow::Result<Vec<Record>> {
    let answer = agent.call_plain("GET", "/statedb/dump/endpoints")?;
    if answer.status != 200 {
        bail!("cannot read the table of endpoints: {}", answer.words());
    }
    let tables: BTreeMap<String, Vec<Row>> =
        serde_json::from_slice(&answer.body).context("the agent's answer cannot be decoded")?;
    Ok(tables.into_values().flatten().map(|row| row.record).collect())
}

/// Returns addresses of both ends, of one family.
fn addresses(
    agent: &mut Agent,
    source: &Record,
    options: &TraceOptions,
    endpoints: &[Record],
) -> anyhow::Result<(IpAddr, IpAddr)> {
    let text = &options.destination;
    let known = endpoints.iter().find(|record| record.name().as_ref() == Some(text));
    let candidates: Vec<IpAddr> = match (text.parse::<IpAddr>(), known) {
        (Ok(address), _) => vec![address],
        (_, Some(record)) => {
            [false, true].into_iter().filter_map(|is_ipv6| record.address(is_ipv6)).collect()
        }
        // The agent knows pods of other nodes by the ipcache.
        _ => why::addresses(agent, &source.id.to_string(), text)?,
    };
    let pair = candidates.iter().find_map(|to| Some((source.address(to.is_ipv6())?, *to)));
    pair.with_context(|| format!("{} and {text} have no addresses of one family", options.source))
}

/// The events of a probe and the answer to it.
struct Found {
    steps: Vec<Step>,
    answer: Option<Answer>,
    lost: u64,
}

fn report(
    agent: &mut Agent,
    options: &TraceOptions,
    packet: &Packet,
    endpoints: &[Record],
    found: Found,
) -> Report {
    let Found { steps, answer, lost } = found;
    let names = Names(endpoints.iter().filter_map(|record| Some((record.id, record.name()?))).collect());
    let (is_ipv6, port) = (packet.destination.is_ipv6(), packet.policy_port());
    let protocol = packet.protocol.name(is_ipv6);
    let target = Target::new(port, protocol);
    let to = packet.destination.ip();
    // A report without the name of the service is better than none.
    let service = why::service_name(agent, &to.to_string(), &target).ok().flatten();
    let steps: Vec<Explained> = steps
        .into_iter()
        .map(|step| {
            let text = names.explain(&step, service.as_deref());
            let rules = rules(agent, &options.source, &step, packet);
            Explained { step, text, rules }
        })
        .collect();
    let outcome = report::outcome(steps.iter().map(|one| &one.step), answer.as_ref());
    let mut report = Report {
        source: options.source.clone(),
        destination: if packet.protocol == Protocol::Icmp {
            to.to_string()
        } else {
            packet.destination.to_string()
        },
        protocol: packet.protocol,
        source_port: packet.source.port(),
        service,
        verdict: report::verdict(outcome, &steps, answer.as_ref()),
        steps,
        lost,
        answer,
        outcome,
        next: Vec::new(),
    };
    let why = format!("apiary why {} {to} {port}/{protocol}", options.source);
    report.next = report::next(&report, is_aggregated(agent), &why);
    report
}

/// Returns the rules that decide at a verdict of policy, by the agent's policy now.
fn rules(agent: &mut Agent, source: &str, step: &Step, packet: &Packet) -> Vec<String> {
    let (StepEvent::Verdict { endpoint, is_ingress, .. }, Some(to)) = (&step.event, step.to) else {
        return Vec::new();
    };
    if step.is_reply {
        return Vec::new();
    }
    let port = if packet.protocol == Protocol::Icmp { packet.policy_port() } else { to.port() };
    let protocol = packet.protocol.name(to.is_ipv6());
    // The verdict stands without its rules, too.
    why::rules(agent, (source, &to.ip().to_string()), (port, protocol), (*endpoint, *is_ingress))
        .unwrap_or_default()
}

/// Whether the programs leave out events of packets that are like earlier ones.
fn is_aggregated(agent: &mut Agent) -> bool {
    let config: Option<DaemonConfiguration> = agent.get("/config").ok();
    let level = config.and_then(|config| {
        config.status?.realized?.options.get("MonitorAggregationLevel").map(ToString::to_string)
    });
    level.is_some_and(|level| !level.eq_ignore_ascii_case("none"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_searched_where_the_agent_and_the_host_have_them() {
        let paths = namespaces("/var/run/cilium/netns/cni-1", Some(Path::new("/run/apiary/cilium.sock")));
        let expected = ["/var/run/cilium/netns/cni-1", "/run/apiary/netns/cni-1", "/var/run/netns/cni-1"];
        assert_eq!(paths, expected.map(PathBuf::from));
    }

    #[test]
    fn targets_are_ports_with_a_protocol_or_an_echo_request() {
        let target = |protocol, port| Ok(ProbeTarget { protocol, port });
        assert_eq!("80".parse(), target(Protocol::Tcp, 80));
        assert_eq!("53/UDP".parse(), target(Protocol::Udp, 53));
        assert_eq!("icmp".parse(), target(Protocol::Icmp, 0));
        for text in ["0/tcp", "80/sctp", "", "x/tcp", "65536"] {
            assert!(text.parse::<ProbeTarget>().is_err(), "{text}");
        }
    }
}
