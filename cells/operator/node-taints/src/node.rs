//! The desired marks of a node, and the steps to them.

use k8s_types::Patch;
use k8s_types::core::{Node, Taint};
use k8s_writer::Step;
use serde_json::{Value, json};

use crate::NodeTaintsConfig;
use crate::agent_pods::Readiness;

/// The type of the condition that network plugins and cloud providers set.
const CONDITION: &str = "NetworkUnavailable";

/// The reason by which the condition is the operator's.
const REASON: &str = "CiliumIsUp";

/// A change of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    /// Removes the taint.
    RemoveTaint,
    /// Adds the taint.
    AddTaint,
    /// Sets the condition.
    SetCondition,
}

impl Change {
    /// Returns the changes that a node with an agent of this readiness should have.
    pub(crate) fn desired(readiness: Readiness, config: &NodeTaintsConfig) -> Vec<Change> {
        let (removes, sets) = (config.remove_cilium_node_taints, config.set_cilium_is_up_condition);
        let desired = |change, is_enabled: bool| is_enabled.then_some(change);
        let changes = match readiness {
            Readiness::Absent => [None, None],
            Readiness::NotReady => {
                [desired(Change::AddTaint, config.set_cilium_node_taints && (removes || sets)), None]
            }
            Readiness::Ready => [desired(Change::RemoveTaint, removes), desired(Change::SetCondition, sets)],
        };
        changes.into_iter().flatten().collect()
    }

    /// Returns the part of the node that is written.
    pub(crate) fn part(self) -> &'static str {
        match self {
            Change::RemoveTaint | Change::AddTaint => "taint",
            Change::SetCondition => "condition",
        }
    }

    /// Returns the next step for a node as the table has it.
    pub(crate) fn step(self, node: &Node, taint_key: &str, now: &str) -> Step {
        let found = &node.spec.taints;
        let is_tainted = found.iter().any(|taint| taint.key == taint_key);
        match self {
            Change::RemoveTaint if is_tainted => {
                let left: Vec<&Taint> = found.iter().filter(|taint| taint.key != taint_key).collect();
                replace(found, &json!(left))
            }
            Change::AddTaint if !is_tainted => {
                let taint = json!({"key": taint_key, "effect": "NoSchedule"});
                if found.is_empty() {
                    return Step::json_patch(&json!([
                        {"op": "test", "path": "/metadata/resourceVersion", "value": node.metadata.resource_version},
                        {"op": "add", "path": "/spec/taints", "value": [taint]},
                    ]));
                }
                let mut all = json!(found);
                if let Value::Array(all) = &mut all {
                    all.push(taint);
                }
                replace(found, &all)
            }
            Change::SetCondition if !has_condition(node) => {
                let condition = json!({
                    "type": CONDITION,
                    "status": "False",
                    "reason": REASON,
                    "message": "Cilium is running on this node",
                    "lastTransitionTime": now,
                    "lastHeartbeatTime": now,
                });
                let patch = json!({"status": {"conditions": [condition]}});
                Step::Patch { patch: Patch::Strategic(patch.to_string().into()), status: true }
            }
            Change::RemoveTaint | Change::AddTaint | Change::SetCondition => Step::Done,
        }
    }
}

fn replace(found: &[Taint], desired: &Value) -> Step {
    Step::json_patch(&json!([
        {"op": "test", "path": "/spec/taints", "value": found},
        {"op": "replace", "path": "/spec/taints", "value": desired},
    ]))
}

fn has_condition(node: &Node) -> bool {
    node.status.conditions.iter().any(|c| c.r#type == CONDITION && c.status == "False" && c.reason == REASON)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "node.cilium.io/agent-not-ready";

    fn node(taints: &Value, conditions: &Value) -> Node {
        let node = json!({
            "metadata": {"name": "n1", "resourceVersion": "7"}, "spec": {"taints": taints}, "status": {"conditions": conditions},
        });
        k8s_types::decode(node.to_string().as_bytes()).unwrap()
    }

    fn step(change: Change, taints: &Value) -> Step {
        change.step(&node(taints, &json!([])), KEY, "now")
    }

    fn config(removes: bool, taints: bool, sets: bool) -> NodeTaintsConfig {
        NodeTaintsConfig {
            remove_cilium_node_taints: removes,
            set_cilium_node_taints: taints,
            set_cilium_is_up_condition: sets,
            agent_not_ready_taint_key: KEY.to_owned(),
            cilium_pod_labels: String::new(),
            cilium_pod_namespace: String::new(),
        }
    }

    #[test]
    fn taints_of_others_stay_and_any_effect_goes() {
        let foreign = json!({"key": "dedicated", "value": "db", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"});
        let own = |effect: &str| json!({"key": KEY, "effect": effect});
        let found = json!([own("NoSchedule"), foreign, own("NoExecute")]);
        let expected = Step::json_patch(&json!([
            {"op": "test", "path": "/spec/taints", "value": found},
            {"op": "replace", "path": "/spec/taints", "value": [foreign]},
        ]));
        assert_eq!(step(Change::RemoveTaint, &found), expected);
        assert_eq!(step(Change::RemoveTaint, &json!([foreign])), Step::Done);
        let expected = Step::json_patch(&json!([
            {"op": "test", "path": "/spec/taints", "value": [foreign]},
            {"op": "replace", "path": "/spec/taints", "value": [foreign, own("NoSchedule")]},
        ]));
        assert_eq!(step(Change::AddTaint, &json!([foreign])), expected);
        assert_eq!(step(Change::AddTaint, &json!([own("NoExecute")])), Step::Done);
        let expected = Step::json_patch(&json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
            {"op": "add", "path": "/spec/taints", "value": [own("NoSchedule")]},
        ]));
        assert_eq!(step(Change::AddTaint, &json!([])), expected);
    }

    #[test]
    fn the_condition_is_set_once() {
        let set =
            |condition: Value| Change::SetCondition.step(&node(&json!([]), &json!([condition])), KEY, "now");
        let own = json!({"type": CONDITION, "status": "False", "reason": REASON});
        assert_eq!(set(own.clone()), Step::Done);
        for (field, value) in [("status", "True"), ("reason", "NoRouteCreated"), ("type", "Ready")] {
            let mut other = own.clone();
            other[field] = value.into();
            assert!(matches!(set(other), Step::Patch { status: true, .. }), "{field}");
        }
    }

    #[test]
    fn options_decide_about_the_changes() {
        let desired = |readiness, config: NodeTaintsConfig| Change::desired(readiness, &config);
        assert_eq!(desired(Readiness::Absent, config(true, true, true)), []);
        assert_eq!(desired(Readiness::NotReady, config(true, true, true)), [Change::AddTaint]);
        assert_eq!(desired(Readiness::NotReady, config(true, false, true)), []);
        assert_eq!(desired(Readiness::NotReady, config(false, true, false)), [], "needs one of the others");
        let all = [Change::RemoveTaint, Change::SetCondition];
        assert_eq!(desired(Readiness::Ready, config(true, true, true)), all);
        assert_eq!(desired(Readiness::Ready, config(false, true, true)), [Change::SetCondition]);
    }
}
