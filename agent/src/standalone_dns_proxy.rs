//! `agent standalone-dns-proxy`: the DNS proxy as a process of its own.

use std::process::ExitCode;
use std::time::Duration;

use hive::{Hive, bundle};
use logging::DebugConfig;

use crate::{FATAL, FATAL_TARGET, print};

/// First word of the command line that selects this command.
pub(crate) const WORD: &str = "standalone-dns-proxy";

/// Threads that answer queries.
const WORKERS: usize = 2;

const USAGE: &str = "\
Usage: agent standalone-dns-proxy --config-dir DIR [OPTIONS]

Answers the DNS queries of pods by the policies of the agent, also while it is away. The agent needs the same options.
";

/// Runs the proxy until a signal.
pub(crate) fn run() -> ExitCode {
    let (filter, level) = logging::filter();
    let built = Hive::builder(bundle([logging::cell(level.clone()), standalone_dns_proxy::program()]))
        .process("CILIUM_")
        .config_files()
        .foreign(agent::known_options())
        .build();
    let code = match level.install_for(filter, built, |hive| Ok(hive.config::<DebugConfig>()?.debug)) {
        Ok(hive) if hive.arguments().help => print(&format!("{USAGE}\nOptions:\n{}", hive.usage())),
        Ok(hive) if hive.arguments().words.len() > 1 => {
            tracing::error!(words = hive.arguments().words[1..].join(" "), "Unknown words\n{USAGE}");
            ExitCode::FAILURE
        }
        Ok(hive) => {
            crate::privileges::raise_descriptors();
            level.start_writer();
            serve(hive)
        }
        Err(error) => {
            tracing::error!(target: FATAL_TARGET, %error, "unable to start the DNS proxy");
            ExitCode::from(FATAL)
        }
    };
    level.flush();
    code
}

fn serve(hive: Hive) -> ExitCode {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = match builder.worker_threads(WORKERS).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(target: FATAL_TARGET, %error, "Threads cannot be started");
            return ExitCode::from(FATAL);
        }
    };
    let outcome = runtime.block_on(hive.run());
    runtime.shutdown_timeout(Duration::from_secs(1));
    for error in &outcome.errors {
        tracing::error!(target: FATAL_TARGET, %error, "unable to run the DNS proxy");
    }
    outcome.exit_code()
}
