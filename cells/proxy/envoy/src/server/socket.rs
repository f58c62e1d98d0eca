//! The unix socket of the server.

use std::path::PathBuf;
use std::time::Duration;

use api::Socket;
use hive::JobCx;
use tokio::time::sleep;

use crate::server::connections::Server;
use crate::server::service::Services;
use crate::sockets::{give_to_group, make_folder};

/// The pause after a connection could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Serves the socket until the job is cancelled; an error if it cannot be made.
pub(crate) async fn serve(path: PathBuf, gid: u32, services: Services, cx: JobCx) -> anyhow::Result<()> {
    let bind = move || {
        make_folder(&path)?;
        let socket = Socket::bind(&path, "state-dir")?;
        give_to_group(&path, gid)?;
        anyhow::Ok(socket)
    };
    let socket = hive::blocking(bind).await?;
    cx.health.ok("Serving");
    let server = Server::new(services, &cx);
    while let Some(accepted) = cx.token().run_until_cancelled(socket.listener().accept()).await {
        match accepted {
            Ok(_) if !server.has_capacity() => {}
            Ok((stream, _)) => {
                cx.health.ok("Serving");
                server.serve(stream);
            }
            Err(error) => {
                cx.health.degraded("Cannot accept connections of Envoy", &error);
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
    hive::blocking(move || drop(socket)).await;
    server.drain().await;
    Ok(())
}
