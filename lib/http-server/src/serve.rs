//! The accept loop, and the life of a connection.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::accept::Accept;
use crate::bounds::Bounds;
use crate::open::{Busy, Connection, Open};

/// The pause after a failed accept, the limit of the wait for a connection that was requested to close, and the time that a
/// stop leaves for the rest of a request's head.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections of several listeners that share one bound. Cheap to clone.
#[derive(Clone, Default)]
pub struct Pool(Arc<Open>);

/// Accepts connections and answers their requests until `stop`. Requests in flight then finish in `tasks`, for which
/// the caller waits. `on_accept` is called with the first error of a series of failed accepts, and with `None` once an
/// accept succeeds again.
pub async fn serve<L, S, B>(
    listener: &L,
    bounds: Bounds,
    service: S,
    stop: &CancellationToken,
    tasks: &TaskTracker,
    on_accept: impl FnMut(Option<&io::Error>),
) where
    L: Accept,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
    B: Body<Data: Send, Error: std::error::Error + Send + Sync> + Unpin + Send + 'static,
{
    serve_in(&Pool::default(), listener, bounds, service, stop, tasks, on_accept).await;
}

/// Serves as [`serve`] does, with connections counted in a pool: `bounds` apply to the pool as a whole.
pub async fn serve_in<L, S, B>(
    Pool(open): &Pool,
    listener: &L,
    bounds: Bounds,
    service: S,
    stop: &CancellationToken,
    tasks: &TaskTracker,
    mut on_accept: impl FnMut(Option<&io::Error>),
) where
    L: Accept,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
    B: Body<Data: Send, Error: std::error::Error + Send + Sync> + Unpin + Send + 'static,
{
    let mut failing = false;
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    on_accept(Some(&error));
                }
                // Usually EMFILE or ENFILE: close an idle connection to free a descriptor, or wait until another part
                // of the process or machine has freed one.
                if open.close_idle(None) {
                    let _closed_or_late = timeout(PAUSE, open.changed()).await;
                } else {
                    sleep(PAUSE).await;
                }
                continue;
            }
        };
        if std::mem::take(&mut failing) {
            on_accept(None);
        }
        let connection = open.add(peer);
        // `changed` may be notified for a connection that is still listed: check the length again after each.
        let capacity = async {
            while open.len() > bounds.connections {
                open.close_idle(Some(connection.number));
                let _changed_or_late = timeout(PAUSE, open.changed()).await;
            }
        };
        if stop.run_until_cancelled(capacity).await.is_none() {
            return;
        }
        tasks.spawn(answer(stream, bounds, service.clone(), connection, stop.clone()));
    }
}

/// Serves one connection until it ends, is evicted or the server stops.
async fn answer<I, S, B>(
    stream: I,
    bounds: Bounds,
    service: S,
    connection: Connection,
    stop: CancellationToken,
) where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send>,
    B: Body<Data: Send, Error: std::error::Error + Send + Sync> + Unpin + Send + 'static,
{
    let tag = connection.tag();
    let counted = service_fn(move |request| {
        let busy = tag.busy();
        let answer = service.call(request);
        async move {
            let response = answer.await?;
            Ok::<_, Infallible>(response.map(|body| Answer { body, _answering: busy }))
        }
    });
    let mut http = http1::Builder::new();
    http.title_case_headers(bounds.title_case_headers)
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.header_timeout)
        .max_headers(64);
    if let Some(bytes) = bounds.buffer {
        http.max_buf_size(bytes);
    }
    let mut served = std::pin::pin!(http.serve_connection(TokioIo::new(stream), counted));
    // A request that has arrived is still answered. An evicted connection gets no time to complete one: evictions follow one
    // another, so that a few hundred incomplete requests would keep a new connection waiting for longer than a probe lasts.
    let patience = tokio::select! {
        ended = served.as_mut() => return log(ended),
        () = connection.close.cancelled() => Duration::ZERO,
        () = stop.cancelled() => PAUSE,
    };
    served.as_mut().graceful_shutdown();
    match timeout(patience, served.as_mut()).await {
        Ok(ended) => log(ended),
        Err(_) if connection.is_busy() => log(served.await),
        Err(_) => {}
    }
}

fn log(ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "Connection ended");
    }
}

/// A body that keeps its connection marked as busy until it is dropped, after its last frame.
struct Answer<B> {
    body: B,
    _answering: Busy,
}

impl<B: Body + Unpin> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
