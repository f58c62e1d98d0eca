//! The grammar of the command line, in `cilium-dbg`'s words: a file or a folder for each command, with its arguments.
//!
//! Commands may use each other's parts: `endpoint` prints options as `config` does, `ip` and `bpf policy` resolve
//! identities by `identity`, `db` and `metrics` run commands by `shell`, `why` formats addresses as `service` does, `health` prints
//! the agent as `status` does and adds the nodes to it, `connectivity` runs `probe` in pods, `ui` counts flows as `top` does.
//!
//! Sibling folders that it uses: `client`, `output`.

mod absent;
mod agent_verb;
mod bpf;
mod completion;
mod config;
mod connectivity;
mod db;
mod debuginfo;
mod endpoint;
mod envoy;
mod explain;
mod features;
mod fqdn;
mod get;
mod health;
mod hubble;
mod identity;
mod ip;
mod list;
mod lrp;
mod map;
mod metrics;
mod monitor;
mod node;
mod policy;
mod preview;
mod probe;
mod service;
mod shell;
mod start_up;
mod statedb;
mod status;
pub(crate) mod sysdump;
mod top;
mod trace;
mod ui;
mod version;
mod why;

use crate::client::Agent;
use crate::output::Output;
use clap::{Parser, Subcommand};
use list::{List, Listing};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(about = "Looks into a running agent and its datapath", disable_help_subcommand = true)]
pub(crate) struct Arguments {
    /// Address of the agent: a path, unix://PATH or tcp://IP:PORT (default: CILIUM_SOCK)
    #[arg(short = 'H', long, global = true)]
    host: Option<String>,
    /// Print more about requests; these clients have nothing to add
    #[arg(short = 'D', long = "debug", global = true, hide = true)]
    _debug: bool,
    #[command(flatten)]
    logging: Logging,
    #[command(subcommand)]
    command: Command,
}

