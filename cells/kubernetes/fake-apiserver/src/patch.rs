//! Patches.

use bytes::Bytes;
use k8s_types::{ApiError, Kind, Patch};
use serde_json::{Map, Value};

/// Returns the object with a patch applied.
pub(crate) fn apply(kind: Kind, object: &Value, patch: &Patch) -> Result<Value, ApiError> {
    let mut object = object.clone();
    match patch {
        Patch::Json(operations) => {
            let operations: json_patch::Patch = serde_json::from_slice(operations)
                .map_err(|error| ApiError::Invalid(format!("the patch is wrong: {error}")))?;
            // Like a server's, the error does not contain the failed operation.
            json_patch::patch(&mut object, &operations)
                .map_err(|error| ApiError::Conflict(error.to_string()))?;
        }
        Patch::Merge(changes) => json_patch::merge(&mut object, &changes_of(changes)?.into()),
        Patch::Strategic(_) if kind.group() == "cilium.io" => {
            let accepted =
                "accepted media types include: application/json-patch+json, application/merge-patch+json";
            return Err(ApiError::Invalid(format!(
                "the body of the request was in an unknown format - {accepted}"
            )));
        }
        Patch::Strategic(changes) => {
            let changes = changes_of(changes)?;
            merge(object.as_object_mut().unwrap_or(&mut Map::new()), changes, "")?;
        }
    }
    Ok(object)
}

fn changes_of(patch: &Bytes) -> Result<Map<String, Value>, ApiError> {
    serde_json::from_slice(patch).map_err(|error| ApiError::Invalid(format!("the patch is wrong: {error}")))
}

/// Applies a strategic merge patch, as far as that needs no schema: objects are merged, conditions are merged by type.
/// Other lists are refused, since their merge strategy is not known here.
fn merge(object: &mut Map<String, Value>, changes: Map<String, Value>, path: &str) -> Result<(), ApiError> {
    for (name, change) in changes {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match change {
            _ if name.starts_with('$') => return Err(unknown(&path)),
            Value::Null => drop(object.remove(&name)),
            Value::Object(changes) => {
                let inner = object.entry(name).or_insert_with(|| Map::new().into());
                if !inner.is_object() {
                    *inner = Map::new().into();
                }
                if let Some(inner) = inner.as_object_mut() {
                    merge(inner, changes, &path)?;
                }
            }
            Value::Array(items) if name == "conditions" => {
                let list = object.entry(name).or_insert_with(|| Value::Array(Vec::new()));
                let Some(list) = list.as_array_mut() else { return Err(unknown(&path)) };
                for item in items {
                    merge_condition(list, item, &path)?;
                }
            }
            Value::Array(_) => return Err(unknown(&path)),
            scalar => drop(object.insert(name, scalar)),
        }
    }
    Ok(())
}

fn merge_condition(list: &mut Vec<Value>, condition: Value, path: &str) -> Result<(), ApiError> {
    let Value::Object(condition) = condition else { return Err(unknown(path)) };
    let Some(wanted) = condition.get("type").cloned() else { return Err(unknown(path)) };
    match list.iter_mut().find(|known| known.get("type") == Some(&wanted)).and_then(Value::as_object_mut) {
        Some(known) => merge(known, condition, path)?,
        None => list.push(condition.into()),
    }
    Ok(())
}

fn unknown(path: &str) -> ApiError {
    let remedy = "send a JSON patch or a merge patch";
    ApiError::Invalid(format!(
        "how a strategic merge changes {path} is not known without its schema; {remedy}"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(patch: fn(Bytes) -> Patch, change: &Value) -> Result<Value, ApiError> {
        let node = json!({
            "metadata": {"name": "a", "annotations": {"x": "1", "y": "2"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        apply(Kind::Node, &node, &patch(change.to_string().into()))
    }

    #[test]
    fn objects_and_conditions_are_merged() {
        let annotations = json!({"metadata": {"annotations": {"x": null, "z": "3"}}});
        for kind in [Patch::Merge, Patch::Strategic] {
            let annotations = &patched(kind, &annotations).unwrap()["metadata"]["annotations"];
            assert_eq!(*annotations, json!({"y": "2", "z": "3"}));
        }
        let condition = json!({"type": "NetworkUnavailable", "status": "False"});
        let change = json!({"status": {"conditions": [condition, {"type": "Ready", "reason": "x"}]}});
        let strategic = patched(Patch::Strategic, &change).unwrap();
        let ready = json!({"type": "Ready", "status": "True", "reason": "x"});
        assert_eq!(strategic["status"]["conditions"], json!([ready, condition]));
        assert_eq!(patched(Patch::Merge, &change).unwrap()["status"], change["status"]);
        let taints = json!({"spec": {"taints": []}});
        assert!(
            matches!(patched(Patch::Strategic, &taints), Err(ApiError::Invalid(why)) if why.contains("spec.taints"))
        );
        assert!(patched(Patch::Strategic, &json!({"$patch": "delete"})).is_err());
    }

    #[test]
    fn a_failing_test_is_a_conflict() {
        let operations = |value| {
            json!([
                {"op": "test", "path": "/metadata/annotations/x", "value": value},
                {"op": "replace", "path": "/metadata/annotations/x", "value": "9"},
            ])
        };
        assert_eq!(patched(Patch::Json, &operations("1")).unwrap()["metadata"]["annotations"]["x"], "9");
        assert!(matches!(patched(Patch::Json, &operations("2")), Err(ApiError::Conflict(_))));
        let missing = json!([{"op": "remove", "path": "/spec"}]);
        assert!(matches!(patched(Patch::Json, &missing), Err(ApiError::Conflict(_))));
        assert!(matches!(patched(Patch::Json, &json!({"op": "add"})), Err(ApiError::Invalid(_))));
    }
}
