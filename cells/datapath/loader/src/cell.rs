//! The wiring: restore in the start hook, then jobs for the host's side, policy maps, connections and unknown interfaces.

use std::net::IpAddr;
use std::sync::Arc;

use datapath_api::{Datapath, HostMark, SocketLb};
use hive::Settings;
use hive::prelude::*;
use local_node::LocalNode;
use maps::{ClockConfig, FamilyConfig, Maps, MapsConfig};
use masquerade::{BpfMasquerading, MasqueradeConfig};
use metrics::Metrics;
use runtime_options::{Follower, RuntimeOption, follower};
use statedb::Table;
use sysctl::Sysctl;
use tunnel::{EndpointRoutesConfig, MtuConfig, Tunnel};

use crate::config::{ConntrackConfig, LoaderConfig};
use crate::endpoints::conntrack_purge::OwnAddresses;
use crate::endpoints::jobs::{keep_pool, purge_deleted_endpoints};
use crate::endpoints::kernel::{KernelDatapath, KernelOptions};
use crate::guard::{host_mark, unknown};
use crate::host_job::run::{HostJob, Tables};
use crate::prefilter::{self, PrefilterConfig};
use crate::programs::balancing::Balancing;
use crate::programs::direct_return::DirectReturn;
use crate::programs::egress::EgressFeatures;
use crate::programs::host_routing::HostRouting;
use crate::programs::ipip::Ipip;
use crate::programs::live::Live;
use crate::programs::nat46x64::Translation;
use crate::programs::xdp::Acceleration;
use crate::services::ServicesConfig;
use crate::status::new_status;
use crate::watchdog::repairs::Repairs;

/// Loads the programs, keeps the host's side; provides `Arc<dyn Datapath>`.
pub fn cell() -> Cell {
    module(
        "loader",
        "Datapath programs, endpoints and devices",
        [
            config::<LoaderConfig>(),
            config::<ConntrackConfig>(),
            config::<ServicesConfig>(),
            config::<PrefilterConfig>(),
            provide_private(new_host_routing),
            provide(new_datapath),
            provide(new_status),
            provide(prefilter::new_routes),
        ],
    )
}

#[derive(Params)]
struct LoaderParams {
    config: ConfigWatch<LoaderConfig>,
    conntrack: ConfigWatch<ConntrackConfig>,
    services: ConfigWatch<ServicesConfig>,
    clock: Config<ClockConfig>,
    families: Config<FamilyConfig>,
    map_options: Config<MapsConfig>,
    maps: Arc<Maps>,
    tables: Tables,
    options: Option<Arc<Table<RuntimeOption>>>,
    metrics: Option<Arc<Metrics>>,
    sysctl: Arc<Sysctl>,
    host_mark: Option<Arc<HostMark>>,
    socket_lb: Option<Arc<SocketLb>>,
    tunnel: Arc<Tunnel>,
    masquerade: Config<MasqueradeConfig>,
    masquerading: Arc<BpfMasquerading>,
    host_routing: Arc<HostRouting>,
    settings: Arc<Settings>,
    mtu: Config<MtuConfig>,
    endpoint_routes: Config<EndpointRoutesConfig>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
}

fn new_host_routing(
    config: Config<LoaderConfig>,
    families: Config<FamilyConfig>,
    masquerade: Config<MasqueradeConfig>,
    endpoint_routes: Config<EndpointRoutesConfig>,
    settings: Arc<Settings>,
) -> Arc<HostRouting> {
    let replacement = settings.get("kube-proxy-replacement").is_some_and(|setting| setting.value == "true");
    Arc::new(HostRouting::new(&config, &families, &masquerade, &endpoint_routes, replacement))
}

