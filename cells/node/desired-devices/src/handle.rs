//! The handle by which cells desire devices.

use std::sync::Arc;

use statedb::{Initializer, RwTable, Table};

use crate::{DesiredDevice, Error};

/// Desires devices on behalf of owners; they are kept in the kernel until their owner deletes them.
#[derive(Clone, Debug)]
pub struct DesiredDevices {
    table: Arc<RwTable<DesiredDevice>>,
}

impl DesiredDevices {
    pub(crate) fn new(table: Arc<RwTable<DesiredDevice>>) -> Self {
        Self { table }
    }

    /// Returns the table of all desired devices.
    #[must_use]
    pub fn table(&self) -> Table<DesiredDevice> {
        self.table.reader()
    }

    /// Registers a source of devices. Until it [has finished](Self::finish) no device of the previous run is deleted.
    pub fn register_initializer(&self, name: &str) -> Initializer<DesiredDevice> {
        let mut txn = self.table.write();
        let initializer = txn.register_initializer(name);
        txn.commit();
        initializer
    }

    /// Declares that a source has named all of its devices.
    pub fn finish(&self, initializer: Initializer<DesiredDevice>) {
        let mut txn = self.table.write();
        initializer.done(&mut txn);
        txn.commit();
    }

    /// Upserts a device of an owner. An equal one is not touched.
    ///
    /// # Errors
    /// Another owner desires a device of the same name.
    pub fn upsert(&self, owner: &str, device: DesiredDevice) -> Result<(), Error> {
        let mut txn = self.table.write();
        let others = txn.list(DesiredDevice::by_name(&device.name)).find(|row| &*row.owner != owner);
        if let Some(other) = others.map(|row| Arc::clone(&row.owner)) {
            return Err(Error::Owned { name: device.name, owner: other });
        }
        let current = txn.get(DesiredDevice::by_id(owner, &device.name));
        if current.is_none_or(|current| !current.is_equal(&device)) {
            txn.insert(DesiredDevice { owner: Arc::from(owner), ..device });
        }
        txn.commit();
        Ok(())
    }

    /// Deletes a device of an owner.
    pub fn delete(&self, owner: &str, name: &str) {
        self.table.transact(|txn| drop(txn.delete(DesiredDevice::by_id(owner, name))));
    }

    /// Deletes all devices of an owner.
    pub fn remove_owner(&self, owner: &str) {
        let mut txn = self.table.write();
        let names = txn.prefix(DesiredDevice::by_owner(owner)).map(|row| Arc::clone(&row.name));
        let names: Vec<Arc<str>> = names.collect();
        for name in names {
            txn.delete(DesiredDevice::by_id(owner, &name));
        }
        txn.commit();
    }
}
