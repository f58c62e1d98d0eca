//! Watches of a server with faults, in virtual time.

mod credentials;
mod fake;
mod follow;
mod link;
mod pauses;
mod random;
mod scan;
mod trust;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use hive::prelude::*;
use k8s_types::testing::Reader;
use k8s_types::{Key, Kind, Selection, Source};
use parking_lot::Mutex;

use crate::access::{Access, Place};
use crate::definitions::Definitions;
use crate::limiter::Limiter;
use crate::link::Link;
use crate::metrics::{ClientMetrics, Watches};
use crate::profile::Fence;
use crate::source::{ApiServer, Connection};
use crate::watch_timeouts::WatchTimeouts;

use fake::Fake;

/// Returns the token in the credentials of `access`, if they have one.
fn token(access: &Access) -> Option<String> {
    let user = serde_json::to_value(&access.config.auth_info).unwrap();
    user["token"].as_str().map(str::to_owned)
}

/// A reader of one kind with its environment.
struct Bench {
    fake: Fake,
    connection: Connection,
    reader: Arc<Mutex<Reader>>,
    task: futures::future::AbortHandle,
    hive: TestHive,
}

/// Returns a hive that runs, and the health of its module.
async fn hive_with_health() -> (TestHive, Health) {
    let given: Arc<Mutex<Option<Health>>> = Arc::default();
    let taken = given.clone();
    let mut hive =
        TestHive::new(module("client", "x", [invoke(move |health: Health| *taken.lock() = Some(health))]));
    hive.start().await;
    let health = given.lock().take().expect("the module has health");
    (hive, health)
}

impl Bench {
    async fn new(fake: Fake, kind: Kind) -> Bench {
        Bench::with(fake, kind, &[], WatchTimeouts::default()).await
    }

    async fn with(fake: Fake, kind: Kind, urls: &[&str], timeouts: WatchTimeouts) -> Bench {
        let (hive, health) = hive_with_health().await;
        let urls = if urls.is_empty() { vec!["http://fake"] } else { urls.to_vec() };
        let urls = urls.into_iter().map(str::to_owned).collect();
        let (metrics, limiter) = (ClientMetrics::default(), (Limiter::new(0.0, 1), Fence::default()));
        let connect = Arc::new(fake.clone());
        let link =
            Link::new(Place::Nowhere, urls, connect, limiter, metrics, health.child("server")).unwrap();
        let connection = Connection {
            link: Arc::new(link),
            definitions: Definitions::new([Kind::CiliumIdentity].into()),
            watches: Watches::default(),
            timeouts,
            health,
        };
        let reader = Arc::new(Mutex::new(Reader::default()));
        let source = ApiServer(Some(connection.clone()));
        let mut stream = source.watch(Selection::all(kind));
        let (read, task) = futures::future::abortable({
            let reader = reader.clone();
            async move {
                while let Some(event) = stream.next().await {
                    reader.lock().apply(event);
                }
            }
        });
        #[expect(clippy::disallowed_methods, reason = "the reader of a test, which ends it")]
        drop(tokio::spawn(read));
        Bench { fake, connection, reader, task, hive }
    }

    /// Waits until a condition holds.
    async fn until(&self, what: &str, holds: impl Fn(&Reader) -> bool) {
        for _ in 0..3_600 {
            if holds(&self.reader.lock()) {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let reader = self.reader.lock();
        panic!("{what}: not within an hour; {} lists, errors {:?}", reader.lists, reader.errors);
    }

    async fn until_true(&self, plural: &str) {
        self.until("the reader has the truth", |reader| {
            reader.lists > 0 && reader.is_complete() && *reader.objects() == self.fake.truth(plural)
        })
        .await;
    }

    fn errors(&self) -> Vec<String> {
        self.reader.lock().errors.clone()
    }

    fn health(&self, scope: &str) -> hive::Status {
        self.hive.hive().health().at(&format!("client.{scope}")).expect("it has reported")
    }

    async fn end(mut self) {
        self.task.abort();
        self.hive.stop().await;
    }
}

fn watches(requests: &[String]) -> Vec<&String> {
    requests
        .iter()
        .filter(|request| request.contains("watch=true") && !request.contains("sendInitial"))
        .collect()
}

fn lists(requests: &[String]) -> Vec<&String> {
    requests.iter().filter(|request| request.contains("limit=") || request.contains("sendInitial")).collect()
}
