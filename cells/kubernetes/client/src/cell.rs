//! Wiring: the source, the requests, and the jobs that maintain the connection to the servers.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::StatusSource;
use hive::prelude::*;
use hive::{Backoff, Settings};
use k8s_types::{Api, Source};
use metrics::Metrics;

use crate::access::{Place, SERVICE_ACCOUNT, server_of_pod};
use crate::config::ApiServerConfig;
use crate::connect::Sockets;
use crate::definitions::{Definitions, required};
use crate::error::Error;
use crate::jobs::{follow_credentials, follow_definitions, heartbeat, wait_for_definitions, wait_for_lists};
use crate::limiter::Limiter;
use crate::link::Link;
use crate::metrics::{ClientMetrics, Watches};
use crate::probe::ServerProbe;
use crate::profile::ClientProfile;
use crate::requests::Requests;
use crate::source::{ApiServer, Connection};
use crate::status;
use crate::watch_timeouts::WatchTimeouts;

/// Provides an API server as a source of cluster objects, and requests to it. Without a configured server the source is
/// empty and there is no `Arc<dyn Api>`.
pub fn cell() -> Cell {
    let cells = [config::<ApiServerConfig>(), provide(new_client)];
    module("k8s-client", "Kubernetes API server", cells)
}

#[derive(Params)]
struct ClientParams {
    config: Config<ApiServerConfig>,
    settings: Arc<Settings>,
    metrics: Option<Arc<Metrics>>,
    /// Shorter timeouts, for tests.
    timeouts: Option<Arc<WatchTimeouts>>,
    /// Of programs other than the agent.
    profile: Option<Arc<ClientProfile>>,
    jobs: JobGroup,
    health: Health,
    shutdown: Shutdowner,
}

type Client = (Member<Arc<dyn Source>>, Option<Arc<dyn Api>>, Option<Arc<ServerProbe>>, Member<StatusSource>);

async fn new_client(p: ClientParams) -> Result<Client, Error> {
    let Some(place) = place(&p.config, |name| std::env::var(name).ok()) else {
        return Ok((Member(Arc::new(ApiServer(None))), None, None, Member(status::disabled())));
    };
    let sockets = Sockets { connect_timeout: p.config.connect_timeout, keep_alive: p.config.keep_alive };
    let client = ClientMetrics::default();
    let watches = Watches::default();
    if let Some(metrics) = &p.metrics {
        client.register(metrics);
        metrics.register_collector(watches.clone());
    }
    let rate =
        p.profile.as_ref().map_or((p.config.qps, p.config.burst), |profile| (profile.qps, profile.burst));
    let fence = p.profile.as_ref().map(|profile| profile.fence.clone()).unwrap_or_default();
    let (urls, limits) = (urls(&p.config), (Limiter::new(rate.0, rate.1), fence));
    let health = p.health.child("server");
    let link =
        hive::blocking(move || Link::new(place, urls, Arc::new(sockets), limits, client, health)).await?;
    let link = Arc::new(link);
    let is_on = |option: &str| p.settings.get(option).is_some_and(|setting| setting.value == "true");
    let connection = Connection {
        link: link.clone(),
        definitions: Definitions::new(match &p.profile {
            Some(profile) => profile.required.clone(),
            None => required(is_on),
        }),
        watches,
        timeouts: p.timeouts.map_or_else(WatchTimeouts::default, |timeouts| *timeouts),
        health: p.health.clone(),
    };
    let crd_wait_timeout = if p.profile.is_some() { Duration::ZERO } else { p.config.crd_wait_timeout };
    if p.profile.as_ref().is_none_or(|profile| !profile.only_requests) {
        start(&p.jobs, &p.config, crd_wait_timeout, &connection, &p.shutdown);
    }
    let status = status::of(&connection);
    let requests = Requests { link: link.clone(), definitions: connection.definitions.clone() };
    let source = ApiServer(Some(connection));
    let probe = Arc::new(ServerProbe::new(link));
    Ok((Member(Arc::new(source)), Some(Arc::new(requests)), Some(probe), Member(status)))
}

fn start(
    jobs: &JobGroup,
    config: &ApiServerConfig,
    crd_wait_timeout: Duration,
    connection: &Connection,
    shutdown: &Shutdowner,
) {
    let limit = config.heartbeat;
    let (link, beat) = (connection.link.clone(), limit);
    let every = if limit.is_zero() { Duration::from_secs(3600) } else { limit };
    jobs.timer("heartbeat", every, move |_cx| heartbeat(link.clone(), beat)).immediate().add();
    let link = connection.link.clone();
    jobs.one_shot("credentials", move |cx| follow_credentials(link, cx)).add();
    let (follow, backoff) = (connection.clone(), Backoff::constant(Duration::from_secs(10)));
    jobs.one_shot_with_retry("sync-crds", backoff, move |cx| follow_definitions(follow.clone(), cx)).add();
    if !crd_wait_timeout.is_zero() {
        let (definitions, limit) = (connection.definitions.clone(), crd_wait_timeout);
        let shutdown = shutdown.clone();
        jobs.one_shot("wait-for-crds", move |cx| wait_for_definitions(definitions, limit, shutdown, cx))
            .add();
    }
    if !config.sync_timeout.is_zero() {
        let (connection, limit, shutdown) = (connection.clone(), config.sync_timeout, shutdown.clone());
        jobs.one_shot("sync-timeout", move |cx| wait_for_lists(connection, limit, shutdown, cx)).add();
    }
}

fn urls(config: &ApiServerConfig) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let urls = config.urls.iter().map(|url| url.trim().to_owned());
    urls.filter(|url| !url.is_empty() && seen.insert(url.clone())).collect()
}

/// Returns the place of addresses and credentials, if there is any: from the options, else from a pod's environment.
fn place(config: &ApiServerConfig, env: impl Fn(&str) -> Option<String>) -> Option<Place> {
    if !config.enabled || config.connect_timeout.is_zero() {
        return None;
    }
    if !config.kubeconfig.is_empty() {
        return Some(Place::Kubeconfig(PathBuf::from(&config.kubeconfig)));
    }
    let set = |name| env(name).filter(|value| !value.is_empty());
    if let (Some(host), Some(port)) = (set("KUBERNETES_SERVICE_HOST"), set("KUBERNETES_SERVICE_PORT")) {
        return Some(Place::ServiceAccount {
            server: server_of_pod(&host, &port),
            folder: SERVICE_ACCOUNT.into(),
        });
    }
    (!urls(config).is_empty()).then_some(Place::Nowhere)
}
