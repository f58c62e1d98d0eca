//! `endpoint`: pods and host as the agent's endpoints.

use crate::client::Agent;
use crate::commands::config;
use crate::output::{Format, Output, table};
use anyhow::{Context as _, bail};
use api_client::escape;
use api_models::{
    Endpoint, EndpointConfigurationStatus, EndpointHealth, EndpointStatusChange, LabelConfiguration,
    LabelConfigurationSpec,
};
use clap::{Args, Subcommand};
use serde_json::json;
use std::fmt::Write as _;
use std::io::Write;

#[derive(Debug, Subcommand)]
pub(crate) enum EndpointCommand {
    /// List all endpoints
    #[command(visible_alias = "ls")]
    List(EndpointListOptions),
    /// Display endpoint information
    #[command(visible_aliases = ["inspect", "show"])]
    Get(EndpointGetOptions),
    /// View endpoint health
    Health {
        /// Number or prefix:name of the endpoint
        id: String,
        #[command(flatten)]
        output: Output,
    },
    /// View endpoint status log
    Log {
        /// Number or prefix:name of the endpoint
        id: String,
        #[command(flatten)]
        output: Output,
    },
    /// Manage label configuration of endpoint
    Labels {
        /// Number or prefix:name of the endpoint
        id: String,
        /// Add or enable labels
        #[arg(short, long, value_delimiter = ',')]
        add: Vec<String>,
        /// Delete or disable labels
        #[arg(short, long, value_delimiter = ',')]
        delete: Vec<String>,
    },
    /// View and modify endpoint configuration
    Config {
        /// Number or prefix:name of the endpoint
        id: String,
        /// Changes as OPTION=VALUE
        #[arg(value_name = "OPTION=VALUE")]
        changes: Vec<String>,
        /// List the options that can change
        #[arg(long)]
        list_options: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Disconnect an endpoint from the network
    Disconnect {
        /// Number or prefix:name of the endpoint
        id: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct EndpointListOptions {
    /// Do not print headers
    #[arg(long)]
    pub(crate) no_headers: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct EndpointGetOptions {
    /// Number or prefix:name of the endpoint
    #[arg(required_unless_present = "labels", conflicts_with = "labels")]
    pub(crate) id: Option<String>,
    /// All endpoints with these labels
    #[arg(short, long, value_delimiter = ',')]
    pub(crate) labels: Vec<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Runs a verb of `endpoint`.
pub(crate) fn run(agent: &mut Agent, command: &EndpointCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        EndpointCommand::List(options) => list(agent, options, out),
        EndpointCommand::Get(options) => get(agent, options, out),
        EndpointCommand::Health { id, output } => health(agent, id, output, out),
        EndpointCommand::Log { id, output } => log(agent, id, output, out),
        EndpointCommand::Labels { id, add, delete } => labels(agent, id, add, delete, out),
        EndpointCommand::Config { list_options: true, .. } => config::list_endpoint_options(out),
        EndpointCommand::Config { id, changes, output, .. } => config(agent, id, changes, output, out),
        EndpointCommand::Disconnect { id } => disconnect(agent, id, out),
    }
}

fn list(agent: &mut Agent, options: &EndpointListOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    let found: Option<Vec<Endpoint>> = agent.find("/endpoint").context("cannot get endpoint list")?;
    let mut endpoints = found.unwrap_or_default();
    endpoints.sort_by_key(|endpoint| endpoint.id);
    if options.output.write(&endpoints, out)? {
        return Ok(());
    }
    let mut text = String::new();
    if !options.no_headers {
        text += "ENDPOINT\tPOLICY (ingress)\tPOLICY (egress)\tIDENTITY\tLABELS (source:key[=value])\tIPv6\tIPv4\tSTATUS\t\n";
        text += "\tENFORCEMENT\tENFORCEMENT\t\t\t\t\t\n";
    }
    for endpoint in &endpoints {
        text += &rows(endpoint);
    }
    Ok(table(&text, 5, out)?)
}

/// Formats one line a label; the first line also has the other columns.
fn rows(endpoint: &Endpoint) -> String {
    const UNKNOWN: &str = "Unknown";
    let status = endpoint.status.as_ref();
    let policy = status.and_then(|status| status.policy.as_ref()?.realized.as_ref());
    let (ingress, egress) = policy.map_or((UNKNOWN, UNKNOWN), |policy| enforcement(&policy.policy_enabled));
    let identity = status.and_then(|status| status.identity.as_ref());
    let identity = identity.map_or_else(|| "<no label id>".to_owned(), |identity| identity.id.to_string());
    let (ipv6, ipv4) = match status.and_then(|status| status.networking.as_ref()) {
        None => (UNKNOWN, UNKNOWN),
        Some(networking) => match networking.addressing.first() {
            None => ("No address", "No address"),
            Some(pair) => (pair.ipv6.as_str(), pair.ipv4.as_str()),
        },
    };
    let state = status.map_or(UNKNOWN, |status| status.state.as_str());
    let labels = status.and_then(|status| status.labels.as_ref());
    let mut labels = labels.map(|labels| labels.security_relevant.clone()).unwrap_or_default();
    labels.sort();
    let mut labels = labels.iter().map(String::as_str);
    let first = labels.next().unwrap_or("no labels");
    let id = endpoint.id;
    let mut text = format!("{id}\t{ingress}\t{egress}\t{identity}\t{first}\t{ipv6}\t{ipv4}\t{state}\t\n");
    for label in labels {
        let _ = writeln!(text, "\t\t\t\t{label}\t\t\t\t");
    }
    text
}

fn enforcement(policy_enabled: &str) -> (&'static str, &'static str) {
    const ON: &str = "Enabled";
    const OFF: &str = "Disabled";
    const AUDIT: &str = "Disabled (Audit)";
    match policy_enabled {
        "none" => (OFF, OFF),
        "both" => (ON, ON),
        "ingress" => (ON, OFF),
        "egress" => (OFF, ON),
        "audit-both" => (AUDIT, AUDIT),
        "audit-ingress" => (AUDIT, OFF),
        "audit-egress" => (OFF, AUDIT),
        _ => ("Unknown", "Unknown"),
    }
}

fn get(agent: &mut Agent, options: &EndpointGetOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    let endpoints: Vec<Endpoint> = match &options.id {
        Some(id) => {
            let found = agent.get(&path(id)).with_context(|| format!("cannot get endpoint {id}"))?;
            vec![found]
        }
        None => {
            let labels = serde_json::to_vec(&options.labels)?;
            let answer = agent.call("GET", "/endpoint", &[], Some(&labels))?;
            if answer.status != 200 {
                bail!(
                    "cannot get endpoints for given list of labels {:?}: {}",
                    options.labels,
                    answer.words()
                );
            }
            serde_json::from_slice(&answer.body)?
        }
    };
    options.output.format.as_ref().unwrap_or(&Format::Json).write(&endpoints, out)
}

fn health(agent: &mut Agent, id: &str, output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let health: EndpointHealth =
        agent.get(&(path(id) + "/healthz")).with_context(|| format!("cannot get endpoint healthz {id}"))?;
    if output.write(&health, out)? {
        return Ok(());
    }
    let EndpointHealth { bpf, connected, overall_health, policy } = &health;
    let connected = if *connected { "yes" } else { "no" };
    let text = format!(
        "Overall Health:\t{overall_health}\nBPF Health:\t{bpf}\nPolicy Health:\t{policy}\nConnected:\t{connected}\n"
    );
    Ok(table(&text, 2, out)?)
}

fn log(agent: &mut Agent, id: &str, output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let entries: Vec<EndpointStatusChange> =
        agent.get(&(path(id) + "/log")).with_context(|| format!("cannot get endpoint log {id}"))?;
    if output.write(&entries, out)? {
        return Ok(());
    }
    let mut text = "Timestamp\tStatus\tState\tMessage\n".to_owned();
    for EndpointStatusChange { timestamp, code, state, message } in &entries {
        let _ = writeln!(text, "{timestamp}\t{code}\t{state}\t{message}");
    }
    Ok(table(&text, 5, out)?)
}

fn labels(
    agent: &mut Agent,
    id: &str,
    add: &[String],
    delete: &[String],
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let path = path(id) + "/labels";
    if !add.is_empty() || !delete.is_empty() {
        let current: LabelConfiguration = agent.get(&path).context("cannot get endpoint labels")?;
        let mut user = current.spec.unwrap_or_default().user;
        user.retain(|label| !delete.contains(label) && !add.contains(label));
        user.extend_from_slice(add);
        let body = serde_json::to_value(LabelConfigurationSpec { user })?;
        agent.change("PATCH", &path, Some(&body)).context("cannot modify labels")?;
    }
    let labels: LabelConfiguration = agent.get(&path).context("cannot get endpoint labels")?;
    let status = labels.status.context("cannot get endpoint labels: empty response")?;
    let mut text = String::new();
    for (labels, state) in [(&status.security_relevant, "Enabled"), (&status.disabled, "Disabled")] {
        for label in labels {
            let _ = writeln!(text, "{label}\t{state}");
        }
    }
    Ok(table(&text, 2, out)?)
}

fn config(
    agent: &mut Agent,
    id: &str,
    changes: &[String],
    output: &Output,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let path = path(id) + "/config";
    let current: EndpointConfigurationStatus =
        agent.get(&path).with_context(|| format!("cannot get configuration of endpoint {id}"))?;
    if changes.is_empty() {
        if output.write(&current, out)? {
            return Ok(());
        }
        config::dump(&current.immutable, out)?;
        return config::dump(&current.realized.unwrap_or_default().options, out);
    }
    let options = config::parse_changes(changes)?;
    let body = json!({ "options": options });
    agent.change("PATCH", &path, Some(&body)).with_context(|| format!("cannot update endpoint {id}"))?;
    Ok(writeln!(out, "Endpoint {id} configuration updated successfully")?)
}

fn disconnect(agent: &mut Agent, id: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    agent.change("DELETE", &path(id), None).with_context(|| format!("cannot disconnect endpoint {id}"))?;
    Ok(writeln!(out, "Successfully disconnected endpoint {id}")?)
}

/// Returns an endpoint's path; colons and slashes of the id are escaped.
fn path(id: &str) -> String {
    let parts: Vec<_> = id.split(':').map(escape).collect();
    format!("/endpoint/{}", parts.join(":"))
}
