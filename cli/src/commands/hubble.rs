//! `hubble`: flows of the node's packets and the state of their server, as Cilium's `hubble` prints them. `events` has
//! the other kinds of events, `list` the lists, `server` the connection.

mod events;
mod list;
mod server;

use std::io::Write;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use grpc::Connection;
use hubble_api::Server;
use hubble_api::flow::flow_filter::Experimental;
use hubble_api::flow::layer4::Protocol;
use hubble_api::flow::{EventTypeFilter, FlowFilter, Verdict, Workload};
use hubble_api::health::HealthCheckRequest;
use hubble_api::health::health_client::HealthClient;
use hubble_api::observer::get_flows_response::ResponseTypes;
use hubble_api::observer::observer_client::ObserverClient;
use hubble_api::observer::{GetFlowsRequest, ServerStatusRequest};

use self::events::{EventsCommand, RangeOptions};
use self::list::{ListCommand, WatchCommand};
pub(crate) use self::server::ServerOptions;
use crate::client::Agent;
use crate::commands::preview::Flow;

/// The time in which a connection ends that a request has failed with.
const END: Duration = Duration::from_millis(50);

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

#[derive(Debug, Subcommand)]
pub(crate) enum HubbleCommand {
    /// Print flows of the node's packets
    Observe(Box<ObserveCommand>),
    /// Print the state of the server of flows
    Status(ServerOptions),
    /// List nodes or namespaces
    #[command(subcommand)]
    List(ListCommand),
    /// Print changes as they happen
    #[command(subcommand)]
    Watch(WatchCommand),
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ObserveCommand {
    #[command(subcommand)]
    events: Option<EventsCommand>,
    #[command(flatten)]
    flows: ObserveOptions,
}

#[derive(Debug, Args)]
pub(crate) struct ObserveOptions {
    #[command(flatten)]
    server: ServerOptions,
    #[command(flatten)]
    range: RangeOptions,
    /// Flows with a verdict: forwarded, dropped, error, audit, redirected
    #[arg(long, value_name = "VERDICT", value_parser = verdict)]
    verdict: Vec<i32>,
    /// Flows of events: drop, l7, trace, trace-sock, policy-verdict, capture
    #[arg(short = 't', long = "type", value_name = "TYPE", value_parser = event_type)]
    types: Vec<i32>,
    /// Flows of a protocol: tcp, udp, icmp, dns, ...
    #[arg(long, value_name = "PROTOCOL")]
    protocol: Vec<String>,
    /// Flows from or to pods: NAMESPACE/PREFIX
    #[arg(long, value_name = "POD")]
    pod: Vec<String>,
    /// Flows from pods
    #[arg(long, value_name = "POD")]
    from_pod: Vec<String>,
    /// Flows to pods
    #[arg(long, value_name = "POD")]
    to_pod: Vec<String>,
    /// Flows from or to pods of a namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Vec<String>,
    /// Flows from or to an address or a range of addresses
    #[arg(long, value_name = "IP")]
    ip: Vec<String>,
    /// Flows from addresses
    #[arg(long, value_name = "IP")]
    from_ip: Vec<String>,
    /// Flows to addresses
    #[arg(long, value_name = "IP")]
    to_ip: Vec<String>,
    /// Flows from or to addresses that were looked up by DNS names: *.example.com
    #[arg(long, value_name = "PATTERN")]
    fqdn: Vec<String>,
    /// Flows from addresses with DNS names
    #[arg(long, value_name = "PATTERN")]
    from_fqdn: Vec<String>,
    /// Flows to addresses with DNS names
    #[arg(long, value_name = "PATTERN")]
    to_fqdn: Vec<String>,
    /// Flows from or to pods of a workload: KIND/NAME, or NAME of any kind
    #[arg(long, value_name = "WORKLOAD", value_parser = workload)]
    workload: Vec<Workload>,
    /// Flows from pods of a workload
    #[arg(long, value_name = "WORKLOAD", value_parser = workload)]
    from_workload: Vec<Workload>,
    /// Flows to pods of a workload
    #[arg(long, value_name = "WORKLOAD", value_parser = workload)]
    to_workload: Vec<Workload>,
    /// Flows from or to an endpoint with labels: k8s:app=web
    #[arg(short, long, value_name = "LABELS")]
    label: Vec<String>,
    /// Flows from or to an identity
    #[arg(long, value_name = "ID")]
    identity: Vec<u32>,
    /// Flows from or to a port
    #[arg(long, value_name = "PORT")]
    port: Vec<String>,
    /// Flows of which an expression of CEL is true: _flow.verdict == Verdict.DROPPED && _flow.source.namespace == "shop"
    #[arg(long, value_name = "EXPRESSION")]
    cel_expression: Vec<String>,
}

/// Parses the name of a verdict, in any case.
pub(crate) fn verdict(word: &str) -> Result<i32, String> {
    let known = [Verdict::Forwarded, Verdict::Dropped, Verdict::Error, Verdict::Audit, Verdict::Redirected];
    let found = known.into_iter().find(|verdict| verdict.as_str_name().eq_ignore_ascii_case(word));
    found.map(i32::from).ok_or_else(|| "is none of forwarded, dropped, error, audit, redirected".to_owned())
}

#[expect(clippy::unnecessary_wraps, reason = "the form of a parser of values")]
fn workload(word: &str) -> Result<Workload, String> {
    let (kind, name) = word.split_once('/').unwrap_or(("", word));
    Ok(Workload { kind: kind.to_owned(), name: name.to_owned() })
}

fn event_type(word: &str) -> Result<i32, String> {
    use datapath_abi::event;
    let kind = match word {
        "drop" => event::DROP,
        "l7" => monitor_events::ACCESS_LOG,
        "trace" => event::TRACE,
        "trace-sock" => event::TRACE_SOCK,
        "policy-verdict" => event::POLICY_VERDICT,
        "capture" => event::DEBUG_CAPTURE,
        _ => return Err("is none of drop, l7, trace, trace-sock, policy-verdict, capture".to_owned()),
    };
    Ok(kind.into())
}

impl ObserveOptions {
    fn request(&self) -> GetFlowsRequest {
        let range = &self.range;
        GetFlowsRequest {
            number: range.number(),
            first: range.first.is_some(),
            follow: range.follow,
            since: range.since.map(Into::into),
            until: range.until.map(Into::into),
            whitelist: self.filters(),
            ..GetFlowsRequest::default()
        }
    }

