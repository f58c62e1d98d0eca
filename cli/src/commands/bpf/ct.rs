//! `bpf ct`: connections as the datapath tracks them.

use super::{format, pinned};
use crate::client::Agent;
use crate::output::Output;
use anyhow::{Context as _, bail};
use api_models::StatusResponse;
use bpf::{Clock, Map};
use clap::{Args, Subcommand};
use datapath_abi::{
    CtEntry, CtTuple, CtTuple4, CtTuple6, EndpointInfo, EndpointKey, Pod, ct_flag, tuple_flag,
};
use serde::Serialize;
use std::collections::HashSet;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[derive(Debug, Subcommand)]
pub(crate) enum CtCommand {
    /// List connection tracking entries
    #[command(visible_alias = "ls")]
    List(CtListOptions),
}

#[derive(Debug, Args)]
pub(crate) struct CtListOptions {
    /// `global`, which is the default, or the id of an endpoint
    #[arg(value_name = "global | endpoint ID | ID", num_args = 1..=2)]
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

impl CtListOptions {
    fn scope(&self) -> anyhow::Result<CtScope> {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        match words[..] {
            [] | ["global"] => Ok(CtScope::Global),
            [id] | ["endpoint", id] => match id.parse() {
                Ok(id) => Ok(CtScope::Endpoint(id)),
                Err(_) => anyhow::bail!("unknown type {id}, want global or the number of an endpoint"),
            },
            _ => anyhow::bail!("unknown type {}, want global or the number of an endpoint", words.join(" ")),
        }
    }
}

/// Clocks of the datapath.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum ClockMode {
    /// Seconds
    Ktime,
    /// Jiffies / 256
    Jiffies,
}

/// The connections to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CtScope {
    /// All.
    Global,
    /// Those of an endpoint.
    Endpoint(u16),
}

/// Runs a verb of `bpf ct`.
pub(super) fn run(agent: &mut Agent, command: &CtCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        CtCommand::List(options) => list(agent, options, out),
    }
}

/// Maps of all endpoints, in Cilium's order.
pub(super) const NAMES: [&str; 4] =
    ["cilium_ct4_global", "cilium_ct_any4_global", "cilium_ct6_global", "cilium_ct_any6_global"];

/// An entry of a map, by names and in the form of Cilium's JSON.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Record {
    key: Key,
    value: Value,
}

/// A key of connections or translations, in the form of Cilium's JSON.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Key {
    dest_addr: Vec<u8>,
    source_addr: Vec<u8>,
    dest_port: u16,
    source_port: u16,
    next_header: u8,
    flags: u8,
}

impl Key {
    /// Returns a key of destination and source: addresses, and ports in network byte order.
    pub(super) fn new(addresses: [IpAddr; 2], ports: [u16; 2], next_header: u8, flags: u8) -> Key {
        let [dest_addr, source_addr] = addresses.map(octets);
        let [dest_port, source_port] = ports;
        Key { dest_addr, source_addr, dest_port, source_port, next_header, flags }
    }
}

/// Returns the bytes of an address.
pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Value {
    union0: [u64; 2],
    packets: u64,
    bytes: u64,
    lifetime: u32,
    flags: u16,
    #[serde(rename = "RevNAT")]
    rev_nat: u16,
    nat_port: u16,
    tx_flags_seen: u8,
    rx_flags_seen: u8,
    #[serde(rename = "SourceSecurityID")]
    source_security_id: u32,
    last_tx_report: u32,
    last_rx_report: u32,
}

/// An entry without its address family.
pub(super) struct Row {
    /// As stored: the packet's source.
    pub(super) daddr: IpAddr,
    pub(super) saddr: IpAddr,
    /// In network byte order.
    pub(super) dport: u16,
    sport: u16,
    pub(super) protocol: u8,
    pub(super) flags: u8,
    entry: CtEntry,
}

/// The bytes of an address in a key.
pub(super) trait Address: Copy {
    fn address(self) -> IpAddr;
}

impl Address for u32 {
    fn address(self) -> IpAddr {
        Ipv4Addr::from(self.to_ne_bytes()).into()
    }
}

impl Address for [u32; 4] {
    fn address(self) -> IpAddr {
        let mut bytes = [0; 16];
        for (at, word) in self.iter().enumerate() {
            bytes[at * 4..at * 4 + 4].copy_from_slice(&word.to_ne_bytes());
        }
        Ipv6Addr::from(bytes).into()
    }
}

