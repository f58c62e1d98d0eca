//! The binary: `operator --config-dir DIR` runs the operator, `operator config` prints its options, `operator hive` the tree of
//! cells.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::Path;
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
       operator certgen [OPTIONS]              write certificates as secrets; --help lists its options
       operator version | --version
";

/// The first word that selects the maker of certificates, and the name by which Cilium's image has that program.
const CERTGEN: &str = "certgen";
const CILIUM_CERTGEN: &str = "cilium-certgen";

const CERTGEN_USAGE: &str = "\
Usage: operator certgen [OPTIONS]   write the certificates that CILIUM_CERTGEN_CONFIG lists as secrets, signed
                                    by the authority of a secret
";

fn main() -> ExitCode {
    memory_limit::tune_allocator();
    let is_certgen = is_certgen(std::env::args_os().take(2));
    let (filter, level) = logging::filter();
    let built = match is_certgen {
        true => Hive::builder(bundle([logging::cell(level.clone()), operator::certgen()]))
            .process("CILIUM_CERTGEN_")
            .build(),
        false => Hive::builder(bundle([logging::cell(level.clone()), operator::cells()]))
            .process("CILIUM_")
            .config_files()
            .foreign(operator::known_options())
            .stop_timeout(STOP_TIMEOUT)
            .build(),
    };
    let code = match level.install_for(filter, built, |hive| Ok(hive.config::<DebugConfig>()?.debug)) {
        Ok(hive) if is_certgen => make_certificates(hive, &level),
        Ok(hive) => dispatch(hive, &level),
        Err(error) => {
            tracing::error!(target: FATAL_TARGET, %error, "unable to start operator");
            ExitCode::from(FATAL)
        }
    };
    level.flush();
    code
}

/// Whether name or first word of the command line are those of the maker of certificates.
fn is_certgen(mut words: impl Iterator<Item = OsString>) -> bool {
    let is_named =
        words.next().is_some_and(|name| Path::new(&name).file_name() == Some(CILIUM_CERTGEN.as_ref()));
    is_named || words.next().is_some_and(|word| word == CERTGEN)
}

fn make_certificates(hive: Hive, log: &LogLevel) -> ExitCode {
    match hive.arguments().words.iter().find(|word| *word != CERTGEN) {
        _ if hive.arguments().help => print(&format!("{CERTGEN_USAGE}\nOptions:\n{}", hive.usage())),
        Some(word) => {
            tracing::error!(word, "Unknown word\n{CERTGEN_USAGE}");
            ExitCode::FAILURE
        }
        None => run(hive, log),
    }
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
