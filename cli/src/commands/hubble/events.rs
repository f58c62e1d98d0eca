//! Which events are printed and how, and the events that are no flows: notifications of the agent, debug messages.

use std::io::Write;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand, ValueEnum};
use grpc::Connection;
use hubble_api::observer::observer_client::ObserverClient;
use hubble_api::observer::{GetAgentEventsRequest, GetDebugEventsRequest};
use k8s_types::Time;
use serde::Serialize;

use super::{ServerOptions, refused};

/// Events that are printed without an option that selects them.
const DEFAULT_LAST: u64 = 20;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Output {
    Compact,
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
    output: Output,
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

    /// Prints a response.
    pub(super) fn print<R: Serialize>(
        &self,
        out: &mut dyn Write,
        response: &R,
        compact: impl Fn(&R) -> String,
    ) -> anyhow::Result<()> {
        let line = match self.output {
            Output::Compact => compact(response),
            Output::Json => hubble_api::to_json(response),
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

#[derive(Debug, Subcommand)]
pub(super) enum EventsCommand {
    /// Print notifications of the agent: endpoints, policies, addresses
    AgentEvents(EventsOptions),
    /// Print debug messages of the programs
    DebugEvents(EventsOptions),
}

#[derive(Debug, Args)]
pub(super) struct EventsOptions {
    #[command(flatten)]
    server: ServerOptions,
    #[command(flatten)]
    range: RangeOptions,
}

impl EventsCommand {
    pub(super) fn server(&self) -> &ServerOptions {
        match self {
            Self::AgentEvents(options) | Self::DebugEvents(options) => &options.server,
        }
    }

    /// Prints the events.
    pub(super) async fn run(&self, connection: Connection, out: &mut dyn Write) -> anyhow::Result<()> {
        let mut observer = ObserverClient::new(connection);
        match self {
            Self::AgentEvents(EventsOptions { range, .. }) => {
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
            Self::DebugEvents(EventsOptions { range, .. }) => {
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
