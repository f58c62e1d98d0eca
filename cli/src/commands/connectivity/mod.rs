//! `connectivity check`: makes pods, a service and a policy in a namespace of its own, probes from inside of the pods
//! which flows work, removes everything, and prints a table.
//!
//! The API server is asked by `kubectl`, which has the user's kubeconfig, credential plugins and proxies. Results are
//! the termination messages of the probing pods, so that neither `exec` nor `logs` is needed.
//!
//! Sibling modules that it uses: `probe` and `output`.

mod check;
mod flows;
mod kubectl;
mod objects;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::output::{Output, table};
use check::{Check, Outcome};
use kubectl::Kubectl;

#[derive(Debug, Subcommand)]
pub(crate) enum ConnectivityCommand {
    /// Make pods, a service and a policy, probe which flows work, and remove all of it
    Check(CheckOptions),
}

#[derive(Debug, Args)]
pub(crate) struct CheckOptions {
    /// Image with `apiary` in its PATH: that of the agent
    #[arg(long)]
    image: String,
    /// Namespace to make; its objects are removed in the end
    #[arg(long, default_value = "apiary-connectivity-check")]
    namespace: String,
    /// Seconds that pods may take to start, and flows to be as expected
    #[arg(long, default_value_t = 60)]
    timeout: u64,
    /// Program that talks to the API server
    #[arg(long, default_value = "kubectl")]
    kubectl: PathBuf,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn run(command: &ConnectivityCommand, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let ConnectivityCommand::Check(options) = command;
    let check = Check {
        kubectl: Kubectl::new(&options.kubectl)?,
        namespace: &options.namespace,
        image: &options.image,
        timeout: Duration::from_secs(options.timeout),
    };
    let outcomes = check.run()?;
    if !options.output.write(&outcomes, out)? {
        let row = |outcome: &Outcome| {
            let Outcome { from, to, address, expected, result, error, .. } = outcome;
            format!("{from}\t{to}\t{address}\t{expected}\t{result}\t{error}\n")
        };
        let rows: String = outcomes.iter().map(row).collect();
        table(&format!("From\tTo\tAddress\tExpected\tResult\tError\n{rows}"), 0, out)?;
    }
    Ok(if outcomes.iter().all(Outcome::is_expected) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
