//! `bpf nat`: translations of source addresses.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};

use anyhow::bail;
use bpf::Map;
use clap::{Args, Subcommand};
use datapath_abi::{CtTuple, CtTuple4, CtTuple6, NatEntry, NatEntry4, NatEntry6, Pod, tuple_flag};
use serde::Serialize;

use super::ct::{Address, Key, Now};
use super::{format, pinned};
use crate::client::Agent;
use crate::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum NatCommand {
    /// List all NAT mapping entries
    #[command(visible_alias = "ls")]
    List(NatListOptions),
    /// Flush all NAT mapping entries
    Flush,
}

#[derive(Debug, Args)]
pub(crate) struct NatListOptions {
    #[command(flatten)]
    pub(crate) output: Output,
}

/// The maps, in Cilium's order.
const MAPS: [&str; 2] = ["cilium_snat_v4_external", "cilium_snat_v6_external"];
/// Entries of a deletion.
const FLUSH_CHUNK: usize = 4096;

/// Runs a verb of `bpf nat`.
pub(super) fn run(agent: &mut Agent, command: &NatCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        NatCommand::List(options) => list(agent, &options.output, out),
        NatCommand::Flush => flush(out),
    }
}

/// An entry of a map, by names and in the form of Cilium's JSON.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Record {
    key: Key,
    value: Value,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Value {
    created: u64,
    #[serde(rename = "NeedsCT")]
    needs_ct: u64,
    addr: Vec<u8>,
    port: u16,
}

/// An entry without its address family.
struct Row {
    /// In the order of the packet.
    source: IpAddr,
    destination: IpAddr,
    /// In network byte order.
    sport: u16,
    dport: u16,
    protocol: u8,
    flags: u8,
    created: u64,
    needs_ct: u64,
    address: IpAddr,
    port: u16,
}

fn list(agent: &mut Agent, output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    // Without an agent the clock of the entries is unknown; they are listed all the same.
    let now = Now::of_agent(agent).ok();
    let (mut records, mut found) = (Vec::new(), false);
    for name in MAPS {
        let rows = match name.contains("v4") {
            true => rows::<u32, CtTuple4, NatEntry4, 2>(name),
            false => rows::<[u32; 4], CtTuple6, NatEntry6, 6>(name),
        };
        let rows = match rows {
            Ok(rows) => rows,
            // A node translates the families that are enabled.
            Err(error) if pinned::is_missing(&error) => continue,
            Err(error) => {
                writeln!(io::stderr(), "Unable to open {name}: {error:#}. Skipping.")?;
                continue;
            }
        };
        found = true;
        if output.format.is_some() {
            records.extend(rows.iter().map(Record::from));
            continue;
        }
        for row in rows {
            writeln!(out, "{}", row.text(now.as_ref()))?;
        }
    }
    if !found {
        bail!("{MISSING}");
    }
    output.write(&records, out)?;
    Ok(())
}

const MISSING: &str = "there is no map of translations: the programs translate sources with enable-bpf-masquerade=true or \
                       kube-proxy-replacement=true";

fn rows<A, K, V, const PAD: usize>(name: &str) -> anyhow::Result<Vec<Row>>
where
    A: Address,
    K: Pod + Into<CtTuple<A>>,
    V: Pod + Into<NatEntry<A, PAD>>,
{
    let row = |(key, entry): (K, V)| {
        let CtTuple { daddr, saddr, dport, sport, nexthdr, flags } = key.into();
        let NatEntry { created, needs_ct, address, port, .. } = entry.into();
        Row {
            source: saddr.address(),
            destination: daddr.address(),
            sport,
            dport,
            protocol: nexthdr,
            flags,
            created,
            needs_ct,
            address: address.address(),
            port,
        }
    };
    let map: Map<K, V> = Map::new(pinned::open(name)?)?;
    let rows: Vec<Row> = map.entries()?.into_iter().map(row).collect();
    // A key without a protocol is not a translation.
    Ok(rows.into_iter().filter(|row| row.protocol != 0).collect())
}

fn flush(out: &mut dyn Write) -> anyhow::Result<()> {
    let mut found = false;
    for name in MAPS {
        let map = match pinned::open(name) {
            Ok(map) => map,
            Err(error) if pinned::is_missing(&error) => continue,
            Err(error) => return Err(error),
        };
        found = true;
        let key_size = map.layout().key_size as usize;
        // All keys first: deletions during a scan would hide others from it.
        let (keys, _) = map.entries()?;
        for chunk in keys.chunks(FLUSH_CHUNK * key_size) {
            map.delete_batch(chunk)?;
        }
        writeln!(out, "Flushed {} entries from {name}", keys.len() / key_size)?;
    }
    if !found {
        bail!("{MISSING}");
    }
    Ok(())
}

impl Row {
    /// Formats one line: the packet, and its source or destination behind the translation.
    fn text(&self, now: Option<&Now>) -> String {
        let end = |address: IpAddr, port: u16| SocketAddr::new(address, u16::from_be(port));
        let (direction, side) = match self.flags & tuple_flag::IN {
            0 => ("OUT", "XLATE_SRC"),
            _ => ("IN", "XLATE_DST"),
        };
        let created = match now {
            // The datapath stores the low bits of the clock.
            Some(now) => format!("{}sec ago", -now.seconds_to(self.created as u32)),
            None => self.created.to_string(),
        };
        format!(
            "{} {direction} {} -> {} {side} {} Created={created} NeedsCT={}",
            format::protocol(self.protocol),
            end(self.source, self.sport),
            end(self.destination, self.dport),
            end(self.address, self.port),
            self.needs_ct
        )
    }
}

impl From<&Row> for Record {
    fn from(row: &Row) -> Record {
        Record {
            key: Key::new([row.destination, row.source], [row.dport, row.sport], row.protocol, row.flags),
            value: Value {
                created: row.created,
                needs_ct: row.needs_ct,
                addr: super::ct::octets(row.address),
                port: row.port,
            },
        }
    }
}
