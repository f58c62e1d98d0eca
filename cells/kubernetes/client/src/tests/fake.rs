//! A fake API server with fault injection.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use k8s_types::Key;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::access::Access;
use crate::connect::Connect;

pub(super) type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// The server's behaviour on streaming lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Streaming {
    /// It supports them.
    Yes,
    /// It responds with 422, like a server without the feature.
    Refused,
    /// It ends the response immediately.
    EndsAtOnce,
    /// It sends the objects, but never the bookmark that ends the list.
    WithoutEnd,
}

/// A fault of the next response.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    Status(u16, Option<u64>),
    Html(u16),
    /// The body ends with an error after a number of bytes.
    Cut(usize),
    /// No response.
    Hang,
    /// The connection fails.
    Refuse,
}

pub(super) struct State {
    pub(super) version: u64,
    /// The version before which events are no longer available.
    compacted: u64,
    pub(super) objects: BTreeMap<String, BTreeMap<Key, Value>>,
    events: Vec<(u64, String, &'static str, Value)>,
    pub(super) streaming: Streaming,
    pub(super) faults: VecDeque<Fault>,
    pub(super) requests: Vec<String>,
    /// The size of a chunk in bytes.
    pub(super) chunk: usize,
    /// The maximum number of objects in a page.
    pub(super) page: usize,
    pub(super) bookmarks: bool,
    /// The uid of the cluster.
    pub(super) cluster: &'static str,
    /// No answer has more versions than the first of these.
    pub(super) token: Option<String>,
}

/// The server.
#[derive(Clone)]
pub(super) struct Fake {
    pub(super) state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
    /// Changes to break off all watches.
    cut: watch::Sender<u64>,
}

impl Fake {
    pub(super) fn new(plurals: &[&str]) -> Fake {
        let state = State {
            version: 100,
            compacted: 0,
            objects: plurals.iter().map(|plural| ((*plural).to_owned(), BTreeMap::new())).collect(),
            events: Vec::new(),
            streaming: Streaming::Yes,
            faults: VecDeque::new(),
            requests: Vec::new(),
            chunk: usize::MAX,
            page: 500,
            bookmarks: true,
            cluster: "this",
            token: None,
        };
        Fake {
            state: Arc::new(Mutex::new(state)),
            changed: watch::Sender::new(0),
            cut: watch::Sender::new(0),
        }
    }

    pub(super) fn put(&self, plural: &str, namespace: &str, name: &str, spec: &Value) {
        let mut state = self.state.lock();
        state.version += 1;
        let version = state.version;
        let key = Key::new(namespace, name);
        let mut object =
            json!({"metadata": {"name": name, "resourceVersion": version.to_string()}, "spec": spec});
        if !namespace.is_empty() {
            object["metadata"]["namespace"] = namespace.into();
        }
        let old = state.objects.entry(plural.to_owned()).or_default().insert(key, object.clone());
        let kind = if old.is_some() { "MODIFIED" } else { "ADDED" };
        state.events.push((version, plural.to_owned(), kind, object));
        drop(state);
        self.changed.send_modify(|n| *n += 1);
    }

    pub(super) fn delete(&self, plural: &str, namespace: &str, name: &str) {
        let mut state = self.state.lock();
        let Some(mut object) =
            state.objects.get_mut(plural).and_then(|all| all.remove(&Key::new(namespace, name)))
        else {
            return;
        };
        state.version += 1;
        let version = state.version;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        state.events.push((version, plural.to_owned(), "DELETED", object));
        drop(state);
        self.changed.send_modify(|n| *n += 1);
    }

    /// Drops old events: a watch that has not seen them must list again.
    pub(super) fn compact(&self) {
        let mut state = self.state.lock();
        state.events.clear();
        state.compacted = state.version;
    }

    /// Deletes an object without an event.
    pub(super) fn lose(&self, plural: &str, namespace: &str, name: &str) {
        let mut state = self.state.lock();
        state.objects.get_mut(plural).map(|all| all.remove(&Key::new(namespace, name)));
    }

    /// Sends a false event to watches.
    pub(super) fn lie(&self, plural: &str, kind: &'static str, object: Value) {
        let mut state = self.state.lock();
        state.version += 1;
        let version = state.version;
        state.events.push((version, plural.to_owned(), kind, object));
        drop(state);
        self.changed.send_modify(|n| *n += 1);
    }

    /// Breaks off all watches.
    pub(super) fn cut(&self) {
        self.cut.send_modify(|n| *n += 1);
    }

    pub(super) fn fault(&self, fault: Fault) {
        self.state.lock().faults.push_back(fault);
    }

    pub(super) fn requests(&self) -> Vec<String> {
        self.state.lock().requests.clone()
    }

    /// Returns the current objects: key and spec.
    pub(super) fn truth(&self, plural: &str) -> BTreeMap<Key, Value> {
        self.state.lock().objects.get(plural).cloned().unwrap_or_default()
    }

