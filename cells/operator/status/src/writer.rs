//! Writes of statuses.

use std::sync::Arc;

use k8s_tables::{Row, Tabled};
use k8s_types::{Key, Patch};
use k8s_writer::{Mutation, Step, Target, Writer};
use operator_election::Leadership;
use serde_json::{Value, json};
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

    /// Replaces the status of an object, if it is still at the version of this row. Otherwise the watch reports the object anew.
    pub fn replace<T: Tabled>(&self, table: &Table<Row<T>>, row: &Row<T>, status: Value) {
        let (metadata, leadership, table) = (row.metadata(), self.leadership.clone(), table.clone());
        let key = Key::new(metadata.namespace.clone(), metadata.name.clone());
        let (version, found) = (metadata.resource_version.clone(), key.clone());
        let operations = json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            // Replaces it if there is one.
            {"op": "add", "path": "/status", "value": status},
        ]);
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
            Step::Patch { patch: Patch::Json(operations.to_string().into()), status: true }
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
