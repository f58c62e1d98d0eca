//! `GET /apiary/policy-rules`: the packets that each rule of the policies in force has decided.
//!
//! The counts are those of the datapath (`policy-accounting`), by entry of a policy map: a packet counts for all rules of
//! the entry that has decided about it. An entry keeps its counts when policies change, and belongs to the rules that it
//! has then. Entries that decided longest ago lose theirs when there are more than `bpf-policy-stats-map-max`. The
//! response is an [`Answer`] in JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::Response;
use datapath_abi::PolicyStatsKey;
use datapath_api::Datapath;
use policy_engine::{Action, Direction, Entry, Key, L4, Policy, Reason, Resolved, ResourceId, Rule};
use serde::Serialize;

use crate::rounds::state::Shared;

/// The response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Answer {
    /// The revision of the policies in force.
    revision: u64,
    /// All rules, by object and path.
    rules: Vec<RuleCount>,
}

/// A rule, with the packets that it has decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct RuleCount {
    /// The object: `cnp/shop/web`.
    object: String,
    /// The place in the object: `spec.ingress[0]`.
    path: String,
    /// `ingress` or `egress`.
    direction: &'static str,
    /// `allow`, `deny` or `pass`.
    action: &'static str,
    /// The number of endpoints of this node that it selects and matches peers of.
    endpoints: usize,
    /// Packets.
    packets: u64,
    /// Bytes of these packets.
    bytes: u64,
}

/// The effect of a rule so far.
#[derive(Debug, Default)]
struct Count {
    endpoints: usize,
    packets: u64,
    bytes: u64,
}

/// A rule by object and path.
type RuleId = (ResourceId, Arc<str>);

type Counts<'a> = BTreeMap<RuleId, (&'a Entry, Count)>;

/// The inputs of a response.
#[derive(Clone)]
pub(crate) struct Rules {
    pub(crate) shared: Shared,
    pub(crate) datapath: Arc<dyn Datapath>,
}

impl Rules {
    /// Handles a request. Blocks while it reads the counts, and while a round of the policy job holds the state.
    pub(crate) fn answer(&self) -> Response {
        let counts = match self.datapath.policy_counts() {
            Ok(counts) => counts,
            Err(error) => {
                return Response::error(500, format!("unable to read the counts of policy maps: {error}"));
            }
        };
        let (revision, policies, computed) = {
            let state = self.shared.lock();
            let engine = state.core.engine();
            let policies: Vec<Arc<Policy>> = engine.policies().cloned().collect();
            (engine.revision(), policies, state.core.resolved())
        };
        let mut rules: Counts<'_> = BTreeMap::new();
        for policy in &policies {
            for entry in &policy.entries {
                rules.insert((policy.resource.clone(), entry.path.clone()), (entry, Count::default()));
            }
        }
        let computed: BTreeMap<u16, Arc<Resolved>> = computed.into_iter().collect();
        for resolved in computed.values() {
            for rule in resolved.selecting_rules() {
                if let Some((_, count)) = rules.get_mut(&id(rule)) {
                    count.endpoints += 1;
                }
            }
        }
        for (counted, value) in &counts {
            let Some(resolved) = computed.get(&counted.endpoint_id) else { continue };
            // Entries of policies that are no longer in force have no row.
            let reason = resolved.rows.get(&key(counted)).map(|row| resolved.reason(*row));
            let Some(Reason::Rules(matches)) = reason else { continue };
            // A rule may match a peer by several selectors.
            let deciding: BTreeSet<RuleId> = matches.iter().map(|found| id(&found.rule)).collect();
            for rule in deciding {
                if let Some((_, count)) = rules.get_mut(&rule) {
                    count.packets += value.packets;
                    count.bytes += value.bytes;
                }
            }
        }
        let rules = rules.into_iter().map(|((object, path), (entry, count))| RuleCount {
            object: object.to_string(),
            path: path.to_string(),
            direction: match entry.direction {
                Direction::Ingress => "ingress",
                Direction::Egress => "egress",
            },
            action: match entry.action {
                Action::Allow => "allow",
                Action::Deny => "deny",
                Action::Pass => "pass",
            },
            endpoints: count.endpoints,
            packets: count.packets,
            bytes: count.bytes,
        });
        Response::json(200, &Answer { revision, rules: rules.collect() })
    }
}

fn id(rule: &Rule) -> RuleId {
    (rule.resource.clone(), rule.path.clone())
}

/// Returns the key of the row that has the counts.
fn key(counted: &PolicyStatsKey) -> Key {
    Key {
        direction: if counted.egress == 0 { Direction::Ingress } else { Direction::Egress },
        identity: counted.sec_label,
        l4: L4 { protocol: counted.protocol, port: u16::from_be(counted.dport), bits: counted.prefix_len },
    }
}