/// Options of Cilium's client for logs that this one does not write: command lines with them are accepted.
#[derive(Debug, clap::Args)]
struct Logging {
    /// Configuration file of the client
    #[arg(id = "config-file", long = "config", value_name = "PATH", global = true, hide = true)]
    _config: Option<PathBuf>,
    #[arg(id = "log-driver", long = "log-driver", global = true, hide = true)]
    _log_driver: Vec<String>,
    #[arg(id = "log-opt", long = "log-opt", global = true, hide = true)]
    _log_opt: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Display status of daemon
    Status(status::StatusOptions),
    /// Print version information
    Version(Output),
    /// Cilium configuration options
    Config(config::ConfigOptions),
    /// Manage endpoints
    #[command(subcommand, visible_alias = "ep")]
    Endpoint(endpoint::EndpointCommand),
    /// Manage security identities
    #[command(subcommand)]
    Identity(identity::IdentityCommand),
    /// Manage IP addresses and associated information
    #[command(subcommand)]
    Ip(ip::IpCommand),
    /// Manage security policies
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Manage services and their backends
    #[command(subcommand)]
    Service(service::ServiceCommand),
    /// Manage local redirect policies
    #[command(subcommand)]
    Lrp(lrp::LrpCommand),
    /// Tell whether SOURCE may talk to DESTINATION, and which rule says so
    Why(why::WhyOptions),
    /// Send one real packet of a pod and follow it through the datapath of this node: each place, the policies and
    /// translations, and what becomes of it
    Trace(trace::TraceOptions),
    /// Explain a drop reason or a degraded module: its meaning, likely causes, and commands to run
    Explain(explain::ExplainOptions),
    /// Show the cluster objects that the agent holds, from an API server or a folder, as kubectl shows them
    Get(get::GetOptions),
    /// Dump tables of the agent
    Statedb(statedb::TablesOptions),
    /// Look into tables of the agent: their rows by key, as tables, JSON or YAML, and as they change
    Db(db::DbOptions),
    /// Connectivity between nodes; the address is that of the health API (default: CILIUM_HEALTH_SOCK)
    #[command(subcommand)]
    Health(health::HealthCommand),
    /// Manage cluster nodes
    #[command(subcommand)]
    Node(List<Listing>),
    /// Ids of nodes in the datapath, with their addresses
    #[command(subcommand, name = "nodeid")]
    NodeId(List<Listing>),
    /// Access metric status
    #[command(subcommand)]
    Metrics(metrics::MetricsCommand),
    /// State of encryption between nodes
    #[command(subcommand)]
    Encrypt(features::EncryptCommand),
    /// The node's Envoy
    #[command(subcommand)]
    Envoy(envoy::EnvoyCommand),
    /// Direct access to the kvstore, which this agent does not use
    #[command(hide = true)]
    Kvstore(absent::Anything),
    /// Connectivity to kvstores and remote clusters, which this agent does not have
    #[command(subcommand, hide = true)]
    Troubleshoot(absent::TroubleshootCommand),
    /// Show how busy the machine is
    Loadinfo,
    /// DNS names of policies and endpoints
    #[command(subcommand)]
    Fqdn(fqdn::FqdnCommand),
    /// State of the BGP control plane
    #[command(subcommand)]
    Bgp(features::BgpCommand),
    /// CIDRs that XDP drops
    #[command(subcommand)]
    Prefilter(features::PrefilterCommand),
    /// Cgroups of pods
    #[command(subcommand)]
    Cgroups(List<features::CgroupsListing>),
    /// Request available debugging information from agent
    Debuginfo(debuginfo::DebuginfoOptions),
    /// Access userspace cached content of BPF maps
    #[command(subcommand)]
    Map(map::MapCommand),
    /// Display BPF program events: packets that are dropped or pass a point, verdicts of policies, and notifications of
    /// the agent
    Monitor(monitor::MonitorOptions),
    /// Flows of the node's packets with the names of pods and services, as Cilium's hubble prints them; needs enable-hubble
    Hubble(hubble::HubbleOptions),
    /// Show which flows, endpoints or drops are most, live in the terminal; needs enable-hubble
    Top(top::TopOptions),
    /// Serve a page at 127.0.0.1 for a browser: health, endpoints, live flows, services, drops, the start, pressure of maps
    Ui(ui::UiOptions),
    /// Direct access to local BPF maps
    #[command(subcommand)]
    Bpf(bpf::BpfCommand),
    /// Connect to the agent's shell: its commands, one or at a prompt
    Shell(shell::ShellOptions),
    /// Show how the agent started: its longest steps, all of them, or a picture
    StartUp(start_up::StartUpOptions),
    /// Print the modules and cells that the agent is composed of, by its configuration: runs `agent hive`
    Graph {
        /// `dot-graph`, `mermaid` or `json`, and options of the agent; a tree without
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Write the configuration that cluster objects have for this node into a folder: runs `agent build-config`, whose
    /// --help tells its options
    #[command(disable_help_flag = true)]
    BuildConfig {
        /// Options of `agent build-config`: --dest, --node-name, --source, and where the API server is
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Check which flows of pods work in a cluster
    #[command(subcommand)]
    Connectivity(connectivity::ConnectivityCommand),
    /// Both ends of a flow, for the pods of `connectivity check`
    #[command(subcommand)]
    Probe(probe::ProbeCommand),
    /// Report what the agent does with chart values or options, and with the pinned maps and endpoints of this node: runs
    /// `agent preflight`, and its --help lists the options
    #[command(disable_help_flag = true)]
    Preflight {
        /// Options of `agent preflight`: --values, --config-map, --bpf-root, --state-dir, -o
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Collect state of the agent, its maps and the node into an archive, without secrets; also by the name cilium-bugtool
    Sysdump(sysdump::SysdumpOptions),
    /// Print a script with which bash, zsh, fish, elvish or PowerShell completes commands and options
    Completion(completion::CompletionOptions),
    /// Remove what agents have left on this node: runs `agent cleanup`, whose --help tells its options
    #[command(visible_alias = "post-uninstall-cleanup", disable_help_flag = true)]
    Cleanup {
        /// Options of `agent cleanup`: --dry-run, --force, --bpf-state, and where things are
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// Runs the command of a program by this name; returns the exit code of the process.
pub(crate) fn run(name: &str, arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let agent = &mut Agent::new(arguments.host.as_deref());
    let done = match &arguments.command {
        Command::Status(options) => return status::run(agent, options, out),
        Command::Version(options) => return version::run(agent, options, out),
        Command::Config(options) => config::run(agent, options, out),
        Command::Endpoint(command) => endpoint::run(agent, command, out),
        Command::Identity(command) => identity::run(agent, command, out),
        Command::Ip(command) => ip::run(agent, command, out),
        Command::Policy(command) => return policy::run(agent, command, out),
        Command::Service(command) => service::run(agent, command, out),
        Command::Lrp(command) => lrp::run(agent, command, out),
        Command::Explain(options) => explain::run(options, out),
        Command::Why(options) => return why::run(agent, options, out),
        Command::Trace(options) => return trace::run(agent, options, out),
        Command::Get(options) => return get::run(agent, options, out),
        Command::Statedb(options) => statedb::run(agent, options, out),
        Command::Db(options) => return db::run(options, out),
        Command::Health(command) => health::run(arguments.host.as_deref(), command, out),
        Command::Node(List::List(options)) => node::list(agent, options, out),
        Command::NodeId(List::List(options)) => node::ids(agent, options, out),
        Command::Metrics(command) => return metrics::run(command, out),
        Command::Encrypt(command) => features::encrypt(agent, command, out),
        Command::Envoy(command) => envoy::run(command, out),
        Command::Kvstore(_) => absent::refuse(absent::Feature::Kvstore),
        Command::Troubleshoot(command) => absent::troubleshoot(command),
        Command::Loadinfo => absent::load_information(out),
        Command::Fqdn(command) => fqdn::run(agent, command, out),
        Command::Bgp(command) => features::bgp(agent, command, out),
        Command::Prefilter(command) => features::prefilter(agent, command, out),
        Command::Cgroups(command) => features::cgroups(agent, command, out),
        Command::Debuginfo(options) => debuginfo::run(agent, options, out),
        Command::Map(command) => map::run(agent, command, out),
        Command::Monitor(options) => monitor::run(agent, options, out),
        Command::Hubble(options) => hubble::run(agent, options, out),
        Command::Top(options) => top::run(agent, options, out),
        Command::Ui(options) => ui::run(agent, options, out),
        Command::Bpf(command) => return bpf::run(agent, command, out),
        Command::Shell(options) => return shell::run(options, out),
        Command::StartUp(options) => start_up::run(agent, options, out),
        Command::Graph { arguments } => agent_verb::run("hive", arguments),
        Command::BuildConfig { arguments } => agent_verb::run("build-config", arguments),
        Command::Connectivity(command) => return connectivity::run(command, out),
        Command::Probe(command) => return probe::run(command, out),
        Command::Preflight { arguments } => agent_verb::run("preflight", arguments),
        Command::Sysdump(options) => sysdump::run(arguments.host.as_deref(), options, out),
        Command::Completion(options) => completion::run(name, options, out),
        Command::Cleanup { arguments } => agent_verb::run("cleanup", arguments),
    };
    done.map(|()| ExitCode::SUCCESS)
}
