//! Commands of `cilium-dbg` on features that this agent does not have: they end with an error that says so, which scripts
//! that collect everything list among the failures.

use std::fmt;
use std::io::Write;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};

/// The rest of the command line, which has no effect.
#[derive(Debug, Args)]
pub(crate) struct Anything {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _arguments: Vec<String>,
}

/// A feature without a counterpart here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    Bandwidth,
    Egress,
    Multicast,
    Srv6,
    Vtep,
    Templates,
    Kvstore,
    Clustermesh,
    Ipsec,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Feature::Bandwidth => "bandwidth manager: this agent has none, and no map of its rates",
            Feature::Egress => "egress gateway: this agent has none, and no map of its policies",
            Feature::Multicast => "multicast: this agent has no groups",
            Feature::Srv6 => "SRv6: this agent has none, and no maps of it",
            Feature::Vtep => "VTEP: this agent has none, and no map of endpoints",
            Feature::Templates => {
                "templates: this agent compiles no programs, all endpoints share those that it loads"
            }
            Feature::Kvstore => "kvstore: this agent uses none, identities are CiliumIdentities",
            Feature::Clustermesh => "cluster mesh: this agent has no remote clusters",
            Feature::Ipsec => "IPsec: this agent does not encrypt, and has no states or policies of xfrm",
        })
    }
}

/// Ends with the reason.
pub(crate) fn refuse(feature: Feature) -> anyhow::Result<()> {
    bail!("{feature}")
}

#[derive(Debug, Subcommand)]
pub(crate) enum TroubleshootCommand {
    /// Connectivity to the kvstore
    Kvstore(Anything),
    /// Connectivity to remote clusters
    Clustermesh(Anything),
}

/// Runs a verb of `troubleshoot`.
pub(crate) fn troubleshoot(command: &TroubleshootCommand) -> anyhow::Result<()> {
    match command {
        TroubleshootCommand::Kvstore(_) => refuse(Feature::Kvstore),
        TroubleshootCommand::Clustermesh(_) => refuse(Feature::Clustermesh),
    }
}

/// Prints how busy the machine is.
pub(crate) fn load_information(out: &mut dyn Write) -> anyhow::Result<()> {
    let read = |path: &str| std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
    let (load, memory) = (read("/proc/loadavg")?, read("/proc/meminfo")?);
    let averages: Vec<&str> = load.split(' ').take(3).collect();
    writeln!(out, "Load 1-min: {} 5-min: {} 15-min: {}", averages[0], averages[1], averages[2])?;
    let of =
        |name: &str| memory.lines().find_map(|line| line.strip_prefix(name)).unwrap_or(" unknown").trim();
    let (total, available) = (of("MemTotal:"), of("MemAvailable:"));
    writeln!(out, "Memory: Total: {total} Available: {available}")?;
    Ok(writeln!(out, "Swap: Total: {} Free: {}", of("SwapTotal:"), of("SwapFree:"))?)
}
