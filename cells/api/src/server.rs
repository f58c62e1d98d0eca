//! Connections: HTTP/1.1 over the unix socket, each in a task of its own.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceExt};

use crate::layers::{self, Shared, TIMEOUT};
use crate::page::Page;
use crate::response::Body;
use crate::socket::Socket;
use crate::tables::Tables;

/// Connections at once; further ones wait to be accepted.
const CONNECTIONS: usize = 512;

/// How long a stop waits for requests that are being served.
const STOP: Duration = Duration::from_secs(10);

/// Serves the socket until `stop`, then finishes what is being served. Removes the socket.
pub(crate) async fn serve(socket: Socket, shared: Shared, stop: CancellationToken) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    let tables = Tables { db: shared.db.clone(), tasks: shared.tasks.clone(), stop: stop.clone() };
    let pages = shared.pages.clone();
    let service = layers::service::<Incoming>(shared.clone());
    while let Some(accepted) = stop.run_until_cancelled(accept(&socket, &connections)).await {
        let Ok((stream, slot)) = accepted else {
            continue;
        };
        let (service, tables, pages) = (service.clone(), tables.clone(), pages.clone());
        shared.tasks.spawn(async move {
            connection(stream, service, tables, pages).await;
            drop(slot);
        });
    }
    drop(socket);
    shared.tasks.close();
    if timeout(STOP, shared.tasks.wait()).await.is_err() {
        tracing::warn!(requests = shared.tasks.len(), "API requests were still being served at the stop");
    }
}

type Slot = tokio::sync::OwnedSemaphorePermit;

async fn accept(socket: &Socket, connections: &Arc<Semaphore>) -> Result<(UnixStream, Slot), ()> {
    let slot = connections.clone().acquire_owned().await.map_err(drop)?;
    match socket.listener.accept().await {
        Ok((stream, _)) => Ok((stream, slot)),
        Err(error) => {
            // Mostly no file descriptors are left; others will be closed.
            tracing::warn!(%error, "Cannot accept a connection on the API socket");
            sleep(Duration::from_millis(100)).await;
            Err(())
        }
    }
}

async fn connection<S>(stream: UnixStream, service: S, tables: Tables, pages: Arc<[Page]>)
where
    S: Service<Request<Incoming>, Response = crate::Response, Error = Infallible, Future: Send> + Clone,
{
    let answer = service_fn(|request: Request<Incoming>| {
        let (service, tables, pages) = (service.clone(), tables.clone(), pages.clone());
        async move {
            if Tables::has(request.uri().path()) {
                return Ok(*tables.answer(request).await.0);
            }
            if Page::is_path(request.uri().path()) {
                return Ok(*Page::answer(&pages, request).await.0);
            }
            let response: Result<Response<Body>, Infallible> =
                service.oneshot(request).await.map(|response| *response.0);
            response
        }
    });
    let mut http = http1::Builder::new();
    http.title_case_headers(true).timer(TokioTimer::new()).header_read_timeout(TIMEOUT).max_headers(64);
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), answer));
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = tables.stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "API connection ended");
    }
}
