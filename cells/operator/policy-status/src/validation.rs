//! Validity of a policy, and its status.

use hive::health::summarize;
use policy_engine::Settings;
use serde_json::{Map, Value, json};

use crate::object::PolicyObject;

/// The condition's type.
const VALID: &str = "Valid";

/// Problems that a condition names at most.
const MAX_PROBLEMS: usize = 20;

/// Returns the problems of a policy; none if agents enforce it.
pub(crate) fn problems<const CLUSTERWIDE: bool>(
    policy: &PolicyObject<CLUSTERWIDE>,
    settings: &Settings,
) -> Option<String> {
    let refusal = policy.parse(settings).err()?;
    let problems: Vec<String> = refusal.problems.iter().map(ToString::to_string).collect();
    Some(summarize(&problems, MAX_PROBLEMS, "; ").to_string())
}

/// Returns the status of a policy with these problems, if it is another one.
pub(crate) fn status<const CLUSTERWIDE: bool>(
    policy: &PolicyObject<CLUSTERWIDE>,
    problems: Option<&str>,
    now: &str,
) -> Option<Value> {
    let (is_valid, message) = match problems {
        None => ("True", "Policy validation succeeded"),
        Some(problems) => ("False", problems),
    };
    let mut conditions = policy.status.conditions.clone();
    let known = conditions.iter().position(|condition| condition["type"] == VALID);
    let mut time = json!(now);
    if let Some(known) = known {
        let known = conditions.remove(known);
        if known["status"] == is_valid {
            if known["message"] == message {
                return None;
            }
            // That of the last transition of the status.
            time = known["lastTransitionTime"].clone();
        }
    }
    conditions
        .push(json!({"type": VALID, "status": is_valid, "lastTransitionTime": time, "message": message}));
    let mut status: Map<String, Value> = policy.status.others.clone();
    status.insert("conditions".to_owned(), json!(conditions));
    Some(Value::Object(status))
}
