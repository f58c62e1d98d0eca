//! `GET /debuginfo`: the state of the agent in one answer, for debugging.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use hive::Settings;
use serde::Serialize;
use serde_json::json;

use crate::operation::Operation;
use crate::request::Request;
use crate::response::Response;
use crate::route::Route;

type Describe = dyn Fn() -> String + Send + Sync;

/// The part of a cell in `GET /debuginfo`: a text under its name in `subsystem`, with state that no other operation
/// returns. A cell contributes it to the group: `Member(DebugSource::new("ipam", move || ..))`.
///
/// The function must not block: it returns state that the cell has at hand.
#[derive(Clone)]
pub struct DebugSource {
    name: &'static str,
    describe: Arc<Describe>,
}

impl DebugSource {
    /// Returns a source; its text is stored under the name.
    pub fn new(name: &'static str, describe: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self { name, describe: Arc::new(describe) }
    }

    fn describe(&self) -> String {
        catch_unwind(AssertUnwindSafe(|| (self.describe)()))
            .unwrap_or_else(|_| "not available: it panicked".to_owned())
    }
}

impl fmt::Debug for DebugSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DebugSource").field(&self.name).finish()
    }
}

/// Composes the answer from the unchanged answers of other operations and the texts of cells.
struct Collector {
    status: Route,
    endpoints: Route,
    services: Route,
    policy: Route,
    settings: Arc<Settings>,
    sources: Vec<DebugSource>,
}

/// Returns the route of the operation; `find` returns the routes of the operations it is composed of.
pub(crate) fn route(
    find: impl Fn(Operation) -> Route,
    settings: Arc<Settings>,
    sources: Vec<DebugSource>,
) -> Route {
    let collector = Arc::new(Collector {
        status: find(Operation::GetHealthz),
        endpoints: find(Operation::GetEndpoint),
        services: find(Operation::GetService),
        policy: find(Operation::GetPolicy),
        settings,
        sources,
    });
    Route::new(Operation::GetDebuginfo, move |_| {
        let collector = collector.clone();
        async move { collector.answer().await }
    })
}

impl Collector {
    async fn answer(&self) -> Response {
        let (status, endpoints, services, policy, maps, kernel) = futures::join!(
            ask(&self.status),
            ask(&self.endpoints),
            ask(&self.services),
            ask(&self.policy),
            tokio::fs::read_to_string("/proc/self/maps"),
            tokio::fs::read_to_string("/proc/sys/kernel/osrelease"),
        );
        let subsystem: BTreeMap<_, _> =
            self.sources.iter().map(|source| (source.name, source.describe())).collect();
        // Cilium writes `null` for an empty list of services.
        let services = services.filter(|list| list.as_ref() != b"[]");
        let none = || Some(Bytes::from_static(b"null"));
        let mut object = Object::default();
        object.put("cilium-memory-map", maps.ok().map(text));
        object.put("cilium-status", status);
        object.put("cilium-version", Some(text(version())));
        object.put("encryption", Some(text(json!({}))));
        object.put("endpoint-list", endpoints.or_else(none));
        object.put("environment-variables", Some(text(options(&self.settings))));
        object.put("kernel-version", kernel.ok().map(|release| text(numbers(&release))));
        object.put("policy", policy);
        object.put("service-list", services.or_else(none));
        object.put("subsystem", Some(text(&subsystem)).filter(|_| !subsystem.is_empty()));
        object.end()
    }
}

/// Returns the answer of an operation; `None` if it fails.
async fn ask(route: &Route) -> Option<Bytes> {
    let operation = route.operation();
    let answer = AssertUnwindSafe(async { route.call(Request::new(operation, &[])).await });
    let Ok(answer) = answer.catch_unwind().await else {
        tracing::error!(operation = operation.name(), "API handler failed");
        return None;
    };
    let found = answer.status() == http::StatusCode::OK;
    let body = answer.body().await;
    found.then(|| body.slice_ref(body.trim_ascii_end()))
}

/// A JSON object that is written member by member.
#[derive(Default)]
struct Object(Vec<u8>);

impl Object {
    fn put(&mut self, name: &str, value: Option<Bytes>) {
        let Some(value) = value else { return };
        self.0.push(if self.0.is_empty() { b'{' } else { b',' });
        self.0.extend_from_slice(format!("\"{name}\":").as_bytes());
        self.0.extend_from_slice(&value);
    }

    fn end(mut self) -> Response {
        self.0.extend_from_slice(b"}\n");
        Response::raw_json(200, self.0)
    }
}

fn text(value: impl Serialize) -> Bytes {
    serde_json::to_vec(&value).unwrap_or_else(|_| b"null".to_vec()).into()
}

/// Returns the version in the seven words that clients parse: version, revision, date, `go version`, runtime, platform.
fn version() -> String {
    let runtime = concat!("rust", env!("CARGO_PKG_RUST_VERSION"));
    format!("{} unknown unknown go version {runtime} {}", metrics::VERSION, metrics::platform())
}

/// Returns the numeric part of a kernel's release, such as `6.18.44` of `6.18.44-generic`.
fn numbers(release: &str) -> &str {
    let end = release.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(release.len());
    release[..end].trim_end_matches('.')
}

/// Returns the options in force, then those that are set but have no effect, as `name:value`.
fn options(settings: &Settings) -> Vec<String> {
    let all = settings.iter().chain(settings.unused());
    all.map(|setting| format!("{}:{}", setting.key, setting.value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::off;

    async fn answer(routes: Vec<Route>, sources: Vec<DebugSource>) -> serde_json::Value {
        let find = move |operation| {
            let claimed = routes.iter().find(|route| route.operation() == operation);
            claimed.cloned().unwrap_or_else(|| off::route(operation))
        };
        let route = route(find, Arc::default(), sources);
        let answer = route.call(Request::new(Operation::GetDebuginfo, &[])).await;
        assert_eq!(answer.status(), 200);
        serde_json::from_slice(&answer.body().await).unwrap()
    }

    #[tokio::test]
    async fn failed_operations_do_not_affect_the_rest() {
        let broken = Route::new(Operation::GetHealthz, |_| async { panic!("broken handler") });
        let starting =
            Route::new(Operation::GetEndpoint, |_| async { Response::error(503, "the agent is starting") });
        let source = DebugSource::new("ipam", || panic!("broken source"));
        let info = answer(vec![broken, starting], vec![source]).await;
        assert_eq!(info.get("cilium-status"), None);
        assert_eq!(info["endpoint-list"], json!(null));
        assert_eq!(info["subsystem"], json!({"ipam": "not available: it panicked"}));
        assert_eq!(info["policy"], json!({"policy": "[]", "revision": 1}));
        assert!(info["cilium-memory-map"].as_str().unwrap().contains("[stack]"));
    }

    #[test]
    fn a_release_is_cut_to_its_numbers() {
        for (release, kernel) in
            [("6.18.44\n", "6.18.44"), ("5.10.0-21-amd64\n", "5.10.0"), ("6.1.-rc1", "6.1")]
        {
            assert_eq!(numbers(release), kernel);
        }
    }

    #[test]
    fn the_version_has_the_words_that_clients_parse() {
        let version = version();
        let words: Vec<_> = version.split(' ').collect();
        assert_eq!(words.len(), 7);
        assert_eq!((words[0], &words[3..5]), (metrics::VERSION, &["go", "version"][..]));
        assert!(words[6].starts_with("linux/"));
    }
}
