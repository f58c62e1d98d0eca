//! `metrics`: values of the agent's metrics, by its shell.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};

use crate::commands::shell::{self, ShellSocket};

#[derive(Debug, Subcommand)]
pub(crate) enum MetricsCommand {
    /// List all metrics
    #[command(visible_alias = "ls")]
    List(MetricsOptions),
}

#[derive(Debug, Args)]
pub(crate) struct MetricsOptions {
    #[command(flatten)]
    socket: ShellSocket,
    /// Show only metrics with names and labels that match this regular expression
    #[arg(short = 'p', long, value_name = "REGEX", default_value = "")]
    match_pattern: String,
    /// Format
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "table")]
    format: Format,
}

/// Formats of the shell's command.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Table,
    Json,
    Yaml,
}

/// Runs a verb of `metrics`.
pub(crate) fn run(command: &MetricsCommand, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let MetricsCommand::List(options) = command;
    let format = match options.format {
        Format::Table => "table",
        Format::Json => "json",
        Format::Yaml => "yaml",
    };
    let mut words = vec!["metrics".to_owned(), format!("--format={format}")];
    if !options.match_pattern.is_empty() {
        words.push(options.match_pattern.clone());
    }
    shell::run_words(&options.socket, &words, out)
}
