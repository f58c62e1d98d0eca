//! `bpf`: pinned maps, read from the kernel without an agent.
//!
//! `pinned` finds and reads maps, `format` formats their entries as Cilium's tools do; every other file is a command.

mod auth;
mod connections;
mod ct;
mod endpoint;
mod format;
mod frag;
mod ipcache;
mod ipmasq;
mod lb;
pub(super) mod maglev;
mod metrics;
mod nat;
mod nodeid;
pub(super) mod pinned;
mod policy;

pub(super) use self::connections::connections;

use crate::client::Agent;
use crate::commands::list::{List, Listing};
use anyhow::bail;
use clap::Subcommand;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt as _;
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub(crate) enum BpfCommand {
    /// Authenticated connections between identities
    #[command(subcommand)]
    Auth(auth::AuthCommand),
    /// Local endpoint map
    #[command(subcommand)]
    Endpoint(List<Listing>),
    /// The IPCache mappings for IP/CIDR to identities
    #[command(subcommand)]
    Ipcache(ipcache::IpcacheCommand),
    /// BPF datapath traffic metrics
    #[command(subcommand)]
    Metrics(List<Listing>),
    /// Policy related BPF maps
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Connection tracking tables
    #[command(subcommand)]
    Ct(ct::CtCommand),
    /// ip-masq-agent CIDRs
    #[command(subcommand)]
    Ipmasq(List<Listing>),
    /// NAT mapping tables
    #[command(subcommand)]
    Nat(nat::NatCommand),
    /// Ids of nodes
    #[command(subcommand, name = "nodeid")]
    NodeId(List<Listing>),
    /// Fragmented datagrams
    #[command(subcommand)]
    Frag(List<Listing>),
    /// Load-balancing configuration
    #[command(subcommand)]
    Lb(lb::LbCommand),
}

/// Runs a command on maps; only root may read them.
pub(crate) fn run(agent: &mut Agent, command: &BpfCommand, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    require_root()?;
    let done = match command {
        BpfCommand::Auth(command) => auth::run(command, out),
        BpfCommand::Endpoint(List::List(options)) => endpoint::list(&options.output, out),
        BpfCommand::Ipcache(command) => return ipcache::run(command, out),
        BpfCommand::Metrics(List::List(options)) => metrics::list(&options.output, out),
        BpfCommand::Policy(command) => policy::run(agent, command, out),
        BpfCommand::Ipmasq(List::List(options)) => ipmasq::list(&options.output, out),
        BpfCommand::NodeId(List::List(options)) => nodeid::list(&options.output, out),
        BpfCommand::Frag(List::List(options)) => frag::list(&options.output, out),
        BpfCommand::Nat(command) => nat::run(agent, command, out),
        BpfCommand::Lb(command) => lb::run(command, out),
        BpfCommand::Ct(command) => ct::run(agent, command, out),
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn require_root() -> anyhow::Result<()> {
    match fs::metadata("/proc/self") {
        Ok(process) if process.uid() != 0 => bail!("please run this command with root privileges"),
        _ => Ok(()),
    }
}
