//! The wiring: options, maps, the job.

use std::sync::Arc;

use hive::prelude::*;
use loadbalancer::{ServicesConfig, ServicesWriter};
use local_node::StateConfig;
use maps::Maps;

use crate::config::{SocketConfig, SocketMode};
use crate::diag::Transport;
use crate::follow::follow;
use crate::reverse::ReverseSockets;
use crate::round::Sockets;

/// Returns the cell that terminates sockets of removed backends, with the node's pinned maps.
pub fn cell() -> Cell {
    let pinned = |maps: Arc<Maps>| Arc::new(ReverseSockets::pinned(maps));
    bundle([termination(), module("socket-maps", "Sockets that were led to backends", [provide(pinned)])])
}

/// Returns the same for maps that another cell provides as `Arc<ReverseSockets>`.
pub fn termination() -> Cell {
    let cells = [config::<SocketConfig>(), invoke(start)];
    module("socket-termination", "Ends sockets that are connected to backends that are gone", cells)
}

#[derive(Params)]
struct Needs {
    config: Config<SocketConfig>,
    services: Config<ServicesConfig>,
    state: Config<StateConfig>,
    writer: Arc<ServicesWriter>,
    reverse: Arc<ReverseSockets>,
    jobs: JobGroup,
}

fn start(p: Needs) {
    let replaces_kube_proxy = p.services.kube_proxy_replacement;
    if p.config.mode(replaces_kube_proxy) == SocketMode::Off {
        return;
    }
    let transports = match p.config.lb_sock_terminate_all_protos {
        true => vec![Transport::Udp, Transport::Tcp],
        false => vec![Transport::Udp],
    };
    let (frontends, backends) = (p.writer.frontends(), p.writer.backends());
    let changes = backends.changes().named("socket-termination");
    let namespaces = p.config.enters_pods(replaces_kube_proxy).then(|| p.state.run().join("netns"));
    let sockets = Sockets { frontends, backends, reverse: p.reverse, namespaces, transports };
    p.jobs.one_shot("socket-termination", move |cx: JobCx| follow(sockets, changes, cx)).add();
}
