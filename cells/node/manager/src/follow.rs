//! The job: the local node, restored nodes and CiliumNodes into the table and the ipcache.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ::identity::Identity;
use hive::health::{SHOWN, summarize};
use hive::{Health, JobCx};
use ipcache::IpcacheWriter;
use k8s_tables::Row;
use k8s_tables::cilium::CiliumNode;
use local_node::LocalNode;
use statedb::{Batch, Initializer, RwTable, Table, Watch};

use crate::api_servers::{ApiServers, OutsideServers};
use crate::checkpoint::Checkpoint;
use crate::cluster_nodes::History;
use crate::label_identities::{Assigned, LabelIdentities};
use crate::mappings::{self, Settings};
use crate::metrics::{EventType, Numbers};
use crate::model::{Event, Key, Model, Rows, key};
use crate::node::Node;
use crate::object::{self, Cluster};
use crate::source::NodeSource;

/// The number of objects that one transaction takes, so that a large cluster does not hold up other jobs.
const BATCH: usize = 512;

/// An upper bound of the time between a program's lookups in the ipcache and in a policy map.
pub(crate) const IN_FLIGHT: Duration = Duration::from_millis(1);

/// The identities of nodes and of API servers.
pub(crate) struct Identities {
    pub(crate) by_labels: LabelIdentities,
    pub(crate) outside: OutsideServers,
    /// Completed when the host has the labels that it is selected by, and addresses of API servers their claims.
    pub(crate) initializer: Option<Initializer<Identity>>,
}

/// The parameters of the job.
pub(crate) struct Follow {
    pub(crate) settings: Settings,
    /// None in agents without identities.
    pub(crate) identities: Option<Identities>,
    pub(crate) api_servers: ApiServers,
    pub(crate) nodes: Arc<RwTable<Node>>,
    pub(crate) objects: Arc<Table<Row<CiliumNode>>>,
    pub(crate) local: Arc<Table<LocalNode>>,
    pub(crate) ipcache: Arc<IpcacheWriter>,
    pub(crate) history: Arc<History>,
    pub(crate) checkpoint: Arc<Checkpoint>,
    pub(crate) numbers: Numbers,
    pub(crate) health: Health,
    /// The initializers of the table and of the ipcache.
    pub(crate) initializers: (Initializer<Node>, Initializer<ipcache::Entry>),
}

/// The state of the job.
#[derive(Default)]
struct State {
    model: Model,
    own: Option<Node>,
    /// Parts of objects that are left out, by the object's name.
    invalid: BTreeMap<Arc<str>, String>,
}

impl Follow {
    pub(crate) async fn run(self, cx: JobCx) {
        let token = cx.token().clone();
        token.run_until_cancelled(self.follow(&cx)).await;
    }

    async fn follow(self, cx: &JobCx) {
        let Follow {
            settings,
            mut identities,
            api_servers,
            nodes,
            objects,
            local,
            ipcache,
            history,
            checkpoint,
            numbers,
            health,
            initializers,
        } = self;
        // Before the node's name is known its own object looks like that of another node.
        local.wait_initialized().await;
        let restored = hive::blocking(move || checkpoint.read()).await;
        let mut state = State::default();
        let mut initializers = Some(initializers);
        let mut changes = objects.changes();
        let mut events: Vec<Event> = restored.into_iter().map(Event::Upsert).collect();
        loop {
            let snapshot = objects.snapshot();
            let (is_listed, listed) = objects.initialized_watch(&snapshot);
            let (servers, servers_changed) = api_servers.read(&snapshot);
            let (row, local_changed) = local.get_watch(&snapshot, LocalNode::query());
            if let Some(row) = row {
                state.local(&mut events, Node::from(&**row), &numbers);
            }
            let (mut is_complete, mut objects_changed) = (false, None);
            // The first claim of an address has the identity of API servers if it is one.
            if servers.is_some() {
                let (batch, watch) = changes.read(&snapshot, BATCH);
                state.objects(&mut events, &batch, &numbers);
                (is_complete, objects_changed) = (is_listed && batch.len() < BATCH, Some(watch));
            }
            let mut rows = state.model.apply(events.drain(..));
            let initializer = match initializers.take_if(|_| is_complete) {
                Some((table, entries)) => {
                    let stale = state.model.of_source(NodeSource::Restored);
                    let stale = stale.into_iter().map(|key| Event::Delete(key, NodeSource::Restored));
                    rows.extend(state.model.apply(stale));
                    Some((table, entries))
                }
                None => None,
            };
            let assigned = match &mut identities {
                Some(identities) => {
                    if let Some(servers) = &servers {
                        let changed = identities.by_labels.set_api_servers(servers.clone());
                        rows.extend(state.model.with_addresses(&changed));
                    }
                    identities.by_labels.assign(&rows).await
                }
                None => Assigned::default(),
            };
            let (table, entries) = initializer.unzip();
            let claimed = write(&settings, &nodes, &history, &ipcache, rows, &assigned, table);
            if let Some(identities) = &mut identities {
                if assigned.has_changes() {
                    // An error means that the agent stops: the identities stay as they are.
                    if let Some(revision) = claimed
                        && ipcache.applied(revision, &[]).await.is_err()
                    {
                        return;
                    }
                    tokio::time::sleep(IN_FLIGHT).await;
                    identities.by_labels.release(assigned).await;
                }
                let error = match servers {
                    Some(servers) => identities.set_servers(&servers, &state.model, &settings).await.err(),
                    None => None,
                };
                report_identities(&identities.by_labels, error.as_ref(), &health);
            }
            // Sources of claims are complete when the addresses of API servers have theirs, too.
            if let Some(entries) = entries {
                ipcache.complete(entries);
            }
            numbers.nodes.set(i64::try_from(state.model.len()).unwrap_or(i64::MAX));
            state.report(cx, &health);
            drop(snapshot);
            tokio::select! {
                () = changed(objects_changed.as_ref()) => {}
                () = changed(servers_changed.as_ref()) => {}
                () = local_changed.changed() => {}
                () = listed.changed(), if !is_listed => {}
            }
        }
    }
}

