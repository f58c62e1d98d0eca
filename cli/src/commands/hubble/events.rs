//! Which events are printed and how, and the events that are no flows: notifications of the agent, debug messages.

use std::io::Write;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand, ValueEnum};
use grpc::Connection;
use hubble_api::LineOptions;
use hubble_api::observer::observer_client::ObserverClient;
use hubble_api::observer::{GetAgentEventsRequest, GetDebugEventsRequest, GetFlowsResponse};
use k8s_types::Time;
use serde::Serialize;

use super::refused;
use crate::output::table;

/// Events that are printed without an option that selects them.
const DEFAULT_LAST: u64 = 20;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Output {
    Compact,
    /// Each field on a line of its own
    Dict,
    #[value(alias = "tab")]
    Table,
    #[value(alias = "jsonpb")]
    Json,
}

/// The options of all kinds of events.
#[derive(Debug, Args)]
pub(super) struct RangeOptions {
    /// Get the last N events (default: 20)
    #[arg(long, value_name = "N", conflicts_with_all = ["first", "all"])]
    last: Option<u64>,
    /// Get the first N events of those that the server has
    #[arg(long, value_name = "N", conflicts_with_all = ["all", "follow"])]
    pub(super) first: Option<u64>,
    /// Get all events that the server has
    #[arg(long)]
    all: bool,
    /// Follow events as they happen
    #[arg(short, long)]
    pub(super) follow: bool,
    /// Events since a time (RFC 3339) or a duration ago (5m)
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(super) since: Option<SystemTime>,
    /// Events until a time or a duration ago
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(super) until: Option<SystemTime>,
    /// Output format
    #[arg(short, long, default_value = "compact")]
    pub(super) output: Output,
    /// Print the name of the node
    #[arg(long)]
    print_node_name: bool,
    /// Print the policies that have decided on a flow
    #[arg(long)]
    print_policy_names: bool,
    /// Print addresses instead of names
    #[arg(long)]
    numeric: bool,
    /// Names instead of addresses
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    ip_translation: bool,
    /// Format of times: StampMilli, YearMonthDay, YearMonthDayHour, YearMonthDayHourMinute, RFC3339, RFC3339Milli,
    /// RFC3339Micro, RFC3339Nano, RFC1123Z
    #[arg(long, value_name = "FORMAT", default_value = "StampMilli", value_parser = time_format)]
    time_format: &'static str,
    /// Colours, which lines do not have
    #[arg(long, hide = true)]
    _color: Option<String>,
}

/// Returns the form of times in UTC by its name, in any case.
fn time_format(name: &str) -> Result<&'static str, String> {
    let formats = [
        ("StampMilli", LineOptions::TIME_FORMAT),
        ("YearMonthDay", "%Y-%m-%d"),
        ("YearMonthDayHour", "%Y-%m-%dT%HZ"),
        ("YearMonthDayHourMinute", "%Y-%m-%dT%H:%MZ"),
        ("RFC3339", "%Y-%m-%dT%H:%M:%SZ"),
        ("RFC3339Milli", "%Y-%m-%dT%H:%M:%S%.3fZ"),
        ("RFC3339Micro", "%Y-%m-%dT%H:%M:%S%.6fZ"),
        // Without zeros at the end, as Go prints it.
        ("RFC3339Nano", "%Y-%m-%dT%H:%M:%S%.fZ"),
        ("RFC1123Z", "%a, %d %b %Y %H:%M:%S +0000"),
    ];
    let found = formats.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map(|(_, format)| format).ok_or_else(|| "is no format of times".to_owned())
}

