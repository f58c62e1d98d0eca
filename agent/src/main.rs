//! `agent --config-dir DIR`; `agent config` shows the options in force, `agent hive` what it is made of.

mod cleanup;
mod cmdref;
mod dump;
mod log_level;
mod logging;
mod pictures;
mod privileges;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use hive::{Hive, HiveError};
use log_level::{LogFilter, LogLevel};
use logging::{LogConfig, LogOptions};

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

fn main() -> ExitCode {
    memory::tune_allocator();
    let (filter, level) = log_level::filter();
    let args: Vec<String> =
        std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let cleaning = cleanup::take(&args);
    let (flags, args) = match cleaning {
        Some((flags, rest)) => (Some(flags), rest),
        None => (None, args),
    };
    let built = Hive::builder([log_level::cell(level.clone()), privileges::cell(), agent::cells()])
        .process("CILIUM_")
        .args(args)
        .config_files()
        .usual_config_files(usual_config_files())
        .foreign(agent::known_options())
        .build();
    let hive = match built {
        Ok(hive) => hive,
        Err(error) => return refuse(&error, filter, &level),
    };
    let words: Vec<&str> = hive.arguments().words.iter().map(String::as_str).collect();
    match words.as_slice() {
        _ if hive.arguments().help => print(&format!("{USAGE}\nOptions:\n{}", hive.usage())),
        _ if hive.arguments().version => print(VERSION),
        [] if let Some(folder) = cmdref::folder(&hive) => reference(&hive, &folder, filter, &level),
        [] => match flags {
            Some(flags) => clean(&hive, flags, filter, &level),
            None => run(hive, filter, &level),
        },
        ["version"] => print(VERSION),
        ["config"] => print(&dump::text(hive.settings())),
        words if let Some(picture) = pictures::of(&hive, words) => match picture {
            Ok(picture) => print(&picture),
            Err(error) => {
                LogOptions::default().install(filter, &level, false);
                tracing::error!(target: logging::FATAL, %error, "The running agent was not asked");
                ExitCode::FAILURE
            }
        },
        other => {
            LogOptions::default().install(filter, &level, false);
            tracing::error!(command = other.join(" "), "Unknown command\n{USAGE}");
            ExitCode::FAILURE
        }
    }
}

/// Where the original looks for a configuration file when none is named.
fn usual_config_files() -> Vec<PathBuf> {
    let Some(home) = std::env::var_os("HOME") else { return vec![] };
    ["cilium.yaml", "cilium.yml", "cilium.json"].map(|name| Path::new(&home).join(name)).into()
}

const VERSION: &str = concat!("agent ", env!("CARGO_PKG_VERSION"), "\n");

const USAGE: &str = "\
Usage: agent [--config-dir DIR] [OPTIONS]   run the agent
       agent cleanup [--dry-run] [--force]  remove what agents have left on this node;
                                            --bpf-state: only programs, links and maps
       agent --cmdref DIR                   write the command reference into DIR
       agent config                         the options in force, as a file, each with where it
                                            came from
       agent config drift                   where the running agent differs from its
                                            configuration, and why
       agent hive                           what it is made of, as a tree
       agent hive dot-graph | mermaid       the same as a graph for Graphviz or Mermaid
       agent hive json                      the same for comparisons
       agent hive timeline                  how the running agent started, as SVG
       agent version | --version
";

/// Writes the command reference instead of running.
fn reference(hive: &Hive, folder: &Path, filter: LogFilter, level: &LogLevel) -> ExitCode {
    match cmdref::write(folder, USAGE, hive.usage()) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            LogOptions::default().install(filter, level, false);
            let folder = folder.display();
            tracing::error!(target: logging::FATAL, %folder, %error, "Unable to write the command reference");
            ExitCode::FAILURE
        }
    }
}

fn run(hive: Hive, filter: LogFilter, level: &LogLevel) -> ExitCode {
    let (options, debug) = LogConfig::options(hive.settings());
    options.install(filter, level, debug);
    if privileges::are_missing() {
        return ExitCode::from(FATAL);
    }
    privileges::raise_descriptors();
    if !privileges::settle(hive.settings()) {
        return ExitCode::from(FATAL);
    }
    hive.settings().report();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(target: logging::FATAL, %error, "Threads cannot be started");
            return ExitCode::from(FATAL);
        }
    };
    let outcome = runtime.block_on(hive.run());
    for error in &outcome.errors {
        tracing::error!(target: logging::FATAL, %error, "unable to run agent");
    }
    outcome.exit_code()
}

fn clean(hive: &Hive, flags: cleanup::Flags, filter: LogFilter, level: &LogLevel) -> ExitCode {
    let (options, debug) = LogConfig::options(hive.settings());
    options.install(filter, level, debug);
    if privileges::are_missing() {
        return ExitCode::from(FATAL);
    }
    cleanup::run(hive.settings(), flags)
}

/// Exit code of an agent that could not go on.
const FATAL: u8 = 255;

/// Says why the agent does not start: 1 for a wrong command line, 255 for everything else.
fn refuse(error: &HiveError, filter: LogFilter, level: &LogLevel) -> ExitCode {
    LogOptions::default().install(filter, level, false);
    tracing::error!(target: logging::FATAL, %error, "unable to start agent");
    let command_line = |e: &hive::ConfigError| {
        use hive::ConfigError::{NoArgument, UnknownFlag, UnknownShorthand};
        matches!(e, UnknownFlag { .. } | UnknownShorthand { .. } | NoArgument { .. })
    };
    if error.config().iter().any(command_line) { ExitCode::FAILURE } else { ExitCode::from(FATAL) }
}

/// Prints what was asked for. A reader that has seen enough is no failure.
fn print(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}
