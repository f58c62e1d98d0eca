//! Network policies of Cilium. Their rules are stored as written: the policy engine parses them itself, and its errors
//! cover more than their structure.

use std::collections::BTreeMap;

use serde_json::Value;
use smol_str::SmolStr;

use crate::Time;
use crate::resource::resource;
use crate::slim::slim;
use crate::{ObjectMeta, StringMap};

slim! {
    /// A policy of one namespace.
    pub struct CiliumNetworkPolicy {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// A rule.
        pub spec: Option<Value>,
        /// Rules.
        pub specs: Vec<Value>,
        /// The observed state.
        always pub status: PolicyStatus,
    }

    /// A cluster-wide policy, for pods of all namespaces or for nodes.
    pub struct CiliumClusterwideNetworkPolicy {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// A rule.
        pub spec: Option<Value>,
        /// Rules.
        pub specs: Vec<Value>,
        /// The observed state.
        always pub status: PolicyStatus,
    }

    /// The status of a policy.
    pub struct PolicyStatus {
        /// The status of derived policies by name.
        pub derivative_policies: BTreeMap<SmolStr, PolicyNodeStatus>,
        /// The conditions.
        pub conditions: Vec<PolicyCondition>,
    }

    /// The status of a policy on a node.
    pub struct PolicyNodeStatus {
        /// Whether it is valid.
        pub ok: bool,
        /// The error of an invalid policy.
        pub error: SmolStr,
        /// The time of the last update.
        always pub last_updated: Option<Time>,
        /// The first policy revision that contains it.
        #[serde(rename = "localPolicyRevision")]
        pub revision: u64,
        /// Whether all endpoints enforce it.
        pub enforcing: bool,
        /// Its annotations at that time.
        pub annotations: StringMap,
    }

    /// A condition of a policy.
    pub struct PolicyCondition {
        /// `Valid`.
        always pub r#type: SmolStr,
        /// `True`, `False` or `Unknown`.
        always pub status: SmolStr,
        /// The time of the last transition.
        always pub last_transition_time: Option<Time>,
        /// The reason, as one CamelCase word.
        pub reason: SmolStr,
        /// A human-readable message.
        pub message: SmolStr,
    }
}

resource!(CiliumNetworkPolicy, CiliumClusterwideNetworkPolicy);

/// Converts rules to Cilium's output: adds sources to the keys of selectors, removes empty lists.
pub(crate) fn show_rules(policy: &mut Value) {
    if let Some(policy) = policy.as_object_mut() {
        policy.get_mut("spec").into_iter().for_each(|rule| show(rule, false));
        let rules = policy.get_mut("specs").and_then(Value::as_array_mut);
        rules.into_iter().flatten().for_each(|rule| show(rule, false));
    }
}

/// Fields that select endpoints or nodes by labels with sources.
const SELECTORS: [&str; 9] = [
    "endpointSelector",
    "nodeSelector",
    "fromEndpoints",
    "toEndpoints",
    "fromNodes",
    "toNodes",
    "fromRequires",
    "toRequires",
    "selector",
];

fn show(value: &mut Value, selector: bool) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| show(item, selector)),
        Value::Object(members) if selector => {
            if let Some(Value::Object(labels)) = members.get_mut("matchLabels") {
                *labels = std::mem::take(labels)
                    .into_iter()
                    .map(|(key, value)| (with_source(&key), value))
                    .collect();
            }
            let conditions = members.get_mut("matchExpressions").and_then(Value::as_array_mut);
            for condition in conditions.into_iter().flatten() {
                if let Some(Value::String(key)) = condition.get_mut("key") {
                    *key = with_source(key);
                }
            }
        }
        Value::Object(members) => {
            members.retain(|_, member| {
                !member.is_null() && member.as_array().is_none_or(|items| !items.is_empty())
            });
            members.iter_mut().for_each(|(name, member)| show(member, SELECTORS.contains(&name.as_str())));
        }
        _ => {}
    }
}

/// Adds the source `any` to a key without a source: `app` becomes `any:app`, `k8s:app` is unchanged.
fn with_source(key: &str) -> String {
    match key.split_once(':') {
        Some((source, _)) if !source.is_empty() => key.to_owned(),
        _ => format!("any:{}", key.trim_start_matches(':')),
    }
}
