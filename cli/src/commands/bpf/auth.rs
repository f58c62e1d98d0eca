//! `bpf auth`: identities that have authenticated with each other.

use std::fmt::Write as _;
use std::io::Write;

use bpf::Map;
use clap::Subcommand;
use datapath_abi::runtime_config::UTIME_SHIFT;
use datapath_abi::signal::{AuthEntry, AuthKey};
use jiff::Timestamp;
use serde::Serialize;

use super::pinned;
use crate::commands::list::Listing;
use crate::output::{Output, table};

const MAP: &str = "cilium_auth_map";

#[derive(Debug, Subcommand)]
pub(crate) enum AuthCommand {
    /// List all authenticated connections between identities
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Delete all entries for authenticated connections between identities
    Flush,
}

/// An entry, in the form of Cilium's JSON.
#[derive(Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "PascalCase")]
struct Record {
    local_identity: u32,
    remote_identity: u32,
    #[serde(rename = "RemoteNodeID")]
    remote_node: u16,
    auth_type: u8,
    expiration: Timestamp,
}

/// Runs a verb of `bpf auth`.
pub(super) fn run(command: &AuthCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        AuthCommand::List(options) => list(&options.output, out),
        AuthCommand::Flush => flush(out),
    }
}

fn list(output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let rows = pinned::rows::<AuthKey, AuthEntry>(MAP)?;
    let mut records: Vec<Record> = rows
        .into_iter()
        .map(|(key, entry)| Record {
            local_identity: key.local_identity,
            remote_identity: key.remote_identity,
            remote_node: key.remote_node,
            auth_type: key.auth_type,
            expiration: time(entry.expiration),
        })
        .collect();
    records.sort();
    if output.write(&records, out)? {
        return Ok(());
    }
    if records.is_empty() {
        writeln!(std::io::stderr(), "No entries found.")?;
        return Ok(());
    }
    let mut text = "SRC IDENTITY\tDST IDENTITY\tREMOTE NODE ID\tAUTH TYPE\tEXPIRATION\n".to_owned();
    for Record { local_identity, remote_identity, remote_node, auth_type, expiration } in &records {
        let method = method(*auth_type);
        let end = expiration.strftime("%Y-%m-%d %H:%M:%S%.f +0000 UTC");
        let _ = writeln!(text, "{local_identity}\t{remote_identity}\t{remote_node}\t{method}\t{end}");
    }
    Ok(table(&text, 5, out)?)
}

fn flush(out: &mut dyn Write) -> anyhow::Result<()> {
    let map = Map::<AuthKey, AuthEntry>::new(pinned::open(MAP)?)?;
    let keys = map.keys()?;
    let mut deleted = 0;
    for key in &keys {
        deleted += usize::from(map.delete(key)?);
    }
    Ok(writeln!(out, "Flushed {deleted} entries")?)
}

/// Returns the name of a type.
fn method(auth_type: u8) -> String {
    match auth_type {
        0 => "disabled".to_owned(),
        1 => "spire".to_owned(),
        2 => "test-always-fail".to_owned(),
        other => format!("Unknown-auth-type-{other}"),
    }
}

/// Returns the time of an expiration; the last time that can be shown for a later one.
fn time(expiration: u64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(expiration) << UTIME_SHIFT).unwrap_or(Timestamp::MAX)
}
