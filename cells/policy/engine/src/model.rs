//! A policy after parsing and validation: a list of entries.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::proxy::ProxyRules;
use crate::refusal::Problem;
use crate::selector::Selector;
use crate::services::ServiceSelector;

/// The object that entries come from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId {
    /// Kind of the object.
    pub kind: Kind,
    /// Its namespace; empty for cluster-wide objects.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl fmt::Display for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.is_empty() {
            true => write!(f, "{}/{}", self.kind.short(), self.name),
            false => write!(f, "{}/{}/{}", self.kind.short(), self.namespace, self.name),
        }
    }
}

/// Kinds of policy objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// CiliumNetworkPolicy: pods of one namespace.
    CiliumNetworkPolicy,
    /// CiliumClusterwideNetworkPolicy: every endpoint.
    CiliumClusterwideNetworkPolicy,
    /// NetworkPolicy, of Kubernetes: pods of one namespace.
    NetworkPolicy,
    /// ClusterNetworkPolicy, of Kubernetes: pods of every namespace, before or after the policies of other kinds.
    ClusterNetworkPolicy,
}

impl Kind {
    /// Returns the kind's name in Kubernetes.
    pub fn name(self) -> &'static str {
        match self {
            Kind::CiliumNetworkPolicy => "CiliumNetworkPolicy",
            Kind::CiliumClusterwideNetworkPolicy => "CiliumClusterwideNetworkPolicy",
            Kind::NetworkPolicy => "NetworkPolicy",
            Kind::ClusterNetworkPolicy => "ClusterNetworkPolicy",
        }
    }

    /// Returns the short name for command lines.
    pub fn short(self) -> &'static str {
        match self {
            Kind::CiliumNetworkPolicy => "cnp",
            Kind::CiliumClusterwideNetworkPolicy => "ccnp",
            Kind::NetworkPolicy => "knp",
            Kind::ClusterNetworkPolicy => "kcnp",
        }
    }

    /// Returns the kind's `apiVersion`.
    pub fn api_version(self) -> &'static str {
        match self {
            Kind::CiliumNetworkPolicy | Kind::CiliumClusterwideNetworkPolicy => "cilium.io/v2",
            Kind::NetworkPolicy => "networking.k8s.io/v1",
            Kind::ClusterNetworkPolicy => "policy.networking.k8s.io/v1alpha2",
        }
    }

    /// Whether its objects are in a namespace.
    pub fn is_namespaced(self) -> bool {
        !matches!(self, Kind::CiliumClusterwideNetworkPolicy | Kind::ClusterNetworkPolicy)
    }
}

/// A policy object, parsed and valid.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// The object.
    pub resource: ResourceId,
    /// Its `metadata.uid`; empty if the manifest has none.
    pub uid: Arc<str>,
    /// Its entries, in the order of the object.
    pub entries: Vec<Entry>,
    /// Fields whose effect differs from what they suggest, by path. The policy is enforced nevertheless, as in Cilium.
    pub warnings: Vec<Problem>,
}

/// Direction of traffic, seen from the subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// To the subject.
    Ingress,
    /// From the subject.
    Egress,
}

/// The action of an entry on traffic that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// The traffic passes.
    Allow,
    /// The traffic is dropped, even if another entry of its priority allows it.
    Deny,
    /// The entries of the next tiers decide; further entries of this tier do not apply.
    Pass,
}

/// A class of entries. Those of an earlier tier take precedence over those of a later one, whatever their priorities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// ClusterNetworkPolicies of the tier `Admin`.
    Admin,
    /// Policies of all other kinds.
    Normal,
    /// ClusterNetworkPolicies of the tier `Baseline`.
    Baseline,
    /// Additions of the engine: the allow or deny of all traffic, the allow of the host.
    Default,
}

impl Tier {
    /// Returns Cilium's number of the tier.
    pub fn number(self) -> u8 {
        match self {
            Tier::Admin => 100,
            Tier::Normal => 200,
            Tier::Baseline => 250,
            Tier::Default => 255,
        }
    }
}

