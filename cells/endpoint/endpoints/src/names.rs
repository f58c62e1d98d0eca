//! The DNS names in the records of endpoints. Another cell knows them; records have them where Cilium's agent has them, so
//! that each agent restores the names of the other.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use statedb::Table;

use crate::model::endpoint::Endpoint;
use crate::model::error::StateError;
use crate::model::id::EndpointId;
use crate::model::record::Record;
use crate::restore::files::StateFolder;

/// The DNS names of an endpoint, and its rules for queries, as in its record.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecordedNames {
    /// The names that the endpoint has looked up (`DNSHistory`).
    pub history: Vec<Value>,
    /// Names that have expired while connections to them are open (`DNSZombies`).
    pub zombies: BTreeMap<String, Value>,
    /// The rules (`DNSRulesV2`).
    pub rules: Value,
}

impl RecordedNames {
    /// Takes the names out of a record, where they would stay in memory as long as the endpoint.
    pub(crate) fn take(record: &mut Record) -> RecordedNames {
        RecordedNames {
            history: std::mem::take(&mut record.dns_history),
            zombies: std::mem::take(&mut record.dns_zombies),
            rules: std::mem::take(&mut record.dns_rules_v2),
        }
    }

    /// Returns the record with the names.
    pub(crate) fn put(self, record: &Record) -> Record {
        let RecordedNames { history, zombies, rules } = self;
        Record { dns_history: history, dns_zombies: zombies, dns_rules_v2: rules, ..record.clone() }
    }

    fn is_empty(&self) -> bool {
        *self == RecordedNames::default()
    }
}

/// Returns the names of an endpoint.
type Current = dyn Fn(EndpointId) -> RecordedNames + Send + Sync;

/// The names for records that are written.
#[derive(Default)]
pub(crate) struct Names(Mutex<State>);

#[derive(Default)]
struct State {
    /// The names of the previous run, until a cell takes them over.
    restored: BTreeMap<EndpointId, RecordedNames>,
    current: Option<Arc<Current>>,
}

impl Names {
    pub(crate) fn restore(&self, id: EndpointId, names: RecordedNames) {
        if !names.is_empty() {
            self.0.lock().restored.insert(id, names);
        }
    }

    pub(crate) fn forget(&self, id: EndpointId) {
        self.0.lock().restored.remove(&id);
    }

    pub(crate) fn of(&self, id: EndpointId) -> RecordedNames {
        let current = {
            let state = self.0.lock();
            let Some(current) = &state.current else {
                return state.restored.get(&id).cloned().unwrap_or_default();
            };
            current.clone()
        };
        current(id)
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").finish_non_exhaustive()
    }
}

/// The DNS names in the records of endpoints, for the cell that knows them.
#[derive(Debug, Clone)]
pub struct NameRecords {
    table: Table<Endpoint>,
    files: StateFolder,
}

impl NameRecords {
    pub(crate) fn new(table: Table<Endpoint>, files: StateFolder) -> NameRecords {
        NameRecords { table, files }
    }

    /// Hands the names of the previous run to `restore`. From then on records get those that `current` returns, which is
    /// called while a record is written, on a thread that may block. Complete after the start hook of the endpoints.
    pub fn take_over(
        &self,
        restore: impl FnOnce(BTreeMap<EndpointId, RecordedNames>),
        current: impl Fn(EndpointId) -> RecordedNames + Send + Sync + 'static,
    ) {
        // No record is written in between, which would lose the names.
        let mut state = self.files.names().0.lock();
        restore(std::mem::take(&mut state.restored));
        state.current = Some(Arc::new(current));
    }

    /// Writes the record of an endpoint whose names have changed; not that of one that leaves. Blocks.
    pub fn store(&self, id: EndpointId) -> Result<(), StateError> {
        self.files.save_current(|| current_record(&self.table, id))
    }
}

/// Returns the endpoint's record, unless the endpoint leaves: its file must not come back after it was removed.
pub(crate) fn current_record(table: &Table<Endpoint>, id: EndpointId) -> Option<Arc<Record>> {
    let snapshot = table.snapshot();
    let row = table.get(&snapshot, Endpoint::by_id(id)).filter(|row| !row.state.is_leaving())?;
    Some(row.record.clone())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use serde_json::json;
    use statedb::{Db, RwTable};

    use super::*;

    fn names(name: &str) -> RecordedNames {
        let history = vec![json!({"fqdn": name, "ips": ["192.0.2.1"]})];
        RecordedNames { history, rules: json!({"17891381": []}), ..RecordedNames::default() }
    }

    fn file(files: &StateFolder) -> Option<Record> {
        Some(files.scan().unwrap().pop()?.record.unwrap().unwrap())
    }

    #[test]
    fn records_keep_the_names_of_the_previous_run_until_another_cell_knows_them() {
        let folder = tempfile::tempdir().unwrap();
        let files = StateFolder::new(folder.path());
        let id = EndpointId(7);
        let mut record = names("a.io.").put(&Record { id: id.0, ..Record::default() });
        files.names().restore(id, RecordedNames::take(&mut record));
        assert_eq!(record, Record { id: id.0, ..Record::default() }, "rows have no names");
        files.save(&record).unwrap();
        assert_eq!(file(&files).unwrap(), names("a.io.").put(&record));

        let table: RwTable<Endpoint> = Db::new().table().unwrap();
        table.transact(|w| w.insert(Endpoint::created(record.clone(), SystemTime::UNIX_EPOCH)));
        let records = NameRecords::new(table.reader(), files.clone());
        let mut restored = BTreeMap::new();
        records.take_over(|names| restored = names, |_| names("b.io."));
        assert_eq!(restored, BTreeMap::from([(id, names("a.io."))]));
        records.store(id).unwrap();
        assert_eq!(file(&files).unwrap(), names("b.io.").put(&record));
        records.store(EndpointId(8)).unwrap();
        assert_eq!(files.scan().unwrap().len(), 1, "there is no such endpoint");
    }

    #[test]
    fn names_that_do_not_fit_cost_no_endpoint() {
        let folder = tempfile::tempdir().unwrap();
        let files = StateFolder::new(folder.path());
        let record = Record { id: 7, ..Record::default() };
        files.names().restore(EndpointId(7), names(&"x".repeat(33 << 20)));
        files.save(&record).unwrap();
        assert_eq!(file(&files), Some(record));
    }

    #[test]
    fn an_id_that_is_used_again_has_no_names_of_the_former_endpoint() {
        let folder = tempfile::tempdir().unwrap();
        let files = StateFolder::new(folder.path());
        files.names().restore(EndpointId(7), names("a.io."));
        files.remove(EndpointId(7)).unwrap();
        let record = Record { id: 7, ..Record::default() };
        files.save(&record).unwrap();
        assert_eq!(file(&files), Some(record));
    }
}
