//! `bpf nodeid`: ids of nodes in the datapath.

use std::fmt::Write as _;
use std::io::Write;

use datapath_abi::{NodeKey, NodeValue};
use serde::Serialize;

use super::pinned::rows;
use crate::output::{Output, table};

/// An entry, in the form of Cilium's JSON.
#[derive(Serialize, PartialEq, Eq, PartialOrd, Ord)]
struct Record {
    #[serde(rename = "ID")]
    id: u16,
    #[serde(rename = "Address")]
    address: String,
    #[serde(rename = "SPI")]
    spi: u8,
}

pub(super) fn list(output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let rows = rows::<NodeKey, NodeValue>("cilium_node_map_v2")?;
    let record = |(key, value): (NodeKey, NodeValue)| {
        Some(Record { id: value.id, address: key.ip()?.to_string(), spi: value.spi })
    };
    let mut records: Vec<Record> = rows.into_iter().filter_map(record).collect();
    records.sort();
    if output.write(&records, out)? {
        return Ok(());
    }
    let mut text = "NODE ID\tIP ADDRESSES\tSPI\n".to_owned();
    for Record { id, address, spi } in &records {
        let _ = writeln!(text, "0x{id:x}\t{address}\t{spi}");
    }
    Ok(table(&text, 5, out)?)
}
