//! Wiring: the instance, the stored configuration, `GET` and `PATCH /config`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::{Operation, Request, Response, Route};
use api_models::{DaemonConfigurationSpec, MasqueradeProtocols, rfc3339};
use big_tcp::{BigTcp, Limits};
use config_sources::ClusterConfig;
use devices::Device;
use hive::Settings;
use hive::config::FlagValue as _;
use hive::prelude::*;
use local_node::{LocalNodeConfig, LocalNodeStore, StateConfig};
use maps::{ClockConfig, FamilyConfig};
use masquerade::MasqueradeConfig;
use metrics::Metrics;
use runtime_options::{Follower, RuntimeOption};
use state_file::{Rewrite, Version};
use statedb::{RwTable, Table};
use tunnel::{MtuConfig, Tunnel};

use crate::answer::{Fixed, configuration};
use crate::cluster::new_cluster;
use crate::config::CniConfig;
use crate::files::Stored;
use crate::follow::FollowConfig;
use crate::instance::Instance;
use crate::runtime::RuntimeConfig;
use crate::table::ConfigRow;
use crate::{features, follow, names, runtime, spec, table};

/// The timeout of `PATCH /config` for each follower.
const PATCH_LIMIT: Duration = Duration::from_secs(10);

/// Takes the run folder for this agent: its hook runs before all others, any of which may touch the folder, and its stop
/// hook after theirs.
pub fn instance() -> Cell {
    module("instance", "One agent a run folder", [invoke(new_instance)])
}

fn new_instance(state: Config<StateConfig>, versions: Group<Version>, lifecycle: Lifecycle) {
    let taken = Arc::new(tokio::sync::Mutex::new(None));
    let held = taken.clone();
    let (folder, files) = (state.run().to_owned(), state.state());
    lifecycle
        .hook("pid-file")
        .first()
        .on_start(move |_| async move {
            *taken.lock().await = Some(Instance::take(&folder)?);
            // First, before another hook changes files of an incompatible version.
            state_file::check_versions(&files, &versions.0)?;
            Ok(())
        })
        .on_stop(move |_| async move {
            held.lock().await.take();
            Ok(())
        })
        .add();
}

/// Provides `GET` and `PATCH /config`, the tables `runtime-options`, `configuration` and `cilium-configs`, and stores
/// the configuration in files.
pub fn cell() -> Cell {
    let cells = [
        config::<CniConfig>(),
        config::<RuntimeConfig>(),
        config::<FollowConfig>(),
        config_sources::cell(),
        provide_private(new_cluster),
        statedb::table::<RuntimeOption>(),
        provide_private(new_fixed),
        provide(new_routes),
        invoke(store),
        invoke(runtime::follow),
        statedb::table::<ConfigRow>(),
        invoke(table::fill),
        provide(table::page),
        invoke(follow::start),
        invoke(register_features),
    ];
    module("daemonconfig", "The configuration in force", cells)
}

fn register_features(metrics: Arc<Metrics>, settings: Arc<Settings>, objects: Arc<Table<ClusterConfig>>) {
    let help = "Whether a CiliumNodeConfig has options for this node";
    let is_on = move || ClusterConfig::has_node_config(&objects);
    metrics.register_feature("adv_connect_and_lb_cilium_node_config_enabled", help, is_on);
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    features::register(&metrics, &settings, release.trim_end());
}

#[derive(Params)]
struct FixedParams {
    config: Config<CniConfig>,
    node: Config<LocalNodeConfig>,
    settings: Arc<Settings>,
    clock: Option<Config<ClockConfig>>,
    families: Option<Config<FamilyConfig>>,
    masquerade: Option<Config<MasqueradeConfig>>,
    mtu: Config<MtuConfig>,
    tunnel: Arc<Tunnel>,
}

