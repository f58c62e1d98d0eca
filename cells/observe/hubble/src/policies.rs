//! The rules of policies that decide on packets, as flows name them.

use hubble_api::flow::Policy;
use policy::EndpointPolicy;
use policy_engine::{Decision, Direction, Reason};
use statedb::{Snapshot, Table};

/// Labels of rules with their object.
const NAME: &str = "k8s:io.cilium.k8s.policy.name=";
const NAMESPACE: &str = "k8s:io.cilium.k8s.policy.namespace=";
const KIND: &str = "k8s:io.cilium.k8s.policy.derived-from=";

/// A packet as policies see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    /// The endpoint with the policy that decides.
    pub(crate) endpoint: u16,
    pub(crate) is_ingress: bool,
    /// The identity of the other end.
    pub(crate) peer: u32,
    pub(crate) protocol: u8,
    /// The destination port, for ICMP the type.
    pub(crate) port: u16,
}

/// The rules that decide on a packet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Deciding {
    pub(crate) allows: bool,
    pub(crate) policies: Vec<Policy>,
    /// The texts of rules for the log, each once.
    pub(crate) log: Vec<String>,
}

/// Returns the rules that decide on a packet by the policy in the kernel; `None` if none does: the endpoint or its rules
/// are not known, or the packet is denied by default.
pub(crate) fn deciding(
    table: &Table<EndpointPolicy>,
    snapshot: &Snapshot,
    packet: &Packet,
) -> Option<Deciding> {
    let row = table.get(snapshot, EndpointPolicy::by_endpoint(packet.endpoint))?;
    let direction = if packet.is_ingress { Direction::Ingress } else { Direction::Egress };
    let explained = row.decisions.explain(direction, packet.peer, packet.protocol, packet.port)?;
    let (_, _, Reason::Rules(matches)) = explained.row? else { return None };
    let mut deciding = Deciding { allows: explained.decision == Decision::Allow, ..Deciding::default() };
    for found in &matches {
        let policy = policy_of(&found.rule.labels, row.realized);
        // A rule with several selectors of the peer, or several rules of one object.
        if !deciding.policies.contains(&policy) {
            deciding.policies.push(policy);
        }
        let log = &*found.rule.log;
        if !log.is_empty() && !deciding.log.iter().any(|known| known == log) {
            deciding.log.push(log.to_owned());
        }
    }
    Some(deciding)
}

/// Returns the policy of a rule, by the rule's labels.
#[must_use]
pub fn policy_of(labels: &[String], revision: u64) -> Policy {
    let value =
        |label: &str| labels.iter().find_map(|text| text.strip_prefix(label)).unwrap_or_default().to_owned();
    Policy {
        name: value(NAME),
        namespace: value(NAMESPACE),
        labels: labels.to_vec(),
        revision,
        kind: value(KIND),
    }
}
