//! Copies as objects, and their mutations.

use k8s_types::SmolStr;
use k8s_types::core::Secret;
use k8s_writer::{Mutation, Step};
use operator_election::Leadership;
use policy_engine::SecretRef;
use serde_json::{Map, Value, json};

/// Labels of a copy, as Cilium writes them: namespace and name of the original.
const OWNER_NAMESPACE: &str = "secretsync.cilium.io/owning-secret-namespace";
const OWNER_NAME: &str = "secretsync.cilium.io/owning-secret-name";
/// The annotation of copies that this operator has created, and so may delete.
const CREATOR: &str = "secretsync.cilium.io/created-by";
const CREATOR_VALUE: &str = "apiary";
/// Names up to this length are values of labels.
const MAX_LABEL: usize = 63;

/// Returns the name of the copy of a secret.
pub(crate) fn name(secret: &SecretRef) -> SmolStr {
    format!("{}-{}", secret.namespace, secret.name).into()
}

/// Whether a secret can have a copy: its name is the value of a label.
pub(crate) fn fits(secret: &SecretRef) -> bool {
    secret.name.len() <= MAX_LABEL
}

/// Returns the original of a copy.
pub(crate) fn owner(copy: &Secret) -> Option<SecretRef> {
    let label = |key| copy.metadata.labels.get(key).map(ToString::to_string);
    Some(SecretRef { namespace: label(OWNER_NAMESPACE)?, name: label(OWNER_NAME)? })
}

/// Whether this operator, and not Cilium's, has created a copy.
pub(crate) fn is_own(copy: &Secret) -> bool {
    copy.metadata.annotations.get(CREATOR).is_some_and(|value| value == CREATOR_VALUE)
}

/// Whether a copy has the content of its original.
pub(crate) fn is_equal(copy: &Secret, original: &Secret) -> bool {
    copy.data == original.data && copy.r#type == original.r#type
}

/// Creates or replaces the copy of a secret.
pub(crate) fn write(secret: SecretRef, original: &Secret, leadership: Leadership) -> Mutation {
    let data: Map<String, Value> =
        original.data.iter().map(|(key, value)| (key.to_string(), json!(value.as_str()))).collect();
    let (data, kind) = (Value::Object(data), json!(original.r#type.as_str()));
    let object = json!({
        "metadata": {
            "labels": {OWNER_NAMESPACE: secret.namespace, OWNER_NAME: secret.name},
            "annotations": {CREATOR: CREATOR_VALUE},
        },
        "type": kind, "data": data,
    });
    Mutation::new(move |present| {
        let Some(present) = present else { return while_leading(&leadership, Step::Create(object.clone())) };
        if !is_copy_of(present, &secret) {
            return Step::GiveUp("is no copy of this secret".to_owned());
        }
        if present["type"] == kind && present.get("data").unwrap_or(&json!({})) == &data {
            return Step::Done;
        }
        // The server refuses another type, and other data of an immutable secret.
        if present["type"] != kind || present["immutable"] == true {
            let uid = present["metadata"]["uid"].as_str().unwrap_or_default().into();
            return while_leading(&leadership, Step::Recreate { uid, object: object.clone() });
        }
        let mut changed = present.clone();
        changed["data"] = data.clone();
        while_leading(&leadership, Step::Update(changed))
    })
}

/// Deletes the copy of a secret.
pub(crate) fn delete(secret: SecretRef, leadership: Leadership) -> Mutation {
    Mutation::new(move |present| match present {
        Some(present) if is_copy_of(present, &secret) => {
            let uid = present["metadata"]["uid"].as_str().unwrap_or_default();
            while_leading(&leadership, Step::delete(uid))
        }
        _ => Step::Done,
    })
}

fn is_copy_of(object: &Value, secret: &SecretRef) -> bool {
    let labels = &object["metadata"]["labels"];
    labels[OWNER_NAMESPACE] == *secret.namespace && labels[OWNER_NAME] == *secret.name
}

fn while_leading(leadership: &Leadership, step: Step) -> Step {
    match leadership.holds() {
        true => step,
        false => Step::GiveUp("this process does not lead any more".to_owned()),
    }
}
