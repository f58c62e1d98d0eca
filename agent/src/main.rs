//! The binary: `agent --config-dir DIR` runs the agent, `agent config` prints the options in force, `agent hive` the
//! tree of cells.

mod build_config;
mod cleanup;
mod cmdref;
mod dump;
mod log_level;
mod pictures;
mod preflight;
mod privileges;
mod standalone_dns_proxy;

use std::io::{self, Write as _};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cilium_health::EndpointNamespaceSlot;
use daemon_config::RuntimeConfig;
use hive::{ConfigError, Hive, HiveError, bundle};
use logging::LogLevel;

#[global_allocator]
static ALLOCATOR: memory_limit::Counting = memory_limit::Counting;

fn main() -> ExitCode {
    memory_limit::tune_allocator();
    let first = std::env::args_os().nth(1).unwrap_or_default();
    if first == build_config::WORD {
        return build_config::run();
    }
    if first == preflight::WORD {
        return preflight::run();
    }
    if first == standalone_dns_proxy::WORD {
        return standalone_dns_proxy::run();
    }
    let (filter, level) = logging::filter();
    let health_endpoint = Arc::<EndpointNamespaceSlot>::default();
    let own = [log_level::cell(level.clone()), privileges::cell(health_endpoint.clone()), cmdref::cell()];
    let built = Hive::builder([bundle(own), agent::cells()])
        .command(cleanup::WORDS, cleanup::cell())
        .process("CILIUM_")
        .config_files()
        .usual_config_files(usual_config_files())
        .foreign(agent::known_options())
        .build();
    let code = match level.install_for(filter, built, |hive| Ok(hive.config::<RuntimeConfig>()?.debug)) {
        Ok(hive) => dispatch(hive, &level, &health_endpoint)
            .unwrap_or_else(|error| refuse(&HiveError::Config(vec![error]))),
        Err(error) => refuse(&error),
    };
    level.flush();
    code
}

/// Target of events that are logged with level `fatal`.
const FATAL_TARGET: &str = "agent::fatal";

/// Runs the command that the command line names.
fn dispatch(
    hive: Hive,
    log: &LogLevel,
    health_endpoint: &EndpointNamespaceSlot,
) -> Result<ExitCode, ConfigError> {
    let words: Vec<&str> = hive.arguments().words.iter().map(String::as_str).collect();
    Ok(match words.as_slice() {
        _ if hive.arguments().help => print(&format!("{USAGE}\nOptions:\n{}", hive.usage())),
        _ if hive.arguments().version => print(VERSION),
        [] => match cmdref::folder(&hive)? {
            Some(folder) => reference(&hive, &folder),
            None => run(hive, log, health_endpoint)?,
        },
        [word] if cleanup::WORDS.contains(word) => match privileges::are_missing() {
            true => ExitCode::from(FATAL),
            false => cleanup::run(&hive),
        },
        ["version"] => print(VERSION),
        ["config"] => print(&dump::text(hive.settings())),
        words => match pictures::of(&hive, words) {
            Some(Ok(picture)) => print(&picture),
            Some(Err(error)) => {
                tracing::error!(target: FATAL_TARGET, %error, "Request to the running agent failed");
                ExitCode::FAILURE
            }
            None => {
                tracing::error!(command = words.join(" "), "Unknown command\n{USAGE}");
                ExitCode::FAILURE
            }
        },
    })
}

/// Returns the paths at which Cilium searches for a configuration file if none is named.
fn usual_config_files() -> Vec<PathBuf> {
    let Some(home) = std::env::var_os("HOME") else { return vec![] };
    ["cilium.yaml", "cilium.yml", "cilium.json"].map(|name| Path::new(&home).join(name)).into()
}

const VERSION: &str = concat!("agent ", env!("CARGO_PKG_VERSION"), "\n");

const USAGE: &str = "\
Usage: agent [--config-dir DIR] [OPTIONS]   run the agent
       agent cleanup [--dry-run] [--force]  remove leftovers of agents from this node;
                                            --bpf-state: only programs, links and maps
       agent build-config                   write the node's configuration from cluster objects
                                            into a folder; --help lists its options
       agent preflight                      report what becomes of chart values, options, pinned maps
                                            and endpoints; --help lists its options
       agent standalone-dns-proxy           answer DNS queries of pods also while the agent is away; reads
                                            the agent's options
       agent --cmdref DIR                   write the command reference into DIR
       agent config                         print the options in force as a configuration file,
                                            each with its source
       agent config drift                   print differences between the running agent and its
                                            configuration, with their reasons
       agent hive                           print the tree of modules and cells
       agent hive dot-graph | mermaid       print it as a graph for Graphviz or Mermaid
       agent hive json                      print it as JSON, for comparisons
       agent hive timeline                  print the timeline of the running agent's start as SVG
       agent version | --version
";

/// Writes the command reference instead of running.
fn reference(hive: &Hive, folder: &Path) -> ExitCode {
    match cmdref::write(folder, USAGE, hive.usage()) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            let folder = folder.display();
            tracing::error!(target: FATAL_TARGET, %folder, %error, "Unable to write the command reference");
            ExitCode::FAILURE
        }
    }
}

fn run(hive: Hive, log: &LogLevel, health_endpoint: &EndpointNamespaceSlot) -> Result<ExitCode, ConfigError> {
    if privileges::are_missing() {
        return Ok(ExitCode::from(FATAL));
    }
    privileges::raise_descriptors();
    if !privileges::drop_capabilities(&hive, log, health_endpoint)? {
        return Ok(ExitCode::from(FATAL));
    }
    hive.settings().report();
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(target: FATAL_TARGET, %error, "Threads cannot be started");
            return Ok(ExitCode::from(FATAL));
        }
    };
    let outcome = runtime.block_on(hive.run());
    // All jobs have been stopped. Without a timeout, a blocking thread in a system call that does not return would hang
    // the exit.
    runtime.shutdown_timeout(Duration::from_secs(1));
    for error in &outcome.errors {
        tracing::error!(target: FATAL_TARGET, %error, "unable to run agent");
    }
    Ok(outcome.exit_code())
}

/// Returns the runtime of all tasks, with threads that tools and tests can tell apart: `worker-N` runs tasks and must not
/// block, `blocking` may.
fn runtime() -> io::Result<tokio::runtime::Runtime> {
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
    let started = AtomicUsize::new(0);
    // The runtime starts its workers first.
    let name = move || match started.fetch_add(1, Ordering::Relaxed) {
        worker if worker < workers => format!("worker-{worker}"),
        _ => "blocking".to_owned(),
    };
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(workers).thread_name_fn(name).enable_all().build()
}

/// Exit code after a fatal error.
const FATAL: u8 = 255;

/// Logs why the agent does not start. Returns exit code 1 for an invalid command line, 255 for any other error.
fn refuse(error: &HiveError) -> ExitCode {
    tracing::error!(target: FATAL_TARGET, %error, "unable to start agent");
    let command_line = |e: &hive::ConfigError| {
        use hive::ConfigError::{NoArgument, UnknownFlag, UnknownShorthand};
        matches!(e, UnknownFlag { .. } | UnknownShorthand { .. } | NoArgument { .. })
    };
    if error.config().iter().any(command_line) { ExitCode::FAILURE } else { ExitCode::from(FATAL) }
}

/// Prints to standard output. A closed pipe, as with `| head`, is not a failure.
fn print(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}
