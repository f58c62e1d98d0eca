//! The wiring.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use devices::Device;
use envoy_api::Types;
use envoy_proxy::{Envoy, EnvoyConfig as EnvoyOptions, Kind};
use hive::prelude::*;
use k8s_tables::Row;
use k8s_types::Source;
use k8s_types::cilium::{CiliumClusterwideEnvoyConfig, CiliumEnvoyConfig};
use loadbalancer::ServicesWriter;
use local_node::{LocalNode, StateConfig};
use maps::{FamilyConfig, MapsConfig};
use proxy_ports::Proxies;
use routes::{Routes, Rules};
use statedb::{RwTable, Table};
use tunnel::Tunnel;

use crate::config::ConfigsConfig;
use crate::controller::{Controller, Tables};
use crate::from_proxy::{self, FromProxy};
use crate::model::{EnvoyConfig, EnvoyResource};
use crate::objects::Objects;
use crate::parse::{IngressAddresses, Settings};

/// The initializer of services: the load balancer waits for redirects.
const INITIALIZER: &str = "envoy-configs";
/// The socket for logged requests where the run folder is not known.
const ACCESS_LOG: &str = "envoy/sockets/access_log.sock";

/// Returns the cell of Envoy configurations.
pub fn cell() -> Cell {
    let is_enabled = |config: Config<ConfigsConfig>| config.enable_envoy_config;
    module(
        "envoy-config",
        "Envoy configurations of the cluster",
        [
            config::<ConfigsConfig>(),
            k8s_tables::optional::<CiliumEnvoyConfig, _>(is_enabled),
            k8s_tables::optional::<CiliumClusterwideEnvoyConfig, _>(is_enabled),
            statedb::table::<EnvoyConfig>(),
            statedb::table::<EnvoyResource>(),
            invoke(follow),
            invoke(secrets),
            invoke(route),
        ],
    )
}

#[derive(Params)]
struct FollowParams {
    config: Config<ConfigsConfig>,
    options: Option<Config<EnvoyOptions>>,
    state: Option<Config<StateConfig>>,
    families: Config<FamilyConfig>,
    maps: Config<MapsConfig>,
    objects: Arc<Table<Row<CiliumEnvoyConfig>>>,
    clusterwide: Arc<Table<Row<CiliumClusterwideEnvoyConfig>>>,
    node: Arc<Table<LocalNode>>,
    configs: Arc<RwTable<EnvoyConfig>>,
    resources: Arc<RwTable<EnvoyResource>>,
    envoy: Arc<Envoy>,
    proxies: Arc<Proxies>,
    writer: Arc<ServicesWriter>,
    jobs: JobGroup,
}

fn follow(p: FollowParams) -> anyhow::Result<()> {
    if !p.config.enable_envoy_config || !p.proxies.config().enable_l7_proxy {
        return Ok(());
    }
    // An Envoy that has run while the agent was away would lose resources that are not read yet.
    for kind in [Kind::Listeners, Kind::Routes, Kind::Clusters, Kind::Endpoints, Kind::Secrets] {
        p.envoy.hold(kind, true);
    }
    let families = [("127.0.0.1", p.families.enable_ipv4), ("::1", p.families.enable_ipv6)];
    let access_log = p.state.as_ref().map(|state| state.run().join(ACCESS_LOG));
    let is_logged = p.options.as_ref().is_none_or(|options| options.envoy_access_log_enabled);
    let access_log = access_log.map_or(ACCESS_LOG.into(), |path| path.to_string_lossy().into_owned());
    let settings = Settings {
        addresses: families.into_iter().filter_map(|(ip, is_on)| is_on.then_some(ip)).collect(),
        bpf_root: p.maps.bpf_root.clone(),
        bpf_tproxy: p.proxies.config().is_assigned_by_programs(),
        access_log: if is_logged { access_log } else { String::new() },
        denied_403_body: p.options.map(|options| options.http_403_msg.clone()).unwrap_or_default(),
        linger: u32::try_from(p.config.envoy_http_upstream_linger_timeout).ok(),
        // They may come later than objects: each round reads them.
        ingress: IngressAddresses::default(),
    };
    let controller = Controller {
        tables: Tables {
            objects: (*p.objects).clone(),
            clusterwide: (*p.clusterwide).clone(),
            node: (*p.node).clone(),
            configs: (*p.configs).clone(),
            resources: (*p.resources).clone(),
        },
        envoy: (*p.envoy).clone(),
        proxies: p.proxies,
        initializers: Some(p.writer.register(INITIALIZER)),
        writer: (*p.writer).clone(),
        settings,
        options: (*p.config).clone(),
        types: Types::load()?,
        objects: Objects::default(),
        progress: BTreeMap::new(),
        redirected: BTreeSet::new(),
        conflicts: BTreeMap::new(),
    };
    p.jobs.one_shot("controller", move |cx: JobCx| controller.follow(cx)).add();
    Ok(())
}

/// Follows the secrets of Envoy configurations, of Ingress and of the Gateway API.
fn secrets(
    config: Config<ConfigsConfig>,
    proxies: Arc<Proxies>,
    envoy: Arc<Envoy>,
    sources: Group<Arc<dyn Source>>,
    jobs: JobGroup,
) {
    if proxies.config().enable_l7_proxy {
        let namespaces = config.secret_namespaces();
        namespaces.into_iter().for_each(|name| envoy.follow_secrets(name, &sources, &jobs));
    }
}

#[derive(Params)]
struct RouteParams {
    config: Config<ConfigsConfig>,
    families: Config<FamilyConfig>,
    proxies: Arc<Proxies>,
    /// All of these are absent in agents without routes to other nodes.
    tunnel: Option<Arc<Tunnel>>,
    routes: Option<Arc<Routes>>,
    rules: Option<Arc<Rules>>,
    devices: Option<Arc<Table<Device>>>,
    node: Arc<Table<LocalNode>>,
    jobs: JobGroup,
}

/// Leads packets of Envoy through the programs.
fn route(p: RouteParams) {
    let (Some(tunnel), Some(routes), Some(rules), Some(devices)) = (p.tunnel, p.routes, p.rules, p.devices)
    else {
        return;
    };
    if !p.config.enable_envoy_config || !p.proxies.config().enable_l7_proxy || tunnel.is_tunnel() {
        return;
    }
    rules.replace(from_proxy::OWNER, from_proxy::rules(&p.families));
    let initializer = routes.register_initializer(from_proxy::OWNER);
    let (families, node, devices) = ((*p.families).clone(), (*p.node).clone(), (*devices).clone());
    let from_proxy = FromProxy { families, node, devices, routes, initializer };
    p.jobs.one_shot("routes-from-proxy", move |cx: JobCx| from_proxy.run(cx)).add();
}
