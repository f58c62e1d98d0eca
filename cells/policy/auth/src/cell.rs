//! The wiring.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use api::StatusSource;
use api_models::Status;
use bpf::Map;
use datapath_abi::signal::AuthKey;
use datapath_api::Datapath;
use endpoints::Endpoint;
use hive::prelude::*;
use identity::Identity;
use maps::Maps;
use metrics::Metrics;
use node_manager::Node;
use parking_lot::Mutex;
use signals::Signals;
use statedb::Table;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use crate::authenticator::{Authenticator, Settings};
use crate::certificates::Certificates;
use crate::cluster::{Tables, has_endpoint};
use crate::config::AuthConfig;
use crate::mutual;
use crate::spire::{Change, Spire, State};

const MAP: &str = "cilium_auth_map";
/// The pause after the port could not be bound.
const BIND_RETRY: Duration = Duration::from_secs(1);

/// Authenticates identities where policies require it (`mesh-auth-enabled`).
pub fn cell() -> Cell {
    let cells = [config::<AuthConfig>(), provide(start)];
    module("auth", "Mutual authentication of identities", cells)
}

#[derive(Params)]
struct StartParams {
    config: Config<AuthConfig>,
    signals: Arc<Signals>,
    maps: Arc<Maps>,
    nodes: Arc<Table<Node>>,
    identities: Arc<Table<Identity>>,
    endpoints: Arc<Table<Endpoint>>,
    datapath: Arc<dyn Datapath>,
    metrics: Arc<Metrics>,
    jobs: JobGroup,
}

fn start(p: StartParams) -> anyhow::Result<Member<StatusSource>> {
    let config = (*p.config).clone();
    let is_enabled = config.mesh_auth_enabled;
    let name = "network_policies_mutual_auth_enabled";
    p.metrics.register_feature(name, "Whether mutual authentication is enabled", move || is_enabled);
    let has_spire = is_enabled && !config.mesh_auth_spire_admin_socket.is_empty();
    let (state, connection) = watch::channel(State::default());
    let status = Member(StatusSource::new("auth", move |status| {
        if has_spire {
            status.auth_certificate_provider = Some(provider(&connection.borrow()));
        }
    }));
    if !is_enabled {
        return Ok(status);
    }

    let (certificates, current) = watch::channel(Arc::new(Certificates::new(config.trust_domain()?)));
    let (changes, changed) = mpsc::channel(size(config.mesh_auth_rotated_identities_queue_size));
    if has_spire {
        let socket = Path::new(&config.mesh_auth_spire_admin_socket).to_owned();
        spire(Spire { socket, certificates, changes, state }, &p.jobs);
    }
    let port = Some(config.mesh_auth_mutual_listener_port).filter(|port| *port != 0);
    if let Some(port) = port {
        let (certificates, endpoints) = (current.clone(), p.endpoints.clone());
        let limit = config.mesh_auth_mutual_connect_timeout;
        p.jobs
            .one_shot("handshakes", move |cx: JobCx| async move {
                let bound = cx.token().run_until_cancelled(bind(port, &cx)).await;
                if let Some(listener) = bound {
                    let has_endpoint = Arc::new(move |identity| has_endpoint(&endpoints, identity));
                    mutual::serve(listener, certificates, has_endpoint, limit, &cx).await;
                }
                Ok(())
            })
            .add();
    }
    let required = p.signals.authentications(size(config.mesh_auth_queue_size));
    let settings = Settings {
        capacity: size(config.mesh_auth_queue_size),
        pause: config.mesh_auth_signal_backoff_duration,
        gc_interval: config.mesh_auth_gc_interval,
        limit: config.mesh_auth_mutual_connect_timeout,
        port,
    };
    let tables = Tables {
        maps: p.maps,
        nodes: p.nodes,
        identities: p.identities,
        endpoints: p.endpoints,
        datapath: p.datapath,
        port: port.unwrap_or_default(),
        addresses: None,
    };
    authenticate(tables, settings, current, required, changed, &p.jobs);
    Ok(status)
}

fn size(option: u32) -> usize {
    usize::try_from(option).unwrap_or(usize::MAX).max(1)
}

fn spire(client: Spire, jobs: &JobGroup) {
    jobs.one_shot("spire", move |cx: JobCx| async move {
        client.run(cx).await;
        Ok(())
    })
    .add();
}

fn authenticate(
    tables: Tables,
    settings: Settings,
    certificates: watch::Receiver<Arc<Certificates>>,
    required: mpsc::Receiver<AuthKey>,
    changes: mpsc::Receiver<Change>,
    jobs: &JobGroup,
) {
    jobs.one_shot("authenticate", move |cx: JobCx| async move {
        let maps = tables.maps.clone();
        let map = hive::blocking(move || maps.shared(MAP)).await?;
        let map = Arc::new(Map::new(map.with_context(|| format!("this node has no {MAP}"))?)?);
        let cluster = Arc::new(Mutex::new(tables));
        Authenticator { settings, map, cluster, certificates, required, changes }.run(cx).await
    })
    .add();
}

/// Binds the port on all addresses, again and again: a process that has taken it must not stop the agent.
async fn bind(port: u16, cx: &JobCx) -> TcpListener {
    loop {
        let bound = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
            // A kernel without IPv6.
            Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
            bound => bound,
        };
        match bound {
            Ok(listener) => {
                cx.health.ok(format_args!("Serving handshakes on port {port}"));
                return listener;
            }
            Err(error) => {
                let message = format!("Other nodes cannot authenticate: port {port} is not free");
                if cx.health.degraded_anew(&message, &error) {
                    tracing::warn!(%error, port, "Unable to bind the port of handshakes, trying again");
                }
                sleep(BIND_RETRY).await;
            }
        }
    }
}

/// Returns the status of the connection to SPIRE.
fn provider(state: &State) -> Status {
    let (state, msg) = match state {
        State::Connected => ("Ok", "Connected to SPIRE".to_owned()),
        State::Connecting => ("Warning", "Connecting to SPIRE".to_owned()),
        State::Failed(error) => ("Failure", error.to_string()),
    };
    Status { state: state.to_owned(), msg }
}