fn new_fixed(p: FixedParams) -> anyhow::Result<Arc<Fixed>> {
    let clock = p.clock.map(|clock| clock.clock());
    let masquerade = match (p.families, p.masquerade) {
        (Some(families), Some(masquerade)) => MasqueradeProtocols {
            ipv4: families.enable_ipv4 && masquerade.enable_ipv4_masquerade,
            ipv6: families.enable_ipv6 && masquerade.enable_ipv6_masquerade,
        },
        _ => MasqueradeProtocols::default(),
    };
    let running = names::daemon_configuration(&p.settings, clock, &rfc3339(SystemTime::now()));
    let (config, ipam_mode) = ((*p.config).clone(), p.node.ipam.render());
    Ok(Arc::new(Fixed { config, ipam_mode, masquerade, mtu: *p.mtu, tunnel: p.tunnel, running }))
}

#[derive(Params)]
struct StoreParams {
    fixed: Arc<Fixed>,
    settings: Arc<Settings>,
    state: Config<StateConfig>,
    options: Arc<RwTable<RuntimeOption>>,
    jobs: JobGroup,
    health: Health,
}

fn store(p: StoreParams) -> anyhow::Result<()> {
    let initial = spec::of_settings(&p.settings)?;
    p.options.transact(|w| initial.into_iter().for_each(|option| drop(w.insert(option))));
    let stored = Stored::new(&p.state.state(), &p.fixed.running, &p.settings);
    // Retried in the background, so that a full disk does not fail the start: the agent itself does not read the files.
    Rewrite::new(&p.jobs, &p.health, "agent-runtime-config.json", move || stored.write()).wake();
    Ok(())
}

#[derive(Params)]
struct RouteParams {
    fixed: Arc<Fixed>,
    options: Arc<RwTable<RuntimeOption>>,
    followers: Group<Follower>,
    node: Arc<LocalNodeStore>,
    devices: Arc<Table<Device>>,
    segments: Option<Arc<BigTcp>>,
}

fn new_routes(p: RouteParams) -> Members<Route> {
    let (options, followers) = (p.options.clone(), Arc::new(p.followers.0));
    let get = move |_| {
        let snapshot = p.devices.snapshot();
        let spec = spec::spec(p.options.all(&snapshot).map(|row| &**row));
        let node = p.node.node();
        let devices = p.devices.all(&snapshot).map(|row| &**row);
        let segments = p.segments.as_ref().map_or_else(Limits::default, |segments| segments.limits());
        std::future::ready(match configuration(&p.fixed, spec, node.as_deref(), devices, segments) {
            Ok(configuration) => Response::json(200, &configuration),
            Err(error) => Response::error(500, error.to_string()),
        })
    };
    let patch = move |request: Request| patch(options.clone(), followers.clone(), request);
    Members(vec![Route::new(Operation::GetConfig, get), Route::new(Operation::PatchConfig, patch)])
}

/// Changes all of the requested options, or none. Responds once every follower has applied them.
async fn patch(
    options: Arc<RwTable<RuntimeOption>>,
    followers: Arc<Vec<Follower>>,
    request: Request,
) -> Response {
    let spec: DaemonConfigurationSpec = match request.json() {
        Ok(spec) => spec,
        Err(answer) => return answer,
    };
    let wanted = match spec::wanted(&spec) {
        Ok(wanted) => wanted,
        Err(error) => return Response::error(400, error.to_string()),
    };
    let (changed, snapshot) = options.transact(|w| {
        let mut changed = Vec::new();
        for option in wanted {
            let before = w.get(RuntimeOption::by_name(option.name)).map(|row| row.value.clone());
            if before.as_ref() != Some(&option.value) {
                changed.push(option.clone());
                w.insert(option);
            }
        }
        changed
    });
    if !changed.is_empty() {
        let text: Vec<String> = changed.iter().map(|o| format!("{}={}", o.name, o.value)).collect();
        tracing::info!(options = text.join(","), "Applying changes to daemon configuration");
    }
    for option in changed.iter().filter(|option| !option.is_effective()) {
        tracing::info!(option = option.name, "The option is kept and has no effect in this agent");
    }
    // Also without a change: an earlier one may still be in flight.
    let revision = options.revision(&snapshot);
    for follower in followers.iter() {
        if let Err(error) = follower.wait_for(revision, PATCH_LIMIT).await {
            return Response::error(500, error.to_string());
        }
    }
    Response::empty(200)
}
