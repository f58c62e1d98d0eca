//! The table `ipcache`: the claims of all sources on each prefix, one of which wins.

use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use reconciler::Status;
use serde::ser::{Serialize, SerializeStruct, Serializer};
use smol_str::SmolStr;
use statedb::{Query, TableDisplay, TableSpec};

use crate::source::Source;

/// The mapping of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Security identity.
    pub identity: u32,
    /// Index of the encryption key, or zero.
    pub encrypt_key: u8,
    /// Whether traffic bypasses the tunnel.
    pub skip_tunnel: bool,
    /// Whether the identity gives way to that of any other claim on the prefix, whatever its source: the range of a node's
    /// pods is the world until its pods are known, but a policy that names the same range has an identity for it. All other
    /// fields stay.
    pub is_fallback: bool,
    /// Set by [`at`](Self::at), `None` if all of its fields are: the thousands of prefixes of rules have none.
    pub location: Option<Arc<Location>>,
}

/// The node and the pod of an address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Location {
    /// The node the address is on, for the REST API.
    pub host_ip: Option<IpAddr>,
    /// The tunnel endpoint of the address; none on this node and for the world.
    pub tunnel: Option<IpAddr>,
    /// The pod, if it is one.
    pub pod: Option<Pod>,
}

/// A pod's name.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Pod {
    /// Namespace.
    pub namespace: SmolStr,
    /// Name in it. It shares its text with the object that it was read from.
    pub name: SmolStr,
}

impl Mapping {
    /// Returns a mapping to an identity alone.
    pub fn identity(identity: u32) -> Mapping {
        Mapping { identity, encrypt_key: 0, skip_tunnel: false, is_fallback: false, location: None }
    }

    /// Returns the mapping with a location.
    pub fn at(self, location: Location) -> Mapping {
        let location = (location != Location::default()).then(|| location.into());
        Mapping { location, ..self }
    }

    /// Returns the node the address is on.
    pub fn host_ip(&self) -> Option<IpAddr> {
        self.location.as_ref()?.host_ip
    }

    /// Returns the tunnel endpoint of the address.
    pub fn tunnel(&self) -> Option<IpAddr> {
        self.location.as_ref()?.tunnel
    }

    /// Returns the pod.
    pub fn pod(&self) -> Option<&Pod> {
        self.location.as_ref()?.pod.as_ref()
    }
}

/// Serializes with the fields of its location.
impl Serialize for Mapping {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("Mapping", 7)?;
        fields.serialize_field("Identity", &self.identity)?;
        fields.serialize_field("HostIp", &self.host_ip())?;
        fields.serialize_field("Tunnel", &self.tunnel())?;
        fields.serialize_field("SkipTunnel", &self.skip_tunnel)?;
        fields.serialize_field("EncryptKey", &self.encrypt_key)?;
        fields.serialize_field("Pod", &self.pod())?;
        fields.serialize_field("IsFallback", &self.is_fallback)?;
        fields.end()
    }
}

/// A source's mapping of a prefix.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Claim {
    /// The source; the claim with the highest source priority wins.
    pub source: Source,
    /// The object that the claim belongs to (`endpoint/12`, `node/a`), which alone can delete it.
    pub resource: Arc<str>,
    /// The claimed mapping.
    pub mapping: Mapping,
}

/// A prefix with all claims on it.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Entry {
    /// The prefix, host bits cleared.
    pub prefix: IpNetwork,
    /// Ordered by priority, then the latest first.
    pub(crate) claims: Claims,
    /// Whether the kernel has it.
    pub status: Status,
}

/// The claims on a prefix; never none. The reconciler's copy of the entry shares them, or has a few pointers to their parts.
#[derive(Debug, Clone)]
pub(crate) enum Claims {
    One(Claim),
    Many(Arc<[Claim]>),
}

impl std::ops::Deref for Claims {
    type Target = [Claim];

    fn deref(&self) -> &[Claim] {
        match self {
            Claims::One(claim) => std::slice::from_ref(claim),
            Claims::Many(claims) => claims,
        }
    }
}

