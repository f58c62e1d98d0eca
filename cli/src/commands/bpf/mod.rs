//! `bpf`: pinned maps, read from the kernel without an agent.
//!
//! `pinned` finds and reads maps, `format` formats their entries as Cilium's tools do; every other file is a command.

mod auth;
mod connections;
mod ct;
mod endpoint;
mod format;
mod frag;
mod fs;
mod ipcache;
mod ipmasq;
mod lb;
pub(super) mod maglev;
mod metrics;
mod nat;
mod nodeid;
pub(super) mod pinned;
mod policy;
mod runtime_config;
mod socknat;

pub(super) use self::connections::connections;

use crate::client::Agent;
use crate::commands::absent::{Anything, Feature, refuse};
use crate::commands::list::{List, Listing};
use anyhow::bail;
use clap::Subcommand;
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
    /// Values that the agent writes for programs
    #[command(subcommand)]
    Config(List<Listing>),
    /// Sockets whose destination was translated
    #[command(subcommand)]
    Socknat(List<Listing>),
    /// Mounts of the bpf file system
    #[command(subcommand)]
    Fs(fs::FsCommand),
    /// Bandwidths of endpoints, which this agent does not limit
    #[command(hide = true)]
    Bandwidth(Anything),
    /// Egress gateways, which this agent does not have
    #[command(hide = true)]
    Egress(Anything),
    /// Multicast groups, which this agent does not have
    #[command(hide = true)]
    Multicast(Anything),
    /// SRv6, which this agent does not have
    #[command(hide = true)]
    Srv6(Anything),
    /// VTEPs, which this agent does not have
    #[command(hide = true)]
    Vtep(Anything),
    /// Templates of programs, which this agent does not have
    #[command(hide = true)]
    Sha(Anything),
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
        BpfCommand::Config(List::List(options)) => runtime_config::list(&options.output, out),
        BpfCommand::Socknat(List::List(options)) => socknat::list(&options.output, out),
        BpfCommand::Fs(command) => fs::run(command, out),
        BpfCommand::Bandwidth(_) => refuse(Feature::Bandwidth),
        BpfCommand::Egress(_) => refuse(Feature::Egress),
        BpfCommand::Multicast(_) => refuse(Feature::Multicast),
        BpfCommand::Srv6(_) => refuse(Feature::Srv6),
        BpfCommand::Vtep(_) => refuse(Feature::Vtep),
        BpfCommand::Sha(_) => refuse(Feature::Templates),
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn require_root() -> anyhow::Result<()> {
    match std::fs::metadata("/proc/self") {
        Ok(process) if process.uid() != 0 => bail!("please run this command with root privileges"),
        _ => Ok(()),
    }
}
