//! The job: objects of all nodes into claims.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use endpoints::Endpoint;
use hive::health::{SHOWN, summarize};
use hive::{Health, JobCx};
use identity::Range;
use ipcache::{Entry, IpcacheWriter};
use k8s_tables::{Key, Row};
use k8s_types::cilium::{CiliumEndpoint, CiliumEndpointSlice};
use local_node::LocalNode;
use statedb::{Changes, Initializer, Snapshot, Table, Watch};
use tokio::time::{Instant, sleep_until};

use crate::desired::key;
use crate::remote::{Claimed, Remote, claims, owners};
use crate::slices::Slices;

/// The row of health about objects that claim what they cannot have.
const ROW: &str = "remote-endpoints";
/// The row of health about slices that are missing.
const SLICES_ROW: &str = "endpoint-slices";
/// How long there may be no slice although there are own pods: the operator waits for the first objects.
const SLICES_DELAY: Duration = Duration::from_secs(30);

/// The parameters of the job.
pub(crate) struct Follow {
    pub(crate) range: Range,
    pub(crate) objects: Objects,
    pub(crate) node: Arc<Table<LocalNode>>,
    pub(crate) endpoints: Arc<Table<Endpoint>>,
    pub(crate) ipcache: Arc<IpcacheWriter>,
    pub(crate) entries: Arc<Table<Entry>>,
    pub(crate) initializer: Initializer<Entry>,
    pub(crate) health: Health,
}

/// The objects that describe endpoints of other nodes.
pub(crate) enum Objects {
    /// One for each endpoint.
    Endpoints(Arc<Table<Row<CiliumEndpoint>>>),
    /// Slices with many endpoints each.
    Slices(Arc<Table<Row<CiliumEndpointSlice>>>),
}

/// Reads the changes of the objects, by the names of endpoints.
enum Reader {
    Endpoints(Arc<Table<Row<CiliumEndpoint>>>, Changes<Row<CiliumEndpoint>>),
    Slices(Changes<Row<CiliumEndpointSlice>>, Slices),
}

impl Objects {
    async fn wait_initialized(&self) {
        match self {
            Objects::Endpoints(table) => table.wait_initialized().await,
            Objects::Slices(table) => table.wait_initialized().await,
        }
    }

    fn reader(self) -> Reader {
        match self {
            Objects::Endpoints(table) => {
                let changes = table.changes();
                Reader::Endpoints(table, changes)
            }
            Objects::Slices(table) => Reader::Slices(table.changes(), Slices::default()),
        }
    }
}

impl Reader {
    /// Returns the endpoints that may have changed up to a snapshot, and a watch for the next change.
    fn changed(&mut self, snapshot: &Snapshot) -> (BTreeSet<Key>, Watch) {
        match self {
            Reader::Endpoints(_, changes) => {
                let (batch, watch) = changes.read(snapshot, usize::MAX);
                (batch.iter().map(|change| name(&change.object)).collect(), watch)
            }
            Reader::Slices(changes, slices) => {
                let (batch, watch) = changes.read(snapshot, usize::MAX);
                let changed = batch.iter().flat_map(|change| slices.apply(&change.object, change.deleted));
                (changed.collect(), watch)
            }
        }
    }

    /// Returns an endpoint of the last snapshot that was read.
    fn endpoint<'a>(&'a self, snapshot: &'a Snapshot, key: &Key) -> Option<Remote<'a>> {
        match self {
            Reader::Endpoints(table, _) => {
                table.get(snapshot, Row::by_key(key)).map(|row| Remote::from(&row.object))
            }
            Reader::Slices(_, slices) => slices.current(key).map(Remote::from),
        }
    }

    /// Returns all endpoints of the last snapshot that was read.
    fn all(&self, snapshot: &Snapshot) -> BTreeSet<Key> {
        match self {
            Reader::Endpoints(table, _) => table.all(snapshot).map(|row| name(row)).collect(),
            Reader::Slices(_, slices) => slices.all().map(|(key, _)| key).collect(),
        }
    }

    /// Whether it reads slices, and there is none.
    fn lacks_slices(&self) -> bool {
        matches!(self, Reader::Slices(_, slices) if slices.is_empty())
    }
}

fn name(object: &CiliumEndpoint) -> Key {
    Key::new(object.metadata.namespace.clone(), object.metadata.name.clone())
}

impl Follow {
    pub(crate) async fn run(self, cx: JobCx) {
        let token = cx.token().clone();
        token.run_until_cancelled(self.follow(&cx)).await;
    }