/// Waits for the watch, without one for ever.
async fn changed(watch: Option<&Watch>) {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

impl Identities {
    /// Makes these the addresses of the API server, as far as they are of the host or of no node.
    async fn set_servers(
        &mut self,
        servers: &BTreeSet<IpAddr>,
        model: &Model,
        settings: &Settings,
    ) -> Result<(), ::identity::Error> {
        let nodes = self.outside.prefixes.of_nodes();
        nodes.set_host_is_api_server(model.is_local_with(servers));
        let is_outside = |ip: &&IpAddr| settings.has(**ip) && !model.has_address(**ip);
        let result = self.outside.set(servers.iter().filter(is_outside).copied().collect()).await;
        if let Some(initializer) = self.initializer.take() {
            nodes.complete(initializer);
        }
        result
    }
}

impl State {
    fn local(&mut self, events: &mut Vec<Event>, node: Node, numbers: &Numbers) {
        if self.own.as_ref() != Some(&node) {
            let event_type = if self.own.is_some() { EventType::Update } else { EventType::Add };
            numbers.event(event_type, NodeSource::Local);
            events.push(Event::Upsert(node.clone()));
            self.own = Some(node);
        }
    }

    /// Adds the events of a batch. The object of this node is left out, as the local node is the source of its row.
    fn objects(&mut self, events: &mut Vec<Event>, batch: &Batch<Row<CiliumNode>>, numbers: &Numbers) {
        let Some(own) = &self.own else { return };
        let cluster = Cluster { name: own.cluster.clone(), id: own.cluster_id };
        for change in batch.iter().filter(|change| change.object.metadata.name.as_str() != &*own.name) {
            let (node, problems) = object::node(&change.object.object, &cluster);
            let key: Key = key(&node);
            self.invalid.remove(&key.1);
            let event_type = match (change.deleted, self.model.source(&key)) {
                (true, _) => EventType::Delete,
                (false, None | Some(NodeSource::Restored)) => EventType::Add,
                (false, Some(_)) => EventType::Update,
            };
            numbers.event(event_type, NodeSource::CustomResource);
            if change.deleted {
                events.push(Event::Delete(key, NodeSource::CustomResource));
                continue;
            }
            if !problems.is_empty() {
                self.invalid.insert(key.1, problems.join(", "));
            }
            events.push(Event::Upsert(node));
        }
    }

    fn report(&self, cx: &JobCx, health: &Health) {
        cx.health.ok(format_args!("{} nodes", self.model.len()));
        let conflicts = self.model.conflicts();
        let count = conflicts.len();
        degrade(
            &health.child("conflicts"),
            (count > 0).then(|| summarize(conflicts, SHOWN, "; ")),
            format!("{count} addresses and pod ranges of nodes belong to others, which had them first"),
        );
        let invalid = self.invalid.iter().map(|(name, problems)| format!("{name}: {problems}"));
        degrade(
            &health.child("invalid-nodes"),
            (!self.invalid.is_empty()).then(|| summarize(invalid, SHOWN, "; ")),
            format!("{} CiliumNodes have invalid parts, which are ignored", self.invalid.len()),
        );
    }
}

/// Reports the error in the row, and in the log if it is another one; without an error the row is closed.
fn degrade(row: &Health, error: Option<String>, message: String) {
    match error {
        None => row.close(),
        Some(error) if row.degraded_anew(&message, &error) => tracing::warn!(error, "{message}"),
        Some(_) => {}
    }
}

/// Reports nodes that have no identity of their own, and the error of those of API servers.
fn report_identities(identities: &LabelIdentities, servers: Option<&::identity::Error>, health: &Health) {
    let count = identities.failed().count();
    degrade(
        &health.child("identities"),
        (count > 0).then(|| summarize(identities.failed(), SHOWN, "; ")),
        format!("{count} nodes have no identity of their labels: policies do not select them"),
    );
    degrade(
        &health.child("api-servers"),
        servers.map(ToString::to_string),
        "Addresses of the API server have no identity: policies do not select them".to_owned(),
    );
}

/// Writes rows in one transaction, and the claims that follow in another one. Returns the revision of the ipcache with
/// the claims.
fn write(
    settings: &Settings,
    nodes: &RwTable<Node>,
    history: &History,
    ipcache: &IpcacheWriter,
    rows: Rows,
    assigned: &Assigned,
    initializer: Option<Initializer<Node>>,
) -> Option<u64> {
    let mut claims = Vec::new();
    let mut past = Vec::new();
    let mut txn = nodes.write();
    for (key, row) in rows {
        let identities = assigned.of(&key);
        let (cluster, name) = key;
        let before = txn.get(Node::by_name(&cluster, &name)).cloned();
        if before.as_deref() == row.as_ref() && identities[0] == identities[1] {
            continue;
        }
        claims.extend(mappings::changes(settings, before.as_deref(), row.as_ref(), &identities));
        match row {
            Some(row) => drop(txn.insert(row)),
            None => drop(txn.delete(Node::by_name(&cluster, &name))),
        }
        past.push(((cluster, name), before));
    }
    if let Some(initializer) = initializer {
        initializer.done(&mut txn);
    }
    history.commit(txn, past);
    (!claims.is_empty()).then(|| ipcache.apply(claims))
}