/// Parses a time, or a duration before now.
fn time(text: &str) -> Result<SystemTime, String> {
    if let Ok(ago) = go_duration::parse(text) {
        return SystemTime::now().checked_sub(ago).ok_or_else(|| "is too long ago".to_owned());
    }
    let time: Time =
        text.parse().map_err(|_| "is neither a time (2026-01-31T12:00:00Z) nor a duration (5m)")?;
    let seconds = u64::try_from(time.seconds()).map_err(|_| "is before 1970")?;
    Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

impl RangeOptions {
    /// Returns the number of events; 0 for any number.
    pub(super) fn number(&self) -> u64 {
        let by_time = self.since.is_some() || self.until.is_some();
        match (self.last, self.first) {
            _ if self.all => 0,
            (Some(last), _) => last,
            (_, Some(first)) => first,
            (None, None) if by_time || self.follow => 0,
            (None, None) => DEFAULT_LAST,
        }
    }

    /// Returns the content of lines of flows.
    fn line(&self) -> LineOptions {
        LineOptions {
            node_name: self.print_node_name,
            policy_names: self.print_policy_names,
            names: self.ip_translation && !self.numeric,
            time_format: self.time_format,
        }
    }

    /// Returns a response of flows as a line, or as the columns that the format has.
    pub(super) fn flow(&self, response: &GetFlowsResponse) -> Shape {
        match (self.output, hubble_api::to_columns(response, &self.line())) {
            (Output::Dict | Output::Table, Some(columns)) => Shape::Columns(columns),
            _ => Shape::Line(hubble_api::to_compact(response, &self.line())),
        }
    }

    /// Prints a table, after its last row.
    pub(super) fn print_table(&self, rows: &[Columns], out: &mut dyn Write) -> anyhow::Result<()> {
        let Some(first) = rows.first() else { return Ok(()) };
        let mut text = first.iter().map(|(title, _)| *title).collect::<Vec<_>>().join("\t") + "\n";
        for row in rows {
            let cells: Vec<&str> = row.iter().map(|(_, cell)| cell.as_str()).collect();
            text += &format!("{}\n", cells.join("\t"));
        }
        Ok(table(&text, 2, out)?)
    }

    /// Prints a response.
    pub(super) fn print<R: Serialize>(
        &self,
        out: &mut dyn Write,
        response: &R,
        compact: impl Fn(&R) -> String,
    ) -> anyhow::Result<()> {
        let line = match self.output {
            Output::Json => hubble_api::to_json(response),
            Output::Compact | Output::Dict | Output::Table => compact(response),
        };
        if !line.is_empty() {
            writeln!(out, "{line}")?;
        }
        if self.follow {
            out.flush()?;
        }
        Ok(())
    }
}

/// Titles and values of a response.
pub(super) type Columns = Vec<(&'static str, String)>;

/// A response for people.
pub(super) enum Shape {
    Line(String),
    Columns(Columns),
}

/// Returns each value behind its title, which ends at the same place in every line.
pub(super) fn dict(columns: &Columns) -> String {
    columns.iter().map(|(title, value)| format!("{title:>11}: {value}\n")).collect()
}

#[derive(Debug, Subcommand)]
pub(super) enum EventsCommand {
    /// Print flows, as without this word
    Flows(Box<super::ObserveOptions>),
    /// Print notifications of the agent: endpoints, policies, addresses
    AgentEvents(EventsOptions),
    /// Print debug messages of the programs
    DebugEvents(EventsOptions),
}

#[derive(Debug, Args)]
pub(super) struct EventsOptions {
    #[command(flatten)]
    range: RangeOptions,
}

impl EventsCommand {
    /// Prints the events.
    pub(super) async fn run(&self, connection: Connection, out: &mut dyn Write) -> anyhow::Result<()> {
        let mut observer = ObserverClient::new(connection);
        match self {
            Self::Flows(_) => {}
            Self::AgentEvents(EventsOptions { range }) => {
                let request = GetAgentEventsRequest {
                    number: range.number(),
                    first: range.first.is_some(),
                    follow: range.follow,
                    since: range.since.map(Into::into),
                    until: range.until.map(Into::into),
                };
                let mut events = observer.get_agent_events(request).await.map_err(refused)?.into_inner();
                while let Some(event) = events.message().await.map_err(refused)? {
                    range.print(out, &event, hubble_api::agent_event_to_compact)?;
                }
            }
            Self::DebugEvents(EventsOptions { range }) => {
                let request = GetDebugEventsRequest {
                    number: range.number(),
                    first: range.first.is_some(),
                    follow: range.follow,
                    since: range.since.map(Into::into),
                    until: range.until.map(Into::into),
                };
                let mut events = observer.get_debug_events(request).await.map_err(refused)?.into_inner();
                while let Some(event) = events.message().await.map_err(refused)? {
                    range.print(out, &event, hubble_api::debug_event_to_compact)?;
                }
            }
        }
        Ok(())
    }
}
