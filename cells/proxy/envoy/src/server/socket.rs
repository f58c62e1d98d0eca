//! The unix socket of the server.

use std::path::PathBuf;

use api::Socket;
use grpc::{Bounds, Server};
use hive::JobCx;

use crate::server::service::Services;
use crate::sockets::{give_to_group, make_folder};

/// Serves the socket until the job is cancelled; an error if it cannot be made.
pub(crate) async fn serve(path: PathBuf, gid: u32, services: Services, cx: JobCx) -> anyhow::Result<()> {
    let bind = move || {
        make_folder(&path)?;
        let socket = Socket::bind(&path, "state-dir")?;
        give_to_group(&path, gid)?;
        anyhow::Ok(socket)
    };
    let socket = hive::blocking(bind).await?;
    // Envoy has a connection for each type of resources and each listener.
    let server = Server::new("xDS", Bounds::default(), services, cx.token().clone());
    server.serve_unix(socket.listener(), &cx).await;
    hive::blocking(move || drop(socket)).await;
    server.drain().await;
    Ok(())
}