    pub(super) async fn answer(
        &self,
        method: Method,
        uri: Uri,
        token: Option<String>,
    ) -> Result<Answer, io::Error> {
        let fault = {
            let mut state = self.state.lock();
            state.requests.push(format!("{method} {uri}"));
            if state.token.is_some() && state.token != token {
                return Ok(status(401, None, "Unauthorized"));
            }
            state.faults.pop_front()
        };
        let mut most = usize::MAX;
        match fault {
            Some(Fault::Status(code, after)) => return Ok(status(code, after, "so it is")),
            Some(Fault::Html(code)) => {
                let page = "<html><body>captive portal</body></html>";
                return Ok(whole(code, "text/html", page.as_bytes().to_vec()));
            }
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Refuse) => return Err(io::ErrorKind::ConnectionRefused.into()),
            Some(Fault::Cut(bytes)) => most = bytes,
            None => {}
        }
        let query: BTreeMap<String, String> = uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        if uri.path() == "/version" {
            let version =
                json!({"major": "1", "minor": "34", "gitVersion": "v1.34.4", "platform": "linux/amd64"});
            return Ok(whole(200, "application/json", version.to_string().into_bytes()));
        }
        if uri == crate::link::IDENTITY {
            let uid = self.state.lock().cluster;
            let list = json!({"metadata": {}, "items": [{"metadata": {"name": "kube-system", "uid": uid}}]});
            return Ok(whole(200, "application/json", list.to_string().into_bytes()));
        }
        let plural = uri.path().rsplit('/').next().unwrap_or_default().to_owned();
        if !self.state.lock().objects.contains_key(&plural) {
            return Ok(status(404, None, "the server could not find the requested resource"));
        }
        if query.contains_key("watch") {
            self.watch(plural, &query, most)
        } else {
            self.list(&plural, &query, most)
        }
    }

    fn list(&self, plural: &str, query: &BTreeMap<String, String>, most: usize) -> Result<Answer, io::Error> {
        let state = self.state.lock();
        let all: Vec<&Value> = state.objects[plural].values().collect();
        let (from, version): (usize, u64) =
            match query.get("continue").map(|token| token.split_once('-').unwrap_or_default()) {
                Some((from, version)) => (from.parse().unwrap_or(0), version.parse().unwrap_or(0)),
                None => (0, state.version),
            };
        if version < state.compacted || (from > 0 && version != state.version) {
            return Ok(status(410, None, "The provided continue parameter is too old"));
        }
        let limit = if query.contains_key("limit") { state.page } else { usize::MAX };
        let to = from.saturating_add(limit).min(all.len());
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if to < all.len() {
            metadata["continue"] = format!("{to}-{version}").into();
        }
        // Go sorts the keys of lists of custom resources: `metadata` follows `items`.
        let items = serde_json::to_string(&all[from.min(to)..to])?;
        let text = match version % 2 {
            0 => format!(
                "{{\"kind\":\"List\",\"apiVersion\":\"v1\",\"metadata\":{metadata},\"items\":{items}}}\n"
            ),
            _ => format!(
                "{{\"apiVersion\":\"v1\",\"items\":{items},\"kind\":\"List\",\"metadata\":{metadata}}}\n"
            ),
        };
        let chunk = state.chunk;
        drop(state);
        Ok(chunked(text.into_bytes(), chunk, most))
    }

    fn watch(
        &self,
        plural: String,
        query: &BTreeMap<String, String>,
        most: usize,
    ) -> Result<Answer, io::Error> {
        let state = self.state.lock();
        let initial = query.contains_key("sendInitialEvents");
        let asked = query.get("resourceVersion").and_then(|version| version.parse::<u64>().ok());
        let mut pending = VecDeque::new();
        let mut ends = false;
        let mut version = asked.unwrap_or(state.version);
        if initial {
            match state.streaming {
                Streaming::Refused => return Ok(status(422, None, "sendInitialEvents is forbidden")),
                Streaming::EndsAtOnce => ends = true,
                Streaming::Yes | Streaming::WithoutEnd => {
                    if asked.is_some_and(|asked| asked > state.version) {
                        return Ok(status(504, None, "Too large resource version"));
                    }
                    version = state.version;
                    for object in state.objects[&plural].values() {
                        pending.push_back(event("ADDED", object));
                    }
                    if state.streaming == Streaming::Yes {
                        let metadata = json!({
                            "resourceVersion": version.to_string(),
                            "annotations": {"k8s.io/initial-events-end": "true"}
                        });
                        pending.push_back(event("BOOKMARK", &json!({"kind": "Pod", "metadata": metadata})));
                    }
                }
            }
        } else if version > state.version {
            return Ok(status(504, None, "Too large resource version"));
        } else if version < state.compacted {
            pending.push_back(event(
                "ERROR",
                &json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}),
            ));
            ends = true;
        }
        let seconds = query.get("timeoutSeconds").and_then(|seconds| seconds.parse().ok()).unwrap_or(1800);
        let watching = Watching {
            fake: self.clone(),
            plural,
            version,
            pending,
            ends,
            until: Instant::now() + Duration::from_secs(seconds),
            changed: self.changed.subscribe(),
            cut: self.cut.subscribe(),
            chunk: state.chunk,
            left: most,
            bookmarks: state.bookmarks,
            broken: false,
        };
        drop(state);
        let body = stream::unfold(watching, |mut watching| async move {
            let chunk = watching.next().await?;
            Some((chunk.map(Frame::data), watching))
        });
        Ok(with_body(200, "application/json", StreamBody::new(body).boxed_unsync()))
    }
}

