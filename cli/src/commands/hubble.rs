//! `hubble`: flows of the node's packets and the state of their server, as Cilium's `hubble` prints them. `events` has
//! the other kinds of events, `filters` their selection,
//! `list` the lists, `server` the connection.

mod events;
mod filters;
mod list;
mod server;

use std::io::Write;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Subcommand};
use grpc::Connection;
use hubble_api::Server;
use hubble_api::flow::layer4::Protocol;
use hubble_api::flow::{FlowFilter, Verdict};
use hubble_api::health::HealthCheckRequest;
use hubble_api::health::health_client::HealthClient;
use hubble_api::observer::get_flows_response::ResponseTypes;
use hubble_api::observer::observer_client::ObserverClient;
use hubble_api::observer::{GetFlowsRequest, ServerStatusRequest};

use self::events::{EventsCommand, Output, RangeOptions, Shape, dict};
use self::filters::Filters;
use self::list::{ListCommand, WatchCommand};
pub(crate) use self::server::ServerOptions;
use crate::client::Agent;
use crate::commands::preview::Flow;

/// The time in which a connection ends that a request has failed with.
const END: Duration = Duration::from_millis(50);

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

/// `hubble`, with the options of the server before or after the command.
#[derive(Debug, Args)]
pub(crate) struct HubbleOptions {
    #[command(flatten)]
    server: ServerOptions,
    #[command(subcommand)]
    command: HubbleCommand,
}

#[derive(Debug, Subcommand)]
enum HubbleCommand {
    /// Print flows of the node's packets
    Observe(Box<ObserveCommand>),
    /// Print the state of the server of flows
    Status,
    /// Print the version of this program
    Version,
    /// List nodes or namespaces
    #[command(subcommand)]
    List(ListCommand),
    /// Print changes as they happen
    #[command(subcommand)]
    Watch(WatchCommand),
}

#[derive(Debug, Args)]
pub(crate) struct ObserveCommand {
    #[command(subcommand)]
    events: Option<EventsCommand>,
    #[command(flatten)]
    flows: ObserveOptions,
}

impl ObserveCommand {
    /// Returns the options of flows; `None` for other events.
    fn flows(&self) -> Option<&ObserveOptions> {
        match &self.events {
            None => Some(&self.flows),
            Some(EventsCommand::Flows(flows)) => Some(flows),
            Some(_) => None,
        }
    }

    /// Refuses options of flows before another kind of events, where they would have no effect.
    fn validate(&self) -> anyhow::Result<()> {
        let is_misplaced = self.events.is_some()
            && self.flows.request() != GetFlowsRequest { number: 20, ..Default::default() };
        ensure!(!is_misplaced, "options of `observe` go behind the kind of events");
        Ok(())
    }
}

#[derive(Debug, Args)]
pub(crate) struct ObserveOptions {
    #[command(flatten)]
    range: RangeOptions,
    #[command(flatten)]
    filters: Filters,
    /// Print the filters instead of flows
    #[arg(long)]
    print_raw_filters: bool,
    /// Request only these fields of flows: source.pod_name,verdict
    #[arg(long, value_name = "FIELDS", value_delimiter = ',')]
    field_mask: Vec<String>,
}

/// Parses the name of a verdict, in any case.
pub(crate) fn verdict(word: &str) -> Result<i32, String> {
    let known = [Verdict::Forwarded, Verdict::Dropped, Verdict::Error, Verdict::Audit, Verdict::Redirected];
    let found = known.into_iter().find(|verdict| verdict.as_str_name().eq_ignore_ascii_case(word));
    found.map(i32::from).ok_or_else(|| "is none of forwarded, dropped, error, audit, redirected".to_owned())
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
            whitelist: self.filters.allow.clone(),
            blacklist: self.filters.deny.clone(),
            field_mask: (!self.field_mask.is_empty())
                .then(|| prost_types::FieldMask { paths: self.field_mask.clone() }),
            ..GetFlowsRequest::default()
        }
    }
}

/// Runs the command on a runtime of its own.
pub(crate) fn run(agent: &Agent, options: &HubbleOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    let HubbleOptions { server, command } = options;
    if let HubbleCommand::Version = command {
        let (version, arch) = (env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
        return Ok(writeln!(out, "hubble {version} on linux/{arch}")?);
    }
    if let HubbleCommand::Observe(command) = command {
        command.validate()?;
    }
    if let HubbleCommand::Observe(command) = command
        && let Some(flows) = command.flows().filter(|flows| flows.print_raw_filters)
    {
        return Ok(out.write_all(flows.filters.raw().as_bytes())?);
    }
    let server = server.server(agent)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (connection, mut work) =
            hubble_api::connect(&server).await.context("no flows are served, which enable-hubble does")?;
        let command = async {
            match command {
                HubbleCommand::Observe(command) => match (&command.events, command.flows()) {
                    (_, Some(flows)) => observe(connection, flows, out).await,
                    (Some(events), None) => events.run(connection, out).await,
                    (None, None) => Ok(()),
                },
                HubbleCommand::Version => Ok(()),
                HubbleCommand::Status => status(connection, &server, out).await,
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
    // The width of a column is that of its longest value. A table of flows that are followed has no end: each row is
    // printed alone.
    let mut rows = Vec::new();
    let mut is_first = true;
    let is_table = matches!(options.range.output, Output::Table);
    while let Some(response) = responses.message().await.map_err(refused)? {
        match options.range.flow(&response) {
            Shape::Columns(row) if is_table && !options.range.follow => rows.push(row),
            Shape::Columns(row) if is_table => options.range.print_table(&[row], out)?,
            Shape::Columns(row) => {
                let separator = if is_first { "" } else { "------------\n" };
                write!(out, "{separator}{}", dict(&row))?;
            }
            Shape::Line(line) => options.range.print(out, &response, |_| line.clone())?,
        }
        is_first = false;
        if options.range.follow {
            out.flush()?;
        }
    }
    options.range.print_table(&rows, out)
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
        let [source, destination] = &request("--pod web -n db --to-ip 10.0.0.1").whitelist[..] else {
            panic!()
        };
        let pods = vec!["db/web".to_owned()];
        assert_eq!((&source.source_pod, &source.destination_ip), (&pods, &vec!["10.0.0.1".to_owned()]));
        assert_eq!((&destination.destination_pod, &destination.source_pod), (&pods, &Vec::new()));
        let expression = request("--cel-expression true --pod a");
        let of = |filter: &FlowFilter| filter.experimental.clone().unwrap_or_default().cel_expression;
        assert!(
            expression.whitelist.len() == 2
                && expression.whitelist.iter().all(|filter| of(filter) == ["true"])
        );
        let [source, destination] = &request("--fqdn *.io --workload Job/x").whitelist[..] else { panic!() };
        assert_eq!((&source.source_fqdn[..], source.destination_fqdn.len()), (&["*.io".to_owned()][..], 0));
        let of = |filter: &FlowFilter| (filter.source_workload.len(), filter.destination_workload.len());
        assert_eq!((of(source), of(destination)), ((1, 0), (0, 1)));
        assert_eq!((&*source.source_workload[0].kind, &*source.source_workload[0].name), ("Job", "x"));
        let mask = request("--field-mask verdict,source.pod_name").field_mask.unwrap();
        assert_eq!(mask.paths, ["verdict", "source.pod_name"]);
        let since = request("--since 2026-11-21T12:05:29Z").since.unwrap();
        assert_eq!(since.seconds, 1_795_262_729);
        assert_eq!(
            (grouped(0), grouped(4095), grouped(1_234_567)),
            ("0".into(), "4,095".into(), "1,234,567".into())
        );
    }
}
