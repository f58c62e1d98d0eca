//! The tracker over HTTP/1.1, in the protocol of an API server.

mod body;
mod path;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_types::{Api, ApiError, Key, Kind, Patch, Preconditions};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::tracker::Tracker;
use crate::types::Type;
use body::{Body, Events};
use path::{Path, parameters};

/// The lifetime of a watch for which the client names none.
const WATCH_LIFETIME: Duration = Duration::from_secs(30 * 60);

/// A [`Tracker`] behind a TCP listener: a client uses it as it uses a kube-apiserver without TLS and authentication.
///
/// Lists (with pages), streaming lists, watches that resume from a version, and requests on single objects, all as JSON.
/// Only kinds with a type in `k8s_types` are served. Clones are one server; several servers of a tracker each know their own
/// requests.
#[derive(Clone, Debug)]
pub struct HttpServer {
    tracker: Tracker,
    requests: Arc<Mutex<Requests>>,
}

type Hook = Box<dyn FnMut(&str) + Send>;

#[derive(Default)]
struct Requests {
    hook: Option<Hook>,
    /// Those since the last [`take_requests`](HttpServer::take_requests).
    log: Vec<String>,
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").field("log", &self.log).finish_non_exhaustive()
    }
}

impl HttpServer {
    /// Creates a server of a tracker's objects.
    pub fn new(tracker: &Tracker) -> HttpServer {
        HttpServer { tracker: tracker.clone(), requests: Arc::default() }
    }

    /// Returns the requests since the last call, each as `METHOD PATH?QUERY`.
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().log)
    }

    /// Calls a function with each request, `METHOD PATH?QUERY`, before it is executed. It replaces the one before.
    pub fn on_request(&self, hook: impl FnMut(&str) + Send + 'static) {
        self.requests.lock().hook = Some(Box::new(hook));
    }

    /// Serves the connections of a listener; ends only with an error of the listener. Connections end when it is dropped.
    pub async fn serve(&self, listener: TcpListener) -> io::Error {
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
            };
            let socket = match accepted {
                Ok((socket, _)) => socket,
                Err(error) => return error,
            };
            // Events of watches are small writes.
            let _ = socket.set_nodelay(true);
            let server = self.clone();
            let answers = service_fn(move |request| {
                let server = server.clone();
                async move { server.answer(request).await }
            });
            connections.spawn(async move {
                let http1 = hyper::server::conn::http1::Builder::new();
                // A client may close its connection at any time.
                let _ = http1.serve_connection(TokioIo::new(socket), answers).await;
            });
        }
    }

    fn note(&self, request: String) {
        let mut requests = self.requests.lock();
        if let Some(hook) = &mut requests.hook {
            hook(&request);
        }
        requests.log.push(request);
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, hyper::Error> {
        let (head, body) = request.into_parts();
        self.note(format!("{} {}", head.method, head.uri));
        let body = body.collect().await?.to_bytes();
        if head.uri.path() == "/version" {
            let version =
                json!({"major": "1", "minor": "34", "gitVersion": "v1.34.4", "platform": "linux/amd64"});
            return Ok(whole(StatusCode::OK, version.to_string().into()));
        }
        let Some(path) = Path::parse(head.uri.path()) else {
            let message = "the server could not find the requested resource".to_owned();
            return Ok(failure(&ApiError::NotFound(message)));
        };
        let answer = match (&path.name, &head.method) {
            (None, &Method::GET) => Ok(self.objects(&path, head.uri.query().unwrap_or_default())),
            _ => self.object(&path, &head.method, &head.headers, body).await,
        };
        Ok(answer.unwrap_or_else(|error| failure(&error)))
    }

    /// Executes a request on a single object.
    async fn object(
        &self,
        path: &Path,
        method: &Method,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Response<Body>, ApiError> {
        let (api, kind): (&dyn Api, Kind) = (&self.tracker, path.kind);
        let key = Key::new(path.namespace.clone().unwrap_or_default(), path.name.clone().unwrap_or_default());
        let answered = match *method {
            Method::GET => api.get(kind, &key).await,
            Method::POST => {
                let created = api.create(kind, body).await?;
                return Ok(whole(StatusCode::CREATED, created));
            }
            Method::PUT if path.is_status => api.update_status(kind, body).await,
            Method::PUT => api.update(kind, body).await,
            Method::PATCH => {
                let form = headers.get(header::CONTENT_TYPE).and_then(|form| form.to_str().ok());
                let patch = match form.unwrap_or_default() {
                    "application/json-patch+json" => Patch::Json(body),
                    "application/merge-patch+json" => Patch::Merge(body),
                    _ => Patch::Strategic(body),
                };
                api.patch(kind, &key, path.is_status, patch).await
            }
            _ => {
                let options: Value = serde_json::from_slice(&body).unwrap_or_default();
                let condition = |field: &str| options["preconditions"][field].as_str().map(Into::into);
                let only_if =
                    Preconditions { uid: condition("uid"), resource_version: condition("resourceVersion") };
                let deleted = api.delete(kind, &key, only_if).await;
                deleted.map(|()| json!({"kind": "Status", "status": "Success"}).to_string().into())
            }
        };
        answered.map(|object| whole(StatusCode::OK, object))
    }

    /// Lists or watches objects.
    fn objects(&self, path: &Path, query: &str) -> Response<Body> {
        let parameters = parameters(query);
        let parameter = |name: &str| parameters.get(name).map(String::as_str);
        let number = |name: &str| parameter(name).and_then(|text| text.parse::<u64>().ok());
        let fields = match parameter("fieldSelector").unwrap_or_default().parse() {
            Ok(fields) => fields,
            Err(error) => return failure(&ApiError::Invalid(format!("{error}"))),
        };
        let of = Type::from(path.kind);
        let table = self.tracker.objects();
        let selection = body::Selection { of, namespace: path.namespace.clone(), fields };
        if parameter("watch") != Some("true") {
            let from = number("continue").unwrap_or_default();
            let list = selection.list(&table, from, number("limit").filter(|limit| *limit > 0));
            return whole(StatusCode::OK, list.to_string().into());
        }
        let version =
            if parameter("sendInitialEvents") == Some("true") { None } else { number("resourceVersion") };
        let lifetime = number("timeoutSeconds").map_or(WATCH_LIFETIME, Duration::from_secs);
        let mut response = Response::new(Events::new(table, selection, version, lifetime).into_body());
        response.headers_mut().insert(header::CONTENT_TYPE, body::JSON);
        response
    }
}

fn whole(status: StatusCode, json: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::from(json).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, body::JSON);
    response
}

/// Returns an error as the object `Status`.
fn failure(error: &ApiError) -> Response<Body> {
    let (code, reason) = match error {
        ApiError::NotFound(_) => (404, "NotFound"),
        ApiError::AlreadyExists(_) => (409, "AlreadyExists"),
        ApiError::Conflict(_) => (409, "Conflict"),
        ApiError::Invalid(_) => (422, "Invalid"),
        ApiError::Forbidden(_) => (403, "Forbidden"),
        ApiError::Expired(_) => (410, "Expired"),
        ApiError::Unavailable { .. } => (500, "InternalError"),
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": error.to_string(), "reason": reason,
        "code": code,
    });
    let status_code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    whole(status_code, status.to_string().into())
}
