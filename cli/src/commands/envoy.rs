//! `envoy admin`: the socket of administration of the node's Envoy.

use std::io::Write;
use std::path::PathBuf;

use anyhow::bail;
use api_client::Address;
use clap::{Args, Subcommand};

use crate::client::Agent;

#[derive(Debug, Subcommand)]
pub(crate) enum EnvoyCommand {
    /// Ask the socket of administration
    Admin(Admin),
}

#[derive(Debug, Args)]
pub(crate) struct Admin {
    /// Socket of administration
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        default_value = "/var/run/cilium/envoy/sockets/admin.sock"
    )]
    socket: PathBuf,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Certificates in use
    Certs,
    /// Clusters and their hosts
    Clusters,
    /// The configuration in force
    Config,
    /// Addresses of listeners
    Listeners,
    /// Statistics in the format of Prometheus
    Metrics,
    /// Version, state and uptime
    ServerInfo,
    /// Version
    Version,
}

impl Verb {
    fn path(&self) -> &'static str {
        match self {
            Verb::Certs => "/certs",
            Verb::Clusters => "/clusters?format=json",
            Verb::Config => "/config_dump",
            Verb::Listeners => "/listeners?format=json",
            Verb::Metrics => "/stats/prometheus",
            Verb::ServerInfo | Verb::Version => "/server_info",
        }
    }
}

/// Runs a verb of `envoy`: prints what Envoy answers.
pub(crate) fn run(EnvoyCommand::Admin(admin): &EnvoyCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut envoy = Agent::at(Address::Unix(admin.socket.clone()));
    let answer = envoy.call_plain("GET", admin.verb.path())?;
    if answer.status != 200 {
        bail!(answer.words());
    }
    if let Verb::Version = admin.verb {
        let information: serde_json::Value = serde_json::from_slice(&answer.body)?;
        return Ok(writeln!(out, "{}", information["version"].as_str().unwrap_or("unknown"))?);
    }
    out.write_all(&answer.body)?;
    if !answer.body.ends_with(b"\n") {
        writeln!(out)?;
    }
    Ok(())
}
