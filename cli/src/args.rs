//! The command line's grammar, in `cilium-dbg`'s words.

use crate::bpf_lb::LbCommand;
use crate::db::DbOptions;
use crate::get::GetOptions;
use crate::output::Format;
use crate::service::ServiceCommand;
use crate::shell::ShellOptions;
use crate::why::Target;
use clap::{Args, Parser, Subcommand};
use std::net::IpAddr;

#[derive(Debug, Parser)]
#[command(about = "Looks into a running agent and its datapath", disable_help_subcommand = true)]
pub(crate) struct Arguments {
    /// Address of the agent: a path, unix://PATH or tcp://IP:PORT (default: CILIUM_SOCK)
    #[arg(short = 'H', long, global = true)]
    pub(crate) host: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Display status of daemon
    Status(StatusOptions),
    /// Print version information
    Version(Output),
    /// Cilium configuration options
    Config(ConfigOptions),
    /// Manage endpoints
    #[command(subcommand, visible_alias = "ep")]
    Endpoint(EndpointCommand),
    /// Manage security identities
    #[command(subcommand)]
    Identity(IdentityCommand),
    /// Manage IP addresses and associated information
    #[command(subcommand)]
    Ip(IpCommand),
    /// Manage security policies
    #[command(subcommand)]
    Policy(RulesCommand),
    /// Manage services and their backends
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Manage local redirect policies
    #[command(subcommand)]
    Lrp(LrpCommand),
    /// Tell whether SOURCE may talk to DESTINATION, and which rule says so
    Why(WhyOptions),
    /// Show the cluster objects that the agent holds, from an API server or a folder, as kubectl shows them
    Get(GetOptions),
    /// Dump tables of the agent
    Statedb(TablesOptions),
    /// Look into tables of the agent: their rows by key, as tables, JSON or YAML, and as they change
    Db(DbOptions),
    /// Manage cluster nodes
    #[command(subcommand)]
    Node(List<Listing>),
    /// Access userspace cached content of BPF maps
    #[command(subcommand)]
    Map(MapCommand),
    /// Direct access to local BPF maps
    #[command(subcommand)]
    Bpf(BpfCommand),
    /// Connect to the agent's shell: its commands, one or at a prompt
    Shell(ShellOptions),
    /// Write the configuration that cluster objects have for this node into a folder: runs `agent build-config`, whose
    /// --help tells its options
    #[command(disable_help_flag = true)]
    BuildConfig {
        /// Options of `agent build-config`: --dest, --node-name, --source, and where the API server is
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Remove what agents have left on this node: runs `agent cleanup`, whose --help tells its options
    #[command(visible_alias = "post-uninstall-cleanup", disable_help_flag = true)]
    Cleanup {
        /// Options of `agent cleanup`: --dry-run, --force, --bpf-state, and where things are
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
}

/// The option `-o` that nearly every command has.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Output {
    /// json | yaml | jsonpath='{...}'
    #[arg(short = 'o', long = "output", value_name = "FORMAT")]
    pub(crate) format: Option<Format>,
}

/// Clocks of the datapath.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum ClockMode {
    /// Seconds
    Ktime,
    /// Jiffies / 256
    Jiffies,
}

/// Whose connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CtScope {
    /// All.
    Global,
    /// Those of an endpoint.
    Endpoint(u16),
}

impl CtListOptions {
    pub(crate) fn scope(&self) -> anyhow::Result<CtScope> {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        match words[..] {
            ["global"] => Ok(CtScope::Global),
            [id] | ["endpoint", id] => match id.parse() {
                Ok(id) => Ok(CtScope::Endpoint(id)),
                Err(_) => anyhow::bail!("unknown type {id}, want global or the number of an endpoint"),
            },
            _ => anyhow::bail!("unknown type {}, want global or the number of an endpoint", words.join(" ")),
        }
    }
}

/// A command that can only list.
#[derive(Debug, Subcommand)]
pub(crate) enum List<O: Args> {
    /// List everything
    #[command(visible_alias = "ls")]
    List(O),
}

