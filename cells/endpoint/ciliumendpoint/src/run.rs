//! The job: objects of all nodes into claims.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use endpoints::Endpoint;
use hive::health::{SHOWN, summarize};
use hive::{Health, JobCx};
use identity::Range;
use ipcache::{Change, Entry, IpcacheWriter};
use k8s_tables::cilium::CiliumEndpoint;
use k8s_tables::{Key, Row};
use local_node::LocalNode;
use statedb::{Initializer, Snapshot, Table};

use crate::remote::{Claimed, claims};

/// The row of health about objects that claim what they cannot have.
const ROW: &str = "remote-endpoints";

/// The parameters of the job.
pub(crate) struct Follow {
    pub(crate) range: Range,
    pub(crate) objects: Arc<Table<Row<CiliumEndpoint>>>,
    pub(crate) node: Arc<Table<LocalNode>>,
    pub(crate) endpoints: Arc<Table<Endpoint>>,
    pub(crate) ipcache: Arc<IpcacheWriter>,
    pub(crate) initializer: Initializer<Entry>,
    pub(crate) health: Health,
}

impl Follow {
    pub(crate) async fn run(self, cx: JobCx) {
        let token = cx.token().clone();
        token.run_until_cancelled(self.follow(&cx)).await;
    }

    async fn follow(self, cx: &JobCx) {
        let Follow { range, objects, node, endpoints, ipcache, initializer, health } = self;
        // Before the node's addresses are known its own objects look like those of others.
        node.wait_initialized().await;
        objects.wait_initialized().await;
        cx.health.ok("Running");
        let mut initializer = Some(initializer);
        let (mut claimed, mut faults) = (Claimed::default(), BTreeMap::new());
        let mut own: Vec<IpAddr> = Vec::new();
        let mut changes = objects.changes();
        let mut reported = String::new();
        loop {
            let snapshot = objects.snapshot();
            let (batch, objects_changed) = changes.read(&snapshot, usize::MAX);
            let (row, node_changed) = node.get_watch(&snapshot, LocalNode::query());
            let (_, endpoints_changed) = endpoints.all_watch(&snapshot);
            let addresses = row.map(|row| row.addresses()).unwrap_or_default();
            let addresses: Vec<IpAddr> = addresses.into_iter().map(|(_, address)| address).collect();
            let mut all = Vec::new();
            let mut apply = |object: &CiliumEndpoint, deleted: bool| -> Vec<Change> {
                let meta = &object.metadata;
                let key = Key::new(meta.namespace.clone(), meta.name.clone());
                faults.remove(&key);
                let desired = match deleted {
                    true => BTreeMap::new(),
                    false => claims(object, &addresses, range).unwrap_or_else(|fault| {
                        faults.insert(key.clone(), fault.to_string());
                        BTreeMap::new()
                    }),
                };
                claimed.replace(&key, desired)
            };
            for change in &batch {
                all.extend(apply(&change.object.object, change.deleted));
            }
            if addresses != own {
                objects.all(&snapshot).for_each(|row| all.extend(apply(&row.object, false)));
                own = addresses;
            }
            if !all.is_empty() {
                ipcache.apply(all);
            }
            if let Some(initializer) = initializer.take() {
                ipcache.complete(initializer);
            }
            let conflicts = conflicts(&claimed, &endpoints, &snapshot);
            report(&health, &faults, &conflicts, &mut reported);
            tokio::select! {
                () = objects_changed.changed() => {}
                () = node_changed.changed() => {}
                () = endpoints_changed.changed() => {}
            }
        }
    }
}

/// Returns the objects that claim an address of an endpoint of this node.
fn conflicts(claimed: &Claimed, endpoints: &Table<Endpoint>, snapshot: &Snapshot) -> Vec<String> {
    let mut found = Vec::new();
    for endpoint in endpoints.all(snapshot).filter(|endpoint| !endpoint.state.is_leaving()) {
        for address in endpoint.record.addresses() {
            let pod = endpoint.record.pod_name();
            let text = |owner: &Key| format!("{owner}: {address} is the address of {pod} on this node");
            found.extend(claimed.owners(address).map(text));
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
