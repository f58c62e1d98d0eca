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

/// The maximum number of connections of all servers together.
const CONNECTIONS: usize = 256;

/// The timeout for the head of a request, and for a connection without one.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// The size of a connection's read buffer, and of its write buffer, in bytes.
const BUFFER: usize = 8192;

/// The backoff for a port that another program uses.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// Values that all servers share.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) tables: Tables,
    pub(crate) pool: Pool,
    /// The only address to listen on; `None` for all.
    pub(crate) ip: Option<IpAddr>,
}

impl Server {
    /// Serves the port until the job is cancelled.
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
        let report_accept = |error: Option<&io::Error>| match error {
            Some(error) => cx.health.degraded("Cannot accept connections", error),
            None => cx.health.ok("Running"),
        };
        http_server::serve_in(&self.pool, &listener, bounds, answer, cx.token(), &tasks, report_accept).await;
        // Open connections may take until their timeout to end; no new ones are accepted meanwhile.
        drop(listener);
        tasks.close();
        tasks.wait().await;
        Ok(())
    }
}

/// Listens on the port at this address, or at all addresses of the node.
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
