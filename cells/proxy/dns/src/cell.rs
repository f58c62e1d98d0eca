//! The wiring: options, the port, listeners.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use hive::prelude::*;
use maps::FamilyConfig;
use metrics::Metrics;
use monitor::Monitor;
use policy::Policies;
use policy_engine::Parser;
use proxy_ports::{DNS_PROXY, Proxies, Registration};
use tokio_util::task::TaskTracker;

use crate::config::DnsProxyConfig;
use crate::directory::Directory;
use crate::metrics::Counters;
use crate::observation::Observer;
use crate::proxy::Proxy;
use crate::server::Listener;

/// The interval between attempts to bind a port, and their number, as in Cilium.
const BIND_INTERVAL: Duration = Duration::from_secs(4);
const BIND_ATTEMPTS: usize = 5;
/// Limit of the end of queries in progress at a stop.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// Limit of the wait for policy maps at a stop with `dns-policy-unload-on-shutdown`.
const UNLOAD_LIMIT: Duration = Duration::from_secs(5);

/// Serves the DNS queries that policy redirects.
pub fn cell() -> Cell {
    module("dns-proxy", "DNS proxy", [config::<DnsProxyConfig>(), provide(observer), invoke(start)])
}

#[derive(Params)]
struct StartParams {
    config: Config<DnsProxyConfig>,
    families: Config<FamilyConfig>,
    proxies: Arc<Proxies>,
    observer: Arc<Observer>,
    /// Orders the hooks: policy still follows when this cell's are stopped.
    policies: Option<Arc<Policies>>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
}

fn observer(
    proxies: Arc<Proxies>,
    directory: Arc<dyn Directory>,
    metrics: Arc<Metrics>,
    monitor: Arc<Monitor>,
) -> Arc<Observer> {
    let counters = Counters::new(proxies.verdicts().clone());
    counters.register(&metrics);
    Arc::new(Observer::new(monitor, directory, counters))
}

fn start(p: StartParams) {
    let options = p.proxies.config();
    if !options.enable_l7_proxy {
        return;
    }
    let unloads = p.config.dns_policy_unload_on_shutdown && p.policies.is_some();
    let fixed = Some(options.tofqdns_proxy_port).filter(|port| *port != 0);
    let dns = proxy_ports::Proxy { name: DNS_PROXY.into(), parser: Parser::Dns, ingress: false, fixed };
    if options.enable_standalone_dns_proxy {
        let registration = p.proxies.register(dns);
        let proxies = p.proxies.clone();
        let job = move |cx: JobCx| announce(proxies, registration, fixed, cx);
        p.jobs.one_shot("announce", job).shutdown_on_error().add();
        if unloads {
            unload_at_stop(&p.lifecycle, p.proxies);
        }
        return;
    }
    let mut addresses: Vec<IpAddr> = Vec::new();
    if p.families.enable_ipv4 {
        addresses.push(Ipv4Addr::LOCALHOST.into());
    }
    if p.families.enable_ipv6 {
        addresses.push(Ipv6Addr::LOCALHOST.into());
    }
    let job = Job {
        registration: p.proxies.register(dns),
        proxies: p.proxies.clone(),
        is_fixed: fixed.is_some(),
        addresses,
        observer: (*p.observer).clone(),
        config: (*p.config).clone(),
    };
    p.jobs.one_shot("serve", move |cx: JobCx| job.run(cx)).shutdown_on_error().add();
    if unloads {
        unload_at_stop(&p.lifecycle, p.proxies);
    }
}

/// Adds a hook that lets queries pass without the proxy before that stops. Maps of the previous run that policy has not
/// written since the start stay as they are: there are no redirects yet.
fn unload_at_stop(lifecycle: &Lifecycle, proxies: Arc<Proxies>) {
    let unload = async move {
        let redirects = proxies.redirects();
        if redirects.all(&redirects.snapshot()).next().is_none() {
            return Ok(());
        }
        match tokio::time::timeout(UNLOAD_LIMIT, proxies.bypass_dns()).await {
            Ok(()) => tracing::info!("DNS queries pass without the proxy where rules allow every name"),
            Err(_) => tracing::warn!(
                limit = ?UNLOAD_LIMIT,
                "Policy maps still lead DNS queries to the proxy, which stops: they are not answered until the agent is back"
            ),
        }
        Ok(())
    };
    lifecycle.hook("unload-policy").on_stop(move |_| unload).add();
}

/// Announces the port of a standalone proxy, which has it also while no agent runs.
async fn announce(
    proxies: Arc<Proxies>,
    registration: Registration,
    port: Option<u16>,
    cx: JobCx,
) -> anyhow::Result<()> {
    if !proxies.has_rules() {
        cx.health.ok("Rules of iptables are off: no query reaches the proxy");
        return Ok(());
    }
    let port = port.context("tofqdns-proxy-port: a standalone DNS proxy needs a port")?;
    registration.listening(port)?;
    cx.health.ok(format_args!("queries go to the standalone proxy at port {port}"));
    cx.token().run_until_cancelled(registration.ready()).await;
    cx.cancelled().await;
    Ok(())
}

struct Job {
    registration: Registration,
    proxies: Arc<Proxies>,
    /// Whether the port is given by the configuration: no other one is tried.
    is_fixed: bool,
    addresses: Vec<IpAddr>,
    observer: Observer,
    config: DnsProxyConfig,
}

impl Job {
    async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        if !self.proxies.has_rules() {
            cx.health.ok("Rules of iptables are off: no query reaches the proxy");
            return Ok(());
        }
        let Some(bound) = cx.token().run_until_cancelled(self.bind()).await else { return Ok(()) };
        let (listeners, port) = bound?;
        self.registration.listening(port)?;
        cx.health.ok(format_args!("initialized on port {port}"));
        let (tasks, stop) = (TaskTracker::new(), cx.token().clone());
        let proxy = Proxy::new(self.observer, self.config, tasks.clone(), stop.clone());
        let serve =
            listeners.into_iter().map(|listener| listener.serve(proxy.clone(), tasks.clone(), stop.clone()));
        let ready = async {
            self.registration.ready().await;
            tracing::info!(port, "DNS queries of workloads reach the proxy");
        };
        tokio::join!(futures::future::join_all(serve), cx.token().run_until_cancelled(ready));
        tasks.close();
        // Tasks end with the token; those that are between two awaits need a moment.
        let _ = tokio::time::timeout(DRAIN_LIMIT, tasks.wait()).await;
        Ok(())
    }

    /// Binds the preferred port, or any one if it is taken and not fixed.
    async fn bind(&self) -> anyhow::Result<(Vec<Listener>, u16)> {
        let mut port = self.registration.preferred().unwrap_or(0);
        for _ in 1..BIND_ATTEMPTS {
            let error = match self.bind_port(port) {
                Ok(bound) => return Ok(bound),
                Err(error) => error,
            };
            tracing::warn!(port, %error, "Unable to bind the port of the DNS proxy, trying again");
            if self.is_fixed {
                tokio::time::sleep(BIND_INTERVAL).await;
            } else {
                port = 0;
            }
        }
        self.bind_port(port).with_context(|| {
            format!("unable to bind port {port} for the DNS proxy; set tofqdns-proxy-port to a free one")
        })
    }

    fn bind_port(&self, port: u16) -> io::Result<(Vec<Listener>, u16)> {
        let mut listeners = Vec::new();
        let mut port = port;
        for address in &self.addresses {
            let listener = Listener::bind(SocketAddr::new(*address, port), false)?;
            port = listener.port()?;
            listeners.push(listener);
        }
        Ok((listeners, port))
    }
}
