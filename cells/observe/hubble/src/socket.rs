//! The unix socket.

use std::path::PathBuf;

use api::Socket;
use hive::JobCx;

use crate::server::{Services, server};

/// Serves the socket until the job is cancelled; an error if it cannot be made.
pub(crate) async fn serve(path: PathBuf, services: Services, cx: JobCx) -> anyhow::Result<()> {
    let socket = hive::blocking(move || Socket::bind(&path, "hubble-socket-path")).await?;
    let server = server(services, &cx);
    server.serve_unix(socket.listener(), &cx).await;
    hive::blocking(move || drop(socket)).await;
    server.drain().await;
    Ok(())
}
