//! `config`: the agent's options, those that can change at run time and the others.

use crate::client::Agent;
use crate::output::Output;
use anyhow::{Context as _, bail};
use api_models::{ConfigurationMap, DaemonConfiguration, DaemonConfigurationSpec, DaemonConfigurationStatus};
use clap::{Args, Subcommand};
use serde_json::{Map, Value};
use std::io::Write;

/// Options of the agent that can change at run time.
const OPTIONS: &[(&str, &str)] = &[
    ("Debug", "Enable debugging trace statements"),
    ("DebugLB", "Enable debugging trace statements for load balancer"),
    ("DebugPolicy", "Enable debugging trace statements for policy enforcement"),
    ("DebugTagged", "Enable debugging trace statements for tagged packets"),
    ("DropNotification", "Enable drop notifications"),
    ("MonitorAggregationLevel", "Set the level of aggregation for monitor events in the datapath"),
    ("PolicyAuditMode", "Enable audit mode for policies"),
    ("PolicyVerdictNotification", "Enable policy verdict notifications"),
    ("SourceIPVerification", "Enable the check of the source IP on pod egress"),
    ("TraceNotification", "Enable trace notifications"),
];

/// Those that endpoints do not have.
const ONLY_OF_AGENT: [&str; 1] = ["DebugTagged"];

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ConfigOptions {
    #[command(subcommand)]
    pub(crate) command: Option<ConfigCommand>,
    /// Changes as OPTION=VALUE
    #[arg(value_name = "OPTION=VALUE")]
    pub(crate) changes: Vec<String>,
    /// Display read only configurations
    #[arg(short = 'r', long)]
    pub(crate) read_only: bool,
    /// Display all configurations
    #[arg(short = 'a', long)]
    pub(crate) all: bool,
    /// List the options that can change
    #[arg(long)]
    pub(crate) list_options: bool,
    /// Number of pages of the ring of events for each processor; this agent's are of one size
    #[arg(short = 'n', long, value_name = "N", default_value_t = 0)]
    pub(crate) num_pages: u32,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Where the running agent differs from its configuration, and why
    Drift,
    /// Retrieve one configuration value
    Get {
        /// Its name, upper and lower case alike
        key: String,
        #[command(flatten)]
        output: Output,
    },
}

/// Runs `config` or one of its verbs.
pub(crate) fn run(agent: &mut Agent, options: &ConfigOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    match &options.command {
        Some(ConfigCommand::Get { key, output }) => get(agent, key, output, out),
        Some(ConfigCommand::Drift) => drift(agent, out),
        None => show_or_change(agent, options, out),
    }
}

fn show_or_change(agent: &mut Agent, options: &ConfigOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    if options.list_options {
        return list_options(OPTIONS.iter(), out);
    }
    let status = status(agent)?;
    if options.num_pages > 0 {
        let ring = status.node_monitor.as_ref().map(|monitor| monitor.npages);
        if ring.is_some_and(|pages| pages != i64::from(options.num_pages)) {
            bail!("the ring of events has {} pages, which does not change", ring.unwrap_or_default());
        }
    }
    if !options.changes.is_empty() {
        return change(agent, &options.changes);
    }
    let realized = status.realized.clone().unwrap_or_default();
    if options.output.format.is_some() {
        let data = match (options.read_only, options.all) {
            (true, _) => serde_json::to_value(&status.daemon_configuration_map)?,
            (_, true) => {
                let mut all = serde_json::to_value(&status.daemon_configuration_map)?;
                if let (Value::Object(all), Value::Object(more)) =
                    (&mut all, serde_json::to_value(&realized)?)
                {
                    all.extend(more);
                }
                all
            }
            _ => serde_json::to_value(&realized.options)?,
        };
        options.output.write(&data, out)?;
        return Ok(());
    }
    if options.read_only || options.all {
        read_only(&status, out)?;
    }
    if !options.read_only {
        read_write(&status, &realized, out)?;
    }
    Ok(())
}

/// Prints values that are not in force, each with the agent's reason.
fn drift(agent: &mut Agent, out: &mut dyn Write) -> anyhow::Result<()> {
    let answer = agent.call_plain("GET", "/apiary/drift")?;
    if answer.status != 200 {
        bail!("the agent does not tell: {}", answer.words());
    }
    Ok(out.write_all(&answer.body)?)
}

