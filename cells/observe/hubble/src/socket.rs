//! The unix socket.

use std::path::PathBuf;

use api::Socket;
use hive::JobCx;
use tokio::time::sleep;

use crate::server::{ACCEPT_RETRY, Server, Services};

/// Serves the socket until the job is cancelled; an error if it cannot be made.
pub(crate) async fn serve(path: PathBuf, services: Services, cx: JobCx) -> anyhow::Result<()> {
    let socket = hive::blocking(move || Socket::bind(&path, "hubble-socket-path")).await?;
    cx.health.ok("Serving");
    let server = Server::new(services, &cx);
    while let Some(accepted) = cx.token().run_until_cancelled(socket.listener().accept()).await {
        match accepted {
            Ok(_) if !server.has_capacity() => {}
            Ok((stream, _)) => {
                cx.health.ok("Serving");
                server.serve(async { Some(stream) });
            }
            Err(error) => {
                cx.health.degraded("Cannot accept connections on the socket of Hubble", &error);
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
    hive::blocking(move || drop(socket)).await;
    server.drain().await;
    Ok(())
}
