//! The server: what each request on the unix socket is answered by.

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

/// Connections at once.
const CONNECTIONS: usize = 512;

/// How long a stop waits for requests that are being served.
const STOP: Duration = Duration::from_secs(10);

/// Serves the socket until `stop`, then finishes what is being served. Removes the socket. `trouble` is called when no
/// connection can be accepted, and when one can again.
pub(crate) async fn serve(
    socket: Socket,
    shared: Shared,
    stop: CancellationToken,
    trouble: impl FnMut(Option<&io::Error>),
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
    http_server::serve(&socket.listener, bounds, answer, &stop, &shared.tasks, trouble).await;
    drop(socket);
    shared.tasks.close();
    if timeout(STOP, shared.tasks.wait()).await.is_err() {
        tracing::warn!(requests = shared.tasks.len(), "API requests were still being served at the stop");
    }
}