#[derive(Debug, Args)]
pub(crate) struct Listing {
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "these are the switches of the original's command line")]
pub(crate) struct StatusOptions {
    /// Only print a one-line status message
    #[arg(long)]
    pub(crate) brief: bool,
    /// Everything: all addresses, controllers, nodes, redirects, maps
    #[arg(long)]
    pub(crate) verbose: bool,
    /// Show all allocated addresses, not just count
    #[arg(long)]
    pub(crate) all_addresses: bool,
    /// Show all controllers, not just failing
    #[arg(long)]
    pub(crate) all_controllers: bool,
    /// Show all redirects
    #[arg(long)]
    pub(crate) all_redirects: bool,
    /// If set, a lost connection to Kubernetes makes the status a failure
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub(crate) require_k8s_connectivity: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ConfigOptions {
    #[command(subcommand)]
    pub(crate) command: Option<ConfigCommand>,
    /// Changes as OPTION=VALUE
    #[arg(value_name = "OPTION=VALUE")]
    pub(crate) changes: Vec<String>,
    /// Display read only configurations
    #[arg(short = 'r', long)]
    pub(crate) read_only: bool,
    /// Display all configurations
    #[arg(short = 'a', long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Where the running agent differs from its configuration, and why
    Drift,
    /// Retrieve one configuration value
    Get {
        /// Its name, upper and lower case alike
        key: String,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum EndpointCommand {
    /// List all endpoints
    #[command(visible_alias = "ls")]
    List(EndpointListOptions),
    /// Display endpoint information
    #[command(visible_aliases = ["inspect", "show"])]
    Get(EndpointGetOptions),
    /// View endpoint health
    Health {
        /// Number or prefix:name of the endpoint
        id: String,
        #[command(flatten)]
        output: Output,
    },
    /// View endpoint status log
    Log {
        /// Number or prefix:name of the endpoint
        id: String,
        #[command(flatten)]
        output: Output,
    },
    /// Manage label configuration of endpoint
    Labels {
        /// Number or prefix:name of the endpoint
        id: String,
        /// Add or enable labels
        #[arg(short, long, value_delimiter = ',')]
        add: Vec<String>,
        /// Delete or disable labels
        #[arg(short, long, value_delimiter = ',')]
        delete: Vec<String>,
    },
    /// View and modify endpoint configuration
    Config {
        /// Number or prefix:name of the endpoint
        id: String,
        /// Changes as OPTION=VALUE
        #[arg(value_name = "OPTION=VALUE")]
        changes: Vec<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Disconnect an endpoint from the network
    Disconnect {
        /// Number or prefix:name of the endpoint
        id: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct EndpointListOptions {
    /// Do not print headers
    #[arg(long)]
    pub(crate) no_headers: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct EndpointGetOptions {
    /// Number or prefix:name of the endpoint
    #[arg(required_unless_present = "labels", conflicts_with = "labels")]
    pub(crate) id: Option<String>,
    /// All endpoints with these labels
    #[arg(short, long, value_delimiter = ',')]
    pub(crate) labels: Vec<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Subcommand)]
pub(crate) enum IdentityCommand {
    /// List identities
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Retrieve information about an identity
    Get {
        /// Its number
        #[arg(required_unless_present = "labels", conflicts_with = "labels")]
        id: Option<u32>,
        /// All identities with these labels
        #[arg(short, long = "label", value_delimiter = ',')]
        labels: Vec<String>,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum IpCommand {
    /// List IP addresses in the userspace IPcache
    #[command(visible_alias = "ls")]
    List(IpOptions),
    /// Display IP information
    Get {
        /// An address or a prefix
        #[arg(required_unless_present = "labels", conflicts_with = "labels")]
        prefix: Option<String>,
        /// Everything with these labels
        #[arg(short, long, value_delimiter = ',')]
        labels: Vec<String>,
        #[command(flatten)]
        options: IpOptions,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum RulesCommand {
    /// Display policy node information
    Get {
        #[command(flatten)]
        output: Output,
    },
    /// Display cached information about selectors
    Selectors(SelectorOptions),
    /// Display cached information about subject selectors
    SubjectSelectors(SelectorOptions),
    /// Wait for all endpoints to have updated to a given policy revision
    Wait(WaitOptions),
}

#[derive(Debug, Args)]
pub(crate) struct SelectorOptions {
    /// Show the full labels of the rules
    #[arg(short, long)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct WaitOptions {
    /// The revision
    pub(crate) revision: i64,
    /// Wait time before failing, in seconds
    #[arg(long, default_value_t = 360)]
    pub(crate) max_wait_time: u64,
    /// Wait time after which an endpoint that failed makes the command fail, in seconds
    #[arg(long, default_value_t = 120)]
    pub(crate) fail_wait_time: u64,
    /// Sleep interval between checks, in seconds
    #[arg(long, default_value_t = 1)]
    pub(crate) sleep_time: u64,
}

#[derive(Debug, Args)]
pub(crate) struct WhyOptions {
    /// Who sends: an endpoint's number, namespace/name of a pod, an address, or identity:NUMBER
    pub(crate) source: String,
    /// Who receives, likewise
    pub(crate) destination: String,
    /// Destination port and protocol, as 80/TCP; of ICMP the type, as 8/ICMP
    #[arg(value_name = "PORT/PROTOCOL")]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct TablesOptions {
    /// Tables; all of them if none is named
    pub(crate) tables: Vec<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct IpOptions {
    /// Print numeric identities
    #[arg(short, long)]
    pub(crate) numeric: bool,
    /// Print all fields of ipcache
    #[arg(short, long)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LrpCommand {
    /// List local redirect policies
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum MapCommand {
    /// List all open BPF maps
    #[command(visible_alias = "ls")]
    List {
        /// Print cache contents of all maps
        #[arg(long)]
        verbose: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Display cached content of given BPF map
    Get {
        /// Name of the map
        name: String,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum BpfCommand {
    /// Local endpoint map
    #[command(subcommand)]
    Endpoint(List<Listing>),
    /// The IPCache mappings for IP/CIDR to identities
    #[command(subcommand)]
    Ipcache(IpcacheCommand),
    /// BPF datapath traffic metrics
    #[command(subcommand)]
    Metrics(List<Listing>),
    /// Policy related BPF maps
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Connection tracking tables
    #[command(subcommand)]
    Ct(CtCommand),
    /// Load-balancing configuration
    #[command(subcommand)]
    Lb(LbCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum CtCommand {
    /// List connection tracking entries
    #[command(visible_alias = "ls")]
    List(CtListOptions),
}

#[derive(Debug, Args)]
pub(crate) struct CtListOptions {
    /// `global`, or the number of an endpoint
    #[arg(value_name = "global | endpoint ID | ID", required = true, num_args = 1..=2)]
    words: Vec<String>,
    /// Print time difference for entries
    #[arg(short = 'd', long)]
    pub(crate) time_diff: bool,
    /// Manually set clock source mode (instead of contacting the server)
    #[arg(long = "time-diff-clocksource-mode", value_name = "MODE")]
    pub(crate) clock_mode: Option<ClockMode>,
    /// Manually set clock source Hz
    #[arg(long = "time-diff-clocksource-hz", value_name = "HZ", default_value_t = 250)]
    pub(crate) clock_hz: i64,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Subcommand)]
pub(crate) enum IpcacheCommand {
    /// List endpoint IPs (local and remote) and their corresponding security identities
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Retrieve identity for an IP
    Get {
        /// The address
        ip: IpAddr,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Get contents of a policy BPF map
    Get(PolicyGetOptions),
    /// List all policy BPF maps with their contents
    #[command(visible_alias = "ls")]
    List {
        /// Do not resolve IDs
        #[arg(short, long)]
        numeric: bool,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub(crate) struct PolicyGetOptions {
    /// Number of the endpoint
    #[arg(required_unless_present = "all")]
    pub(crate) id: Option<u16>,
    /// Do not resolve IDs
    #[arg(short, long)]
    pub(crate) numeric: bool,
    /// Dump all policy maps
    #[arg(long, conflicts_with = "id")]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}