fn list(agent: &mut Agent, options: &CtListOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    let addresses = match options.scope()? {
        CtScope::Global => None,
        CtScope::Endpoint(id) => Some(addresses_of(id)?),
    };
    let clock = if options.time_diff { Some(Now::read(agent, options)?) } else { None };
    let (mut records, mut found) = (Vec::new(), false);
    for name in NAMES {
        let rows = match rows_of(name) {
            Ok(rows) => rows,
            Err(error) => {
                writeln!(io::stderr(), "Unable to open {name}: {error:#}. Skipping.")?;
                continue;
            }
        };
        found = true;
        let wanted = |row: &&Row| {
            addresses.as_ref().is_none_or(|own| own.contains(&row.daddr) || own.contains(&row.saddr))
        };
        let rows = rows.iter().filter(wanted);
        if options.output.format.is_some() {
            records.extend(rows.map(Record::from));
            continue;
        }
        for row in rows {
            writeln!(out, "{}", row.text(clock.as_ref()))?;
        }
        writeln!(out)?;
    }
    if !found {
        bail!("there is no map of connections: is the agent installed on this node?");
    }
    options.output.write(&records, out)?;
    Ok(())
}

/// Returns the entries of one of the maps.
pub(super) fn rows_of(name: &str) -> anyhow::Result<Vec<Row>> {
    match name.contains('4') {
        true => rows::<u32, CtTuple4>(name),
        false => rows::<[u32; 4], CtTuple6>(name),
    }
}

fn rows<A: Address, K: Pod + Into<CtTuple<A>>>(name: &str) -> anyhow::Result<Vec<Row>> {
    let row = |(key, entry): (K, CtEntry)| {
        let CtTuple { daddr, saddr, dport, sport, nexthdr, flags } = key.into();
        Row { daddr: daddr.address(), saddr: saddr.address(), dport, sport, protocol: nexthdr, flags, entry }
    };
    let map: Map<K, CtEntry> = Map::new(pinned::open(name)?)?;
    let rows: Vec<Row> = map.entries()?.into_iter().map(row).collect();
    // A key without a protocol is not a connection.
    Ok(rows.into_iter().filter(|row| row.protocol != 0).collect())
}

/// Returns the addresses of an endpoint in the datapath.
fn addresses_of(id: u16) -> anyhow::Result<HashSet<IpAddr>> {
    let rows = pinned::rows::<EndpointKey, EndpointInfo>("cilium_lxc")?;
    let own = rows.iter().filter(|(_, info)| info.lxc_id == id).filter_map(|(key, _)| key.ip());
    let own: HashSet<IpAddr> = own.collect();
    if own.is_empty() {
        bail!("there is no endpoint {id}: `bpf endpoint list` shows those there are");
    }
    Ok(own)
}

/// The current time, in the clock of the entries.
pub(super) struct Now {
    now: u32,
    /// Jiffies per second, if the clock counts them.
    hz: Option<i64>,
}

impl Now {
    fn read(agent: &mut Agent, options: &CtListOptions) -> anyhow::Result<Now> {
        match options.clock_mode {
            Some(ClockMode::Ktime) => Now::of_clock(false, 0),
            Some(ClockMode::Jiffies) => Now::of_clock(true, options.clock_hz),
            None => Now::of_agent(agent),
        }
    }

    /// Reads the clock that the agent uses.
    pub(super) fn of_agent(agent: &mut Agent) -> anyhow::Result<Now> {
        let status: StatusResponse = agent.get("/healthz").context("could not determine clocksource")?;
        let source = status.clock_source.unwrap_or_default();
        Now::of_clock(source.mode == "jiffies", source.hertz)
    }

    fn of_clock(jiffies: bool, hz: i64) -> anyhow::Result<Now> {
        if !jiffies {
            return Ok(Now { now: Clock::Seconds.now()?, hz: None });
        }
        let clock = Clock::probe();
        if hz <= 0 || !clock.is_jiffies() {
            bail!(
                "could not determine clocksource: this kernel shows no jiffies; give --time-diff-clocksource-mode=ktime"
            );
        }
        Ok(Now { now: clock.now()?, hz: Some(hz) })
    }

    /// Returns the seconds until `then`; negative if it is in the past.
    pub(super) fn seconds_to(&self, then: u32) -> i64 {
        let seconds = |time: u32| match self.hz {
            None => i64::from(time),
            Some(hz) => (i64::from(time) << 8) / hz,
        };
        seconds(then) - seconds(self.now)
    }
}

impl Row {
    #[cfg(test)]
    pub(super) fn new(
        [daddr, saddr]: [IpAddr; 2],
        [dport, sport]: [u16; 2],
        protocol: u8,
        flags: u8,
        entry: CtEntry,
    ) -> Row {
        Row { daddr, saddr, dport, sport, protocol, flags, entry }
    }

    /// Returns both ports, as stored.
    pub(super) fn ports(&self) -> [u16; 2] {
        [self.dport, self.sport]
    }

