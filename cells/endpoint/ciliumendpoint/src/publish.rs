//! The job that keeps the objects of this node's endpoints as desired.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use endpoints::{CiliumEndpointUids, Endpoint, EndpointId};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use hive::health::{SHOWN, summarize};
use hive::{Health, JobCx};
use k8s_tables::core::Pod;
use k8s_tables::{Key, Kind, Row};
use k8s_types::SmolStr;
use k8s_types::cilium::{CiliumEndpoint, CiliumEndpointSlice};
use k8s_writer::{Mutation, NotWritten, Step, Target, Writer, Written};
use local_node::LocalNode;
use maps::FamilyConfig;
use serde_json::Value;
use statedb::{Changes, Snapshot, Table, Watch};
use tokio::time::{Instant, sleep_until};

use crate::desired::{Desired, delete_owned, key};
use crate::ledger::{Current, Ledger, Stored, Turn, version};
use crate::remote::Remote;
use crate::stale::{delete_own, stale};

/// The row of health about objects that another client changes or deletes.
const OTHER_WRITER: &str = "other-writer";
/// The row of health about objects that cannot be adopted.
const FOREIGN: &str = "foreign-objects";

/// The inputs of the job.
pub(crate) struct Publisher {
    /// Whether objects of this node without an endpoint are deleted at the start.
    pub(crate) deletes_stale: bool,
    pub(crate) families: FamilyConfig,
    pub(crate) endpoints: Arc<Table<Endpoint>>,
    pub(crate) pods: Arc<Table<Row<Pod>>>,
    /// Empty if slices are in use.
    pub(crate) objects: Arc<Table<Row<CiliumEndpoint>>>,
    pub(crate) slices: Option<Arc<Table<Row<CiliumEndpointSlice>>>>,
    pub(crate) node: Arc<Table<LocalNode>>,
    pub(crate) uids: Arc<CiliumEndpointUids>,
    pub(crate) writer: Arc<Writer>,
    pub(crate) health: Health,
}

/// The end of a write: the object, its id, the fields that were written, and the outcome.
type Outcome = (Key, u64, Arc<Desired>, Result<Written, NotWritten>);

/// The state of the job.
struct Run<'p> {
    publisher: &'p Publisher,
    ledger: Ledger,
    /// Endpoints of the previous run.
    restored: BTreeSet<EndpointId>,
    /// Their objects, as long as their endpoints have not been deleted.
    restored_objects: BTreeSet<Key>,
    /// The pods of the objects.
    pods: HashMap<Key, Key>,
    /// When objects are due without a change of the tables.
    due: BTreeMap<Key, Instant>,
    writes: FuturesUnordered<BoxFuture<'static, Outcome>>,
    /// Uids on their way into records.
    stores: FuturesUnordered<BoxFuture<'static, ()>>,
    reported: String,
}

/// The tables' changes that the job reads.
struct Inputs {
    endpoints: Changes<Endpoint>,
    pods: Changes<Row<Pod>>,
    objects: Changes<Row<CiliumEndpoint>>,
}

/// The changes of one turn.
struct Dirty {
    keys: BTreeSet<Key>,
    /// The uids of objects that have left the table, by name.
    deleted: HashMap<Key, SmolStr>,
    watches: [Watch; 3],
}

/// This node in a snapshot.
struct Node {
    addresses: Vec<IpAddr>,
    /// The address that objects have; none while it is not known.
    address: Option<IpAddr>,
    name: String,
}

impl Publisher {
    /// Runs until the job is cancelled.
    pub(crate) async fn run(self, cx: JobCx) {
        let token = cx.token().clone();
        token.run_until_cancelled(self.publish(&cx)).await;
    }

