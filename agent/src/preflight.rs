//! `agent preflight`: reports what an agent of this version does with a configuration, and with the state of this node.

use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;

use hive::Hive;
use hive::prelude::*;
use preflight::options::{Judged, Program, Scope, judge};
use preflight::values::judge_values;
use preflight::{ConfigMapSource, Report, node, read_values};

use crate::print;
use logging::LogOptions;

/// First word of the command line that selects this command.
pub(crate) const WORD: &str = "preflight";

const USAGE: &str = "\
Usage: agent preflight --values FILE | --config-map PATH [OPTIONS]

Reports for each chart value or option whether it is effective, ignored, refused or unknown, and with --bpf-root and
--state-dir what becomes of the pinned maps and endpoints of this node, of Cilium or of another version. Changes nothing.
The exit code is 1 if something is refused.
";

/// The form of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Table,
    Json,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Format, String> {
        match text {
            "table" => Ok(Format::Table),
            "json" => Ok(Format::Json),
            _ => Err(String::new()),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Format::Json { "json" } else { "table" })
    }
}

/// Options of the command.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Preflight")]
struct PreflightConfig {
    /// File of chart values, - for the standard input
    #[flag(default = "")]
    values: String,
    /// ConfigMap: a folder as it is mounted, a file with the object or with options, - for the standard input
    #[flag(default = "")]
    config_map: String,
    /// Root of this node's bpf file system (/sys/fs/bpf), to compare the pinned maps
    #[flag(default = "")]
    bpf_root: String,
    /// Run folder of this node (/var/run/cilium), to compare the endpoints
    #[flag(default = "")]
    state_dir: String,
    /// Form of the report
    #[flag(default = "table", short = 'o', parse = "table or json")]
    output: Format,
}

/// Runs the command; the hive of the agent is planned for each configuration and never started.
pub(crate) fn run() -> ExitCode {
    let (filter, level) = logging::filter();
    level.install(filter, LogOptions::default(), false);
    let cells = module("preflight", "Reports the effect of a configuration", [config::<PreflightConfig>()]);
    let done = match Hive::builder(cells).process("CILIUM_").build() {
        Ok(hive) if hive.arguments().help => return print(&format!("{USAGE}\nOptions:\n{}", hive.usage())),
        Ok(hive) if hive.arguments().words.len() > 1 => {
            Err(anyhow::anyhow!("unknown words: {}\n{USAGE}", hive.arguments().words[1..].join(" ")))
        }
        Ok(hive) => hive.config().map_err(Into::into).and_then(|config| report(&config)),
        Err(error) => Err(error.into()),
    };
    match done {
        Ok((report, format)) => {
            let text = match format {
                Format::Table => report.to_string(),
                Format::Json => serde_json::json!(report).to_string() + "\n",
            };
            match print(&text) {
                ExitCode::SUCCESS if report.is_refused() => ExitCode::FAILURE,
                code => code,
            }
        }
        Err(error) => {
            tracing::error!(target: crate::FATAL_TARGET, %error, "Preflight failed");
            ExitCode::FAILURE
        }
    }
}

fn report(config: &PreflightConfig) -> anyhow::Result<(Report, Format)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let construct = |mut hive: Hive| runtime.block_on(async move { hive.populate().await });
    let builder = || Hive::builder(agent::cells()).foreign(agent::known_options());
    let program = Program { builder: &builder, construct: &construct };
    let Judged { findings, hive } = match (config.values.as_str(), config.config_map.as_str()) {
        ("", "") => anyhow::bail!("nothing to judge: give --values FILE or --config-map PATH"),
        (values, "") => judge_values(&read_values(Path::new(values))?, program)?,
        ("", map) => judge(&ConfigMapSource::read(Path::new(map))?.data, Scope::Complete, program)?,
        _ => anyhow::bail!("give --values or --config-map, not both"),
    };
    let mut report = Report { keys: findings, ..Report::default() };
    if !config.bpf_root.is_empty() {
        report.maps = node::maps(&hive, Path::new(&config.bpf_root))?;
    }
    if !config.state_dir.is_empty() {
        report.endpoints = node::endpoints(Path::new(&config.state_dir))?;
    }
    Ok((report, config.output))
}