    /// Returns the filters: one, or one for each side if an option is about either.
    fn filters(&self) -> Vec<FlowFilter> {
        let event = |kind: &i32| EventTypeFilter { r#type: *kind, ..EventTypeFilter::default() };
        let base = FlowFilter {
            verdict: self.verdict.clone(),
            event_type: self.types.iter().map(event).collect(),
            protocol: self.protocol.clone(),
            source_pod: self.from_pod.clone(),
            destination_pod: self.to_pod.clone(),
            source_ip: self.from_ip.clone(),
            destination_ip: self.to_ip.clone(),
            source_fqdn: self.from_fqdn.clone(),
            destination_fqdn: self.to_fqdn.clone(),
            source_workload: self.from_workload.clone(),
            destination_workload: self.to_workload.clone(),
            experimental: (!self.cel_expression.is_empty())
                .then(|| Experimental { cel_expression: self.cel_expression.clone() }),
            ..FlowFilter::default()
        };
        let namespaces = self.namespace.iter().map(|namespace| format!("{namespace}/"));
        let pods: Vec<String> = self.pod.iter().cloned().chain(namespaces).collect();
        let source = FlowFilter {
            source_pod: with(base.source_pod.clone(), &pods),
            source_ip: with(base.source_ip.clone(), &self.ip),
            source_fqdn: with(base.source_fqdn.clone(), &self.fqdn),
            source_workload: with(base.source_workload.clone(), &self.workload),
            source_label: self.label.clone(),
            source_identity: self.identity.clone(),
            source_port: self.port.clone(),
            ..base.clone()
        };
        let destination = FlowFilter {
            destination_pod: with(base.destination_pod.clone(), &pods),
            destination_ip: with(base.destination_ip.clone(), &self.ip),
            destination_fqdn: with(base.destination_fqdn.clone(), &self.fqdn),
            destination_workload: with(base.destination_workload.clone(), &self.workload),
            destination_label: self.label.clone(),
            destination_identity: self.identity.clone(),
            destination_port: self.port.clone(),
            ..base.clone()
        };
        match (source == base && destination == base, base == FlowFilter::default()) {
            (true, true) => Vec::new(),
            (true, false) => vec![base],
            (false, _) => vec![source, destination],
        }
    }
}

fn with<T: Clone>(mut values: Vec<T>, more: &[T]) -> Vec<T> {
    values.extend_from_slice(more);
    values
}

/// Runs the command on a runtime of its own.
pub(crate) fn run(agent: &Agent, command: &HubbleCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    let server = match command {
        HubbleCommand::Observe(command) => match &command.events {
            Some(events) => events.server(),
            None => &command.flows.server,
        },
        HubbleCommand::Status(options) => options,
        HubbleCommand::List(command) => command.server(),
        HubbleCommand::Watch(command) => command.server(),
    };
    let server = server.server(agent)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (connection, mut work) =
            hubble_api::connect(&server).await.context("no flows are served, which enable-hubble does")?;
        let command = async {
            match command {
                HubbleCommand::Observe(command) => match &command.events {
                    Some(events) => events.run(connection, out).await,
                    None => observe(connection, &command.flows, out).await,
                },
                HubbleCommand::Status(_) => status(connection, &server, out).await,
                HubbleCommand::List(command) => command.run(connection, out).await,
                HubbleCommand::Watch(command) => command.run(connection, out).await,
            }
        };
        tokio::select! {
            biased;
            result = command => match result {
                // The connection knows best why it ended: refused by TLS, for example.
                Err(error) => match tokio::time::timeout(END, &mut work).await {
                    Ok(Err(cause)) => Err(cause).context("the server has closed the connection"),
                    _ => Err(error),
                },
                result => result,
            },
            ended = &mut work => match ended {
                Ok(()) => bail!("the server has closed the connection"),
                Err(cause) => Err(cause).context("the server has closed the connection"),
            },
        }
    })
}