struct Watching {
    fake: Fake,
    plural: String,
    version: u64,
    pending: VecDeque<Vec<u8>>,
    ends: bool,
    until: Instant,
    changed: watch::Receiver<u64>,
    cut: watch::Receiver<u64>,
    chunk: usize,
    left: usize,
    bookmarks: bool,
    broken: bool,
}

impl Watching {
    async fn next(&mut self) -> Option<Result<Bytes, io::Error>> {
        loop {
            if self.broken {
                return None;
            }
            if self.left == 0 || self.cut.has_changed().unwrap_or(true) {
                self.broken = true;
                return Some(Err(io::Error::new(io::ErrorKind::ConnectionReset, "cut")));
            }
            if let Some(mut text) = self.pending.pop_front() {
                let length = text.len().min(self.chunk).min(self.left);
                let rest = text.split_off(length);
                if !rest.is_empty() {
                    self.pending.push_front(rest);
                }
                self.left -= length;
                return Some(Ok(text.into()));
            }
            if self.ends {
                return None;
            }
            self.changed.mark_unchanged();
            if self.collect() {
                continue;
            }
            let bookmark = Instant::now() + Duration::from_secs(60);
            tokio::select! {
                _ = self.changed.changed() => {}
                _ = self.cut.changed() => {
                    self.left = 0;
                    // The body ends with a partial event.
                    return Some(Ok(Bytes::from_static(b"{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"na")));
                }
                () = tokio::time::sleep_until(self.until) => self.ends = true,
                () = tokio::time::sleep_until(bookmark), if self.bookmarks => {
                    let metadata = json!({"resourceVersion": self.version.to_string()});
                    self.pending.push_back(event("BOOKMARK", &json!({"metadata": metadata})));
                }
            }
        }
    }

    /// Collects new events; returns whether there were any.
    fn collect(&mut self) -> bool {
        let state = self.fake.state.lock();
        if self.version < state.compacted {
            // Pending events are dropped.
            self.pending
                .push_back(event("ERROR", &json!({"kind": "Status", "code": 410, "message": "too old"})));
            self.ends = true;
            return true;
        }
        let news = state
            .events
            .iter()
            .filter(|(version, plural, ..)| *version > self.version && *plural == self.plural);
        for (_, _, kind, object) in news {
            self.pending.push_back(event(kind, object));
        }
        self.version = self.version.max(state.version);
        !self.pending.is_empty()
    }
}

fn event(kind: &str, object: &Value) -> Vec<u8> {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n").into_bytes()
}

fn with_body(code: u16, form: &str, body: UnsyncBoxBody<Bytes, io::Error>) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(code).unwrap();
    answer.headers_mut().insert("content-type", form.parse().unwrap());
    answer
}

fn whole(code: u16, form: &str, body: Vec<u8>) -> Answer {
    with_body(
        code,
        form,
        Full::new(Bytes::from(body)).map_err(|never: Infallible| match never {}).boxed_unsync(),
    )
}

fn chunked(body: Vec<u8>, chunk: usize, most: usize) -> Answer {
    let cut = most < body.len();
    let length = most.min(body.len());
    let chunks = VecDeque::from([Bytes::from(body).slice(..length)]);
    let body = stream::unfold((chunks, cut), move |(mut chunks, cut)| async move {
        let Some(mut bytes) = chunks.pop_front() else {
            return cut.then(|| (Err(io::ErrorKind::ConnectionReset.into()), (VecDeque::new(), false)));
        };
        let first = bytes.split_to(bytes.len().min(chunk));
        if !bytes.is_empty() {
            chunks.push_front(bytes);
        }
        Some((Ok(Frame::data(first)), (chunks, cut)))
    });
    with_body(200, "application/json", StreamBody::new(body).boxed_unsync())
}

fn status(code: u16, after: Option<u64>, message: &str) -> Answer {
    let mut body = json!({"kind": "Status", "code": code, "message": message});
    if let Some(after) = after {
        body["details"] = json!({"retryAfterSeconds": after});
    }
    if message.contains("Too large") {
        body["details"] = json!({"causes": [{"reason": "ResourceVersionTooLarge"}]});
    }
    whole(code, "application/json", body.to_string().into_bytes())
}

/// Connects to the fake without sockets.
impl Connect for Fake {
    fn connect(&self, access: &Access, server: &Uri) -> Result<kube::Client, String> {
        let (fake, token) = (self.clone(), crate::tests::token(access));
        let server = server.to_string();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (fake, token, server) = (fake.clone(), token.clone(), server.clone());
            async move {
                if server.contains("dead") {
                    return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
                }
                fake.answer(request.method().clone(), request.uri().clone(), token).await
            }
        });
        Ok(kube::Client::new(service, "default"))
    }
}
