//! Settings of programs other than the agent.

use std::collections::BTreeSet;

use k8s_types::Kind;

/// Settings that a program other than the agent gives its client, in place of the agent's options `k8s-client-qps`,
/// `k8s-client-burst` and `crd-wait-timeout`: it does not wait for definitions, as it may be the one that registers them.
#[derive(Clone, Debug, Default)]
pub struct ClientProfile {
    /// Requests a second; 0 for no limit.
    pub qps: f64,
    /// Requests at once before the limit counts.
    pub burst: u32,
    /// Kinds whose objects are unknown, not none, while they are not defined.
    pub required: BTreeSet<Kind>,
    /// Whether the program only sends requests: nothing is read that it does not ask for.
    pub only_requests: bool,
}
