//! The wiring: private writers, start hooks that fill the tables, two jobs.

use std::sync::Arc;

use hive::prelude::*;
use parking_lot::Mutex;
use statedb::{Db, Table};

use crate::controller::{Addresses, Follower};
use crate::monitor::RwTables;
use crate::{Device, DevicesConfig, Neighbor, NodeAddress, NodeAddressConfig, Route};

/// Provides the tables `devices`, `routes`, `neighbors` and `node-addresses`, which follow the kernel. Cells that need
/// one of them start after it was filled.
pub fn cell() -> Cell {
    bundle([
        module(
            "devices-controller",
            "Links, routes and neighbours of the kernel as tables",
            [config::<DevicesConfig>(), provide(new_devices)],
        ),
        module(
            "node-address",
            "The node's own addresses",
            [config::<NodeAddressConfig>(), provide(new_node_addresses)],
        ),
    ])
}

type Readers = (Arc<Table<Device>>, Arc<Table<Route>>, Arc<Table<Neighbor>>);

fn new_devices(
    config: Config<DevicesConfig>,
    db: Arc<Db>,
    module: ModuleId,
    lifecycle: Lifecycle,
    jobs: JobGroup,
) -> anyhow::Result<Readers> {
    let selection = config.selection()?;
    let db = db.handle(module.name());
    let tables = RwTables {
        devices: db.table_with_display()?,
        routes: db.table_with_display()?,
        neighbors: db.table_with_display()?,
    };
    let readers = (
        Arc::new(tables.devices.reader()),
        Arc::new(tables.routes.reader()),
        Arc::new(tables.neighbors.reader()),
    );
    let initializers = tables.register_initializers("kernel");
    let first = Arc::new(Mutex::new(None));
    let follower = Follower { tables, selection };
    let starter = Follower { tables: follower.tables.clone(), selection: follower.selection.clone() };
    let slot = Arc::clone(&first);
    lifecycle
        .hook("devices")
        .on_start(move |_| async move {
            let monitor = starter.start_with_retry().await?;
            starter.tables.initialized(initializers);
            *slot.lock() = Some(monitor);
            Ok(())
        })
        .add();
    jobs.one_shot("devices-controller", move |cx| async move {
        let monitor = first.lock().take();
        match monitor {
            Some(monitor) => follower.run(monitor, cx).await,
            None => Ok(()),
        }
    })
    .add();
    Ok(readers)
}

fn new_node_addresses(
    config: Config<NodeAddressConfig>,
    db: Arc<Db>,
    module: ModuleId,
    devices: Arc<Table<Device>>,
    routes: Arc<Table<Route>>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
) -> anyhow::Result<Arc<Table<NodeAddress>>> {
    let addresses = Addresses {
        devices: Table::clone(&devices),
        routes: Table::clone(&routes),
        addresses: db.handle(module.name()).table_with_display()?,
        rules: config.rules()?,
    };
    let reader = Arc::new(addresses.addresses.reader());
    let mut txn = addresses.addresses.write();
    let initializer = txn.register_initializer("devices");
    txn.commit();
    let first = addresses.clone();
    lifecycle
        .hook("node-addresses")
        .on_start(move |_| async move {
            first.update(&first.devices.snapshot());
            let mut txn = first.addresses.write();
            initializer.done(&mut txn);
            txn.commit();
            Ok(())
        })
        .add();
    jobs.one_shot("node-address-update", move |cx| addresses.run(cx)).add();
    Ok(reader)
}
