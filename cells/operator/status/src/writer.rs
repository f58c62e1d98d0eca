//! Writes of statuses.

use std::sync::Arc;

use k8s_tables::{Row, Tabled};
use k8s_types::{Key, Patch};
use k8s_writer::{Mutation, Step, Target, Writer};
use operator_election::Leadership;
use serde_json::{Map, Value, json};
use statedb::Table;

/// Writes statuses while this process leads.
#[derive(Clone, Debug)]
pub struct StatusWriter {
    writer: Arc<Writer>,
    leadership: Leadership,
    part: &'static str,
}

impl StatusWriter {
    /// Returns a writer for the owner `part` of statuses: each withdraws its own writes alone.
    pub fn new(writer: &Arc<Writer>, leadership: &Leadership, part: &'static str) -> StatusWriter {
        StatusWriter { writer: writer.clone(), leadership: leadership.clone(), part }
    }

    /// Writes the status of an object, if it is still at the version of this row. Otherwise the watch reports the object again.
    ///
    /// Only members that differ from the row's are written: those of a later version, which this one does not decode, stay.
    pub fn replace<T: Tabled>(&self, table: &Table<Row<T>>, row: &Row<T>, status: Value) {
        let (metadata, leadership, table) = (row.metadata(), self.leadership.clone(), table.clone());
        let key = Key::new(metadata.namespace.clone(), metadata.name.clone());
        let (version, found) = (metadata.resource_version.clone(), key.clone());
        let present = serde_json::to_value(&row.object).unwrap_or_default();
        // A server refuses a merge patch with another version than the object's.
        let patch = json!({
            "metadata": {"resourceVersion": version},
            "status": merge_patch(&present["status"], &status),
        });
        // Decides by the table, which spares a request for each object.
        let decide = move |_: Option<&Value>| {
            let snapshot = table.snapshot();
            let row = table.get(&snapshot, Row::<T>::by_key(&found));
            if row.is_none_or(|row| row.metadata().resource_version != version) {
                return Step::Done;
            }
            if !leadership.holds() {
                return Step::GiveUp("this process does not lead any more".to_owned());
            }
            Step::Patch { patch: Patch::Merge(patch.to_string().into()), status: true }
        };
        // Dropped: the next change of the object shows how it went.
        drop(self.writer.enqueue(self.target::<T>(key), Mutation::new(decide).read_from_cache(|| None)));
    }

    /// Withdraws a status that is not desired any more.
    pub fn forget<T: Tabled>(&self, key: &Key) {
        self.writer.forget(&self.target::<T>(key.clone()));
    }

    fn target<T: Tabled>(&self, key: Key) -> Target {
        Target::new(T::KIND, key).part(self.part)
    }
}

/// Returns the merge patch (RFC 7386) from one value to another: members that are gone are null.
fn merge_patch(from: &Value, to: &Value) -> Value {
    let Value::Object(to) = to else { return to.clone() };
    let empty = Map::new();
    let from = from.as_object().unwrap_or(&empty);
    let removed = from.keys().filter(|name| !to.contains_key(*name)).map(|name| (name.clone(), Value::Null));
    let changed = to.iter().filter(|(name, value)| from.get(*name) != Some(value));
    let changed = changed
        .map(|(name, value)| (name.clone(), merge_patch(from.get(name).unwrap_or(&Value::Null), value)));
    Value::Object(removed.chain(changed).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_are_not_decoded_stay() {
        let decoded = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}, "conditions": [{"type": "A"}], "same": 1});
        let patch =
            merge_patch(&decoded, &json!({"loadBalancer": {}, "conditions": [{"type": "B"}], "same": 1}));
        assert_eq!(patch, json!({"loadBalancer": {"ingress": null}, "conditions": [{"type": "B"}]}));
        assert_eq!(merge_patch(&Value::Null, &json!({"conditions": []})), json!({"conditions": []}));
    }
}
