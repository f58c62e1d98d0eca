//! The tower layers around the operations, outermost first: request metrics, deadline, routing, access, checks of
//! the request, limits.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http_body_util::{BodyExt, Limited};
use statedb::Db;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

use crate::access::Access;
use crate::error::BadRequest;
use crate::limit::{Kind, Limits};
use crate::measure::Measure;
use crate::page::Page;
use crate::request::Request;
use crate::response::Response;
use crate::router::{self, Found, Router};

/// Maximum time to receive a request's body, and to answer a request.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum size of a body in bytes; clients of the API send a few kB at most.
pub(crate) const BODY_LIMIT: usize = 1 << 20;

/// State that the layers share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) router: Arc<Router>,
    pub(crate) access: Arc<Access>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) measure: Arc<Measure>,
    pub(crate) tasks: TaskTracker,
    pub(crate) db: Option<Arc<Db>>,
    pub(crate) pages: Arc<[Page]>,
}

/// A request with its operation.
struct Routed<B> {
    found: Found,
    head: Parts,
    body: B,
}

/// Returns the service of all operations inside their layers.
pub(crate) fn service<B>(
    shared: Shared,
) -> impl Service<http::Request<B>, Response = Response, Error = Infallible, Future: Send> + Clone + Send
where
    B: hyper::body::Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static> + Send + 'static,
{
    let Shared { router, access, limits, measure, tasks, db: _, pages: _ } = shared;
    let limited = measure.clone();
    ServiceBuilder::new()
        .layer(around(move |request: http::Request<B>, inner| measured(measure.clone(), request, inner)))
        .layer(around(within_deadline))
        .layer(around(routed))
        .layer(around(move |request: Routed<B>, inner| allowed(access.clone(), request, inner)))
        .layer(around(checked))
        .layer(around(move |request: Request, inner| {
            admitted(limits.clone(), limited.clone(), request, inner)
        }))
        .service(tower::service_fn(move |request: Request| dispatch(router.clone(), tasks.clone(), request)))
}

/// Counts the request and measures the time to its answer.
async fn measured<B, S>(measure: Arc<Measure>, request: http::Request<B>, inner: S) -> Response
where
    S: Inner<http::Request<B>>,
{
    let begin = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = inner.answer(request).await;
    measure.request(&method, &path, response.status(), begin.elapsed());
    response
}

/// Answers 503 after the deadline. The handler still runs to its end: a partial change would be worse than a late one.
async fn within_deadline<B, S: Inner<http::Request<B>>>(request: http::Request<B>, inner: S) -> Response {
    let path = request.uri().path().to_owned();
    match timeout(TIMEOUT, inner.answer(request)).await {
        Ok(response) => response,
        Err(_) => {
            tracing::warn!(path, "API request was not answered in time");
            Response::error(503, format!("no answer within {} s", TIMEOUT.as_secs()))
        }
    }
}

/// Finds the operation.
async fn routed<B, S: Inner<Routed<B>>>(request: http::Request<B>, inner: S) -> Response {
    let (head, body) = request.into_parts();
    match router::find_operation(&head.method, head.uri.path()) {
        Ok(found) => inner.answer(Routed { found, head, body }).await,
        Err(error) => Response::bad_request(&error),
    }
}

/// Rejects operations that `--enable-cilium-api-server-access` does not allow.
async fn allowed<B, S: Inner<Routed<B>>>(access: Arc<Access>, request: Routed<B>, inner: S) -> Response {
    if access.allows(request.found.operation) {
        return inner.answer(request).await;
    }
    let endpoint = request.found.operation.name();
    tracing::info!(endpoint, "Denied API request on administratively disabled API endpoint");
    Response::denied()
}

/// Checks head and body; reads the body.
async fn checked<B, S>(request: Routed<B>, inner: S) -> Response
where
    B: hyper::body::Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static>,
    S: Inner<Request>,
{
    let Routed { found, head, body } = request;
    let Found { operation, path_params } = found;
    let checked = async {
        let query = router::check_head(operation, &head.uri, &head.headers)?;
        let body = read(body).await?;
        router::check_body(operation, &body)?;
        Ok(Request { operation, path_params, query, headers: head.headers, body })
    };
    match checked.await {
        Ok(request) => inner.answer(request).await,
        Err(error) => Response::bad_request(&error),
    }
}

/// Reads the whole body; an error if it exceeds the size limit or the timeout.
pub(crate) async fn read<B>(body: B) -> Result<Bytes, BadRequest>
where
    B: hyper::body::Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static>,
{
    let limited = Limited::new(body, BODY_LIMIT);
    let collected = timeout(TIMEOUT, limited.collect()).await;
    match collected.map_err(|_| BadRequest::TooSlow { seconds: TIMEOUT.as_secs() })? {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Err(BadRequest::TooLarge { limit: BODY_LIMIT })
        }
        Err(error) => Err(BadRequest::Unreadable { name: "body", reason: error.to_string() }),
    }
}

