//! Clients: TLS, credentials, sockets.

use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use tower::{BoxError, ServiceBuilder};

use crate::access::{Access, root_of};

/// A factory of clients; tests replace it.
pub(crate) trait Connect: Send + Sync {
    /// Returns a client for a server. It connects on the first request.
    fn connect(&self, access: &Access, server: &Uri) -> Result<kube::Client, String>;
}

/// Clients with sockets. They use HTTP/1.1, so that each watch has its own connection and a slow reader does not block
/// other watches, as it could on a shared HTTP/2 connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sockets {
    /// The timeout of a connection attempt.
    pub(crate) connect_timeout: Duration,
    /// The interval of TCP keep-alive probes; zero for none.
    pub(crate) keep_alive: Duration,
}

/// The maximum size of a connection's buffer in bytes, which stays allocated while a reader is slow.
const MAX_BUFFER: usize = 64 << 10;

/// The time after which an idle connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

impl Connect for Sockets {
    fn connect(&self, access: &Access, server: &Uri) -> Result<kube::Client, String> {
        let mut config = access.config.clone();
        config.cluster_url = server.clone();
        let mut sockets = HttpConnector::new();
        sockets.enforce_http(false);
        sockets.set_nodelay(true);
        sockets.set_connect_timeout(Some(self.connect_timeout));
        if !self.keep_alive.is_zero() {
            sockets.set_keepalive(Some(self.keep_alive));
            sockets.set_keepalive_interval(Some((self.keep_alive / 3).max(Duration::from_secs(1))));
            sockets.set_keepalive_retries(Some(3));
            sockets.set_tcp_user_timeout(Some(self.keep_alive * 2));
        }
        let text = |error: kube::Error| root_of(&error);
        let sockets = config.rustls_https_connector_with_connector(sockets).map_err(text)?;
        let client: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_timer(TokioTimer::new())
            .http1_max_buf_size(MAX_BUFFER)
            .build(sockets);
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(config.auth_layer().map_err(text)?)
            .layer(config.extra_headers_layer().map_err(text)?)
            .map_err(BoxError::from)
            .service(client);
        Ok(kube::Client::new(service, config.default_namespace))
    }
}
