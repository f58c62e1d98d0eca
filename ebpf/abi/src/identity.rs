//! Reserved security identities (constants: identity).

/// Not known.
pub const UNKNOWN: u32 = 0;
/// The host itself.
pub const HOST: u32 = 1;
/// Outside of the cluster, one IP family only.
pub const WORLD: u32 = 2;
/// Not managed by the agent.
pub const UNMANAGED: u32 = 3;
/// The health endpoint.
pub const HEALTH: u32 = 4;
/// A pod whose labels are not known yet.
pub const INIT: u32 = 5;
/// Another node.
pub const REMOTE_NODE: u32 = 6;
/// The API server.
pub const KUBE_APISERVER: u32 = 7;
/// The ingress proxy.
pub const INGRESS: u32 = 8;
/// Outside of the cluster, IPv4, on a dual stack node.
pub const WORLD_IPV4: u32 = 9;
/// Outside of the cluster, IPv6, on a dual stack node.
pub const WORLD_IPV6: u32 = 10;

const LABELS: [&str; 11] = [
    "unknown",
    "host",
    "world",
    "unmanaged",
    "health",
    "init",
    "remote-node",
    "kube-apiserver",
    "ingress",
    "world-ipv4",
    "world-ipv6",
];

/// Returns the name of a reserved identity, without the prefix `reserved:`.
pub fn label(identity: u32) -> Option<&'static str> {
    LABELS.get(usize::try_from(identity).ok()?).copied()
}