fn new_datapath(p: LoaderParams) -> anyhow::Result<(Arc<dyn Datapath>, Member<Follower>)> {
    let maps = p.maps.clone();
    let config = p.config.get();
    let options = KernelOptions {
        filter_priority: config.bpf_filter_priority,
        icmp_rules: config.enable_icmp_rules,
        host_firewall: config.enable_host_firewall,
    };
    let datapath = Arc::new(KernelDatapath::new(p.maps.clone(), options));
    let (restored, node) = (datapath.clone(), p.tables.node.clone());
    p.lifecycle
        .hook("datapath")
        .on_start(move |_| async move {
            restored.conntrack_purge().set_own_addresses(own_addresses(&node));
            let count = hive::blocking(move || crate::restore(&restored)).await?;
            tracing::info!(count, "Endpoints in the datapath");
            Ok(())
        })
        .add();

    if let Some(reason) = p.host_routing.fallback() {
        tracing::info!(reason, "Falling back to legacy host routing");
    }
    let (progress, follower) = follower("datapath");
    let repairs = Repairs::default();
    if let Some(metrics) = &p.metrics {
        repairs.register(metrics);
        let conntrack = p.conntrack.clone();
        let name = "adv_connect_and_lb_sctp_enabled";
        metrics.register_feature(name, "Whether SCTP is tracked", move || conntrack.get().enable_sctp);
    }
    let direct_return = DirectReturn::new(&p.settings, &p.tunnel)?;
    let ipip = Ipip::new(&p.settings, config.enable_ipip_termination, &direct_return);
    let egress = EgressFeatures::new(&p.families, &p.masquerade, &p.settings)
        .with_direct_return(direct_return)
        .with_ipip(ipip)
        .with_translation(Translation::new(&p.settings, &p.families)?);
    let balancing = Balancing::new(&p.settings, maps.specs().maglev());
    let acceleration = Acceleration::new(&p.settings, &p.tunnel)?;
    let mesh_auth = p.settings.get("mesh-auth-enabled").is_some_and(|setting| setting.value == "true");
    let is_on = |option| p.settings.get(option).is_some_and(|setting| setting.value == "true");
    let bpf_tproxy = is_on("enable-l7-proxy") && is_on("enable-bpf-tproxy");
    let host = HostJob {
        live: Live::new(p.config, p.conntrack, p.services)?,
        options: p.options,
        progress,
        clock: (*p.clock).clone(),
        map_options: (*p.map_options).clone(),
        families: (*p.families).clone(),
        maps: p.maps,
        tables: p.tables.clone(),
        sysctl: p.sysctl,
        datapath: datapath.clone(),
        repairs,
        host_mark: p.host_mark.clone(),
        socket_coverage: p.socket_lb.as_deref().map(SocketLb::subscribe),
        tunnel: p.tunnel,
        egress,
        host_routing: *p.host_routing,
        balancing,
        mesh_auth,
        bpf_tproxy,
        has_ruleless_proxies: bpf_tproxy && !is_on("install-iptables-rules"),
        acceleration,
        masquerading: p.masquerading,
        mtu: *p.mtu,
        endpoint_routes: *p.endpoint_routes,
    };
    p.jobs.one_shot("host-datapath", move |cx: JobCx| host.run(cx)).add();
    let (addressed, node) = (datapath.clone(), p.tables.node.clone());
    p.jobs
        .observer("own-addresses", node.clone().snapshots(), move |_, _| {
            addressed.conntrack_purge().set_own_addresses(own_addresses(&node));
            async { Ok(()) }
        })
        .add();
    if let Some(mark) = p.host_mark {
        p.jobs.one_shot("host-mark", move |cx: JobCx| host_mark::follow(mark, cx)).add();
    }
    let pool = datapath.clone();
    p.jobs.one_shot("policy-maps", move |cx: JobCx| keep_pool(pool, cx)).add();
    let (purged, shared) = (datapath.clone(), maps.clone());
    p.jobs.one_shot("departed-endpoints", move |cx: JobCx| purge_deleted_endpoints(purged, shared, cx)).add();
    let (guarded, devices) = (datapath.clone(), p.tables.devices);
    p.jobs.one_shot("unknown-interfaces", move |cx: JobCx| unknown::guard(guarded, devices, cx)).add();
    Ok((datapath, Member(follower)))
}

/// Returns the addresses that the node assigns to its pods.
fn own_addresses(node: &Table<LocalNode>) -> OwnAddresses {
    let snapshot = node.snapshot();
    let Some(node) = node.get(&snapshot, LocalNode::query()) else { return OwnAddresses::default() };
    let routers = [node.router_ipv4.map(IpAddr::V4), node.router_ipv6.map(IpAddr::V6)];
    OwnAddresses { ranges: node.routed_cidrs().collect(), routers: routers.into_iter().flatten().collect() }
}