/// Prints one value, by its name in any case; a nested value by its own name.
fn get(agent: &mut Agent, key: &str, output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let status = status(agent)?;
    let mut all: Map<String, Value> = Map::new();
    for (name, value) in &status.daemon_configuration_map {
        if let Value::Object(inner) = value {
            all.extend(inner.clone());
        }
        all.insert(name.clone(), value.clone());
    }
    let realized = status.realized.unwrap_or_default();
    all.extend(realized.options.into_iter().map(|(name, value)| (name, value.into())));
    all.insert("PolicyEnforcement".into(), realized.policy_enforcement.into());
    let found = all.iter().find(|(name, _)| name.eq_ignore_ascii_case(key));
    let (_, value) = found.with_context(|| format!("key {key} does not exist"))?;
    if output.write(value, out)? {
        return Ok(());
    }
    Ok(writeln!(out, "{}", show(value))?)
}

fn status(agent: &mut Agent) -> anyhow::Result<DaemonConfigurationStatus> {
    let configuration: DaemonConfiguration =
        agent.get("/config").context("error while retrieving configuration")?;
    configuration.status.context("empty configuration status returned")
}

fn change(agent: &mut Agent, changes: &[String]) -> anyhow::Result<()> {
    let mut spec =
        DaemonConfigurationSpec { options: parse_changes(changes)?, ..DaemonConfigurationSpec::default() };
    if let Some(mode) = spec.options.remove("PolicyEnforcement") {
        spec.policy_enforcement = mode;
    }
    let body = serde_json::to_value(&spec)?;
    agent.change("PATCH", "/config", Some(&body)).context("unable to change agent configuration")
}

/// Parses `OPTION=VALUE` into a request; the agent validates options and values.
pub(crate) fn parse_changes(changes: &[String]) -> anyhow::Result<ConfigurationMap> {
    let parse = |change: &String| match change.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => bail!("improper configuration format {change:?}, want OPTION=VALUE"),
    };
    changes.iter().map(parse).collect()
}

fn read_only(status: &DaemonConfigurationStatus, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "#### Read-only configurations ####")?;
    for (name, value) in &status.daemon_configuration_map {
        match value {
            Value::Object(inner) => {
                writeln!(out, "{name}")?;
                for (name, value) in inner {
                    writeln!(out, "\t{name:<26}: {}", word(&show(value)))?;
                }
            }
            value => writeln!(out, "{name:<34}: {}", show(value))?,
        }
    }
    writeln!(out, "{:<34}: {}", "k8s-configuration", status.k8s_configuration)?;
    if !status.k8s_endpoint.is_empty() {
        writeln!(out, "{:<34}: {}", "k8s-endpoint", status.k8s_endpoint)?;
    }
    dump(&status.immutable, out)
}

fn read_write(
    status: &DaemonConfigurationStatus,
    realized: &DaemonConfigurationSpec,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    writeln!(out, "##### Read-write configurations #####")?;
    dump(&realized.options, out)?;
    if let Some(monitor) = &status.node_monitor {
        writeln!(out, "{:<34}: {}", "MonitorNumPages", monitor.npages)?;
    }
    Ok(writeln!(out, "{:<34}: {}", "PolicyEnforcement", realized.policy_enforcement)?)
}

/// Prints options one a line; the many spellings of booleans are normalized to two.
pub(crate) fn dump(options: &ConfigurationMap, out: &mut dyn Write) -> anyhow::Result<()> {
    for (name, value) in options {
        writeln!(out, "{name:<34}: {}", word(value))?;
    }
    Ok(())
}

/// Returns the word for a boolean in any spelling; other values as they are.
fn word(value: &str) -> &str {
    match value.to_ascii_lowercase().as_str() {
        "true" | "on" | "enable" | "enabled" | "1" => "Enabled",
        "false" | "off" | "disable" | "disabled" | "0" => "Disabled",
        _ => value,
    }
}

/// Prints options with their descriptions.
pub(crate) fn list_endpoint_options(out: &mut dyn Write) -> anyhow::Result<()> {
    list_options(OPTIONS.iter().filter(|(name, _)| !ONLY_OF_AGENT.contains(name)), out)
}

fn list_options<'a>(
    options: impl Iterator<Item = &'a (&'a str, &'a str)>,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    for (name, description) in options {
        writeln!(out, "{name:<24} {description}")?;
    }
    Ok(())
}

/// Formats text without quotes and lists in brackets, as Go prints values.
fn show(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "<nil>".to_owned(),
        Value::Array(items) => format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(" ")),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{name}:{}", show(value)));
            format!("map[{}]", fields.collect::<Vec<_>>().join(" "))
        }
        other => other.to_string(),
    }
}
