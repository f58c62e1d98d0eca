//! `bpf socknat`: sockets whose destination was translated to a backend.

use std::fmt::Write as _;
use std::io::Write;
use std::net::SocketAddr;

use datapath_abi::{
    LbReverseSk, LbReverseSk4, LbReverseSk6, LbReverseSkKey, LbReverseSkKey4, LbReverseSkKey6,
};
use serde::Serialize;

use super::ct::Address;
use super::pinned::{is_missing, rows};
use crate::output::{Output, table};

/// An entry.
#[derive(Serialize, PartialEq, Eq, PartialOrd, Ord)]
struct Record {
    cookie: u64,
    backend: String,
    frontend: String,
    #[serde(rename = "rev-nat-id")]
    rev_nat_id: u16,
}

impl Record {
    fn new<A: Address, P>((key, value): (LbReverseSkKey<A, P>, LbReverseSk<A>)) -> Record {
        let socket =
            |address: A, port: u16| SocketAddr::new(address.address(), u16::from_be(port)).to_string();
        Record {
            cookie: key.cookie,
            backend: socket(key.address, key.port),
            frontend: socket(value.address, value.port),
            rev_nat_id: u16::from_be(value.rev_nat_index),
        }
    }
}

pub(super) fn list(output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut records: Vec<Record> = Vec::new();
    match rows::<LbReverseSkKey4, LbReverseSk4>("cilium_lb4_reverse_sk") {
        Ok(rows) => records.extend(rows.into_iter().map(Record::new)),
        Err(error) if is_missing(&error) => {}
        Err(error) => return Err(error),
    }
    match rows::<LbReverseSkKey6, LbReverseSk6>("cilium_lb6_reverse_sk") {
        Ok(rows) => records.extend(rows.into_iter().map(Record::new)),
        Err(error) if is_missing(&error) => {}
        Err(error) => return Err(error),
    }
    records.sort();
    if output.write(&records, out)? {
        return Ok(());
    }
    let mut text = "Socket Cookie\tBackend -> Frontend\n".to_owned();
    for Record { cookie, backend, frontend, rev_nat_id } in &records {
        let _ = writeln!(text, "{cookie}\t{backend} -> {frontend} (revnat={rev_nat_id})");
    }
    Ok(table(&text, 5, out)?)
}
