//! `agent build-config`, for an init container: writes the configuration of this node into a folder.

use std::process::ExitCode;

use config_sources::Surroundings;
use hive::{Hive, HiveError};

use crate::print;
use logging::LogOptions;

/// First word of the command line that selects this command.
pub(crate) const WORD: &str = "build-config";

const USAGE: &str = "\
Usage: agent build-config [OPTIONS]   write the configuration of this node, which ConfigMap, CiliumNodeConfigs
                                      and annotations of the node have parts of, into a folder for --config-dir
";

/// Runs the command in a separate hive, without cells of the agent.
pub(crate) fn run() -> ExitCode {
    let (filter, level) = logging::filter();
    level.install(filter, LogOptions::default(), false);
    let cells = [k8s_client::cell(), config_sources::build(Surroundings::of_process())];
    let ended = match Hive::builder(cells).process("CILIUM_").build() {
        Ok(hive) if hive.arguments().help => {
            return print(&format!("{USAGE}\nOptions:\n{}", hive.usage()));
        }
        Ok(hive) if hive.arguments().words.len() > 1 => {
            tracing::error!(words = hive.arguments().words[1..].join(" "), "Unknown words\n{USAGE}");
            return ExitCode::FAILURE;
        }
        Ok(hive) => end(hive),
        Err(error) => Err(vec![error]),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(errors) => {
            for error in errors {
                tracing::error!(target: crate::FATAL_TARGET, %error, "Build config failed");
            }
            ExitCode::FAILURE
        }
    }
}

fn end(hive: Hive) -> Result<(), Vec<HiveError>> {
    match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => match runtime.block_on(hive.run()) {
            outcome if outcome.errors.is_empty() && outcome.signal.is_none() => Ok(()),
            outcome => Err(outcome.errors),
        },
        Err(error) => {
            tracing::error!(target: crate::FATAL_TARGET, %error, "Threads cannot be started");
            Err(vec![])
        }
    }
}
