//! The way to the servers: one client, another when credentials change or a server fails.

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
use crate::request_error::{About, ErrorKind, RequestError, of_connection};
use crate::target::{template, verb};
use crate::version::Version;

/// How long an answer may take to begin.
const ANSWER: Duration = Duration::from_secs(60);

/// Bytes of an answer that is none of success.
const MAX_TROUBLE: usize = 64 << 10;

/// Bytes of an object in an answer.
const MAX_ANSWER: usize = crate::scan::MAX_OBJECT;

#[cfg(test)]
pub(crate) use identity::IDENTITY;

/// The way to the servers.
pub(crate) struct Link {
    place: Place,
    urls: Vec<String>,
    connect: Arc<dyn Connect>,
    limiter: Limiter,
    pub(crate) metrics: ClientMetrics,
    health: Health,
    state: Mutex<State>,
    /// Milliseconds from `born` to the last byte that a server has sent.
    heard: AtomicU64,
    born: Instant,
    /// Counts up when all connections are to be given up.
    cut: watch::Sender<u64>,
    /// Somebody's credentials were refused: they may have changed.
    pub(crate) suspect: Notify,
}

struct State {
    access: Access,
    /// The server in use, as an index.
    server: usize,
    client: kube::Client,
    /// Counts clients.
    generation: u64,
    /// The state of each server.
    traits: Vec<Traits>,
    /// Requests that failed in a row because of the server.
    failed: u64,
    trouble: Option<String>,
    /// What the log has of the trouble: server and text without numbers, and when it was told.
    told: Vec<(usize, String, Instant)>,
    /// The uid of the cluster, once it is known, and how many clusters there have been.
    cluster: (Option<String>, u64),
    /// Whether that was asked since the server was last away or changed.
    identified: bool,
    version: Option<Version>,
}

/// The state of a server.
#[derive(Clone, Copy, Debug, Default)]
struct Traits {
    /// When it did not stream a list to its end.
    no_streams: Option<Instant>,
}

/// How often a trouble is told that lasts.
const AGAIN: Duration = Duration::from_secs(3600);

/// Different troubles that are told before one is over.
const MAX_TOLD: usize = 20;

/// How long a server is not asked again for what it did not do.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The client that a request is sent by.
#[derive(Clone)]
pub(crate) struct Lease {
    client: kube::Client,
    generation: u64,
    server: usize,
    /// The server's address.
    pub(crate) url: Arc<str>,
    host: String,
    pub(crate) names: Arc<Names>,
    /// Counts clusters.
    pub(crate) cluster: u64,
    /// Changes when all connections are to be given up.
    pub(crate) cuts: watch::Receiver<u64>,
}

impl State {
    /// Whether the server in use has not had this trouble within the hour, as far as the log tells. Times and counts in
    /// texts make no difference.
    fn is_news(&mut self, text: &str) -> bool {
        let text: String = text.chars().filter(|c| !c.is_ascii_digit()).collect();
        self.told.retain(|(.., at)| at.elapsed() < AGAIN);
        let known = self.told.iter().any(|(server, told, _)| *server == self.server && *told == text);
        if !known && self.told.len() < MAX_TOLD {
            self.told.push((self.server, text, Instant::now()));
            return true;
        }
        false
    }
}