    async fn follow(self, cx: &JobCx) {
        let Follow { range, objects, node, endpoints, ipcache, entries, initializer, health } = self;
        // Before the node's addresses are known its own objects look like those of others.
        node.wait_initialized().await;
        objects.wait_initialized().await;
        cx.health.ok("Running");
        let mut initializer = Some(initializer);
        let (mut claimed, mut faults) = (Claimed::default(), BTreeMap::new());
        let mut own: Vec<IpAddr> = Vec::new();
        let mut reader = objects.reader();
        let mut lack = Lack::default();
        let mut reported = String::new();
        loop {
            let snapshot = endpoints.snapshot();
            let (mut changed, objects_changed) = reader.changed(&snapshot);
            let (row, node_changed) = node.get_watch(&snapshot, LocalNode::query());
            let (_, endpoints_changed) = endpoints.all_watch(&snapshot);
            let addresses = row.map(|row| row.addresses()).unwrap_or_default();
            let addresses: Vec<IpAddr> = addresses.into_iter().map(|(_, address)| address).collect();
            if addresses != own {
                changed.extend(reader.all(&snapshot));
                own = addresses;
            }
            let mut all = Vec::new();
            for key in changed {
                faults.remove(&key);
                let desired =
                    reader.endpoint(&snapshot, &key).map(|remote| claims(&key, remote, &own, range));
                let desired = desired.unwrap_or_else(|| Ok(BTreeMap::new())).unwrap_or_else(|fault| {
                    faults.insert(key.clone(), fault.to_string());
                    BTreeMap::new()
                });
                all.extend(claimed.replace(&key, desired));
            }
            if !all.is_empty() {
                ipcache.apply(all);
            }
            if let Some(initializer) = initializer.take() {
                ipcache.complete(initializer);
            }
            let conflicts = conflicts(&entries, &endpoints, &snapshot);
            report(&health, &faults, &conflicts, &mut reported);
            let has_own = || endpoints.all(&snapshot).any(|row| key(row).is_some());
            let due = lack.report(&health, reader.lacks_slices() && has_own());
            drop(snapshot);
            tokio::select! {
                () = objects_changed.changed() => {}
                () = node_changed.changed() => {}
                () = endpoints_changed.changed() => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
        }
    }
}

/// The lack of slices although this node has pods, which lasts for a while before it is reported.
#[derive(Default)]
struct Lack {
    since: Option<Instant>,
    is_reported: bool,
}

impl Lack {
    /// Updates the row; returns when it is due.
    fn report(&mut self, health: &Health, is_lacking: bool) -> Option<Instant> {
        let due = match is_lacking {
            true => *self.since.get_or_insert_with(Instant::now) + SLICES_DELAY,
            false => {
                self.since = None;
                if std::mem::take(&mut self.is_reported) {
                    health.child(SLICES_ROW).close();
                }
                return None;
            }
        };
        if Instant::now() < due {
            return Some(due);
        }
        if !std::mem::replace(&mut self.is_reported, true) {
            health.child(SLICES_ROW).degraded(
                "There are no CiliumEndpointSlices, so pods of other nodes have no identity",
                "start the operator with enable-cilium-endpoint-slice=true, or the agents without that option",
            );
        }
        None
    }
}

/// Returns the objects that claim an address of an endpoint of this node.
fn conflicts(entries: &Table<Entry>, endpoints: &Table<Endpoint>, snapshot: &Snapshot) -> Vec<String> {
    // The snapshot of the endpoints is older than the claims of this round.
    let claimed = entries.snapshot();
    let mut found = Vec::new();
    for endpoint in endpoints.all(snapshot).filter(|endpoint| !endpoint.state.is_leaving()) {
        for address in endpoint.record.addresses() {
            let Some(entry) = entries.get(&claimed, Entry::by_prefix(address.into())) else { continue };
            let pod = endpoint.record.pod_name();
            let text = |owner: &str| format!("{owner}: {address} is the address of {pod} on this node");
            found.extend(owners(entry).into_iter().map(text));
        }
    }
    found
}

fn report(health: &Health, faults: &BTreeMap<Key, String>, conflicts: &[String], reported: &mut String) {
    let invalid = faults.iter().map(|(key, fault)| format!("{key}: {fault}"));
    let error = summarize(invalid.chain(conflicts.iter().cloned()), SHOWN, "; ");
    if error == *reported {
        return;
    }
    // A new reporter each time: one that was closed remembers its last report.
    let health = health.child(ROW);
    match faults.len() + conflicts.len() {
        0 => health.close(),
        count => health.degraded(
            format_args!("{count} CiliumEndpoints of other nodes claim what they cannot have"),
            format_args!("{error}; look what wrote them, and delete them"),
        ),
    }
    *reported = error;
}
