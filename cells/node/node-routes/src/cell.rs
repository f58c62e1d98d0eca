//! The wiring.

use std::sync::Arc;

use devices::{Device, HOST_DEVICE, Route};
use hive::prelude::*;
use local_node::LocalNode;
use maps::FamilyConfig;
use node_manager::Node;
use routes::Routes;
use statedb::Table;
use subnet::SubnetIdentity;
use tunnel::{MtuConfig, Tunnel};

use crate::plan::{Mode, Settings};
use crate::run::Follower;
use crate::{Error, NodeRoutesConfig};

/// Keeps the routes to the pods of all nodes.
pub fn cell() -> Cell {
    module("node-routes", "Routes to the pods of all nodes", [config::<NodeRoutesConfig>(), invoke(follow)])
}

#[derive(Params)]
struct FollowParams {
    config: Config<NodeRoutesConfig>,
    mtu: Config<MtuConfig>,
    families: Config<FamilyConfig>,
    tunnel: Arc<Tunnel>,
    nodes: Arc<Table<Node>>,
    subnets: Arc<Table<SubnetIdentity>>,
    local: Arc<Table<LocalNode>>,
    devices: Arc<Table<Device>>,
    live: Arc<Table<Route>>,
    routes: Arc<Routes>,
    jobs: JobGroup,
}

fn follow(p: FollowParams) -> Result<(), Error> {
    p.config.validate(&p.tunnel)?;
    let skip_unreachable = p.config.direct_routing_skip_unreachable;
    let mode = if p.tunnel.is_hybrid() {
        Mode::Hybrid { direct: p.config.auto_direct_node_routes.then_some(skip_unreachable) }
    } else if p.tunnel.is_tunnel() {
        Mode::Tunnel
    } else if p.config.auto_direct_node_routes {
        Mode::Direct { skip_unreachable }
    } else {
        Mode::None
    };
    let settings = Settings {
        mode,
        metric: p.config.route_metric,
        is_local_routed: p.config.enable_local_node_route,
        has_ipv4: p.families.enable_ipv4,
        has_ipv6: p.families.enable_ipv6,
    };
    // Only routes to pods are by this device; in native mode Cilium has left some to other nodes if it had a tunnel.
    p.routes.claim_device(HOST_DEVICE);
    let initializer = p.routes.register_initializer("node-routes");
    let follower = Follower {
        nodes: p.nodes,
        subnets: p.subnets,
        local: p.local,
        devices: p.devices,
        live: p.live,
        routes: p.routes,
        settings,
        mtu: *p.mtu,
        tunnel: p.tunnel,
    };
    p.jobs
        .one_shot("node-routes", move |cx| async move {
            follower.run(cx, initializer).await;
            Ok(())
        })
        .add();
    Ok(())
}