    /// Formats one line, with source and destination of the packet that created the entry. Entries of connections store
    /// the addresses reversed, entries of services the ports.
    fn text(&self, now: Option<&Now>) -> String {
        let (source, destination, sport, dport) = match self.flags & tuple_flag::SERVICE {
            0 => (self.daddr, self.saddr, self.sport, self.dport),
            _ => (self.saddr, self.daddr, self.dport, self.sport),
        };
        let direction = match () {
            () if self.flags & tuple_flag::SERVICE != 0 => "SVC",
            () if self.flags & tuple_flag::IN != 0 => "IN",
            () => "OUT",
        };
        // Cilium's tool writes addresses of IPv6 without brackets here.
        let end = |address: IpAddr, port: u16| format!("{address}:{}", u16::from_be(port));
        let mut text = format!(
            "{} {direction} {} -> {} ",
            format::protocol(self.protocol),
            end(source, sport),
            end(destination, dport)
        );
        if self.flags & tuple_flag::RELATED != 0 {
            text.push_str("related ");
        }
        let CtEntry { packets, bytes, lifetime, rx_flags_seen, tx_flags_seen, .. } = self.entry;
        let CtEntry { last_rx_report, last_tx_report, src_sec_id, backend_id, nat_port, .. } = self.entry;
        let left = match now {
            Some(now) => format!(" (remaining: {} sec(s))", now.seconds_to(lifetime)),
            None => String::new(),
        };
        text + &format!(
            "expires={lifetime}{left} Packets={packets} Bytes={bytes} RxFlagsSeen={rx_flags_seen:#04x} \
             LastRxReport={last_rx_report} TxFlagsSeen={tx_flags_seen:#04x} LastTxReport={last_tx_report} {} \
             RevNAT={} SourceSecurityID={src_sec_id} BackendID={backend_id} NatPort={} ",
            flags(self.entry.flags),
            u16::from_be(self.entry.rev_nat_index),
            u16::from_be(nat_port),
        )
    }
}

/// Formats `Flags=0x0013 [ RxClosing TxClosing SeenNonSyn ]`.
fn flags(flags: u16) -> String {
    const WORDS: [(u16, &str); 10] = [
        (ct_flag::RX_CLOSING, "RxClosing"),
        (ct_flag::TX_CLOSING, "TxClosing"),
        (1 << 2, "Nat64"),
        (ct_flag::LB_LOOPBACK, "LBLoopback"),
        (ct_flag::SEEN_NON_SYN, "SeenNonSyn"),
        (ct_flag::NODE_PORT, "NodePort"),
        (ct_flag::PROXY_REDIRECT, "ProxyRedirect"),
        (ct_flag::DSR_INTERNAL, "DSRInternal"),
        (ct_flag::FROM_L7LB, "FromL7LB"),
        (ct_flag::FROM_TUNNEL, "FromTunnel"),
    ];
    let mut text = format!("Flags={flags:#06x} [ ");
    for (bit, word) in WORDS {
        if flags & bit != 0 {
            text.push_str(word);
            text.push(' ');
        }
    }
    let unknown = WORDS.iter().fold(flags, |left, (bit, _)| left & !bit);
    if unknown != 0 {
        text.push_str(&format!("Unknown={unknown:#06x} "));
    }
    text + "]"
}

impl From<&Row> for Record {
    fn from(row: &Row) -> Record {
        let entry = &row.entry;
        Record {
            key: Key::new([row.daddr, row.saddr], [row.dport, row.sport], row.protocol, row.flags),
            value: Value {
                union0: [entry.reserved0, entry.backend_id],
                packets: entry.packets,
                bytes: entry.bytes,
                lifetime: entry.lifetime,
                flags: entry.flags,
                rev_nat: entry.rev_nat_index,
                nat_port: entry.nat_port,
                tx_flags_seen: entry.tx_flags_seen,
                rx_flags_seen: entry.rx_flags_seen,
                source_security_id: entry.src_sec_id,
                last_tx_report: entry.last_tx_report,
                last_rx_report: entry.last_rx_report,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_of_either_clock() {
        let seconds = Now { now: 100, hz: None };
        assert_eq!((seconds.seconds_to(160), seconds.seconds_to(90)), (60, -10));
        let jiffies = Now { now: 1000, hz: Some(250) };
        assert_eq!(jiffies.seconds_to(1059), 60);
    }

    #[test]
    fn flags_have_words() {
        assert_eq!(flags(0x13), "Flags=0x0013 [ RxClosing TxClosing SeenNonSyn ]");
        assert_eq!(flags(0x8000), "Flags=0x8000 [ Unknown=0x8000 ]");
    }
}
