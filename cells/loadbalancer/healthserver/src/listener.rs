//! The server on one port.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hive::Backoff;
use hive::prelude::*;
use http::Request;
use http_server::{Bounds, Pool};
use hyper::body::Incoming;
use hyper::service::service_fn;
use loadbalancer::ServiceName;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use crate::answer::Tables;

/// Connections of all servers together.
const CONNECTIONS: usize = 256;

/// How long a request may take to arrive, and a connection be without one.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that a connection may take for what it reads, and for what it writes.
const BUFFER: usize = 8192;

/// The waits for a port that another program has.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// Values that all servers share.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) tables: Tables,
    pub(crate) pool: Pool,
    /// The only address to listen on, if it is not all.
    pub(crate) ip: Option<IpAddr>,
}

impl Server {
    /// Answers on the port about the service until the job is asked to end.
    pub(crate) async fn serve(self, port: u16, service: ServiceName, cx: JobCx) -> anyhow::Result<()> {
        let mut backoff = Backoff::exponential(RETRY.0, RETRY.1);
        let listener = loop {
            let error = match bind(self.ip, port).await {
                Ok(listener) => break listener,
                Err(error) => error,
            };
            let remedy = format!(
                "healthCheckNodePort {port} of service {service}: {error}; free the port or give the service another"
            );
            if cx.health.degraded_anew("Cannot listen", &remedy) {
                tracing::error!(port, %service, %error, "Health checks of a service fail: cannot listen");
            }
            let wait = backoff.next_wait().unwrap_or(RETRY.1);
            if cx.token().run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                return Ok(());
            }
        };
        cx.health.ok("Running");
        let tables = self.tables;
        let answer = service_fn(move |_: Request<Incoming>| {
            std::future::ready(Ok::<_, Infallible>(tables.respond(&service)))
        });
        let bounds =
            Bounds::new(CONNECTIONS).header_timeout(HEADER_TIMEOUT).buffer(BUFFER).title_case_headers();
        let tasks = TaskTracker::new();
        let trouble = |error: Option<&io::Error>| match error {
            Some(error) => cx.health.degraded("Cannot accept connections", error),
            None => cx.health.ok("Running"),
        };
        http_server::serve_in(&self.pool, &listener, bounds, answer, cx.token(), &tasks, trouble).await;
        drop(listener);
        tasks.close();
        tasks.wait().await;
        Ok(())
    }
}

/// Listens on the port at this address, or at all of the node.
async fn bind(ip: Option<IpAddr>, port: u16) -> io::Result<TcpListener> {
    if let Some(ip) = ip {
        return TcpListener::bind(SocketAddr::new(ip, port)).await;
    }
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        // A kernel without IPv6.
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        bound => bound,
    }
}
