//! The server on one port.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

use hive::prelude::*;
use http::Request;
use http_server::Pool;
use hyper::body::Incoming;
use hyper::service::service_fn;
use loadbalancer::ServiceName;

use crate::answer::Tables;

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
        let report = |error: &io::Error| {
            let remedy = format!(
                "healthCheckNodePort {port} of service {service}: {error}; free the port or give the service another"
            );
            if cx.health.degraded_anew("Cannot listen", &remedy) {
                tracing::error!(port, %service, %error, "Health checks of a service fail: cannot listen");
            }
        };
        let ip = self.ip.unwrap_or(Ipv6Addr::UNSPECIFIED.into());
        let listener = http_server::bind_with_retry(ip, port, &cx, report).await;
        let Some(listener) = listener else { return Ok(()) };
        let tables = self.tables;
        let answer = service_fn(move |_: Request<Incoming>| {
            std::future::ready(Ok::<_, Infallible>(tables.respond(&service)))
        });
        http_server::serve_probes(&self.pool, listener, answer, &cx).await;
        Ok(())
    }
}
