//! The wiring.

use std::sync::Arc;
use std::time::Duration;

use endpoints::Endpoint;
use grpc::ReflectionError;
use hive::job::Backoff;
use hive::prelude::*;
use identity::Identity;
use ipcache::Entry;
use k8s_types::Source;
use local_node::{LocalNode, StateConfig};
use maps::{FamilyConfig, MapsConfig};
use metrics::Metrics;
use monitor::Monitor;
use policy::{EndpointPolicy, PeerSelector};
use proxy_ports::Proxies;
use statedb::Table;

use crate::access_log::{AccessLogSocket, Records};
use crate::config::EnvoyConfig;
use crate::handle::Envoy;
use crate::hosts;
use crate::job::Job;
use crate::kind::Kind;
use crate::listeners::Settings;
use crate::metrics::Counters;
use crate::policies::Tables;
use crate::process::{Bootstrap, EnvoyProcessConfig, Process, VersionCheck};
use crate::receiver::receiver;
use crate::resources::{Owner, Resources};
use crate::secrets::{PolicySecrets, SecretFiles};
use crate::server::{Services, serve};
use crate::slot::{PROXIES, Slot};

/// The folder of the sockets in the run folder, as in Cilium.
const SOCKETS: &str = "envoy/sockets";
/// The backoff for a socket that cannot be bound.
const SOCKET_RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
/// The largest buffer for a logged request.
const MAX_BUFFER: u32 = 1 << 20;

/// Feeds an Envoy, if there is one.
pub fn cell() -> Cell {
    let cells = [config::<EnvoyConfig>(), config::<EnvoyProcessConfig>(), provide(envoy), invoke(start)];
    module("envoy-proxy", "Envoy", cells)
}

fn envoy(proxies: Arc<Proxies>, metrics: Arc<Metrics>, process: Config<EnvoyProcessConfig>) -> Arc<Envoy> {
    let options = proxies.config();
    let is_served = options.enable_l7_proxy && (options.external_envoy_proxy || process.binary().is_some());
    let counters = Counters::default();
    if is_served {
        counters.register(&metrics);
    }
    Arc::new(Envoy::new(Resources::new(counters), is_served))
}

#[derive(Params)]
struct StartParams {
    envoy: Arc<Envoy>,
    config: Config<EnvoyConfig>,
    process: Config<EnvoyProcessConfig>,
    families: Config<FamilyConfig>,
    maps: Config<MapsConfig>,
    state: Config<StateConfig>,
    proxies: Arc<Proxies>,
    policies: Arc<Table<EndpointPolicy>>,
    endpoints: Arc<Table<Endpoint>>,
    selectors: Arc<Table<PeerSelector>>,
    identities: Arc<Table<Identity>>,
    ipcache: Arc<Table<Entry>>,
    node: Arc<Table<LocalNode>>,
    monitor: Arc<Monitor>,
    sources: Group<Arc<dyn Source>>,
    jobs: JobGroup,
}

fn start(p: StartParams) -> Result<(), ReflectionError> {
    if !p.envoy.is_served() {
        return Ok(());
    }
    let resources = p.envoy.resources().clone();
    // Clients that connect before the job has read the tables get nothing from it.
    resources.hold(Owner::Policy, Kind::Listeners, true);
    resources.hold(Owner::Policy, Kind::Policies, true);
    let sockets = p.state.run().join(SOCKETS);
    let access_log = sockets.join("access_log.sock");
    let families = [("127.0.0.1", p.families.enable_ipv4), ("::1", p.families.enable_ipv6)];
    let records = Records {
        monitor: p.monitor,
        endpoints: p.endpoints.clone(),
        identities: p.identities.clone(),
        node: p.node,
    };
    let settings = Settings {
        config: (*p.config).clone(),
        addresses: families.into_iter().filter_map(|(ip, is_on)| is_on.then_some(ip)).collect(),
        bpf_root: p.maps.bpf_root.clone(),
        bpf_tproxy: p.proxies.config().is_assigned_by_programs(),
        access_log: access_log.clone(),
    };
    p.envoy.secrets().start(&p.sources, &p.jobs);
    let files = SecretFiles::new(p.config.certificates_directory.clone());
    let secrets = PolicySecrets::new(p.envoy.secrets().clone(), files.clone(), &p.config);
    p.jobs.one_shot("secret-files", move |cx: JobCx| files.follow(cx)).add();
    if !p.config.disable_envoy_version_check {
        let check = VersionCheck { admin: sockets.join("admin.sock") };
        p.jobs.one_shot("version-check", move |cx: JobCx| check.run(cx)).add();
    }
    if let Some(namespace) = secrets.namespace() {
        p.envoy.secrets().add_namespace(namespace);
    }
    let (receiver, requests) = receiver();
    p.proxies.set_policy_receiver(Arc::new(receiver));
    let job = Job {
        requests,
        slots: PROXIES.into_iter().map(|kind| Slot::new(kind, &p.proxies)).collect(),
        tables: Tables {
            policies: p.policies,
            endpoints: p.endpoints,
            selectors: p.selectors,
            identities: p.identities,
            proxies: p.proxies.clone(),
            secrets,
        },
        proxies: p.proxies.clone(),
        resources: resources.clone(),
        settings,
        restore_limit: p.config.envoy_policy_restore_timeout,
    };
    p.jobs.one_shot("listeners", move |cx: JobCx| job.run(cx)).add();
    let (table, of_hosts) = (p.ipcache, resources.clone());
    p.jobs.one_shot("hosts", move |cx: JobCx| hosts::follow(table, of_hosts, cx)).add();
    let backoff = || Backoff::exponential(SOCKET_RETRY.0, SOCKET_RETRY.1);
    let gid = p.config.proxy_gid;
    let services = Services::new(resources.clone())?;
    if let (false, Some(binary)) = (p.proxies.config().external_envoy_proxy, p.process.binary()) {
        let bootstrap = Bootstrap {
            config: (*p.process).clone(),
            connect_timeout: p.config.proxy_connect_timeout,
            is_ipv4: p.families.enable_ipv4,
        };
        let process = Process { binary, bootstrap, sockets: sockets.clone(), resources };
        p.jobs.one_shot_with_retry("process", backoff(), move |cx: JobCx| process.clone().run(cx)).add();
    }
    p.jobs
        .one_shot_with_retry("xds", backoff(), move |cx: JobCx| {
            serve(sockets.join("xds.sock"), gid, services.clone(), cx)
        })
        .add();
    if !p.config.envoy_access_log_enabled {
        return Ok(());
    }
    let socket = AccessLogSocket {
        path: access_log,
        gid,
        buffer_size: p.config.envoy_access_log_buffer_size.min(MAX_BUFFER) as usize,
        verdicts: p.proxies.verdicts().clone(),
        records,
    };
    p.jobs.one_shot_with_retry("access-log", backoff(), move |cx: JobCx| socket.clone().serve(cx)).add();
    Ok(())
}