/// Returns the forwarded flows that the server has, each as the first packet of its connection.
pub(crate) fn forwarded(agent: &mut Agent, options: &ServerOptions) -> anyhow::Result<Vec<Flow>> {
    let server = options.server(agent)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (connection, work) =
            hubble_api::connect(&server).await.context("no flows are served, which enable-hubble does")?;
        let request = GetFlowsRequest {
            whitelist: vec![FlowFilter { verdict: vec![Verdict::Forwarded.into()], ..FlowFilter::default() }],
            ..GetFlowsRequest::default()
        };
        let read = async {
            // A connection without a client ends with its last response, maybe before that is read.
            let mut observer = ObserverClient::new(connection);
            let mut responses = observer.get_flows(request).await.map_err(refused)?.into_inner();
            let mut flows = Vec::new();
            while let Some(response) = responses.message().await.map_err(refused)? {
                if let Some(ResponseTypes::Flow(flow)) = &response.response_types {
                    flows.extend(first_packet(flow));
                }
            }
            anyhow::Ok(flows)
        };
        tokio::select! {
            biased;
            flows = read => flows,
            _ = work => bail!("the server has closed the connection"),
        }
    })
}

/// Returns the first packet of a flow's connection; `None` if its direction is unknown or it has no ports.
fn first_packet(flow: &hubble_api::flow::Flow) -> Option<Flow> {
    let ip = flow.ip.as_ref()?;
    let (source, destination) = (ip.source.parse().ok()?, ip.destination.parse().ok()?);
    let (protocol, [source_port, destination_port]) = match flow.l4.as_ref()?.protocol.as_ref()? {
        Protocol::Tcp(tcp) => (TCP, [tcp.source_port, tcp.destination_port]),
        Protocol::Udp(udp) => (UDP, [udp.source_port, udp.destination_port]),
        Protocol::Sctp(sctp) => (SCTP, [sctp.source_port, sctp.destination_port]),
        _ => return None,
    };
    let (source, destination, port) = match flow.is_reply? {
        true => (destination, source, source_port),
        false => (source, destination, destination_port),
    };
    Some(Flow { source, destination, protocol, port: port.try_into().ok()? })
}