/// One element of `ingress`, `ingressDeny`, `egress` or `egressDeny`, or one of its peers in a ClusterNetworkPolicy.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The endpoints or the node that it applies to.
    pub subject: Subject,
    /// The direction of the traffic that it matches.
    pub direction: Direction,
    /// The action on that traffic.
    pub action: Action,
    /// Its tier.
    pub tier: Tier,
    /// Its priority in the tier; lower numbers take precedence over higher ones.
    pub priority: u32,
    /// Whether traffic in this direction that no entry matches is dropped.
    pub default_deny: bool,
    /// The other end of the traffic.
    pub peers: Peers,
    /// Services that are the other end, instead of `peers`; see [`Policy::with_services`].
    pub services: Vec<ServiceSelector>,
    /// Protocols and ports of traffic that passes directly.
    pub ports: Ports,
    /// Protocols and ports of traffic that passes through a proxy, with the proxy's rules.
    pub redirects: Vec<RedirectSpec>,
    /// The authentication of the traffic; `None` if the entry leaves it to other entries.
    pub authentication: Option<Authentication>,
    /// A text of the user for the log of verdicts; empty if none is given.
    pub log: Arc<str>,
    /// Its path in the object: `spec.ingress[0]`, `specs[1].egressDeny[2]`.
    pub path: Arc<str>,
    /// Labels of the rule, as texts, sorted: derived-from, name, namespace, uid, then the user's own.
    pub labels: Arc<[String]>,
}

/// The subject of an entry: endpoints or the node, never both.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Subject {
    /// Endpoints with these labels; never the host.
    Endpoints(Selector),
    /// The host, if it has these labels.
    Node(Selector),
}

/// The peers of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peers {
    /// No peer is specified: every peer matches.
    All,
    /// A list of peers that is present and empty: the entry matches nothing (default deny stays).
    Nothing,
    /// Identities that one of these selects; never empty.
    Of(Vec<Selector>),
}

/// The authentication of allowed traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Authentication {
    /// None, even where a broader entry requires it.
    Disabled,
    /// Mutual authentication of the two identities.
    Required,
    /// One that always fails, for tests.
    AlwaysFail,
}

impl Authentication {
    /// The modes.
    pub const ALL: [Authentication; 3] =
        [Authentication::Disabled, Authentication::Required, Authentication::AlwaysFail];

    /// Returns the mode's name in policies.
    pub fn mode(self) -> &'static str {
        match self {
            Authentication::Disabled => "disabled",
            Authentication::Required => "required",
            Authentication::AlwaysFail => "test-always-fail",
        }
    }

    /// Returns the type in map entries.
    pub fn auth_type(self) -> u8 {
        self as u8
    }
}

/// A protocol with one port, a range or a name, and the proxy that its traffic passes through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedirectSpec {
    /// The traffic.
    pub port: PortSpec,
    /// The rules of the proxy.
    pub rules: Arc<ProxyRules>,
}

/// Protocols and ports of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ports {
    /// No port is specified: every protocol.
    All,
    /// One of these; an empty list (`toPorts: [{ports: []}]`, or redirects only) matches nothing.
    Of(Vec<PortSpec>),
}

/// A protocol with one port, a range or a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortSpec {
    /// The protocol; the parser expands `ANY` into three specs: TCP, UDP, SCTP.
    pub protocol: u8,
    /// The port.
    pub port: Port,
}

/// A port of a policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Port {
    /// All ports of the protocol.
    All,
    /// Ports from the first to the last, which may be equal. ICMP types are ports.
    Range(u16, u16),
    /// A container port's name, in lower case; on ingress it may be the start of a range.
    Named {
        /// The name.
        name: Arc<str>,
        /// Last port of the range, if one is given.
        end: Option<u16>,
    },
}

/// A prefix in a policy, for which an identity must exist.
pub type Prefix = IpNetwork;

/// A world: addresses outside of the cluster, of one family if both are enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum World {
    /// Of the only family.
    Any,
    /// Of IPv4.
    Ipv4,
    /// Of IPv6.
    Ipv6,
}

impl World {
    /// Returns the world of an address.
    pub fn of(ip: IpAddr, ipv4_enabled: bool, ipv6_enabled: bool) -> World {
        match (ip, ipv4_enabled, ipv6_enabled) {
            (IpAddr::V4(_), _, true) => World::Ipv4,
            (IpAddr::V6(_), true, _) => World::Ipv6,
            _ => World::Any,
        }
    }

    /// Returns the name of its reserved label.
    pub fn label(self) -> &'static str {
        match self {
            World::Any => "world",
            World::Ipv4 => "world-ipv4",
            World::Ipv6 => "world-ipv6",
        }
    }
}
