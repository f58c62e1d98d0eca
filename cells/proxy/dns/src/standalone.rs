//! The proxy in a process of its own.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use hive::JobCx;
use monitor::Monitor;
use proxy_ports::Verdicts;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::DnsProxyConfig;
use crate::directory::Directory;
use crate::metrics::Counters;
use crate::observation::Observer;
use crate::proxy::Proxy;
use crate::server::Listener;

/// The interval between attempts to bind the port, and their number, as in Cilium.
const BIND_INTERVAL: Duration = Duration::from_secs(4);
const BIND_ATTEMPTS: usize = 5;
/// Limit of the queries in progress at a stop; their clients would ask again only after seconds.
const DRAIN_LIMIT: Duration = Duration::from_millis(800);

/// Serves queries at a port of some addresses until the job is cancelled. During an upgrade two processes share the
/// port: at a stop this one takes no more queries, and answers those that it has.
///
/// # Errors
/// If the port cannot be bound.
pub async fn serve_standalone(
    addresses: &[IpAddr],
    port: u16,
    directory: Arc<dyn Directory>,
    config: DnsProxyConfig,
    metrics: &metrics::Metrics,
    cx: &JobCx,
) -> anyhow::Result<()> {
    let verdicts = Verdicts::default();
    verdicts.register(metrics);
    let counters = Counters::new(verdicts);
    counters.register(metrics);
    let Some(listeners) = cx.token().run_until_cancelled(bind(addresses, port)).await else { return Ok(()) };
    let listeners = listeners.with_context(|| format!("unable to bind port {port} for the DNS proxy"))?;
    cx.health.ok(format_args!("initialized on port {port}"));
    tracing::info!(port, "DNS queries of workloads are answered");
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    // Monitors listen to the agent: here nothing subscribes, and the directory takes what happens to queries.
    let monitor = Arc::new(Monitor::new(1));
    let observer = Observer::new(monitor, directory, counters);
    let proxy = Proxy::new(observer, config, tasks.clone(), stop.clone());
    let serve =
        listeners.into_iter().map(|listener| listener.serve(proxy.clone(), tasks.clone(), stop.clone()));
    // This drops the listeners. Queries go on.
    cx.token().run_until_cancelled(futures::future::join_all(serve)).await;
    tasks.close();
    if tokio::time::timeout(DRAIN_LIMIT, tasks.wait()).await.is_err() {
        stop.cancel();
        tasks.wait().await;
    }
    Ok(())
}

async fn bind(addresses: &[IpAddr], port: u16) -> io::Result<Vec<Listener>> {
    let bind = || addresses.iter().map(|ip| Listener::bind(SocketAddr::new(*ip, port), true)).collect();
    for _ in 1..BIND_ATTEMPTS {
        let bound: io::Result<Vec<Listener>> = bind();
        match bound {
            Ok(listeners) => return Ok(listeners),
            Err(error) => {
                tracing::warn!(port, %error, "Unable to bind the port of the DNS proxy, trying again");
                tokio::time::sleep(BIND_INTERVAL).await;
            }
        }
    }
    bind()
}
