//! The wiring: options, the loop, its servers.

use std::collections::BTreeMap;
use std::sync::Arc;

use devices::NodeAddress;
use hive::prelude::*;
use http_server::Pool;
use loadbalancer::{ServicesConfig, ServicesWriter};
use local_node::LocalNode;
use statedb::Table;

use crate::answer::Tables;
use crate::config::{HealthServerConfig, ListenOn};
use crate::control::{Control, Servers};
use crate::listener::Server;

/// Returns the cell that serves health checks of load balancers.
pub fn cell() -> Cell {
    let cells = [config::<HealthServerConfig>(), invoke(start)];
    module("loadbalancer-healthserver", "Health checks of cloud load balancers", cells)
}

#[derive(Params)]
struct Needs {
    config: Config<HealthServerConfig>,
    services: Config<ServicesConfig>,
    writer: Arc<ServicesWriter>,
    node: Arc<Table<LocalNode>>,
    addresses: Option<Arc<Table<NodeAddress>>>,
    listen_on: Option<Arc<ListenOn>>,
    jobs: JobGroup,
    health: Health,
}

fn start(p: Needs) {
    if !p.services.kube_proxy_replacement || !p.config.enable_health_check_nodeport {
        return;
    }
    let tables = Tables::new(&p.writer, (*p.node).clone());
    let server = Server { tables, pool: Pool::default(), ip: p.listen_on.map(|address| address.0) };
    let servers = Servers { server, jobs: p.jobs.clone(), health: p.health, running: BTreeMap::new() };
    let addresses = p.addresses.map(|addresses| (*addresses).clone());
    let control = Control::new(&p.writer, addresses, p.config.enable_health_check_loadbalancer_ip, servers);
    p.jobs.one_shot("control-loop", move |cx: JobCx| control.follow(cx)).add();
}