async fn observe(
    connection: Connection,
    options: &ObserveOptions,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let mut observer = ObserverClient::new(connection);
    let mut responses = observer.get_flows(options.request()).await.map_err(refused)?.into_inner();
    while let Some(response) = responses.message().await.map_err(refused)? {
        options.range.print(out, &response, hubble_api::to_compact)?;
    }
    Ok(())
}

async fn status(connection: Connection, server: &Server, out: &mut dyn Write) -> anyhow::Result<()> {
    let request = HealthCheckRequest { service: "hubble.server.Observer".to_owned() };
    let health = HealthClient::new(connection.clone()).check(request).await.map_err(refused)?.into_inner();
    let shown = if health.status == 1 { "Ok".to_owned() } else { health.status().as_str_name().to_owned() };
    writeln!(out, "Healthcheck (via {server}): {shown}")?;
    let status =
        ObserverClient::new(connection).server_status(ServerStatusRequest {}).await.map_err(refused)?;
    let status = status.into_inner();
    #[expect(clippy::cast_precision_loss, reason = "a percentage with two digits")]
    let used = status.num_flows as f64 / status.max_flows.max(1) as f64 * 100.0;
    let (flows, max) = (grouped(status.num_flows), grouped(status.max_flows));
    writeln!(out, "Current/Max Flows: {flows}/{max} ({used:.2}%)")?;
    writeln!(out, "Flows/s: {:.2}", status.flows_rate)?;
    Ok(())
}

pub(crate) fn refused(status: hubble_api::Status) -> anyhow::Error {
    anyhow::anyhow!("rpc error: code = {:?} desc = {}", status.code(), status.message())
}

/// Returns a number with commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: ObserveOptions,
    }

    fn request(line: &str) -> GetFlowsRequest {
        Line::try_parse_from([&["x"], &line.split_whitespace().collect::<Vec<_>>()[..]].concat())
            .unwrap()
            .options
            .request()
    }

    #[test]
    fn options_become_numbers_and_filters() {
        assert_eq!(request(""), GetFlowsRequest { number: 20, ..GetFlowsRequest::default() });
        assert_eq!(request("--all").number, 0);
        assert_eq!(request("-f"), GetFlowsRequest { follow: true, ..GetFlowsRequest::default() });
        let first = request("--first 3 --verdict dropped -t drop --protocol tcp");
        assert_eq!((first.first, first.number, first.whitelist.len()), (true, 3, 1));
        assert_eq!((&first.whitelist[0].verdict, first.whitelist[0].event_type[0].r#type), (&vec![2], 1));
        let [source, destination] = &request("--pod shop/web -n db --to-ip 10.0.0.1").whitelist[..] else {
            panic!()
        };
        let pods = vec!["shop/web".to_owned(), "db/".to_owned()];
        assert_eq!((&source.source_pod, &source.destination_ip), (&pods, &vec!["10.0.0.1".to_owned()]));
        assert_eq!((&destination.destination_pod, &destination.source_pod), (&pods, &Vec::new()));
        let expression = request("--cel-expression true --pod a");
        let of = |filter: &FlowFilter| filter.experimental.clone().unwrap_or_default().cel_expression;
        assert!(
            expression.whitelist.len() == 2
                && expression.whitelist.iter().all(|filter| of(filter) == ["true"])
        );
        let [source, destination] = &request("--fqdn *.io --workload Job/x --to-workload y").whitelist[..]
        else {
            panic!()
        };
        assert_eq!((&source.source_fqdn[..], source.destination_fqdn.len()), (&["*.io".to_owned()][..], 0));
        let of = |workloads: &[Workload]| -> Vec<String> {
            workloads.iter().map(|workload| format!("{}:{}", workload.kind, workload.name)).collect()
        };
        assert_eq!(
            (of(&source.source_workload), of(&source.destination_workload)),
            (vec!["Job:x".into()], vec![":y".into()])
        );
        assert_eq!(of(&destination.destination_workload), [":y", "Job:x"]);
        let since = request("--since 2026-11-21T12:05:29Z").since.unwrap();
        assert_eq!(since.seconds, 1_795_262_729);
        assert_eq!(
            (grouped(0), grouped(4095), grouped(1_234_567)),
            ("0".into(), "4,095".into(), "1,234,567".into())
        );
    }
}
