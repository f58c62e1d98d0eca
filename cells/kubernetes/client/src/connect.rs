//! Clients: TLS, credentials, sockets.

use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use tower::{BoxError, ServiceBuilder};

use crate::access::{Access, root_of};

/// Makes clients; tests have their own.
pub(crate) trait Connect: Send + Sync {
    /// A client for a server. It opens connections when it is used.
    fn connect(&self, access: &Access, server: &Uri) -> Result<kube::Client, String>;
}

/// Clients with sockets. HTTP/1.1: each watch has a connection of its own, so that a slow reader holds up no
/// other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sockets {
    /// How long connecting may take.
    pub(crate) connect_timeout: Duration,
    /// Time between signs of life of an idle connection; zero for none.
    pub(crate) keep_alive: Duration,
}

/// Bytes of a connection's buffer at most: they are pinned while a reader is slow.
const MAX_BUFFER: usize = 64 << 10;

/// How long a connection stays that is not used.
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
