//! `bpf frag`: ports of fragmented datagrams.

use std::fmt::Write as _;
use std::io::Write;
use std::net::SocketAddr;

use datapath_abi::{FragmentKey4, FragmentKey6, FragmentPorts};
use serde::Serialize;

use super::ct::Address;
use super::format;
use super::pinned::{is_missing, rows};
use crate::output::{Output, table};

/// An entry, in the form of Cilium's JSON.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Record {
    #[serde(rename = "ID")]
    id: u32,
    proto: u8,
    source_address: String,
    dest_address: String,
}

impl Record {
    fn new(id: u32, proto: u8, source: impl Address, dest: impl Address, ports: FragmentPorts) -> Record {
        let socket = |address, port: u16| SocketAddr::new(address, u16::from_be(port)).to_string();
        Record {
            id,
            proto,
            source_address: socket(source.address(), ports.sport),
            dest_address: socket(dest.address(), ports.dport),
        }
    }
}

pub(super) fn list(output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut records = Vec::new();
    match rows::<FragmentKey4, FragmentPorts>("cilium_ipv4_frag_datagrams") {
        Ok(rows) => records.extend(rows.into_iter().map(|(key, ports)| {
            Record::new(u16::from_be(key.id).into(), key.proto, key.saddr, key.daddr, ports)
        })),
        Err(error) if is_missing(&error) => {}
        Err(error) => return Err(error),
    }
    match rows::<FragmentKey6, FragmentPorts>("cilium_ipv6_frag_datagrams") {
        Ok(rows) => {
            // The other rows have a protocol in the place of ports.
            let of_ports = rows.into_iter().filter(|(key, _)| key.row != FragmentKey6::PROTOCOL);
            records.extend(of_ports.map(|(key, ports)| {
                Record::new(u32::from_be(key.id), key.proto, key.saddr, key.daddr, ports)
            }));
        }
        Err(error) if is_missing(&error) => {}
        Err(error) => return Err(error),
    }
    if output.write(&records, out)? {
        return Ok(());
    }
    if records.is_empty() {
        writeln!(std::io::stderr(), "No entries found.")?;
        return Ok(());
    }
    let mut text = "ID\tPROTO\tSOURCE ADDRESS:PORT\tDEST ADDRESS:PORT\n".to_owned();
    for Record { id, proto, source_address, dest_address } in &records {
        let _ = writeln!(text, "{id}\t{}\t{source_address}\t{dest_address}", format::protocol(*proto));
    }
    Ok(table(&text, 5, out)?)
}
