//! The wiring: options, the hook that finds attached programs, the job, the status.

use std::sync::Arc;

use api::StatusSource;
use api_models::Switch;
use datapath_api::{SocketCoverage, SocketLb};
use hive::prelude::*;
use loadbalancer::ServicesConfig;
use loadbalancer_sockets::{SocketConfig, SocketMode};
use maps::{ClockConfig, FamilyConfig, Maps};
use runtime_options::{Follower, RuntimeOption, follower};
use statedb::Table;

use crate::config::SocketLbConfig;
use crate::job::{Job, are_attached, remove};
use crate::live::Live;
use crate::programs::Options;

/// Attaches the programs of sockets; provides `Arc<SocketLb>`.
pub fn cell() -> Cell {
    module(
        "socket-lb",
        "Services translated at sockets",
        [config::<SocketLbConfig>(), provide(new_socket_lb), provide(status)],
    )
}

#[derive(Params)]
struct Needs {
    config: Config<SocketLbConfig>,
    sockets: Config<SocketConfig>,
    services: Config<ServicesConfig>,
    empty_services: ConfigWatch<loader::ServicesConfig>,
    loader: ConfigWatch<loader::LoaderConfig>,
    conntrack: ConfigWatch<loader::ConntrackConfig>,
    families: Config<FamilyConfig>,
    clock: Config<ClockConfig>,
    options: Option<Arc<Table<RuntimeOption>>>,
    maps: Arc<Maps>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
}

fn new_socket_lb(p: Needs) -> (Arc<SocketLb>, Member<Follower>) {
    let socket_lb = Arc::new(SocketLb::at(p.config.root()));
    let (progress, follower) = follower("socket-lb");
    let coverage = match p.sockets.mode(p.services.kube_proxy_replacement) {
        SocketMode::Off => {
            if p.sockets.bpf_lb_sock_hostns_only {
                tracing::warn!("bpf-lb-sock-hostns-only has no effect without bpf-lb-sock");
            }
            let maps = p.maps.clone();
            p.jobs.one_shot("programs", move |cx: JobCx| remove(maps, cx)).add();
            // There are no programs that options would have to reach.
            progress.applied(u64::MAX);
            return (socket_lb, Member(follower));
        }
        SocketMode::Host => SocketCoverage::Host,
        SocketMode::All => SocketCoverage::All,
    };
    let root = p.config.root();
    let (attached, at, maps) = (socket_lb.clone(), root.clone(), p.maps.clone());
    let options = Options {
        config: (*p.config).clone(),
        services: (*p.services).clone(),
        families: (*p.families).clone(),
        clock: (*p.clock).clone(),
        host_only: coverage == SocketCoverage::Host,
        host_netns_cookie: bpf::netns_cookie(),
    };
    let of_hook = options.clone();
    p.lifecycle
        .hook("socket-lb")
        .on_start(move |_| async move {
            if hive::blocking(move || are_attached(&maps, &at, &of_hook)).await {
                attached.set(coverage);
            }
            Ok(())
        })
        .add();
    let live = Live {
        empty_services: p.empty_services,
        monitor: p.loader.clone(),
        conntrack: p.conntrack,
        options: p.options,
        trace_sock: p.config.trace_sock,
    };
    let (watchdog, maps) = (p.loader, p.maps);
    let job = Job { options, live, watchdog, maps, coverage, root, socket_lb: socket_lb.clone(), progress };
    p.jobs.one_shot("programs", move |cx: JobCx| job.run(cx)).add();
    (socket_lb, Member(follower))
}

/// Reports the coverage in `GET /healthz`.
fn status(
    socket_lb: Arc<SocketLb>,
    sockets: Config<SocketConfig>,
    services: Config<ServicesConfig>,
) -> Member<StatusSource> {
    Member(StatusSource::new("socket-lb", move |status| {
        let replacement = status.kube_proxy_replacement.get_or_insert_default();
        let features = replacement.features.get_or_insert_default();
        let enabled = socket_lb.coverage() != SocketCoverage::None;
        features.socket_lb = Some(Switch { enabled });
        features.bpf_socket_lb_hostns_only =
            sockets.mode(services.kube_proxy_replacement) == SocketMode::Host;
    }))
}
