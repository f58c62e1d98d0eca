//! An agent without a kernel.

use std::path::Path;
use std::sync::Arc;

use datapath_api::Datapath;
use datapath_api::testing::FakeDatapath;
use devices::{Device, NodeAddress};
use endpoints::Endpoints;
use hive::TestHive;
use hive::prelude::*;
use ipcache::IpcacheMap;
use ipcache::testing::FakeMap;
use local_node::{LocalNode, LocalNodeConfig, StateConfig};
use maps::FamilyConfig;

/// Returns the cells that handle requests, with fake nodes, devices and kernel.
pub(super) fn hive(folder: &Path, socket: &Path) -> TestHive {
    let datapath: Arc<dyn Datapath> = Arc::new(FakeDatapath::new());
    let map: Arc<dyn IpcacheMap> = Arc::new(FakeMap::default());
    let interfaces =
        (1..=9).map(|n| (format!("lxc{n}"), endpoints::Link { index: 100 + n, ..Default::default() }));
    let cells = [
        daemon_config::instance(),
        statedb::cell(),
        metrics::cell(),
        node(),
        config::<loader::LoaderConfig>(),
        k8s_tables::cell(),
        identity::cell(),
        ipam::cell(),
        ipcache::cell(),
        policy::cell(),
        endpoints::cell(),
        tunnel::cell(),
        daemon_config::cell(),
        api::cell(),
        supply(datapath),
    ];
    TestHive::needing::<Endpoints>(cells)
        .replace::<dyn IpcacheMap>(map)
        .replace(endpoints::testing::links(interfaces.collect()))
        .set("state-dir", folder.display())
        .set("socket-path", socket.display())
}

fn node() -> Cell {
    let node = local_node::testing::given(LocalNode {
        name: "node".into(),
        ipv4: Some([10, 99, 0, 1].into()),
        ipv4_alloc_cidr: Some("10.244.0.0/20".parse().unwrap()),
        ipv6_alloc_cidr: Some("fd00::/96".parse().unwrap()),
        ..LocalNode::default()
    });
    bundle([
        node,
        config::<StateConfig>(),
        config::<LocalNodeConfig>(),
        config::<FamilyConfig>(),
        statedb::table::<NodeAddress>(),
        statedb::table::<Device>(),
    ])
}
