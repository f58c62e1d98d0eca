//! The wiring.

use std::sync::Arc;

use devices::Device;
use endpoints::Endpoint;
use hive::prelude::*;
use local_node::StateConfig;
use statedb::{RwTable, Table};
use tunnel::{MtuConfig, Tunnel};

use crate::Mtu;
use crate::follow::Follower;
use crate::update::Updater;

/// The folder of pods' network namespaces, in the folder of the run.
const NAMESPACES: &str = "netns";

/// Keeps the table `mtu`, and the MTU of pods.
pub fn cell() -> Cell {
    module("mtu", "MTU of pods and routes", [statedb::table::<Mtu>(), invoke(start)])
}

#[derive(Params)]
struct StartParams {
    config: Config<MtuConfig>,
    tunnel: Arc<Tunnel>,
    state: Config<StateConfig>,
    table: Arc<RwTable<Mtu>>,
    devices: Arc<Table<Device>>,
    endpoints: Arc<Table<Endpoint>>,
    jobs: JobGroup,
}

fn start(p: StartParams) {
    let mtus = p.table.reader();
    let follower =
        Follower { config: *p.config, tunnel: p.tunnel, table: p.table, devices: p.devices.clone() };
    p.jobs
        .one_shot("mtu-updater", move |cx| async move {
            follower.run(&cx).await;
            Ok(())
        })
        .add();
    let updater = Updater {
        mtus,
        devices: p.devices,
        endpoints: p.endpoints,
        namespaces: p.state.run().join(NAMESPACES),
    };
    p.jobs
        .one_shot("endpoint-mtu-updater", move |cx| async move {
            updater.run(&cx).await;
            Ok(())
        })
        .add();
}