impl From<Vec<Claim>> for Claims {
    fn from(mut claims: Vec<Claim>) -> Claims {
        match claims.pop() {
            Some(claim) if claims.is_empty() => Claims::One(claim),
            last => Claims::Many(claims.into_iter().chain(last).collect()),
        }
    }
}

/// Serializes as a list.
impl Serialize for Claims {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter())
    }
}

impl Entry {
    /// Queries the entry of a prefix.
    pub fn by_prefix(prefix: IpNetwork) -> Query<Entry> {
        Query::primary(network(prefix))
    }

    pub(crate) fn new(prefix: IpNetwork, claim: Claim) -> Entry {
        Entry { prefix: network(prefix), claims: Claims::One(claim), status: Status::pending() }
    }

    /// Returns the claim with the highest priority.
    pub fn winner(&self) -> &Claim {
        // The list is never empty: entries are created with a claim and deleted with their last one.
        &self.claims[0]
    }

    /// Returns the mapping in force: the winner's, with the identity of the next claim if the winner's is a fallback.
    pub fn mapping(&self) -> Mapping {
        mapping(&self.claims)
    }

    /// Returns the identity in force.
    pub fn identity(&self) -> u32 {
        identity(&self.claims)
    }

    /// Returns all claims, the winner first.
    pub fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// Returns the entry with a claim added or replaced; `None` if it has the claim already.
    pub(crate) fn with(&self, claim: Claim) -> Option<Entry> {
        if self.claims.contains(&claim) {
            return None;
        }
        let mut claims: Vec<Claim> = self.claims.iter().filter(|old| !same(old, &claim)).cloned().collect();
        let at = claims.partition_point(|old| old.source > claim.source);
        claims.insert(at, claim);
        Some(self.of(claims))
    }

    /// Returns the entry without a claim; `None` if that was the last one.
    pub(crate) fn without(&self, source: Source, resource: &str) -> Option<Entry> {
        let left = |claim: &&Claim| claim.source != source || &*claim.resource != resource;
        let claims: Vec<Claim> = self.claims.iter().filter(left).cloned().collect();
        (!claims.is_empty()).then(|| self.of(claims))
    }

    /// Returns the entry with other claims. The kernel's entry changes only with the winner.
    fn of(&self, claims: Vec<Claim>) -> Entry {
        let same = mapping(&claims) == mapping(&self.claims);
        let status = if same { self.status.clone() } else { Status::pending() };
        Entry { prefix: self.prefix, claims: claims.into(), status }
    }
}

fn identity(claims: &[Claim]) -> u32 {
    let own = claims.iter().find(|claim| !claim.mapping.is_fallback);
    // The list is never empty: entries are created with a claim and deleted with their last one.
    own.unwrap_or(&claims[0]).mapping.identity
}

fn mapping(claims: &[Claim]) -> Mapping {
    Mapping { identity: identity(claims), ..claims[0].mapping.clone() }
}

fn same(a: &Claim, b: &Claim) -> bool {
    a.source == b.source && a.resource == b.resource
}

/// Returns the prefix without host bits.
pub(crate) fn network(prefix: IpNetwork) -> IpNetwork {
    IpNetwork::new(prefix.network(), prefix.prefix()).unwrap_or(prefix)
}

impl TableSpec for Entry {
    const NAME: &'static str = "ipcache";
    type Key<'a> = IpNetwork;

    fn key(&self) -> IpNetwork {
        self.prefix
    }
}

impl TableDisplay for Entry {
    fn columns() -> &'static [&'static str] {
        &["Prefix", "Identity", "Source", "Resource", "Tunnel", "Flags", "Pod", "Status"]
    }

    fn row(&self) -> Vec<String> {
        let Claim { source, resource, mapping } = self.winner();
        let flags = if mapping.skip_tunnel { "skiptunnel" } else { "" };
        vec![
            self.prefix.to_string(),
            self.identity().to_string(),
            source.name().to_owned(),
            resource.to_string(),
            mapping.tunnel().map(|tunnel| tunnel.to_string()).unwrap_or_default(),
            flags.to_owned(),
            mapping.pod().map(|pod| format!("{}/{}", pod.namespace, pod.name)).unwrap_or_default(),
            self.status.to_string(),
        ]
    }
}
