//! The binary: `operator --config-dir DIR` runs the operator, `operator config` prints its options, `operator hive` the tree of
//! cells.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use hive::{Hive, bundle};
use logging::{DebugConfig, LogLevel};

#[global_allocator]
static ALLOCATOR: memory_limit::Counting = memory_limit::Counting;

/// Target of events that are logged with level `fatal`.
const FATAL_TARGET: &str = "operator::fatal";

/// Exit code after a fatal error.
const FATAL: u8 = 255;

/// Limit of the stop hooks: a leader that has lost its lease must be gone before another one begins, which is five seconds
/// later with the default times.
const STOP_TIMEOUT: Duration = Duration::from_secs(4);

const VERSION: &str = concat!("operator ", env!("CARGO_PKG_VERSION"), "\n");

const USAGE: &str = "\
Usage: operator [--config-dir DIR] [OPTIONS]   run the operator
       operator config                         the options in force, each with where it came from
       operator hive                           what it is made of, as a tree
       operator version | --version
";

fn main() -> ExitCode {
    memory_limit::tune_allocator();
    let (filter, level) = logging::filter();
    let built = Hive::builder(bundle([logging::cell(level.clone()), operator::cells()]))
        .process("CILIUM_")
        .config_files()
        .foreign(operator::known_options())
        .stop_timeout(STOP_TIMEOUT)
        .build();
    let code = match level.install_for(filter, built, |hive| Ok(hive.config::<DebugConfig>()?.debug)) {
        Ok(hive) => dispatch(hive, &level),
        Err(error) => {
            tracing::error!(target: FATAL_TARGET, %error, "unable to start operator");
            ExitCode::from(FATAL)
        }
    };
    level.flush();
    code
}

/// Runs the command that the command line names.
fn dispatch(hive: Hive, log: &LogLevel) -> ExitCode {
    let words: Vec<&str> = hive.arguments().words.iter().map(String::as_str).collect();
    match words.as_slice() {
        _ if hive.arguments().help => print(&format!("{USAGE}\nOptions:\n{}", hive.usage())),
        _ if hive.arguments().version => print(VERSION),
        [] => run(hive, log),
        ["version"] => print(VERSION),
        ["config"] => {
            let line = |setting: &hive::Setting| {
                let value = if setting.is_secret() { "(secret)" } else { setting.value.as_str() };
                format!("{}: {value:?}  # {}\n", setting.key, setting.source)
            };
            print(&hive.settings().iter().map(line).collect::<String>())
        }
        ["hive"] => print(&hive.tree()),
        words => {
            tracing::error!(command = words.join(" "), "Unknown command\n{USAGE}");
            ExitCode::FAILURE
        }
    }
}

fn run(hive: Hive, log: &LogLevel) -> ExitCode {
    log.start_writer();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(target: FATAL_TARGET, %error, "Threads cannot be started");
            return ExitCode::from(FATAL);
        }
    };
    let outcome = runtime.block_on(hive.run());
    // All jobs have been stopped. Without a timeout, a blocking thread in a system call that does not return would hang
    // the exit.
    runtime.shutdown_timeout(Duration::from_secs(1));
    for error in &outcome.errors {
        tracing::error!(target: FATAL_TARGET, %error, "unable to run operator");
    }
    outcome.exit_code()
}

/// Prints to standard output. A closed pipe, as with `| head`, is not a failure.
fn print(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}
