//! `bpf lb`: the load balancer maps.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::IpAddr;

use bpf::Map;
use clap::{Args, Subcommand};
use datapath_abi::{
    LbBackend, LbReverseNat, LbService, LbServiceKey, LbSourceRange, Pod, ipv4_from_word, ipv6_from_words,
    lb_flag, lb_flag2,
};

use super::format::protocol;
use super::maglev::{self, MaglevCommand};
use super::pinned::{is_missing, open, pairs};
use crate::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum LbCommand {
    /// List load-balancing configuration
    #[command(visible_alias = "ls")]
    List(LbListOptions),
    /// Maglev lookup table
    #[command(subcommand)]
    Maglev(MaglevCommand),
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct Selection {
    /// List reverse NAT entries
    #[arg(long)]
    revnat: bool,
    /// List all service frontend entries
    #[arg(long)]
    frontends: bool,
    /// List all service backend entries
    #[arg(long)]
    backends: bool,
    /// List all source range entries
    #[arg(long)]
    source_ranges: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LbListOptions {
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    output: Output,
}

/// Formatted entries by key, sorted.
type Texts = BTreeMap<String, Vec<String>>;

pub(crate) fn run(command: &LbCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        LbCommand::List(options) => list(options, out),
        LbCommand::Maglev(command) => maglev::run(command, out),
    }
}

fn list(options: &LbListOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    let selection = &options.selection;
    let mut texts = Texts::new();
    let (v4, v6) = (OfFamily::<u32>::V4, OfFamily::<[u32; 4]>::V6);
    if let (Err(error), Err(_)) = (open(v4.services), open(v6.services)) {
        return Err(error);
    }
    let title = match selection {
        Selection { revnat: true, .. } => {
            v4.reverse_nat(&mut texts)?;
            v6.reverse_nat(&mut texts)?;
            "ID"
        }
        Selection { backends: true, .. } => {
            v4.backends(&mut texts)?;
            v6.backends(&mut texts)?;
            "ID"
        }
        Selection { source_ranges: true, .. } => {
            v4.source_ranges(&mut texts)?;
            v6.source_ranges(&mut texts)?;
            "ID"
        }
        Selection { frontends, .. } => {
            v4.services(*frontends, &mut texts)?;
            v6.services(*frontends, &mut texts)?;
            "SERVICE ADDRESS"
        }
    };
    pairs(&format!("{title}\tBACKEND ADDRESS (REVNAT_ID) (SLOT)"), &texts, &options.output, out)
}

/// The maps of one address family; they do not exist if it is disabled.
struct OfFamily<A> {
    services: &'static str,
    backends: &'static str,
    reverse_nat: &'static str,
    source_ranges: &'static str,
    /// The text of a frontend's own entry, which has no backend.
    nowhere: &'static str,
    ip: fn(A) -> IpAddr,
}

impl OfFamily<u32> {
    const V4: Self = OfFamily {
        services: "cilium_lb4_services_v2",
        backends: "cilium_lb4_backends_v3",
        reverse_nat: "cilium_lb4_reverse_nat",
        source_ranges: "cilium_lb4_source_range",
        nowhere: "0.0.0.0:0",
        ip: |word| ipv4_from_word(word).into(),
    };
}

impl OfFamily<[u32; 4]> {
    const V6: Self = OfFamily {
        services: "cilium_lb6_services_v2",
        backends: "cilium_lb6_backends_v3",
        reverse_nat: "cilium_lb6_reverse_nat",
        source_ranges: "cilium_lb6_source_range",
        nowhere: "[::]:0",
        ip: |words| ipv6_from_words(words).into(),
    };
}

/// Returns all entries of a map; none if the map does not exist.
fn rows<K: Pod, V: Pod>(name: &str) -> anyhow::Result<Vec<(K, V)>> {
    match open(name) {
        Ok(map) => Ok(Map::new(map)?.entries()?),
        Err(error) if is_missing(&error) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

impl<A: Copy> OfFamily<A>
where
    LbServiceKey<A>: Pod,
    LbBackend<A>: Pod,
    LbReverseNat<A>: Pod,
    LbSourceRange<A>: Pod,
{
    fn services(&self, frontends_only: bool, texts: &mut Texts) -> anyhow::Result<()> {
        let backends: BTreeMap<u32, LbBackend<A>> = rows(self.backends)?.into_iter().collect();
        for (key, value) in rows::<LbServiceKey<A>, LbService>(self.services)? {
            let (slot, id) = (key.backend_slot, u16::from_be(value.rev_nat_index));
            if frontends_only && slot != 0 {
                continue;
            }
            let scope = if key.scope == 0 { "" } else { "/i" };
            let place = self.place(key.address, key.dport);
            let service = format!("{place}/{}{scope} ({slot})", protocol(key.proto));
            let text = match (slot, backends.get(&value.backend_id)) {
                (0, _) => format!("{} ({id}) (0) [{}] {}", self.nowhere, flags(&value), proxy(&value)),
                (_, None) => format!("backend {} not found", value.backend_id),
                (_, Some(backend)) => {
                    let place = self.place(backend.address, backend.port);
                    format!("{place}/{} ({id}) ({slot})", protocol(backend.proto))
                }
            };
            texts.entry(service).or_default().push(text);
        }
        Ok(())
    }

    fn backends(&self, texts: &mut Texts) -> anyhow::Result<()> {
        for (id, backend) in rows::<u32, LbBackend<A>>(self.backends)? {
            let place = self.place(backend.address, backend.port);
            let text = format!("{}://{place}", protocol(backend.proto));
            texts.entry(id.to_string()).or_default().push(text);
        }
        Ok(())
    }

    fn reverse_nat(&self, texts: &mut Texts) -> anyhow::Result<()> {
        for (id, row) in rows::<u16, LbReverseNat<A>>(self.reverse_nat)? {
            let (address, port) = (row.address, row.port);
            let id = u16::from_be(id).to_string();
            texts.entry(id).or_default().push(self.place(address, port));
        }
        Ok(())
    }

    fn source_ranges(&self, texts: &mut Texts) -> anyhow::Result<()> {
        for (key, _) in rows::<LbSourceRange<A>, u8>(self.source_ranges)? {
            let id = u16::from_be(key.rev_nat_id);
            let range = format!("{}/{} ({id})", (self.ip)(key.address), key.prefixlen.saturating_sub(32));
            texts.entry(id.to_string()).or_default().push(range);
        }
        Ok(())
    }

    fn place(&self, address: A, port: u16) -> String {
        std::net::SocketAddr::new((self.ip)(address), u16::from_be(port)).to_string()
    }
}

/// Formats the proxy of a frontend; a space precedes it even if there is none, as in Cilium's output.
fn proxy(row: &LbService) -> String {
    match row.flags2 & lb_flag2::L7_LOAD_BALANCER {
        0 => String::new(),
        _ => format!("(L7LB Proxy Port: {})", u16::from_be(row.backend_id as u16)),
    }
}

/// Formats the flags of a frontend's entry in Cilium's words, the type first.
fn flags(row: &LbService) -> String {
    let LbService { flags, flags2, .. } = *row;
    let kind = match () {
        () if flags & lb_flag::EXTERNAL_IP != 0 => "ExternalIPs",
        () if flags & lb_flag::NODE_PORT != 0 => "NodePort",
        () if flags & lb_flag::LOAD_BALANCER != 0 => "LoadBalancer",
        () if flags & lb_flag::HOST_PORT != 0 => "HostPort",
        () if flags2 & lb_flag2::LOCAL_REDIRECT != 0 => "LocalRedirect",
        () => "ClusterIP",
    };
    let checks = flags & lb_flag::SOURCE_RANGE != 0;
    let shared = flags2 & lb_flag2::QUARANTINED_OR_DENY != 0;
    let (loopback, host_port) = (flags2 & lb_flag2::LOOPBACK != 0, flags & lb_flag::HOST_PORT != 0);
    let words = [
        (true, kind),
        (flags & lb_flag::EXT_LOCAL_SCOPE != 0, "Local"),
        (flags2 & lb_flag2::INT_LOCAL_SCOPE != 0, "InternalLocal"),
        (flags2 & lb_flag2::TWO_SCOPES != 0, "two-scopes"),
        (flags & lb_flag::SESSION_AFFINITY != 0, "sessionAffinity"),
        (flags & lb_flag::ROUTABLE == 0, "non-routable"),
        (checks, "check source-range"),
        (checks && shared, "deny"),
        (flags2 & lb_flag2::NAT_46X64 != 0, "46x64"),
        (flags2 & lb_flag2::L7_LOAD_BALANCER != 0, "l7-load-balancer"),
        (loopback && host_port, "loopback"),
        (loopback && !host_port, "delegate-if-local"),
        (!checks && shared, "quarantined"),
        (flags2 & lb_flag2::FORWARDING_DSR != 0, "dsr"),
    ];
    words.iter().filter(|(on, _)| *on).map(|(_, word)| *word).collect::<Vec<_>>().join(", ")
}
