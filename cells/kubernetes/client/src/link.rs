//! The connection to the servers: a client, which is replaced when credentials change or a server fails.

mod identity;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hive::Health;
use http::{HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::BodyExt;
use jiff::Timestamp;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use crate::access::{Access, Names, Place};
use crate::connect::Connect;
use crate::error::Error;
use crate::limiter::Limiter;
use crate::metrics::ClientMetrics;
use crate::profile::Fence;
use crate::request_error::{About, ErrorKind, RequestError, of_connection};
use crate::target::{template, verb};
use crate::version::Version;

/// The timeout for a response's head, and for its body.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum size of an error response's body in bytes.
const MAX_ERROR_BODY: usize = 64 << 10;

/// The maximum size of a body with one object in bytes.
const MAX_BODY: usize = crate::scan::MAX_OBJECT;

#[cfg(test)]
pub(crate) use identity::IDENTITY;

/// The connection to the servers.
pub(crate) struct Link {
    place: Place,
    urls: Vec<String>,
    connect: Arc<dyn Connect>,
    limiter: Limiter,
    fence: Fence,
    pub(crate) metrics: ClientMetrics,
    health: Health,
    state: Mutex<State>,
    /// Milliseconds from `born` to the last byte received from a server.
    last_received: AtomicU64,
    born: Instant,
    /// Incremented to close all connections.
    cut: watch::Sender<u64>,
    /// Incremented when a server answers after a failure.
    recovery: watch::Sender<u64>,
    /// Notified when credentials were refused, since they may have changed.
    pub(crate) suspect: Notify,
}

struct State {
    access: Access,
    /// The server in use, as an index.
    server: usize,
    client: kube::Client,
    /// Incremented with each new client.
    generation: u64,
    /// The state of each server.
    traits: Vec<Traits>,
    /// The number of consecutive requests that failed because of the server.
    failed: u64,
    /// The number of failures of servers so far.
    failures: u64,
    error: Option<String>,
    /// The reported errors: server, text without digits, and time of the report.
    reported: Vec<(usize, String, Instant)>,
    /// The uid of the cluster, once it is known, and the number of clusters seen.
    cluster: (Option<String>, u64),
    /// Whether the cluster was identified since the last failure or change of the server.
    identified: bool,
    version: Option<Version>,
}

/// The state of a server.
#[derive(Clone, Copy, Debug, Default)]
struct Traits {
    /// The time at which it failed to stream a list.
    no_streams: Option<Instant>,
}

/// The interval at which a persistent error is reported again.
const REPORT_INTERVAL: Duration = Duration::from_secs(3600);

/// The maximum number of different errors that are reported before a success.
const MAX_REPORTED: usize = 20;

/// The time for which no streaming list is requested after a server has failed to send one.
const NO_STREAM_INTERVAL: Duration = Duration::from_secs(3600);

/// A client for one request.
#[derive(Clone)]
pub(crate) struct Lease {
    client: kube::Client,
    generation: u64,
    server: usize,
    /// The server's address.
    pub(crate) url: Arc<str>,
    host: String,
    pub(crate) names: Arc<Names>,
    /// The number of the cluster.
    pub(crate) cluster: u64,
    /// Changes to close all connections.
    pub(crate) cuts: watch::Receiver<u64>,
}

impl State {
    /// Returns whether this error of the current server was not reported within the hour, and records it as reported.
    /// Errors that differ only in digits, such as times and counts, are equal.
    fn is_new_error(&mut self, text: &str) -> bool {
        let text: String = text.chars().filter(|c| !c.is_ascii_digit()).collect();
        self.reported.retain(|(.., at)| at.elapsed() < REPORT_INTERVAL);
        let known =
            self.reported.iter().any(|(server, reported, _)| *server == self.server && *reported == text);
        if !known && self.reported.len() < MAX_REPORTED {
            self.reported.push((self.server, text, Instant::now()));
            return true;
        }
        false
    }
}

impl Link {
    /// Reads the credentials; connects at the first request. Blocks.
    pub(crate) fn new(
        place: Place,
        urls: Vec<String>,
        connect: Arc<dyn Connect>,
        (limiter, fence): (Limiter, Fence),
        metrics: ClientMetrics,
        health: Health,
    ) -> Result<Link, Error> {
        let access = place.access(&urls)?;
        let client = connect
            .connect(&access, &access.servers[0])
            .map_err(|reason| place.file(&access.names.user, reason))?;
        let traits = vec![Traits::default(); access.servers.len()];
        let state = State {
            access,
            server: 0,
            client,
            generation: 0,
            traits,
            failed: 0,
            failures: 0,
            error: None,
            reported: Vec::new(),
            cluster: (None, 0),
            identified: false,
            version: None,
        };
        Ok(Link {
            place,
            urls,
            connect,
            limiter,
            fence,
            metrics,
            health,
            state: Mutex::new(state),
            last_received: AtomicU64::new(0),
            born: Instant::now(),
            cut: watch::Sender::new(0),
            recovery: watch::Sender::new(0),
            suspect: Notify::new(),
        })
    }

    /// Returns the current client.
    pub(crate) fn lease(&self) -> Lease {
        let state = self.state.lock();
        let url = &state.access.servers[state.server];
        Lease {
            client: state.client.clone(),
            generation: state.generation,
            server: state.server,
            url: url.to_string().trim_end_matches('/').into(),
            host: url.authority().map(ToString::to_string).unwrap_or_default(),
            names: state.access.names.clone(),
            cluster: state.cluster.1,
            cuts: self.cut.subscribe(),
        }
    }

    /// Changes to close all connections.
    pub(crate) fn cuts(&self) -> watch::Receiver<u64> {
        self.cut.subscribe()
    }

    /// Changes when a server answers after a failure.
    pub(crate) fn recoveries(&self) -> watch::Receiver<u64> {
        self.recovery.subscribe()
    }

    /// Records that data was received.
    pub(crate) fn received(&self) {
        let now = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_received.store(now, Ordering::Relaxed);
    }

    /// Returns the time since data was last received.
    pub(crate) fn silence(&self) -> Duration {
        self.born.elapsed().saturating_sub(Duration::from_millis(self.last_received.load(Ordering::Relaxed)))
    }

    /// Sends a request, unless the fence refuses it, and waits for the response's head. Fails if all connections are closed
    /// meanwhile, and for status codes other than success.
    pub(crate) async fn send(
        &self,
        lease: &Lease,
        request: Request<Body>,
        name: &str,
        plural: &str,
        group: &str,
    ) -> Result<Response<Body>, RequestError> {
        let waited = self.limiter.acquire().await;
        let (method, uri) = (request.method().clone(), request.uri().to_string());
        let path = template(&uri);
        self.metrics.waited(waited);
        if !self.fence.permits(&method, plural) {
            let text = format!("{method} {name} was not sent: this process may not write any more");
            return Err(RequestError::new(ErrorKind::Fenced, text));
        }
        let verb = verb(&method, &uri);
        let about = About { name, verb, plural, group, server: &lease.url, names: &lease.names };
        let (asked, failures) = (Instant::now(), self.state.lock().failures);
        let mut cuts = lease.cuts.clone();
        let answer = tokio::select! {
            answer = timeout(ANSWER_TIMEOUT, lease.client.send(request)) => answer,
            Ok(()) = cuts.changed() => {
                self.metrics.called(&lease.host, &method, "<error>", &path, asked.elapsed());
                let text = format!("the connection to {} was closed before it has answered", lease.url);
                return Err(RequestError::new(ErrorKind::Cut, text));
            }
        };
        let answer = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                self.metrics.called(&lease.host, &method, "<error>", &path, asked.elapsed());
                return Err(self.failed(lease, of_connection(&error, &lease.url, &lease.names)));
            }
            Err(_) => {
                self.metrics.called(&lease.host, &method, "<error>", &path, asked.elapsed());
                let text = format!(
                    "{} does not answer: {verb} {name} has waited {} s",
                    lease.url,
                    ANSWER_TIMEOUT.as_secs()
                );
                return Err(self.failed(lease, RequestError::new(ErrorKind::Unreachable, text)));
            }
        };
        self.metrics.called(&lease.host, &method, answer.status().as_str(), &path, asked.elapsed());
        self.received();
        if answer.status().is_success() {
            self.succeeded(lease, failures);
            return Ok(answer);
        }
        let (head, body) = answer.into_parts();
        let body = timeout(ANSWER_TIMEOUT, limited(body, MAX_ERROR_BODY)).await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        let error = RequestError::of_answer(head.status, &head.headers, &body, &about);
        if error.kind == ErrorKind::Unauthorized {
            self.suspect.notify_one();
        }
        if error.is_of_server() {
            return Err(self.failed(lease, error));
        }
        self.succeeded(lease, failures);
        Err(error)
    }

    /// Sends a request and returns the complete response.
    pub(crate) async fn fetch(
        &self,
        request: Request<Body>,
        name: &str,
        plural: &str,
        group: &str,
    ) -> Result<Bytes, RequestError> {
        self.fetch_by(&self.lease(), request, name, plural, group).await
    }

    async fn fetch_by(
        &self,
        lease: &Lease,
        request: Request<Body>,
        name: &str,
        plural: &str,
        group: &str,
    ) -> Result<Bytes, RequestError> {
        let answer = self.send(lease, request, name, plural, group).await?;
        match timeout(ANSWER_TIMEOUT, limited(answer.into_body(), MAX_BODY)).await {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(reason)) => Err(RequestError::new(
                ErrorKind::Cut,
                format!("the answer of {} about {name} broke off: {reason}", lease.url),
            )),
            Err(_) => Err(RequestError::new(
                ErrorKind::Stalled,
                format!("the answer of {} about {name} does not end", lease.url),
            )),
        }
    }

    /// Requests the server's version, as the heartbeat.
    pub(crate) async fn version(&self, lease: &Lease, limit: Duration) -> Result<Version, RequestError> {
        let request = request(Method::GET, "/version", "application/json", Body::empty());
        let answer = match timeout(limit, self.fetch_by(lease, request, "its version", "version", "")).await {
            Ok(answer) => answer?,
            Err(_) => {
                let text = format!("{} has not answered for {} s", lease.url, limit.as_secs_f32());
                return Err(self.failed(lease, RequestError::new(ErrorKind::Unreachable, text)));
            }
        };
        let version: Version = serde_json::from_slice(&answer).map_err(|error| {
            let text = format!(
                "{} answers its version with {:?}: {error}",
                lease.url,
                String::from_utf8_lossy(&answer)
            );
            RequestError::new(ErrorKind::Nonsense, text.chars().take(300).collect::<String>())
        })?;
        let mut state = self.state.lock();
        if state.version.as_ref() != Some(&version) {
            tracing::info!(server = &*lease.url, version = %version, "Connected to the API server");
            let server = state.server;
            state.traits[server] = Traits::default();
            state.version = Some(version.clone());
        }
        self.health.ok(format!("{}, {version}", lease.url));
        Ok(version)
    }

    /// Returns the server's version, or the reason why no server responds.
    pub(crate) fn status(&self) -> Result<Option<Version>, String> {
        let state = self.state.lock();
        match &state.error {
            Some(error) => Err(error.clone()),
            None => Ok(state.version.clone()),
        }
    }

    /// Closes all connections, and switches to another server if there is one and that of the lease is still in use.
    pub(crate) fn abandon(&self, lease: &Lease) {
        let mut state = self.state.lock();
        // Several requests may report the same broken server: only the first one switches, lest a server be skipped.
        if lease.generation == state.generation {
            let next = (state.server + 1) % state.access.servers.len();
            self.switch(&mut state, next);
        }
        drop(state);
        self.cut.send_modify(|cuts| *cuts += 1);
    }

    /// Reloads the credentials, and closes connections to servers that are no longer configured. Returns whether
    /// anything has changed. Blocks.
    pub(crate) fn reload(&self) -> Result<bool, Error> {
        let access = self.place.access(&self.urls)?;
        let before = self.state.lock().access.clone();
        if access.content == before.content && access.expires == before.expires {
            return Ok(false);
        }
        let moved = access.servers != before.servers;
        let server = if moved { 0 } else { self.state.lock().server };
        let client = self
            .connect
            .connect(&access, &access.servers[server])
            .map_err(|reason| self.place.file(&access.names.user, reason))?;
        let mut state = self.state.lock();
        if moved {
            state.traits = vec![Traits::default(); access.servers.len()];
        }
        (state.access, state.client, state.server) = (access, client, server);
        state.identified = false;
        state.generation += 1;
        drop(state);
        if moved {
            self.cut.send_modify(|cuts| *cuts += 1);
        }
        Ok(true)
    }

    /// Returns the files of the credentials.
    pub(crate) fn files(&self) -> Vec<std::path::PathBuf> {
        self.state.lock().access.files.clone()
    }

    /// Returns the remaining validity of the credentials, if known.
    pub(crate) fn valid_for(&self) -> Option<Duration> {
        let end = self.state.lock().access.expires?;
        Some(Duration::try_from(end.duration_since(Timestamp::now())).unwrap_or_default())
    }

    /// Whether the server is expected to support streaming lists.
    pub(crate) fn streams(&self, lease: &Lease) -> bool {
        let state = self.state.lock();
        let traits = state.traits.get(lease.server).copied().unwrap_or_default();
        traits.no_streams.is_none_or(|since| since.elapsed() > NO_STREAM_INTERVAL)
    }

    /// Records that the server does not support streaming lists.
    pub(crate) fn does_not_stream(&self, lease: &Lease) {
        if let Some(traits) = self.state.lock().traits.get_mut(lease.server) {
            traits.no_streams = Some(Instant::now());
        }
    }

    /// Records that the server has responded to a request that began after this number of failures. One that a failure
    /// has overtaken shows nothing: it may have used a connection from before the fault.
    fn succeeded(&self, lease: &Lease, failures: u64) {
        let mut state = self.state.lock();
        if state.failures != failures {
            return;
        }
        if std::mem::take(&mut state.failed) > 0 {
            self.recovery.send_modify(|recoveries| *recoveries += 1);
        }
        state.reported.clear();
        if state.error.take().is_some() {
            tracing::info!(server = &*lease.url, "The API server answers again");
            let version = state.version.as_ref().map(ToString::to_string).unwrap_or_default();
            self.health.ok(format!("{}, {version}", lease.url));
        }
    }

    /// Records a failure of the server, and switches to the next one if there are several. An error is reported once an
    /// hour.
    fn failed(&self, lease: &Lease, mut error: RequestError) -> RequestError {
        let mut state = self.state.lock();
        if lease.generation != state.generation {
            return error; // the client has been replaced meanwhile
        }
        if error.kind == ErrorKind::Dropped {
            match &state.error {
                Some(known) => error.text.clone_from(known),
                // The next connection attempt may fail with a reason.
                None if state.failed < MAX_SILENT_DROPS => {
                    state.failed += 1;
                    return error;
                }
                None => {}
            }
        }
        state.failed += 1;
        state.failures += 1;
        state.identified = false;
        if state.is_new_error(&error.text) {
            tracing::warn!(failures = state.failed, error = %error, "The API server cannot be used");
        }
        self.health.degraded("No API server", &error);
        state.error = Some(error.text.clone());
        if state.access.servers.len() > 1 {
            let next = (state.server + 1) % state.access.servers.len();
            self.switch(&mut state, next);
        }
        error
    }

    /// Replaces the client by one with new connections.
    fn switch(&self, state: &mut State, server: usize) {
        match self.connect.connect(&state.access, &state.access.servers[server]) {
            Ok(client) => {
                (state.client, state.server) = (client, server);
                state.identified = false;
                state.generation += 1;
            }
            Err(reason) => tracing::warn!(error = reason, "Cannot use the next API server"),
        }
    }
}

/// Returns a request with headers for a media type.
pub(crate) fn request(method: Method, uri: &str, accept: &'static str, body: Body) -> Request<Body> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    // Cannot fail: paths consist of escaped names.
    *request.uri_mut() = uri.parse().unwrap_or(Uri::from_static("/"));
    let headers = request.headers_mut();
    headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
    headers.insert(header::USER_AGENT, HeaderValue::from_static(AGENT));
    request
}

/// The number of consecutive connections that may end without a reason before that is reported.
const MAX_SILENT_DROPS: u64 = 3;

/// The `User-Agent` of requests.
const AGENT: &str = concat!("apiary/", env!("CARGO_PKG_VERSION"));

/// Reads a body up to a maximum size.
async fn limited(mut body: Body, most: usize) -> Result<Bytes, String> {
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| error.to_string())?;
        let Ok(data) = frame.into_data() else { continue };
        if whole.len() + data.len() > most {
            return Err(format!("it has more than {most} bytes"));
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.into())
}
