//! The proxy without the cell, for tests.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

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

/// Returns the observer of an agent, with its metrics in `metrics` and its records in `monitor`.
pub fn observer(
    directory: Arc<dyn Directory>,
    metrics: &metrics::Metrics,
    monitor: Arc<Monitor>,
) -> Observer {
    let verdicts = Verdicts::default();
    verdicts.register(metrics);
    let counters = Counters::new(verdicts);
    counters.register(metrics);
    Observer::new(monitor, directory, counters)
}

/// Serves queries at an address until the token is cancelled, with its metrics in `metrics` and its records in `monitor`.
///
/// # Errors
/// If the sockets cannot be bound.
pub async fn serve(
    address: SocketAddr,
    directory: Arc<dyn Directory>,
    config: DnsProxyConfig,
    metrics: &metrics::Metrics,
    monitor: Arc<Monitor>,
    stop: CancellationToken,
) -> io::Result<()> {
    let observer = observer(directory, metrics, monitor);
    let listener = Listener::bind(address, false)?;
    let tasks = TaskTracker::new();
    let proxy = Proxy::new(observer, config, tasks.clone(), stop.clone());
    listener.serve(proxy, tasks.clone(), stop).await;
    tasks.close();
    tasks.wait().await;
    Ok(())
}