impl Link {
    /// Reads the credentials; connects when there is something to ask. Blocks.
    pub(crate) fn new(
        place: Place,
        urls: Vec<String>,
        connect: Arc<dyn Connect>,
        limiter: Limiter,
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
            trouble: None,
            told: Vec::new(),
            cluster: (None, 0),
            identified: false,
            version: None,
        };
        Ok(Link {
            place,
            urls,
            connect,
            limiter,
            metrics,
            health,
            state: Mutex::new(state),
            heard: AtomicU64::new(0),
            born: Instant::now(),
            cut: watch::Sender::new(0),
            suspect: Notify::new(),
        })
    }

    /// Returns the client that a request is sent by now.
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

    /// Changes when all connections are to be given up.
    pub(crate) fn cuts(&self) -> watch::Receiver<u64> {
        self.cut.subscribe()
    }

    /// A server has sent something.
    pub(crate) fn heard(&self) {
        let now = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard.store(now, Ordering::Relaxed);
    }

    /// How long no server has sent anything.
    pub(crate) fn silence(&self) -> Duration {
        self.born.elapsed().saturating_sub(Duration::from_millis(self.heard.load(Ordering::Relaxed)))
    }

    /// Sends a request and waits for the answer's head, unless all connections are given up. An answer that is none of
    /// success is trouble.
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
        let verb = verb(&method, &uri);
        let about = About { name, verb, plural, group, server: &lease.url, names: &lease.names };
        let asked = Instant::now();
        let mut cuts = lease.cuts.clone();
        let answer = tokio::select! {
            answer = timeout(ANSWER, lease.client.send(request)) => answer,
            Ok(()) = cuts.changed() => {
                self.metrics.called(&lease.host, &method, "<error>", &path, asked.elapsed());
                let text = format!("the connection to {} was given up before it has answered", lease.url);
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
                let text =
                    format!("{} does not answer: {verb} {name} has waited {} s", lease.url, ANSWER.as_secs());
                return Err(self.failed(lease, RequestError::new(ErrorKind::Unreachable, text)));
            }
        };
        self.metrics.called(&lease.host, &method, answer.status().as_str(), &path, asked.elapsed());
        self.heard();
        if answer.status().is_success() {
            self.works(lease);
            return Ok(answer);
        }
        let (head, body) = answer.into_parts();
        let body = timeout(ANSWER, limited(body, MAX_TROUBLE)).await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        let trouble = RequestError::of_answer(head.status, &head.headers, &body, &about);
        if trouble.what == ErrorKind::Unauthorized {
            self.suspect.notify_one();
        }
        if trouble.is_of_server() {
            return Err(self.failed(lease, trouble));
        }
        self.works(lease);
        Err(trouble)
    }

    /// Sends a request and gives the whole answer.
    pub(crate) async fn ask(
        &self,
        request: Request<Body>,
        name: &str,
        plural: &str,
        group: &str,
    ) -> Result<Bytes, RequestError> {
        self.ask_by(&self.lease(), request, name, plural, group).await
    }

    async fn ask_by(
        &self,
        lease: &Lease,
        request: Request<Body>,
        name: &str,
        plural: &str,
        group: &str,
    ) -> Result<Bytes, RequestError> {
        let answer = self.send(lease, request, name, plural, group).await?;
        match timeout(ANSWER, limited(answer.into_body(), MAX_ANSWER)).await {
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

    /// Asks the server for its version; that is its sign of life.
    pub(crate) async fn version(&self, lease: &Lease, limit: Duration) -> Result<Version, RequestError> {
        let request = request(Method::GET, "/version", "application/json", Body::empty());
        let answer = match timeout(limit, self.ask_by(lease, request, "its version", "version", "")).await {
            Ok(answer) => answer?,
            Err(_) => {
                let text = format!("{} has shown no sign of life for {} s", lease.url, limit.as_secs_f32());
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

    /// The server's version, or why there is none to talk to.
    pub(crate) fn status(&self) -> Result<Option<Version>, String> {
        let state = self.state.lock();
        match &state.trouble {
            Some(trouble) => Err(trouble.clone()),
            None => Ok(state.version.clone()),
        }
    }

    /// Gives up all connections, and the server of the lease if there is another and nobody has left it yet.
    pub(crate) fn give_up(&self, lease: &Lease) {
        let mut state = self.state.lock();
        if lease.generation == state.generation {
            let next = (state.server + 1) % state.access.servers.len();
            self.switch(&mut state, next);
        }
        drop(state);
        self.cut.send_modify(|cuts| *cuts += 1);
    }

    /// Reads the credentials again. Connections to servers that are named no more are given up. True if something has
    /// changed. Blocks.
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

    /// The files that matter.
    pub(crate) fn files(&self) -> Vec<std::path::PathBuf> {
        self.state.lock().access.files.clone()
    }

    /// How long the credentials are good, if that is known.
    pub(crate) fn good_for(&self) -> Option<Duration> {
        let end = self.state.lock().access.expires?;
        Some(Duration::try_from(end.duration_since(Timestamp::now())).unwrap_or_default())
    }

    /// Whether the server streams lists, as far as is known.
    pub(crate) fn streams(&self, lease: &Lease) -> bool {
        let state = self.state.lock();
        let traits = state.traits.get(lease.server).copied().unwrap_or_default();
        traits.no_streams.is_none_or(|since| since.elapsed() > REMEMBERED)
    }

    /// The server does not stream lists.
    pub(crate) fn does_not_stream(&self, lease: &Lease) {
        if let Some(traits) = self.state.lock().traits.get_mut(lease.server) {
            traits.no_streams = Some(Instant::now());
        }
    }

    /// The server has answered.
    fn works(&self, lease: &Lease) {
        let mut state = self.state.lock();
        state.failed = 0;
        state.told.clear();
        if state.trouble.take().is_some() {
            tracing::info!(server = &*lease.url, "The API server answers again");
            let version = state.version.as_ref().map(ToString::to_string).unwrap_or_default();
            self.health.ok(format!("{}, {version}", lease.url));
        }
    }

    /// The server has failed: the next one is tried, if there are several. What is told is reported again in an hour.
    fn failed(&self, lease: &Lease, mut trouble: RequestError) -> RequestError {
        let mut state = self.state.lock();
        if lease.generation != state.generation {
            return trouble; // of a client that is not in use any more
        }
        if trouble.what == ErrorKind::Dropped {
            match &state.trouble {
                Some(known) => trouble.text.clone_from(known),
                // The next connection may tell the reason.
                None if state.failed < DROPPED => {
                    state.failed += 1;
                    return trouble;
                }
                None => {}
            }
        }
        state.failed += 1;
        state.identified = false;
        if state.is_news(&trouble.text) {
            tracing::warn!(failures = state.failed, error = %trouble, "The API server cannot be used");
        }
        self.health.degraded("No API server", &trouble);
        state.trouble = Some(trouble.text.clone());
        if state.access.servers.len() > 1 {
            let next = (state.server + 1) % state.access.servers.len();
            self.switch(&mut state, next);
        }
        trouble
    }

    /// Another client, with connections of its own.
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

/// A request for an answer in a form.
pub(crate) fn request(method: Method, uri: &str, accept: &'static str, body: Body) -> Request<Body> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    // Addresses are made of names that are escaped.
    *request.uri_mut() = uri.parse().unwrap_or(Uri::from_static("/"));
    let headers = request.headers_mut();
    headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
    headers.insert(header::USER_AGENT, HeaderValue::from_static(AGENT));
    request
}

/// Connections in a row that may end without a reason before that is told.
const DROPPED: u64 = 3;

/// Who asks, for the server's log.
const AGENT: &str = concat!("apiary/", env!("CARGO_PKG_VERSION"));

/// All of a body that is not too long.
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
