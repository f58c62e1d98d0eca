//! The listener of the agent's service: connections of processes of the agent's user.

use std::net::SocketAddr;
use std::time::Duration;

use grpc::{ACCEPT_RETRY, Bounds, Server};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::connection::is_own;
use crate::proto::fqdn_data_server::FqdnDataServer;
use crate::service::Service;

/// The maximum size of a request: a DNS message has 64 KiB, addresses as text take more.
const MAX_REQUEST: usize = 256 << 10;
/// Two proxies during an upgrade have a connection each. Pings as in Cilium: proxies that hang must not keep one.
const BOUNDS: Bounds = Bounds {
    connections: 8,
    requests: 1024,
    send_buffer: 32 << 10,
    ping_interval: Duration::from_secs(5),
    ping_timeout: Duration::from_secs(5),
};

/// Serves connections until the token is cancelled.
pub(crate) async fn serve(listener: TcpListener, service: Service, stop: CancellationToken) {
    let service = FqdnDataServer::new(service).max_decoding_message_size(MAX_REQUEST);
    let server = Server::new("Standalone DNS proxy", BOUNDS, TowerToHyperService::new(service), stop.clone());
    let mut refused = None;
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let (stream, client) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "Unable to accept a standalone DNS proxy, trying again");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let reason = match is_own(&stream) {
            Ok(true) => None,
            Ok(false) => Some("it is a process of another user".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        // The first of a row: clients must not fill the log.
        if let Some(reason) = reason.as_ref().filter(|_| reason != refused) {
            tracing::warn!(%client, reason, "Refusing a standalone DNS proxy");
        }
        if reason.is_none() && server.has_capacity() {
            server.serve(async { stream.set_nodelay(true).ok().map(|()| stream) });
        }
        refused = reason;
    }
    drop(listener);
    server.drain().await;
}

/// Returns the address of the service.
pub(crate) fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
