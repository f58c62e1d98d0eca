//! A server for tests of cells: it records requests, and a test decides which of them fail.

use std::fmt;
use std::future::ready;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use hive::prelude::*;
use k8s_types::{Answer, Api, ApiError, DEFAULT_NAMESPACE, Key, Kind, Patch, Preconditions, Source};
use parking_lot::Mutex;
use serde_json::Value;
use statedb::Db;

use crate::object::{Object, metadata};
use crate::tracker::Tracker;
use crate::types::Type;

/// A request, as it arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The RBAC verb: `get`, `create`, `update`, `patch` or `delete`.
    pub verb: &'static str,
    /// Whether it is about the status alone.
    pub is_status: bool,
    /// The kind of the object.
    pub kind: Kind,
    /// The name of the object.
    pub key: Key,
    /// The object of a `create` or `update`; `null` for other verbs.
    pub object: Value,
    /// The preconditions of a `delete`.
    pub only_if: Preconditions,
}

impl Request {
    /// Returns an error as of a server that cannot be reached.
    pub fn unreachable() -> ApiError {
        ApiError::Unavailable { message: "connection refused".to_owned(), retry_after: None }
    }
}

/// Formats the request as `patch services/default/web`, with `/status` after the verb's object if it is about the status.
impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.verb, self.kind.plural(), self.key)?;
        f.write_str(if self.is_status { "/status" } else { "" })
    }
}

type Hook = Box<dyn FnMut(&Tracker, &Request) -> Result<(), ApiError> + Send>;

#[derive(Default)]
struct State {
    hook: Option<Hook>,
    requests: Vec<Request>,
}

/// A [`Tracker`] of its own for a test, which outlives the hives that use it. Cheap to clone; clones are one server.
///
/// A name of an object is `NAME` or `NAMESPACE/NAME`; without a namespace it is `default`.
///
/// ```
/// use k8s_fake_apiserver::FakeServer;
/// use k8s_types::{Api, ApiError, Key, Kind};
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let server = FakeServer::permitting(&["create", "update"]);
/// server.add(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}));
/// let refused = server.get(Kind::Node, &Key::new("", "n1")).await.unwrap_err();
/// assert!(matches!(refused, ApiError::Forbidden(_)));
/// assert_eq!(server.take_requests()[0].to_string(), "get nodes/n1");
/// assert_eq!(server.object(Kind::Node, "n1")["metadata"]["name"], "n1");
/// # }
/// ```
#[derive(Clone)]
pub struct FakeServer {
    tracker: Tracker,
    /// The permitted verbs, with `/status` for those on statuses; none for all.
    permitted: Option<&'static [&'static str]>,
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for FakeServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeServer").field("permitted", &self.permitted).finish_non_exhaustive()
    }
}

impl Default for FakeServer {
    fn default() -> FakeServer {
        FakeServer { tracker: tracker(), permitted: None, state: Arc::default() }
    }
}