/// Waits for admission by the limit of the kind of request, or rejects the request with 429.
async fn admitted<S: Inner<Request>>(
    limits: Arc<Limits>,
    measure: Arc<Measure>,
    request: Request,
    inner: S,
) -> Response {
    let Some(kind) = Kind::of(request.operation) else {
        return inner.answer(request).await;
    };
    match limits.admit(kind).await {
        Ok(permit) => {
            let response = inner.answer(request).await;
            measure.limited(kind, permit.finish(), response.status());
            response
        }
        Err(reason) => {
            tracing::warn!(name = kind.name(), %reason, "Not processing API request");
            let response = Response::empty(429);
            measure.turned_away(kind, response.status());
            response
        }
    }
}

/// Runs the handler in a task of its own, so that it completes even if the client disconnects.
async fn dispatch(router: Arc<Router>, tasks: TaskTracker, request: Request) -> Result<Response, Infallible> {
    let operation = request.operation;
    let handler = router.route(operation).call(request);
    Ok(tasks.spawn(handler).await.unwrap_or_else(|error| {
        tracing::error!(operation = operation.name(), %error, "API handler failed");
        Response::error(500, "internal error: the handler of this operation failed, see the log")
    }))
}

/// The service inside of a layer.
trait Inner<R>: Send {
    fn answer(self, request: R) -> impl Future<Output = Response> + Send;
}

impl<R: Send, S> Inner<R> for S
where
    S: Service<R, Response = Response, Error = Infallible, Future: Send> + Send,
{
    async fn answer(self, request: R) -> Response {
        match self.oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// Returns a layer from a function of the request and the inner service.
fn around<F: Clone>(f: F) -> Around<F> {
    Around(f)
}

#[derive(Clone)]
struct Around<F>(F);

impl<F: Clone, S> Layer<S> for Around<F> {
    type Service = AroundService<F, S>;

    fn layer(&self, inner: S) -> Self::Service {
        AroundService { f: self.0.clone(), inner }
    }
}

#[derive(Clone)]
struct AroundService<F, S> {
    f: F,
    inner: S,
}

impl<R, F, S, Fut> Service<R> for AroundService<F, S>
where
    F: Fn(R, S) -> Fut,
    S: Clone,
    Fut: Future<Output = Response>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Answer<Fut>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        futures::FutureExt::map((self.f)(request, self.inner.clone()), Ok)
    }
}

type Answer<F> = futures::future::Map<F, fn(Response) -> Result<Response, Infallible>>;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use http_body_util::{Empty, StreamBody};
    use hyper::body::Frame;
    use metrics::Metrics;
    use tokio::time::sleep;

    use super::*;
    use crate::operation::Operation;
    use crate::route::Route;

    fn shared(routes: Vec<Route>) -> Shared {
        Shared {
            router: Arc::new(Router::new(routes).unwrap()),
            access: Arc::new(Access::parse(&["*"]).unwrap()),
            limits: Arc::new(Limits::new("").unwrap()),
            measure: Measure::new(&Metrics::default()),
            tasks: TaskTracker::new(),
            pages: Arc::new([]),
            db: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_handler_gets_503_and_still_completes() {
        let done = Arc::new(AtomicBool::new(false));
        let seen = done.clone();
        let slow = Route::new(Operation::GetIP, move |_| {
            let seen = seen.clone();
            async move {
                sleep(TIMEOUT + Duration::from_secs(5)).await;
                seen.store(true, Ordering::SeqCst);
                Response::empty(200)
            }
        });
        let shared = shared(vec![slow]);
        let request = http::Request::get("/v1/ip").body(Empty::<Bytes>::new()).unwrap();
        let begin = Instant::now();
        let answer = service(shared.clone()).answer(request).await;
        assert_eq!((answer.status().as_u16(), begin.elapsed().as_secs()), (503, 60));
        assert_eq!(answer.body().await, "\"no answer within 60 s\"\n");
        assert!(!done.load(Ordering::SeqCst));
        shared.tasks.close();
        shared.tasks.wait().await;
        assert!(done.load(Ordering::SeqCst));
    }

    #[tokio::test(start_paused = true)]
    async fn an_incomplete_body_times_out() {
        let begun = futures::stream::iter([Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(b"{")))]);
        let body = StreamBody::new(futures::StreamExt::chain(begun, futures::stream::pending()));
        let request = http::Request::patch("/v1/config")
            .header("content-type", "application/json")
            .header("content-length", "100")
            .body(body)
            .unwrap();
        let begin = Instant::now();
        let answer = service(shared(vec![])).answer(request).await;
        assert_eq!(begin.elapsed().as_secs(), 60);
        // The deadline of the whole request and that of its body are the same; either may be noticed first.
        assert!([408, 503].contains(&answer.status().as_u16()), "{answer:?}");
    }
}
