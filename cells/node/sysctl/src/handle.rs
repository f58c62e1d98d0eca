//! The handle by which cells request kernel settings.

use std::sync::Arc;

use reconciler::{Handle, StatusKind};
use statedb::{RwTable, Table};

use crate::files::Files;
use crate::{Error, Name, Setting};

/// Requests kernel settings; they are kept in force until [`forget`](Self::forget).
#[derive(Clone, Debug)]
pub struct Sysctl {
    table: Arc<RwTable<Setting>>,
    reconciler: Handle,
    files: Files,
}

impl Sysctl {
    pub(crate) fn new(table: Arc<RwTable<Setting>>, reconciler: Handle, files: Files) -> Self {
        Self { table, reconciler, files }
    }

    /// Returns the table of all requested settings.
    #[must_use]
    pub fn table(&self) -> Table<Setting> {
        self.table.reader()
    }

    /// Requests settings and waits until each has been tried once. Returns the error of the first that failed and is not
    /// optional; failed ones are retried in the background.
    pub async fn apply(&self, settings: Vec<Setting>) -> Result<(), Error> {
        let names: Vec<Name> = settings.iter().map(|s| s.name.clone()).collect();
        let Some(first) = names.first() else {
            return Ok(());
        };
        let revision = self.insert(settings);
        self.reconciler.wait_until(revision).await.map_err(|_| Error::Stopped { name: first.clone() })?;
        let snapshot = self.table.snapshot();
        for name in &names {
            let Some(row) = self.table.get(&snapshot, Setting::by_name(name)) else {
                continue;
            };
            if row.status.kind() == StatusKind::Error && !row.optional {
                return Err(Error::Write {
                    name: name.clone(),
                    value: row.value.clone(),
                    reason: row.status.error().unwrap_or_default().to_owned(),
                });
            }
        }
        Ok(())
    }

    fn insert(&self, settings: Vec<Setting>) -> u64 {
        let mut txn = self.table.write();
        for setting in settings {
            txn.insert(setting);
        }
        let snapshot = txn.commit();
        self.table.revision(&snapshot)
    }

    /// Requests a value without waiting; the row's status reports the outcome.
    pub fn set(&self, name: Name, value: impl ToString) {
        self.insert(vec![Setting::new(name, value)]);
    }

    /// Requests a setting and waits until it is in force.
    pub async fn write(&self, name: Name, value: impl ToString) -> Result<(), Error> {
        self.apply(vec![Setting::new(name, value)]).await
    }

    /// Requests the value 1 and waits until it is in force.
    pub async fn enable(&self, name: Name) -> Result<(), Error> {
        self.write(name, 1).await
    }

    /// Requests the value 0 and waits until it is in force.
    pub async fn disable(&self, name: Name) -> Result<(), Error> {
        self.write(name, 0).await
    }

    /// Stops keeping a setting; its value stays. For settings of an interface that is being deleted.
    pub fn forget(&self, name: &Name) {
        let mut txn = self.table.write();
        if txn.delete(Setting::by_name(name)).is_some() {
            txn.commit();
        }
    }

    /// Reads the value in force in the kernel.
    pub fn read(&self, name: &Name) -> Result<String, Error> {
        self.files.read(name).map_err(|error| Error::Read { name: name.clone(), reason: error.to_string() })
    }
}
