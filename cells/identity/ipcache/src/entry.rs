//! The table `ipcache`: for each prefix, what the sources say and what counts.

use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use reconciler::Status;
use serde::Serialize;
use statedb::{Query, TableSpec};

use crate::source::Source;

/// The mapping of an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Mapping {
    /// Security identity.
    pub identity: u32,
    /// The node the address is on, for the REST API.
    pub host_ip: Option<IpAddr>,
    /// Where tunnelled traffic to the address goes; none on this node and for the world.
    pub tunnel: Option<IpAddr>,
    /// Past the tunnel, although there is one.
    pub skip_tunnel: bool,
    /// Index of the encryption key, or zero.
    pub encrypt_key: u8,
    /// The pod, if it is one.
    pub pod: Option<Pod>,
}

/// A pod's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Pod {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name in it.
    pub name: Arc<str>,
}

impl Mapping {
    /// A mapping to an identity and nothing else.
    pub fn identity(identity: u32) -> Mapping {
        Mapping { identity, host_ip: None, tunnel: None, skip_tunnel: false, encrypt_key: 0, pod: None }
    }
}

/// One source's word on a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Claim {
    /// How much it is believed.
    pub source: Source,
    /// Which object says it (`endpoint/12`, `node/a`); only the same one can take it back.
    pub resource: Arc<str>,
    /// What it says.
    pub mapping: Mapping,
}

/// A prefix and all that is said of it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Entry {
    /// The prefix, host bits cleared.
    pub prefix: IpNetwork,
    /// Most believed first, of one source the latest first; never empty.
    pub(crate) claims: Vec<Claim>,
    /// Whether the kernel has it.
    pub status: Status,
}

impl Entry {
    /// The entry of a prefix.
    pub fn by_prefix(prefix: IpNetwork) -> Query<Entry> {
        Query::primary(network(prefix))
    }

    pub(crate) fn new(prefix: IpNetwork, claim: Claim) -> Entry {
        Entry { prefix: network(prefix), claims: vec![claim], status: Status::pending() }
    }

    /// The claim that counts.
    pub fn winner(&self) -> &Claim {
        // The list is never empty: entries are made with a claim and go with their last.
        &self.claims[0]
    }

    /// All claims, the one that counts first.
    pub fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// The entry with a claim added or replaced; `None` when it says nothing new.
    pub(crate) fn with(&self, claim: Claim) -> Option<Entry> {
        if self.claims.contains(&claim) {
            return None;
        }
        let mut claims: Vec<Claim> = self.claims.iter().filter(|old| !same(old, &claim)).cloned().collect();
        let at = claims.partition_point(|old| old.source > claim.source);
        claims.insert(at, claim);
        Some(self.of(claims))
    }

    /// The entry without a claim; `None` in place of an entry without claims.
    pub(crate) fn without(&self, source: Source, resource: &str) -> Option<Entry> {
        let left = |claim: &&Claim| claim.source != source || &*claim.resource != resource;
        let claims: Vec<Claim> = self.claims.iter().filter(left).cloned().collect();
        (!claims.is_empty()).then(|| self.of(claims))
    }

    /// The kernel's row changes only with the claim that counts.
    fn of(&self, claims: Vec<Claim>) -> Entry {
        let same =
            claims.first().map(|claim| &claim.mapping) == self.claims.first().map(|claim| &claim.mapping);
        let status = if same { self.status.clone() } else { Status::pending() };
        Entry { prefix: self.prefix, claims, status }
    }
}

fn same(a: &Claim, b: &Claim) -> bool {
    a.source == b.source && a.resource == b.resource
}

/// The prefix without host bits.
pub(crate) fn network(prefix: IpNetwork) -> IpNetwork {
    IpNetwork::new(prefix.network(), prefix.prefix()).unwrap_or(prefix)
}

impl TableSpec for Entry {
    const NAME: &'static str = "ipcache";
    type Key<'a> = IpNetwork;

    fn key(&self) -> IpNetwork {
        self.prefix
    }

    fn columns() -> &'static [&'static str] {
        &["Prefix", "Identity", "Source", "Resource", "Tunnel", "Flags", "Pod", "Status"]
    }

    fn row(&self) -> Vec<String> {
        let Claim { source, resource, mapping } = self.winner();
        let flags = if mapping.skip_tunnel { "skiptunnel" } else { "" };
        vec![
            self.prefix.to_string(),
            mapping.identity.to_string(),
            source.name().to_owned(),
            resource.to_string(),
            mapping.tunnel.map(|tunnel| tunnel.to_string()).unwrap_or_default(),
            flags.to_owned(),
            mapping.pod.as_ref().map(|pod| format!("{}/{}", pod.namespace, pod.name)).unwrap_or_default(),
            self.status.to_string(),
        ]
    }
}