    async fn publish(&self, cx: &JobCx) {
        self.node.wait_initialized().await;
        self.endpoints.wait_initialized().await;
        let mut inputs = Inputs {
            endpoints: self.endpoints.changes(),
            pods: self.pods.changes(),
            objects: self.objects.changes(),
        };
        let mut run = Run::new(self);
        let restored = self.endpoints.snapshot();
        run.restored = self.endpoints.all(&restored).map(|row| row.id()).collect();
        run.restored_objects = self.endpoints.all(&restored).filter_map(|row| key(row)).collect();
        drop(restored);
        cx.health.ok("Running");
        let mut was_complete = false;
        let mut last_address = None;
        let mut deletes_stale = self.deletes_stale;
        loop {
            let snapshot = self.endpoints.snapshot();
            let mut dirty = run.read(&mut inputs, &snapshot);
            let (row, node_watch) = self.node.get_watch(&snapshot, LocalNode::query());
            let node = Node::new(row.map(|row| &**row), &self.families);
            let (is_complete, complete_watch) = match &self.slices {
                None => self.objects.initialized_watch(&snapshot),
                Some(slices) => slices.initialized_watch(&snapshot),
            };
            if is_complete != was_complete || node.address != last_address {
                dirty.keys.extend(self.endpoints.all(&snapshot).filter_map(|row| key(row)));
                (was_complete, last_address) = (is_complete, node.address);
            }
            run.turn(&snapshot, &node, is_complete, &dirty);
            if deletes_stale && is_complete && node.address.is_some() {
                deletes_stale = false;
                self.delete_stale(&snapshot, node);
            }
            let unreported = run.report();
            let due = run.due.values().copied().chain(unreported).min();
            let [endpoints, pods, objects] = dirty.watches;
            drop(snapshot);
            tokio::select! {
                () = endpoints.changed() => {}
                () = pods.changed() => {}
                () = objects.changed() => {}
                () = node_watch.changed() => {}
                () = complete_watch.changed(), if !is_complete => {}
                Some(outcome) = run.writes.next(), if !run.writes.is_empty() => run.finished(outcome),
                Some(()) = run.stores.next(), if !run.stores.is_empty() => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
        }
    }

    /// Deletes the objects of this node that have no endpoint. Those that slices name are read first, as slices may be old.
    fn delete_stale(&self, snapshot: &Snapshot, node: Node) {
        let rows = self.endpoints.all(snapshot).filter(|row| !row.state.is_leaving());
        let local: BTreeSet<Key> = rows.filter_map(|row| key(row)).collect();
        let mut known: Vec<(Key, Remote<'_>)> = Vec::new();
        for row in self.objects.all(snapshot) {
            let meta = &row.metadata;
            known.push((Key::new(meta.namespace.clone(), meta.name.clone()), Remote::from(&row.object)));
        }
        for slice in self.slices.iter().flat_map(|slices| slices.all(snapshot)) {
            for core in &slice.endpoints {
                known.push((Key::new(slice.namespace.clone(), core.name.clone()), Remote::from(core)));
            }
        }
        let stale = stale(known, &node.addresses, &local);
        if !stale.is_empty() {
            let names = summarize(stale.iter().map(ToString::to_string), SHOWN, ", ");
            tracing::info!(names, "Deleting CiliumEndpoints of this node that have no endpoint");
        }
        let addresses: Arc<[IpAddr]> = node.addresses.into();
        for name in stale {
            let mutation = match self.objects.get(snapshot, Row::by_key(&name)) {
                Some(object) => Mutation::delete(Some(object.metadata.uid.clone())),
                None => {
                    let addresses = addresses.clone();
                    Mutation::new(move |present| delete_own(&addresses, present))
                }
            };
            drop(self.writer.enqueue(Target::new(Kind::CiliumEndpoint, name), mutation));
        }
    }

    /// Returns the endpoint of an object.
    fn current(&self, snapshot: &Snapshot, node: &Node, pod: &Key, name: &Key) -> Current {
        let rows = self.endpoints.list(snapshot, Endpoint::by_pod(&pod.to_string()));
        let rows = rows.filter(|row| !row.state.is_leaving() && key(row).as_ref() == Some(name));
        let object = self.pods.get(snapshot, Row::by_key(pod));
        let mut unknown = Current::None;
        for row in rows {
            let of_pod = object.filter(|pod| row.is_of(&pod.object) && !pod.metadata.uid.is_empty());
            let desired = of_pod.zip(node.address).and_then(|(pod, address)| {
                Desired::new(row, &pod.object, address, node.has(&pod.object)).map(Arc::new)
            });
            match desired {
                Some(desired) => return Current::Desired(desired),
                None => unknown = Current::Unknown(row.id()),
            }
        }
        unknown
    }
}

impl Node {
    fn new(row: Option<&LocalNode>, families: &FamilyConfig) -> Node {
        let Some(node) = row else {
            return Node { addresses: Vec::new(), address: None, name: String::new() };
        };
        let address = match families.enable_ipv4 {
            true => node.ipv4.map(IpAddr::V4),
            false => node.ipv6.map(IpAddr::V6),
        };
        let addresses = node.addresses().into_iter().map(|(_, address)| address).collect();
        Node { addresses, address, name: node.name.clone() }
    }

    /// Whether a pod runs on this node by its object. The kubelet may not have written its address yet.
    fn has(&self, pod: &Pod) -> bool {
        match pod.status.host_ip.as_str() {
            "" => pod.spec.node_name == self.name.as_str(),
            address => address.parse().is_ok_and(|address| self.addresses.contains(&address)),
        }
    }
}

/// Returns the pod of an endpoint.
fn pod_of(endpoint: &Endpoint) -> Key {
    Key::new(endpoint.record.k8s_namespace.as_str(), endpoint.record.k8s_pod_name.as_str())
}

impl<'p> Run<'p> {
    fn new(publisher: &'p Publisher) -> Run<'p> {
        Run {
            publisher,
            ledger: Ledger::default(),
            restored: BTreeSet::new(),
            restored_objects: BTreeSet::new(),
            pods: HashMap::new(),
            due: BTreeMap::new(),
            writes: FuturesUnordered::new(),
            stores: FuturesUnordered::new(),
            reported: String::new(),
        }
    }

    /// Reads the changes of the tables: the names of the objects that may differ.
    fn read(&mut self, inputs: &mut Inputs, snapshot: &Snapshot) -> Dirty {
        let (endpoints, endpoints_watch) = inputs.endpoints.read(snapshot, usize::MAX);
        let (pods, pods_watch) = inputs.pods.read(snapshot, usize::MAX);
        let (objects, objects_watch) = inputs.objects.read(snapshot, usize::MAX);
        let (mut keys, mut deleted) = (BTreeSet::new(), HashMap::new());
        for change in &endpoints {
            let Some(key) = key(&change.object) else { continue };
            self.pods.insert(key.clone(), pod_of(&change.object));
            keys.insert(key);
        }
        for change in &pods {
            let pod = statedb::TableSpec::key(&*change.object);
            let rows = self.publisher.endpoints.list(snapshot, Endpoint::by_pod(&pod));
            keys.extend(rows.filter_map(|row| key(row)));
        }
        for change in &objects {
            let meta = &change.object.metadata;
            let key = Key::new(meta.namespace.clone(), meta.name.clone());
            if self.pods.contains_key(&key) {
                if change.deleted {
                    deleted.insert(key.clone(), meta.uid.clone());
                }
                keys.insert(key);
            }
        }
        let now = Instant::now();
        keys.extend(self.due.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()));
        Dirty { keys, deleted, watches: [endpoints_watch, pods_watch, objects_watch] }
    }

    /// Enqueues the next writes of these objects.
    fn turn(&mut self, snapshot: &Snapshot, node: &Node, is_complete: bool, dirty: &Dirty) {
        let now = Instant::now();
        let publisher = self.publisher;
        for name in &dirty.keys {
            let Some(pod) = self.pods.get(name) else { continue };
            let current = publisher.current(snapshot, node, pod, name);
            let is_gone = current == Current::None;
            if is_gone {
                self.pods.remove(name);
            }
            let is_restored = match &current {
                Current::Desired(desired) => self.restored.contains(&desired.endpoint),
                Current::None | Current::Unknown(_) => false,
            };
            let object = publisher.objects.get(snapshot, Row::by_key(name));
            let stored = Stored {
                object: object.map(|row| &row.object),
                is_followed: publisher.slices.is_none(),
                is_complete,
                deleted: dirty.deleted.get(name).map(SmolStr::as_str),
            };
            let turn = self.ledger.turn(now, name, current, is_restored, stored);
            // An endpoint of the previous run that was deleted before its object was adopted.
            if is_gone
                && self.restored_objects.remove(name)
                && turn == Turn::Nothing
                && publisher.deletes_stale
            {
                let addresses: Arc<[IpAddr]> = node.addresses.as_slice().into();
                let mutation = Mutation::new(move |present| delete_own(&addresses, present));
                drop(publisher.writer.enqueue(Target::new(Kind::CiliumEndpoint, name.clone()), mutation));
            }
            let stored_version = object.map_or(0, |row| version(&row.metadata.resource_version));
            self.due.remove(name);
            self.execute(name, turn, stored_version);
        }
    }

    fn execute(&mut self, name: &Key, turn: Turn, stored_version: u64) {
        let target = Target::new(Kind::CiliumEndpoint, name.clone());
        let (desired, first) = match turn {
            Turn::Nothing => return,
            Turn::At(at) => {
                self.due.insert(name.clone(), at);
                return;
            }
            Turn::Adopt(desired, uid) => {
                self.ledger.adopted(name, &desired, &uid, stored_version);
                return self.store(&desired, uid);
            }
            Turn::Delete { uid, pod_uid } => {
                // The outcome is of no interest: the writer tries until the object is gone or another one.
                let mutation = match uid.is_empty() {
                    true => Mutation::new(move |present| delete_owned(&pod_uid, present)),
                    false => Mutation::delete(Some(uid)),
                };
                drop(self.publisher.writer.enqueue(target, mutation));
                return;
            }
            Turn::Create(desired) => {
                let first = Step::Create(desired.object());
                (desired, Some(first))
            }
            Turn::Ensure(desired) => (desired, None),
            Turn::Patch(desired, uid, status, labels) => {
                let first = desired.patch(&uid, status, labels);
                (desired, Some(first))
            }
            Turn::Recreate(desired, uid) => {
                let first = Step::Recreate { uid, object: desired.object() };
                (desired, Some(first))
            }
        };
        let written = desired.clone();
        let mutation = Mutation::new(move |present: Option<&Value>| written.step(present));
        let mutation = match first {
            Some(step) => mutation.at_first(step),
            None => mutation,
        };
        let write = self.ledger.enqueued(name, &desired);
        let ticket = self.publisher.writer.enqueue(target, mutation);
        let name = name.clone();
        self.writes.push(Box::pin(async move { (name, write, desired, ticket.done().await) }));
    }

    /// Records the end of a write; the object's next turn follows.
    fn finished(&mut self, (name, write, desired, outcome): Outcome) {
        let now = Instant::now();
        match outcome {
            Ok(written) => {
                let object: Option<Value> =
                    written.object.as_ref().and_then(|json| serde_json::from_slice(json).ok());
                let field = |field: &str| -> SmolStr {
                    let text = object.as_ref().and_then(|object| object["metadata"][field].as_str());
                    text.unwrap_or_default().into()
                };
                let (uid, version) = (field("uid"), version(&field("resourceVersion")));
                if self.ledger.written(&name, write, desired.clone(), uid.clone(), version) {
                    self.store(&desired, uid);
                    self.due.insert(name, now);
                }
            }
            Err(NotWritten::GaveUp { reason, .. }) => {
                self.ledger.refused(now, &name, write, reason);
                self.due.insert(name, now);
            }
            // A deletion has taken its place, or the agent stops.
            Err(_) => {}
        }
    }

    /// Stores an object's uid in the endpoint's record.
    fn store(&self, desired: &Desired, uid: SmolStr) {
        if uid.is_empty() || uid == desired.stored_uid {
            return;
        }
        let (uids, endpoint) = (self.publisher.uids.clone(), desired.endpoint);
        self.stores.push(Box::pin(async move {
            if let Err(error) = uids.store(endpoint, &uid).await {
                tracing::warn!(endpointID = endpoint.0, %error, "Unable to store the uid of a CiliumEndpoint");
            }
        }));
    }

    /// Reports objects of other clients, and those that they change; returns when the report changes by itself.
    fn report(&mut self) -> Option<Instant> {
        let refusals = self.ledger.refusals();
        let count = refusals.len();
        let refused = summarize(refusals.iter().map(|(key, reason)| format!("{key}: {reason}")), SHOWN, "; ");
        let (corrections, next) = self.ledger.corrections(Instant::now());
        let changed = summarize(corrections.iter().cloned(), SHOWN, "; ");
        let reported = format!("{refused}\n{changed}");
        if reported == self.reported {
            return next;
        }
        // New reporters each time: one that was closed remembers its last report.
        let foreign = self.publisher.health.child(FOREIGN);
        match count {
            0 => foreign.close(),
            count => foreign.degraded(
                format_args!("{count} CiliumEndpoints of own pods belong to another node"),
                refused,
            ),
        }
        let other = self.publisher.health.child(OTHER_WRITER);
        match corrections.len() {
            0 => other.close(),
            count => {
                let message = format!("Another client has changed {count} CiliumEndpoints of this node");
                let error = format!(
                    "{changed}; they are written again. Is there a second agent for this node, or a client that edits them?"
                );
                if other.degraded_anew(&message, &error) {
                    tracing::warn!(error, "{message}");
                }
            }
        }
        self.reported = reported;
        next
    }
}