/// For the test itself: not recorded, and neither forbidden nor failed by the hook. Each panics if the tracker refuses it.
impl FakeServer {
    /// Returns a server that permits requests of these verbs only, as a role does: `patch`, `patch/status`, ...
    pub fn permitting(verbs: &'static [&'static str]) -> FakeServer {
        FakeServer { permitted: Some(verbs), ..FakeServer::default() }
    }

    /// Provides the server as [`Api`] and as one of the hive's sources.
    pub fn cell(&self) -> Cell {
        let (api, source) = (self.clone(), self.tracker.clone());
        let cells = [
            supply::<Arc<dyn Api>>(Arc::new(api)),
            provide(move || Member::<Arc<dyn Source>>(Arc::new(source.clone()))),
        ];
        module("fake-apiserver", "API server of a test", cells)
    }

    /// Returns its objects.
    pub fn tracker(&self) -> &Tracker {
        &self.tracker
    }

    /// Calls a function with each request before it is executed; its error is the answer. It replaces the one before.
    pub fn on_request(&self, hook: impl FnMut(&Tracker, &Request) -> Result<(), ApiError> + Send + 'static) {
        self.state.lock().hook = Some(Box::new(hook));
    }

    /// Executes all requests from now on.
    pub fn execute_all(&self) {
        self.state.lock().hook = None;
    }

    /// Returns the requests since the last call, failed ones included.
    pub fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.lock().requests)
    }

    /// Creates or replaces an object.
    ///
    /// # Panics
    /// If it is no object of a known kind.
    pub fn add(&self, object: &Value) {
        check(self.tracker.add(&object.to_string()));
    }

    /// Changes an object as a client does that has read it.
    ///
    /// # Panics
    /// If there is no such object.
    pub fn edit(&self, kind: Kind, name: &str, edit: impl FnOnce(&mut Value)) {
        let mut object = self.object(kind, name);
        edit(&mut object);
        check(self.tracker.update(&object.to_string(), false));
    }

    /// Deletes an object.
    ///
    /// # Panics
    /// If there never was such an object.
    pub fn remove(&self, kind: Kind, name: &str) {
        let key = key(kind, name);
        let delete = Api::delete(&self.tracker, kind, &key, Preconditions::default());
        check(delete.now_or_never().unwrap_or(Ok(())));
    }

    /// Returns an object, if there is one.
    pub fn find(&self, kind: Kind, name: &str) -> Option<Value> {
        let of = Type::from(kind);
        Some(self.tracker.get(of.domain(), &of.gvr, &key(kind, name)).ok()?.value().clone())
    }

    /// Returns an object.
    ///
    /// # Panics
    /// If there is no such object.
    pub fn object(&self, kind: Kind, name: &str) -> Value {
        self.find(kind, name).unwrap_or_else(|| panic!("there is no {kind} {name}"))
    }

    /// Returns all objects of a kind, by namespace and name.
    pub fn objects(&self, kind: Kind) -> Vec<Value> {
        let of = Type::from(kind);
        self.tracker.list(of.domain(), &of.gvr, None).iter().map(|object| object.value().clone()).collect()
    }

    /// Records a request; executes it unless it is forbidden or the hook returns an error.
    fn request<T: Send + 'static>(
        &self,
        request: Request,
        execute: impl FnOnce(&Tracker) -> Answer<T>,
    ) -> Answer<T> {
        let sub_resource = if request.is_status { "/status" } else { "" };
        let verb = format!("{}{sub_resource}", request.verb);
        let is_permitted = self.permitted.is_none_or(|verbs| verbs.contains(&verb.as_str()));
        let mut state = self.state.lock();
        state.requests.push(request.clone());
        let answer = match (is_permitted, &mut state.hook) {
            (false, _) => Err(ApiError::Forbidden(format!("cannot {verb} {}", request.kind.plural()))),
            (true, Some(hook)) => hook(&self.tracker, &request),
            (true, None) => Ok(()),
        };
        drop(state);
        match answer {
            Ok(()) => execute(&self.tracker),
            Err(error) => ready(Err(error)).boxed(),
        }
    }
}

impl Api for FakeServer {
    fn get(&self, kind: Kind, key: &Key) -> Answer<Bytes> {
        self.request(of_key("get", false, kind, key), |tracker| Api::get(tracker, kind, key))
    }

    fn create(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.request(of_object("create", false, kind, &object), |tracker| tracker.create(kind, object))
    }

    fn update(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.request(of_object("update", false, kind, &object), |tracker| Api::update(tracker, kind, object))
    }

    fn update_status(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.request(of_object("update", true, kind, &object), |tracker| tracker.update_status(kind, object))
    }

    fn patch(&self, kind: Kind, key: &Key, status: bool, patch: Patch) -> Answer<Bytes> {
        let request = of_key("patch", status, kind, key);
        self.request(request, |tracker| tracker.patch(kind, key, status, patch))
    }

    fn delete(&self, kind: Kind, key: &Key, only_if: Preconditions) -> Answer<()> {
        let request = Request { only_if: only_if.clone(), ..of_key("delete", false, kind, key) };
        self.request(request, |tracker| Api::delete(tracker, kind, key, only_if))
    }
}

fn of_key(verb: &'static str, is_status: bool, kind: Kind, key: &Key) -> Request {
    let (key, only_if) = (key.clone(), Preconditions::default());
    Request { verb, is_status, kind, key, object: Value::Null, only_if }
}

fn of_object(verb: &'static str, is_status: bool, kind: Kind, object: &[u8]) -> Request {
    let object: Value = serde_json::from_slice(object).unwrap_or_default();
    let key = Key::new(metadata(&object, "namespace"), metadata(&object, "name"));
    Request { object, ..of_key(verb, is_status, kind, &key) }
}

fn key(kind: Kind, name: &str) -> Key {
    match name.split_once('/') {
        Some((namespace, name)) => Key::new(namespace, name),
        None => Key::new(if kind.namespaced() { DEFAULT_NAMESPACE } else { "" }, name),
    }
}

fn tracker() -> Tracker {
    match Db::new().table::<Object>() {
        Ok(table) => Tracker::new(&table),
        Err(error) => panic!("{error}"),
    }
}

fn check(outcome: Result<(), ApiError>) {
    if let Err(error) = outcome {
        panic!("{error}");
    }
}
