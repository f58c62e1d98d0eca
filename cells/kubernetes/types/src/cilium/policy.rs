//! Network policies of Cilium. Their rules are kept as written: the policy engine parses them itself, and its errors
//! are about more than their shape.

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
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// A rule.
        pub spec: Option<Value>,
        /// Rules.
        pub specs: Vec<Value>,
        /// How it is.
        always pub status: PolicyStatus,
    }

    /// A policy of all namespaces, or of nodes.
    pub struct CiliumClusterwideNetworkPolicy {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// A rule.
        pub spec: Option<Value>,
        /// Rules.
        pub specs: Vec<Value>,
        /// How it is.
        always pub status: PolicyStatus,
    }

    /// How a policy is.
    pub struct PolicyStatus {
        /// Policies that were made of it, by name.
        pub derivative_policies: BTreeMap<SmolStr, PolicyNodeStatus>,
        /// How it is, in several respects.
        pub conditions: Vec<PolicyCondition>,
    }

    /// How a policy is on a node.
    pub struct PolicyNodeStatus {
        /// Whether it could be read.
        pub ok: bool,
        /// Why it could not be.
        pub error: SmolStr,
        /// When this was written.
        always pub last_updated: Option<Time>,
        /// The first revision with it.
        #[serde(rename = "localPolicyRevision")]
        pub revision: u64,
        /// Whether all endpoints hold to it.
        pub enforcing: bool,
        /// Its annotations at that time.
        pub annotations: StringMap,
    }

    /// How a policy is in one respect.
    pub struct PolicyCondition {
        /// `Valid`.
        always pub r#type: SmolStr,
        /// `True`, `False` or `Unknown`.
        always pub status: SmolStr,
        /// Since when it is so.
        always pub last_transition_time: Option<Time>,
        /// Why, in one word.
        pub reason: SmolStr,
        /// Why, in words.
        pub message: SmolStr,
    }
}

resource!(CiliumNetworkPolicy, CiliumClusterwideNetworkPolicy);

/// Rules as Cilium prints them: keys of selectors with their source, lists that have nothing in them not at all.
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

/// `any:app` for `app`; `k8s:app` is what it is, for `k8s.app`, too.
fn with_source(key: &str) -> String {
    match key.split_once(':') {
        Some((source, _)) if !source.is_empty() => key.to_owned(),
        _ => format!("any:{}", key.trim_start_matches(':')),
    }
}
