//! The wiring: options, the first row, jobs.

use std::sync::Arc;

use api::StatusSource;
use devices::{Device, HOST_DEVICE, NodeAddress};
use hive::prelude::*;
use maps::FamilyConfig;
use state_file::Rewrite;
use statedb::{RwTable, Table};

use crate::derive::{Facts, local_node};
use crate::settings::Settings;
use crate::{
    AutomaticRanges, LocalNode, LocalNodeConfig, LocalNodeStore, LocalRouters, NodeName, PodCidrSource,
    StateConfig, follow, host, previous, restore,
};

/// Provides table `local-node`, its writer [`LocalNodeStore`], the name [`NodeName`]. Cells that need the store start
/// after the row exists.
pub fn cell() -> Cell {
    module(
        "local-node",
        "The node the agent runs on",
        [
            config::<LocalNodeConfig>(),
            config::<StateConfig>(),
            supply(Members(vec![previous::version()])),
            provide(|| NodeName::of_this_node().map(Arc::new)),
            provide_private(new_table),
            provide(new_settings),
            provide(new_routers),
            provide(new_store),
            provide(new_reader),
            provide(new_status),
        ],
    )
}

fn new_table(db: Arc<statedb::Db>, module: ModuleId) -> Result<Arc<RwTable<LocalNode>>, statedb::Error> {
    db.handle(module.name()).table_with_display().map(Arc::new)
}

fn new_settings(
    config: Config<LocalNodeConfig>,
    families: Config<FamilyConfig>,
) -> Result<Arc<AutomaticRanges>, crate::Error> {
    let settings = Settings::new(&config, families.enable_ipv4, families.enable_ipv6)?;
    Ok(Arc::new(AutomaticRanges(settings)))
}

fn new_routers(automatic: Arc<AutomaticRanges>) -> Arc<LocalRouters> {
    let settings = &automatic.0;
    Arc::new(LocalRouters { ipv4: settings.local_router_ipv4, ipv6: settings.local_router_ipv6 })
}

#[derive(Params)]
struct StoreParams {
    name: Arc<NodeName>,
    automatic: Arc<AutomaticRanges>,
    cidr_source: Option<Arc<PodCidrSource>>,
    state: Config<StateConfig>,
    table: Arc<RwTable<LocalNode>>,
    devices: Arc<Table<Device>>,
    addresses: Arc<Table<NodeAddress>>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
    health: Health,
}

fn new_store(p: StoreParams) -> anyhow::Result<Arc<LocalNodeStore>> {
    let settings = p.automatic.0.clone();
    let from_cluster = p.cidr_source.is_some_and(|source| *source == PodCidrSource::Cluster);
    let mut txn = p.table.write();
    let initializer = txn.register_initializer("local-node");
    txn.commit();
    let store = Arc::new(LocalNodeStore::new(Arc::clone(&p.table)));
    let state = p.state.state();

    let (first, writer) = (settings.clone(), Arc::clone(&store));
    let (name, folder, devices, addresses) = (p.name, state.clone(), p.devices, Arc::clone(&p.addresses));
    p.lifecycle
        .hook("local-node")
        .on_start(move |_| async move {
            let snapshot = devices.snapshot();
            let host_device = devices.get(&snapshot, Device::by_name(HOST_DEVICE));
            let routers = restore::routers(host_device.map(|row| &**row), restore::read(&folder)?);
            let cluster = from_cluster.then(|| previous::read(&folder, &name)).transpose()?;
            let facts = Facts {
                cluster,
                name: name.to_string(),
                boot_id: host::boot_id()?,
                addresses: addresses.all(&snapshot).map(|row| &**row).collect(),
                router_ipv4: routers.ipv4,
                router_ipv6: routers.ipv6,
            };
            writer.start(local_node(&first, &facts)?, initializer);
            Ok(())
        })
        .add();
    let follower = Arc::clone(&store);
    p.jobs
        .observer("addresses", p.addresses.snapshots(), move |_, snapshot| {
            follow::addresses(&settings, &p.addresses, &snapshot, &follower);
            async { Ok(()) }
        })
        .add();
    let (writer, folder) = (Arc::clone(&store), state.clone());
    let file =
        Rewrite::new(&p.jobs, &p.health, "node_config.h", move || follow::write_router(&folder, &writer));
    let writer = Arc::clone(&store);
    let known = Rewrite::new(&p.jobs, &p.health, "local-node.json", move || match writer.node() {
        Some(node) if from_cluster => previous::write(&state, &node),
        _ => Ok(()),
    });
    p.jobs
        .observer("router-file", store.table().snapshots(), move |_, _| {
            file.wake();
            known.wake();
            async { Ok(()) }
        })
        .add();
    Ok(store)
}

/// Depends on the store, so that readers of the table start after its hook.
fn new_reader(store: Arc<LocalNodeStore>) -> Arc<Table<LocalNode>> {
    Arc::new(store.table())
}

fn new_status(store: Arc<LocalNodeStore>) -> Member<StatusSource> {
    Member(StatusSource::new("local-node", move |status| {
        let cluster = status.cluster.get_or_insert_default();
        cluster.self_name = store.node().map(|node| node.full_name()).unwrap_or_default();
    }))
}
