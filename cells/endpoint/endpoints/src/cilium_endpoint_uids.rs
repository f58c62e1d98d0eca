//! The uids of CiliumEndpoints in the records of their endpoints.

use statedb::RwTable;

use crate::model::endpoint::Endpoint;
use crate::model::error::StateError;
use crate::model::id::EndpointId;
use crate::model::record::Record;
use crate::names::current_record;
use crate::restore::files::StateFolder;

/// Stores the uid of an endpoint's CiliumEndpoint in its record, by which the next run recognizes the object as its own.
#[derive(Debug, Clone)]
pub struct CiliumEndpointUids {
    table: RwTable<Endpoint>,
    files: StateFolder,
}

impl CiliumEndpointUids {
    /// Returns the handle for the rows of a table and their records in a folder.
    pub fn new(table: RwTable<Endpoint>, files: StateFolder) -> CiliumEndpointUids {
        CiliumEndpointUids { table, files }
    }

    /// Stores the uid in the endpoint's row and in its file, without a regeneration: waits until none is in progress. Does
    /// nothing if the endpoint is gone or leaves.
    pub async fn store(&self, id: EndpointId, uid: &str) -> Result<(), StateError> {
        let table = self.table.reader();
        loop {
            let snapshot = table.snapshot();
            let (row, watch) = table.get_watch(&snapshot, Endpoint::by_id(id));
            match row.map(|row| (row.state.is_leaving(), row.status.is_done())) {
                None | Some((true, _)) => return Ok(()),
                Some((false, true)) => {
                    if self.change_row(id, uid) {
                        break;
                    }
                }
                // Another version of the row would begin the regeneration again.
                Some((false, false)) => watch.changed().await,
            }
        }
        let files = self.files.clone();
        hive::blocking(move || files.save_current(|| current_record(&table, id))).await
    }

    /// Changes the record in the row, which stays reconciled; false if the row is about to be regenerated or leaves.
    fn change_row(&self, id: EndpointId, uid: &str) -> bool {
        let (changed, _) = self.table.transact(|w| {
            let row =
                w.get(Endpoint::by_id(id)).filter(|row| row.status.is_done() && !row.state.is_leaving());
            let Some(row) = row.cloned() else { return false };
            if row.record.cilium_endpoint_uid != uid {
                let record = Record { cilium_endpoint_uid: uid.to_owned(), ..(*row.record).clone() };
                w.insert(row.with_record(record));
            }
            true
        });
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use reconciler::Status;
    use statedb::Db;

    use super::*;
    use crate::model::state::State;

    const ID: EndpointId = EndpointId(7);

    fn uid(files: &StateFolder) -> Option<String> {
        let found = files.scan().unwrap().pop()?;
        Some(found.record.unwrap().unwrap().cilium_endpoint_uid)
    }

    #[tokio::test]
    async fn a_uid_waits_for_a_regeneration_and_is_stored_without_one() {
        let folder = tempfile::tempdir().unwrap();
        let files = StateFolder::new(folder.path());
        let table: RwTable<Endpoint> = Db::new().table().unwrap();
        let uids = CiliumEndpointUids::new(table.clone(), files.clone());
        uids.store(ID, "u-1").await.unwrap();
        assert_eq!(uid(&files), None, "there is no such endpoint");

        let record = Record { id: ID.0, ..Record::default() };
        let idle = Endpoint::created(record, SystemTime::UNIX_EPOCH);
        let busy = Endpoint { status: Status::pending(), ..idle.clone() };
        table.transact(|w| w.insert(busy));
        let store = uids.store(ID, "u-1");
        tokio::pin!(store);
        assert!(futures::poll!(&mut store).is_pending());
        table.transact(|w| w.insert(idle.clone()));
        store.await.unwrap();
        assert_eq!(uid(&files).as_deref(), Some("u-1"));
        let row = table.reader().get(&table.reader().snapshot(), Endpoint::by_id(ID)).cloned().unwrap();
        assert_eq!((row.record.cilium_endpoint_uid.as_str(), row.status.is_done()), ("u-1", true));

        files.remove(ID).unwrap();
        table.transact(|w| w.insert(Endpoint { state: State::Disconnecting, ..idle }));
        uids.store(ID, "u-2").await.unwrap();
        assert_eq!(uid(&files), None, "a file that was removed stays so");
    }
}
