//! `bpf ipcache`: the identities of prefixes.

use super::format;
use super::pinned::{open, pairs, rows};
use crate::commands::list::Listing;
use crate::output::Output;
use bpf::Map;
use clap::Subcommand;
use datapath_abi::{IpcacheKey, RemoteEndpointInfo};
use std::io::Write;
use std::net::IpAddr;
use std::process::ExitCode;

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

/// Runs a verb of `bpf ipcache`.
pub(super) fn run(command: &IpcacheCommand, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    match command {
        IpcacheCommand::List(options) => list(&options.output, out).map(|()| ExitCode::SUCCESS),
        IpcacheCommand::Get { ip } => get(*ip, out),
    }
}

fn list(output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let rows = rows::<IpcacheKey, RemoteEndpointInfo>("cilium_ipcache_v2")?;
    let show = |(key, info): &(IpcacheKey, RemoteEndpointInfo)| {
        let cluster = if key.cluster_id == 0 { String::new() } else { format!("@{}", key.cluster_id) };
        Some((format!("{}/{}{cluster}", key.ip()?, key.bits()), vec![format::remote_endpoint(info)]))
    };
    pairs("IP PREFIX/ADDRESS\tIDENTITY", &rows.iter().filter_map(show).collect(), output, out)
}

/// Looks an address up; the kernel finds the longest prefix.
fn get(ip: IpAddr, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let map: Map<IpcacheKey, RemoteEndpointInfo> = Map::new(open("cilium_ipcache_v2")?)?;
    let bits = if ip.is_ipv4() { 32 } else { 128 };
    match map.lookup(&IpcacheKey::new(ip, bits))? {
        Some(info) => {
            writeln!(out, "{ip} maps to identity {}", format::remote_endpoint(&info))?;
            Ok(ExitCode::SUCCESS)
        }
        None => {
            writeln!(out, "{ip} does not map to any identity")?;
            Ok(ExitCode::FAILURE)
        }
    }
}
