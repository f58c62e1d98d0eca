//! Endpoints follow the objects of their pods and namespaces.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::{BoxFuture, OptionFuture};
use futures::stream::FuturesUnordered;
use hive::JobCx;
use labels::K8S;
use statedb::Snapshot;

use crate::model::endpoint::Endpoint;
use crate::model::id::EndpointId;
use crate::model::state::State;
use crate::pod_metadata::{Lookup, Metadata, Objects};
use crate::requests::service::{Endpoints, Refused};

/// Interval of attempts to describe endpoints for which no identity could be allocated.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The job `follow-pods`.
pub(crate) async fn run(endpoints: Arc<Endpoints>, objects: Objects, cx: JobCx) -> anyhow::Result<()> {
    let _ended_early = cx.token().run_until_cancelled(follow(&endpoints, &objects)).await;
    Ok(())
}

/// Keeps labels and named ports of all endpoints equal to those of the objects, as long as it is polled.
pub(crate) async fn follow(endpoints: &Endpoints, objects: &Objects) {
    // Until all sources are complete an absent object does not mean that it was deleted.
    objects.complete().await;
    let table = endpoints.table();
    let (mut pods, mut namespaces, mut rows) =
        (objects.pods.changes(), objects.namespaces.changes(), table.changes());
    let requests = endpoints.context.identities.requests();
    let mut identity_requests = requests.as_ref().map(statedb::Table::changes);
    let mut failed: BTreeSet<EndpointId> = BTreeSet::new();
    let mut fetches = Fetches::default();
    loop {
        let snapshot = table.snapshot();
        let (pod_changes, pod_watch) = pods.read(&snapshot, usize::MAX);
        let (namespace_changes, namespace_watch) = namespaces.read(&snapshot, usize::MAX);
        let (row_changes, row_watch) = rows.read(&snapshot, usize::MAX);
        let mut ids = std::mem::take(&mut failed);
        for change in pod_changes.iter().filter(|change| !change.deleted) {
            let name = statedb::TableSpec::key(&*change.object);
            ids.extend(table.list(&snapshot, Endpoint::by_pod(&name)).map(|row| row.id()));
        }
        let changed: BTreeSet<&str> =
            namespace_changes.iter().map(|change| change.object.metadata.name.as_str()).collect();
        if !changed.is_empty() {
            let within = |row: &&Endpoint| changed.contains(row.record.k8s_namespace.as_str());
            ids.extend(table.all(&snapshot).map(|row| &**row).filter(within).map(Endpoint::id));
        }
        // A request in flight may have written the labels of an older version of the object.
        ids.extend(row_changes.iter().filter(|change| !change.deleted).map(|change| change.object.id()));
        let answered = identity_requests.as_mut().map(|requests| requests.read(&snapshot, usize::MAX));
        let (answers, request_watch) = answered.unzip();
        if answers.is_some_and(|answers| !answers.is_empty()) {
            // Label sets have got identities, or an identity was taken away.
            ids.extend(table.all(&snapshot).map(|row| row.id()));
        }
        // An endpoint without an identity is being created: its own request reads the objects.
        ids.retain(|id| {
            let row = table.get(&snapshot, Endpoint::by_id(*id));
            let being_created =
                |row: &Endpoint| row.record.sec_label.is_none() && row.state == State::WaitingForIdentity;
            row.is_some_and(|row| !being_created(row) && !row.state.is_leaving())
        });
        // Most changes of rows only update the reconciliation status.
        let outdated: Vec<EndpointId> =
            ids.iter().copied().filter(|id| endpoints.is_outdated(*id, &snapshot)).collect();
        if !outdated.is_empty() {
            let (service, described, at) = (endpoints.clone(), outdated.clone(), snapshot.clone());
            let outcomes = hive::blocking(move || service.describe_all(&described, &at)).await;
            for (id, outcome) in outdated.into_iter().zip(outcomes) {
                if !report(id, outcome) {
                    failed.insert(id);
                }
            }
        }
        for id in ids {
            if table
                .get(&snapshot, Endpoint::by_id(id))
                .is_some_and(|row| is_unknown(row, objects, &snapshot))
            {
                fetches.add(endpoints, objects, id);
            }
        }
        // A snapshot that waits keeps replaced rows of all tables allocated.
        drop((snapshot, pod_changes, namespace_changes, row_changes));
        tokio::select! {
            () = pod_watch.changed() => {}
            () = namespace_watch.changed() => {}
            () = row_watch.changed() => {}
            Some(()) = OptionFuture::from(request_watch.as_ref().map(statedb::Watch::changed)) => {}
            Some((id, metadata)) = fetches.running.next(), if !fetches.running.is_empty() => {
                fetches.ids.remove(&id);
                let is_known = metadata.is_some();
                let service = endpoints.clone();
                let describe = move || service.describe(id, metadata.as_ref());
                if is_known && !report(id, hive::blocking(describe).await) {
                    failed.insert(id);
                }
            }
            () = tokio::time::sleep(RETRY_INTERVAL), if !failed.is_empty() => {}
        }
    }
}

/// Logs the outcome for an endpoint; false if it is to be retried.
fn report(id: EndpointId, outcome: Result<bool, Refused>) -> bool {
    match outcome {
        Ok(true) => tracing::info!(endpointID = id.0, "Labels or ports of the pod have changed"),
        // A change of the requests for identities leads here again.
        Ok(false) | Err(Refused::NotFound | Refused::Identity(identity::Error::Waiting { .. })) => {}
        Err(error) => {
            tracing::warn!(endpointID = id.0, %error, "Unable to follow the labels of the pod");
            return false;
        }
    }
    true
}

/// Whether the endpoint has no labels of its pod, and the table has only another pod of its name.
fn is_unknown(endpoint: &Endpoint, objects: &Objects, snapshot: &Snapshot) -> bool {
    let labels = &endpoint.record.op_labels;
    let described = [&labels.orchestration_identity, &labels.orchestration_info];
    !described.iter().any(|labels| labels.0.values().any(|label| label.source == K8S))
        && objects.lookup(snapshot, &endpoint.record) == Lookup::OtherPod
}

/// Requests in flight to the API server for pods, one an endpoint.
#[derive(Default)]
struct Fetches {
    running: FuturesUnordered<BoxFuture<'static, (EndpointId, Option<Metadata>)>>,
    ids: BTreeSet<EndpointId>,
}

impl Fetches {
    /// Requests an endpoint's pod until the API server answers, the watch delivers it, or the endpoint is deleted.
    fn add(&mut self, endpoints: &Endpoints, objects: &Objects, id: EndpointId) {
        if objects.api.is_none() || !self.ids.insert(id) {
            return;
        }
        let (table, objects) = (endpoints.table(), objects.clone());
        self.running.push(Box::pin(async move {
            let row = table.get(&table.snapshot(), Endpoint::by_id(id)).cloned();
            let Some(endpoint) = row else { return (id, None) };
            let is_needed = || {
                let same_pod = |row: &Endpoint| row.record.k8s_uid == endpoint.record.k8s_uid;
                let snapshot = table.snapshot();
                table.get(&snapshot, Endpoint::by_id(id)).is_some_and(|row| {
                    !row.state.is_leaving() && same_pod(row) && is_unknown(row, &objects, &snapshot)
                })
            };
            (id, objects.fetch_until_known(&endpoint.record, is_needed).await)
        }));
    }
}
