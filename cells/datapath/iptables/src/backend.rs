//! The choice between the two backends of iptables: nf_tables and the older one of the kernel.
//!
//! Rules of both are in force at the same time, in an order that is hard to foresee, so the agent uses the backend
//! that kube-proxy and the kubelet use.

use std::fs;

use netlink::{Attributes, Connection, Protocol, Request, nfnetlink};

use crate::error::Error;
use crate::program::Runner;
use crate::rules::{Family, is_own};

/// A backend of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// nf_tables, which reports changes.
    Nft,
    /// The older one.
    Legacy,
}

impl Backend {
    fn suffix(self) -> &'static str {
        match self {
            Backend::Nft => "nft",
            Backend::Legacy => "legacy",
        }
    }

    fn other(self) -> Backend {
        match self {
            Backend::Nft => Backend::Legacy,
            Backend::Legacy => Backend::Nft,
        }
    }
}

/// The programs of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tools {
    pub(crate) backend: Backend,
    /// Whether the programs have the backend in their names; others are the system's default.
    is_named: bool,
}

/// Name prefix of the chains of kube-proxy and the kubelet.
const KUBE: &str = "KUBE-";

impl Tools {
    /// Returns the beginning of the programs' names.
    pub(crate) fn name(&self, family: Family) -> String {
        let name = program(family);
        if self.is_named { format!("{name}-{}", self.backend.suffix()) } else { name.to_owned() }
    }

    /// Chooses the backend with chains of Kubernetes, else that of the default programs.
    pub(crate) fn choose(runner: &Runner, families: &[Family]) -> Result<Tools, Error> {
        let first = families.first().copied().unwrap_or(Family::V4);
        let version = runner.version(program(first))?;
        let default = if version.contains("nf_tables") { Backend::Nft } else { Backend::Legacy };
        let chosen = match kubernetes_backend(runner) {
            // A system with a single backend has only the plain names.
            Some(backend) if backend != default && is_installed(runner, backend, first) => backend,
            _ => default,
        };
        Ok(Tools { backend: chosen, is_named: chosen != default })
    }

    /// Returns the programs of the other backend if it has chains of the agent, which a previous run has left there.
    pub(crate) fn leftover(&self, runner: &Runner, families: &[Family]) -> Option<Tools> {
        let backend = self.backend.other();
        let is_left = match backend {
            Backend::Nft => nft_chains().iter().any(|(table, chain)| is_own(table, chain)),
            Backend::Legacy => families.iter().any(|family| has_legacy_tables(*family)),
        };
        let first = families.first().copied()?;
        let tools = Tools { backend, is_named: true };
        (is_left && is_installed(runner, backend, first)).then_some(tools)
    }
}

/// Whether there may be chains of the agent in any backend. Starts no program.
pub(crate) fn may_have_chains() -> bool {
    Family::ALL.into_iter().any(has_legacy_tables)
        || nft_chains().iter().any(|(table, chain)| is_own(table, chain))
}

fn program(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

fn is_installed(runner: &Runner, backend: Backend, family: Family) -> bool {
    runner.version(&format!("{}-{}", program(family), backend.suffix())).is_ok()
}

fn kubernetes_backend(runner: &Runner) -> Option<Backend> {
    if nft_chains().iter().any(|(_, chain)| chain.starts_with(KUBE)) {
        return Some(Backend::Nft);
    }
    let has_chains = |family: Family| {
        let text = runner.save(&format!("{}-{}", program(family), Backend::Legacy.suffix()));
        text.is_ok_and(|text| {
            text.lines().any(|line| line.strip_prefix(':').is_some_and(|l| l.starts_with(KUBE)))
        })
    };
    // Listing the older tables makes them, so that is done only where they are in use.
    let mut families = Family::ALL.into_iter().filter(|family| has_legacy_tables(*family));
    families.any(has_chains).then_some(Backend::Legacy)
}

/// Whether the network namespace has tables of the older backend.
fn has_legacy_tables(family: Family) -> bool {
    let file = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    fs::read_to_string(file).is_ok_and(|tables| !tables.trim().is_empty())
}

/// Subsystem and messages of nf_tables, and attributes of a chain (`linux/netfilter/nf_tables.h`).
pub(crate) const NF_TABLES: u8 = libc::NFNL_SUBSYS_NFTABLES as u8;
const GET_CHAIN: u8 = libc::NFT_MSG_GETCHAIN as u8;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
/// Bytes of `struct nfgenmsg`, which precedes the attributes.
pub(crate) const NFGENMSG_LEN: usize = 4;

/// Returns table and name of all chains of nf_tables that programs of iptables may have made; none if the kernel has
/// no nf_tables.
fn nft_chains() -> Vec<(String, String)> {
    let list = || -> Result<Vec<(String, String)>, netlink::Error> {
        let mut connection = Connection::open(Protocol::Netfilter)?;
        let mut all = Vec::new();
        for family in [libc::NFPROTO_IPV4, libc::NFPROTO_IPV6] {
            let body = nfnetlink::body(family as u8);
            let request = Request { kind: nfnetlink::kind(NF_TABLES, GET_CHAIN), body };
            all.extend(connection.dump(&request, |message| {
                let attributes = Attributes::new(message.body.get(NFGENMSG_LEN..).unwrap_or_default());
                let text = |kind| -> Result<String, netlink::Error> {
                    let text = attributes.first(kind)?.map(|attribute| attribute.text().to_vec());
                    Ok(String::from_utf8_lossy(&text.unwrap_or_default()).into_owned())
                };
                Ok([(text(NFTA_CHAIN_TABLE)?, text(NFTA_CHAIN_NAME)?)])
            })?);
        }
        Ok(all)
    };
    list().unwrap_or_else(|error| {
        tracing::debug!(%error, "Chains of nf_tables cannot be listed");
        Vec::new()
    })
}
