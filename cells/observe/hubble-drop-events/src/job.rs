//! The job that writes events.

use std::sync::Arc;
use std::time::Duration;

use endpoints::{Endpoint, EndpointId};
use hive::JobCx;
use jiff::Timestamp as Time;
use k8s_types::{Api, ApiError, Key, Kind, Patch};
use local_node::LocalNode;
use parking_lot::Mutex;
use prost_types::Timestamp;
use serde_json::{Value, json};
use statedb::{Db, Table};
use token_bucket::Bucket;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::book::{Book, Write};
use crate::occurrence::Occurrence;

/// The delay after a request that has failed.
const RETRY: Duration = Duration::from_secs(10);

/// The longest name of an object.
const NAME: usize = 253;

/// The events in memory, which the decoder of flows fills and the job empties.
#[derive(Debug)]
pub(crate) struct Pending {
    book: Mutex<Book>,
    added: Notify,
}

impl Pending {
    pub(crate) fn new(interval: Duration) -> Self {
        Self { book: Mutex::new(Book::new(interval)), added: Notify::new() }
    }

    /// Counts an occurrence.
    pub(crate) fn add(&self, occurrence: Occurrence) {
        self.book.lock().add(occurrence, Instant::now());
        self.added.notify_one();
    }
}

/// Writes events of Kubernetes.
pub(crate) struct Writer {
    pub(crate) api: Arc<dyn Api>,
    pub(crate) pending: Arc<Pending>,
    /// The limit of the rate, if there is one.
    pub(crate) bucket: Option<Bucket>,
    pub(crate) db: Arc<Db>,
    pub(crate) node: Table<LocalNode>,
    pub(crate) endpoints: Table<Endpoint>,
    /// Events that were created, which makes their names unique.
    pub(crate) created: u64,
}

impl Writer {
    /// Writes what is due, until the job ends.
    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        cx.token().clone().run_until_cancelled(self.serve(&cx)).await;
        Ok(())
    }

    async fn serve(&mut self, cx: &JobCx) {
        loop {
            let write = self.next().await;
            match self.write(&write).await {
                Ok(()) => cx.health.ok("Events are written"),
                Err(error) => {
                    if cx.health.degraded_anew("Events of dropped packets are not written", &error) {
                        tracing::warn!(%error, "Events of dropped packets are not written; tried again");
                    }
                    sleep(RETRY).await;
                }
            }
            let lost = self.pending.book.lock().take_lost();
            if lost > 0 {
                tracing::info!(lost, "Drops without an event: too many different ones");
            }
        }
    }

    /// Waits for an event that is due, and for the limit of the rate.
    async fn next(&mut self) -> Write {
        let pending = self.pending.clone();
        loop {
            let now = Instant::now();
            let at = pending.book.lock().next(now);
            match at {
                None => pending.added.notified().await,
                // A new occurrence may be due before.
                Some(at) if at > now => tokio::select! {
                    () = pending.added.notified() => {}
                    () = sleep_until(at) => {}
                },
                Some(_) => {
                    let bucket = self.bucket.as_mut();
                    if let Some(token) = bucket.and_then(|bucket| bucket.reserve(now.into_std())) {
                        sleep_until(token.at.into()).await;
                    }
                    let write = pending.book.lock().take(Instant::now());
                    if let Some(write) = write {
                        return write;
                    }
                }
            }
        }
    }

    async fn write(&mut self, write: &Write) -> Result<(), ApiError> {
        let written = match &write.name {
            Some(name) => {
                let change = json!({"count": write.count, "lastTimestamp": time(&write.last)});
                let key = Key::new(&write.namespace, name);
                let patch = Patch::Merge(change.to_string().into());
                self.api.patch(Kind::Event, &key, false, patch).await.map(|_| name.clone())
            }
            None => {
                let (name, object) = self.event(write);
                self.api.create(Kind::Event, object.to_string().into()).await.map(|_| name)
            }
        };
        let mut book = self.pending.book.lock();
        match written {
            Ok(name) => book.written(write, name, Instant::now()),
            Err(ApiError::NotFound(_)) if write.name.is_some() => book.gone(write),
            // The namespace is gone or ends: there is no place for its events.
            Err(ApiError::NotFound(_)) => book.forget(write),
            Err(ApiError::Forbidden(text)) if text.contains("being terminated") => book.forget(write),
            Err(ApiError::Invalid(text)) => {
                tracing::warn!(pod = write.pod, error = text, "The API server refuses an event");
                book.forget(write);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Returns a new event with its name.
    fn event(&mut self, write: &Write) -> (String, Value) {
        self.created += 1;
        let nanoseconds = write.last.seconds as u128 * 1_000_000_000 + write.last.nanos as u128;
        let suffix = format!(".{:x}{:x}", nanoseconds, self.created);
        let name = &write.pod[..write.pod.len().min(NAME - suffix.len())];
        let name = format!("{}{suffix}", name.trim_end_matches(['.', '-']));
        let snapshot = self.db.snapshot();
        let node = self.node.get(&snapshot, LocalNode::query()).map(|node| node.name.to_string());
        let id = u16::try_from(write.endpoint).ok().map(EndpointId);
        let row = id.and_then(|id| self.endpoints.get(&snapshot, Endpoint::by_id(id)));
        // The id may be that of another pod by now.
        let uid = row
            .map(|row| &row.record)
            .filter(|record| (&record.k8s_namespace, &record.k8s_pod_name) == (&write.namespace, &write.pod));
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": write.namespace, "name": write.pod,
        });
        if let Some(record) = uid.filter(|record| !record.k8s_uid.is_empty()) {
            pod["uid"] = record.k8s_uid.clone().into();
        }
        let event = json!({
            "apiVersion": Kind::Event.api_version(), "kind": Kind::Event.name(),
            "metadata": {"name": name, "namespace": write.namespace},
            "involvedObject": pod,
            "type": "Warning", "reason": "PacketDrop", "message": write.message,
            "source": {"component": "cilium", "host": node},
            "reportingComponent": "cilium", "reportingInstance": node,
            "firstTimestamp": time(&write.first), "lastTimestamp": time(&write.last),
            "count": write.count,
        });
        (name, event)
    }
}

/// Returns a time as objects have it, in whole seconds.
fn time(time: &Timestamp) -> Option<String> {
    Time::from_second(time.seconds).ok().map(|time| time.to_string())
}
