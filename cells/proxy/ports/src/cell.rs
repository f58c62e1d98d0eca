//! The wiring.

use std::sync::Arc;

use api::StatusSource;
use api_models as models;
use hive::prelude::*;
use local_node::{LocalNode, StateConfig};
use maps::FamilyConfig;
use metrics::Metrics;
use routes::{Routes, Rules};
use state_file::StateFile;
use statedb::{RwTable, Table};

use crate::config::ProxyConfig;
use crate::file::{self, FILE, RuleReader};
use crate::handle::Proxies;
use crate::job;
use crate::metrics::Redirects;
use crate::port::ProxyPort;
use crate::redirect::EndpointRedirect;
use crate::routing;

/// Provides `Arc<Proxies>` and the tables `proxy-ports` and `proxy-redirects`; the part of `GET /healthz` about proxies.
pub fn cell() -> Cell {
    module(
        "proxy-ports",
        "Ports of proxies",
        [
            config::<ProxyConfig>(),
            statedb::table::<ProxyPort>(),
            statedb::table::<EndpointRedirect>(),
            provide(proxies),
            provide(status),
        ],
    )
}

#[derive(Params)]
struct ProxiesParams {
    config: Config<ProxyConfig>,
    ports: Arc<RwTable<ProxyPort>>,
    redirects: Arc<RwTable<EndpointRedirect>>,
    families: Option<Config<FamilyConfig>>,
    /// Absent in agents whose packets reach proxies by other means, and in tests.
    routes: Option<Arc<Routes>>,
    routing_rules: Option<Arc<Rules>>,
    rules: Option<Arc<RuleReader>>,
    state: Option<Config<StateConfig>>,
    metrics: Option<Arc<Metrics>>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
}

fn proxies(p: ProxiesParams) -> Arc<Proxies> {
    let is_on = p.config.enable_l7_proxy;
    let redirects = p.redirects.reader();
    if let Some(metrics) = &p.metrics {
        Redirects::register(metrics, redirects);
    }
    let has_routes = p.routing_rules.is_some();
    let proxies =
        Arc::new(Proxies::new((*p.ports).clone(), (*p.redirects).clone(), (*p.config).clone(), !has_routes));
    if let Some(metrics) = &p.metrics {
        proxies.verdicts().register(metrics);
    }
    let families: Vec<bool> = match &p.families {
        Some(families) if is_on => {
            let all = [(false, families.enable_ipv4), (true, families.enable_ipv6)];
            all.into_iter().filter_map(|(ipv6, is_enabled)| is_enabled.then_some(ipv6)).collect()
        }
        _ => Vec::new(),
    };
    if let Some(routes) = p.routes {
        routes.replace([(routing::OWNER, families.iter().map(|ipv6| routing::route(*ipv6)).collect())]);
    }
    if let Some(rules) = p.routing_rules {
        routing::claim(&rules);
        rules.replace(routing::OWNER, routing::rules(&families));
        if is_on {
            let proxies = proxies.clone();
            p.jobs.one_shot("routing", move |cx: JobCx| job::route(proxies, rules, cx)).add();
        }
    }
    if !is_on {
        return proxies;
    }
    let file = p.state.map(|state| StateFile::new(state.state().join(FILE)).mode(0o600));
    let (for_start, for_stop, for_job) = (file.clone(), file.clone(), file);
    let (restoring, storing, keeping) = (proxies.clone(), proxies.clone(), proxies.clone());
    let (limit, rules) = (p.config.age_limit(), p.rules);
    p.lifecycle
        .hook("ports")
        .on_start(move |_| async move {
            let read = move || {
                let found = for_start.and_then(|file| file::read(&file, limit));
                found.or_else(|| rules.map(|rules| rules.read())).unwrap_or_default()
            };
            let rows = hive::blocking(read).await;
            restoring.restore(rows);
            Ok(())
        })
        .on_stop(move |_| async move {
            let Some(file) = for_stop else { return Ok(()) };
            hive::blocking(move || job::write(&storing, &file)).await?;
            Ok(())
        })
        .add();
    p.jobs.one_shot("keep", move |cx: JobCx| job::keep(keeping, for_job, cx)).add();
    proxies
}

/// Returns the part of `GET /healthz` about proxies.
fn status(
    config: Config<ProxyConfig>,
    ports: Arc<Table<ProxyPort>>,
    redirects: Arc<Table<EndpointRedirect>>,
    nodes: Option<Arc<Table<LocalNode>>>,
) -> Member<StatusSource> {
    Member(StatusSource::new("proxy", move |status| {
        if !config.enable_l7_proxy {
            return;
        }
        let snapshot = ports.snapshot();
        let router = nodes.as_ref().and_then(|nodes| {
            let node = nodes.get(&snapshot, LocalNode::query())?;
            let ipv4 = node.router_ipv4.map(|ip| ip.to_string());
            ipv4.or_else(|| node.router_ipv6.map(|ip| ip.to_string()))
        });
        let redirect = |row: &EndpointRedirect| models::ProxyRedirect {
            name: row.id.to_string(),
            proxy: row.proxy.to_string(),
            proxy_port: row.port.into(),
        };
        let redirects: Vec<_> = redirects.all(&snapshot).map(|row| redirect(row)).collect();
        let in_use = ports.all(&snapshot).filter(|row| row.port != 0 && row.state.is_listening()).count();
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        status.proxy = Some(models::ProxyStatus {
            // Without an Envoy as well: Cilium reports its own so by default.
            envoy_deployment_mode: if config.external_envoy_proxy { "external" } else { "embedded" }
                .to_owned(),
            ip: router.unwrap_or_default(),
            port_range: format!("{}-{}", config.proxy_portrange_min, config.proxy_portrange_max),
            total_ports: count(in_use),
            total_redirects: count(redirects.len()),
            redirects: redirects.into(),
        });
    }))
}
