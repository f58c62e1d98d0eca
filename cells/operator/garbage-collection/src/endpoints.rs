//! The collection of CiliumEndpoints without a pod.

use std::sync::Arc;
use std::time::Duration;

use hive::JobCx;
use k8s_tables::Row;
use k8s_types::cilium::CiliumEndpoint;
use k8s_types::core::Pod;
use k8s_types::{Key, Kind, SmolStr};
use statedb::{ReadSource, Table};
use tokio::time::{Instant, sleep};

use crate::candidates::Candidates;
use crate::metrics::Numbers;
use crate::requests::{Requests, Run};

/// Deletes CiliumEndpoints after their pod is gone or has ended.
pub(crate) struct EndpointCollector {
    pub(crate) endpoints: Arc<Table<Row<CiliumEndpoint>>>,
    pub(crate) pods: Arc<Table<Row<Pod>>>,
    pub(crate) requests: Requests,
    pub(crate) interval: Duration,
    pub(crate) numbers: Numbers,
}

impl EndpointCollector {
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        cx.health.ok("Waits for the lists of CiliumEndpoints and pods");
        let listed = async {
            self.endpoints.wait_initialized().await;
            self.pods.wait_initialized().await;
        };
        if cx.token().run_until_cancelled(listed).await.is_none() {
            return Ok(());
        }
        let mut candidates = Candidates::default();
        let rounds = async {
            loop {
                self.collect(&mut candidates, &cx).await;
                sleep(self.interval).await;
            }
        };
        cx.token().run_until_cancelled(rounds).await;
        Ok(())
    }

    async fn collect(&self, candidates: &mut Candidates, cx: &JobCx) {
        let mut run = Run::default();
        let found: Vec<(Key, SmolStr)> = {
            let snapshot = self.endpoints.snapshot();
            let stale = self.endpoints.all(&snapshot).filter(|row| is_stale(row, &self.pods, &snapshot));
            stale.map(|row| (key(row), row.metadata.uid.clone())).collect()
        };
        for (key, uid) in candidates.update(found, Instant::now(), self.interval) {
            if !self.is_still_stale(&key, &uid) {
                continue;
            }
            let answer = self.requests.delete(Kind::CiliumEndpoint, &key, &uid, None).await;
            if answer.is_ok() {
                tracing::info!(endpoint = %key, "Deleted a CiliumEndpoint without a pod");
            }
            if !run.count(answer) {
                break;
            }
        }
        self.numbers.endpoints(&run);
        let (done, waiting) = (run.done, candidates.len().saturating_sub(run.done));
        run.report(&cx.health, &format!("{done} CiliumEndpoints were deleted, {waiting} have no pod"));
    }

    fn is_still_stale(&self, key: &Key, uid: &SmolStr) -> bool {
        let snapshot = self.endpoints.snapshot();
        let row = self.endpoints.get(&snapshot, Row::by_key(key));
        row.is_some_and(|row| row.metadata.uid == *uid && is_stale(row, &self.pods, &snapshot))
    }
}

fn key(endpoint: &CiliumEndpoint) -> Key {
    Key::new(endpoint.metadata.namespace.clone(), endpoint.metadata.name.clone())
}

/// Whether the pod of an endpoint is missing or has ended. One that has owners of other kinds alone is kept.
fn is_stale(endpoint: &CiliumEndpoint, pods: &Table<Row<Pod>>, source: &impl ReadSource) -> bool {
    let metadata = &endpoint.metadata;
    let owners = &metadata.owner_references;
    let pod = match owners.iter().find(|owner| owner.kind == "Pod") {
        Some(owner) => &owner.name,
        None if owners.is_empty() => &metadata.name,
        None => return false,
    };
    let row = pods.get(source, Row::by_name(&metadata.namespace, pod));
    row.is_none_or(|pod| matches!(pod.status.phase.as_str(), "Succeeded" | "Failed"))
}
