//! The server: dispatches each request on the unix socket to operations, tables or pages.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use http::{Request, Response};
use http_server::Bounds;
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::layers::{self, Shared, TIMEOUT};
use crate::page::Page;
use crate::response::Body;
use crate::socket::Socket;
use crate::tables::Tables;

/// Maximum number of open connections.
const CONNECTIONS: usize = 512;

/// Maximum time that a stop waits for requests in flight.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves the socket until `stop`, then removes it and waits for requests in flight. `on_accept` is called with the
/// error when no connection can be accepted, and with `None` when one can again.
pub(crate) async fn serve(
    socket: Socket,
    shared: Shared,
    stop: CancellationToken,
    on_accept: impl FnMut(Option<&io::Error>),
) {
    let tables = Tables { db: shared.db.clone(), tasks: shared.tasks.clone(), stop: stop.clone() };
    let pages = shared.pages.clone();
    let service = layers::service::<Incoming>(shared.clone());
    let answer = service_fn(move |request: Request<Incoming>| {
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
    let bounds = Bounds::new(CONNECTIONS).header_timeout(TIMEOUT).title_case_headers();
    http_server::serve(&socket.listener, bounds, answer, &stop, &shared.tasks, on_accept).await;
    drop(socket);
    shared.tasks.close();
    if timeout(STOP_TIMEOUT, shared.tasks.wait()).await.is_err() {
        tracing::warn!(requests = shared.tasks.len(), "API requests were still being served at the stop");
    }
}
