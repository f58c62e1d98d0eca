//! Identities of other nodes by their labels, valid on this node only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use datapath_abi::identity::HOST;
use identity_core::{Range, Scope};
use labels::{KUBE_APISERVER, Label, LabelArray, LabelRef, RESERVED};
use statedb::{Initializer, RwTable, Writer};
use tokio::sync::watch;

use crate::allocator::find;
use crate::error::Error;
use crate::identity::Identity;
use crate::store::Store;

/// The maximum wait for policy: a policy that cannot be written must not keep nodes from being known.
const MAX_POLICY_WAIT: Duration = Duration::from_secs(2);

/// Allocates identities for the labels of nodes, of [`Scope::RemoteNode`]. Cheap to clone. They are in the file of the
/// identities of prefixes.
#[derive(Debug, Clone)]
pub struct NodeIdentities {
    table: RwTable<Identity>,
    store: Arc<Store>,
    /// Start of the search for a free id; ids are reused as late as possible.
    next: Arc<AtomicU32>,
    policy: PolicyRevision,
}

/// The revision of the table `identities` that policy maps follow; none before the first one.
#[derive(Debug, Clone)]
pub(crate) struct PolicyRevision(Arc<watch::Sender<Option<u64>>>);

impl Default for PolicyRevision {
    fn default() -> PolicyRevision {
        PolicyRevision(Arc::new(watch::Sender::new(None)))
    }
}

impl PolicyRevision {
    pub(crate) fn set(&self, revision: u64) {
        self.0.send_if_modified(|current| current.replace(revision) != Some(revision));
    }

    /// Waits for the first revision.
    pub(crate) async fn in_force(&self) {
        // Never an error: this handle owns the sender.
        let _ = self.0.subscribe().wait_for(Option::is_some).await;
    }
}

impl NodeIdentities {
    pub(crate) fn new(table: RwTable<Identity>, store: Arc<Store>, policy: PolicyRevision) -> NodeIdentities {
        let next = Arc::new(AtomicU32::new(Range::REMOTE_NODES.first));
        NodeIdentities { table, store, next, policy }
    }

    /// Returns the identity of a node's labels and references it for the node; a new one if there is none. As for
    /// prefixes, the disk is not waited for.
    pub fn allocate(&self, node: &str, labels: &LabelArray) -> Result<u32, Error> {
        let user = user(node);
        let held = self.store.hold();
        let ((id, is_new), _) = self.table.transact(|w| match of_nodes(w, labels) {
            Some(row) => {
                if row.scope() == Scope::RemoteNode && !row.users.contains(&user) {
                    w.insert(row.with_user(user.clone()));
                }
                (Some(row.id), false)
            }
            None => {
                let id = self.free(w);
                if let Some(id) = id {
                    w.insert(Identity::new(id, labels.clone()).with_user(user.clone()));
                }
                (id, id.is_some())
            }
        });
        if is_new {
            held.write_or_later(|| Store::local_entries(&self.table));
        }
        id.ok_or_else(|| {
            let snapshot = self.table.snapshot();
            let used = self.table.all(&snapshot).filter(|row| row.scope() == Scope::RemoteNode).count();
            Error::Exhausted { range: Range::REMOTE_NODES, used, waiting: 0 }
        })
    }

    /// Releases a node's identity, which goes if no other node has it. Call it when the ipcache does not have it for this
    /// node any more.
    pub fn release(&self, node: &str, id: u32) {
        let user = user(node);
        let held = self.store.hold();
        let (gone, _) = self.table.transact(|w| {
            let row = w.get(Identity::by_id(id)).filter(|row| row.scope() == Scope::RemoteNode).cloned();
            let Some(row) = row else { return false };
            let left = row.without_user(&user, Instant::now());
            match left.users.is_empty() {
                true => w.delete(Identity::by_id(id)).is_some(),
                false => {
                    w.insert(left);
                    false
                }
            }
        });
        if gone {
            held.write_or_later(|| Store::local_entries(&self.table));
        }
    }

    /// Sets whether the API server runs on this node: the host's identity has its label then, beside those of
    /// [`Identities::set_host_labels`](crate::Identities::set_host_labels).
    pub fn set_host_is_api_server(&self, is_api_server: bool) {
        self.table.transact(|w| {
            let Some(host) = w.get(Identity::by_id(HOST)).cloned() else { return };
            let server = is_api_server.then(|| Label::reserved(KUBE_APISERVER));
            let others =
                host.labels.iter().filter(|label| !self::is_api_server(label)).map(LabelRef::to_label);
            let labels: LabelArray = others.chain(server).collect();
            if host.labels != labels {
                w.insert(Identity { labels, ..(*host).clone() });
            }
        });
    }

    /// Registers a source of identities of nodes: readers of the table wait until [`complete`](Self::complete).
    pub fn register(&self, name: &str) -> Initializer<Identity> {
        self.table.transact(|w| w.register_initializer(name)).0
    }

    /// Marks a source as complete.
    pub fn complete(&self, initializer: Initializer<Identity>) {
        self.table.transact(|w| initializer.done(w));
    }

    /// Waits until policy maps have rows for all identities that the table has now: packets of a node must not carry its
    /// identity before. Returns at once while no policy is in force, and in any case after two seconds.
    pub async fn policy_follows(&self) {
        let revision = self.table.revision(&self.table.snapshot());
        let mut policy = self.policy.0.subscribe();
        let follows = policy.wait_for(|current| current.is_none_or(|current| current >= revision));
        // Never an error of the channel: this handle owns the sender.
        let _ = tokio::time::timeout(MAX_POLICY_WAIT, follows).await;
    }

    fn free(&self, w: &Writer<'_, Identity>) -> Option<u32> {
        let range = Range::REMOTE_NODES;
        let start = self.next.load(Ordering::Relaxed);
        let id = range.around(start).find(|&id| w.get(Identity::by_id(id)).is_none())?;
        self.next.store(if id == range.last { range.first } else { id + 1 }, Ordering::Relaxed);
        Some(id)
    }
}

/// Returns the identity of exactly these labels of a node.
fn of_nodes(w: &Writer<'_, Identity>, labels: &LabelArray) -> Option<statedb::Obj<Identity>> {
    find(w, labels).filter(|row| matches!(row.scope(), Scope::RemoteNode | Scope::Reserved))
}

/// Whether it is the label of the API server's addresses.
pub(crate) fn is_api_server(label: &LabelRef<'_>) -> bool {
    label.source == RESERVED && label.key == KUBE_APISERVER
}

fn user(node: &str) -> Arc<str> {
    format!("node/{node}").into()
}

#[cfg(test)]
mod tests {
    use labels::Labels;
    use statedb::Db;

    use crate::identity::Identity;
    use crate::prefixes::Prefixes;
    use crate::testing;

    fn labels(zone: &str) -> labels::LabelArray {
        let zone = format!("node:zone={zone}");
        (&Labels::parse(["reserved:remote-node", &*zone])).into()
    }

    #[test]
    fn nodes_with_equal_labels_share_an_identity_until_the_last_has_left() {
        let (_, prefixes, table) = testing::identities();
        let nodes = prefixes.of_nodes();
        let a = nodes.allocate("n1", &labels("a")).unwrap();
        assert_eq!(a, (2 << 24) + 1);
        assert_eq!(nodes.allocate("n2", &labels("a")).unwrap(), a);
        assert_eq!(nodes.allocate("n1", &labels("a")).unwrap(), a);
        assert_eq!(nodes.allocate("n3", &labels("b")).unwrap(), a + 1);
        let plain = (&Labels::parse(["reserved:remote-node"])).into();
        assert_eq!(nodes.allocate("n4", &plain).unwrap(), 6, "without labels of its own");
        nodes.release("n4", 6);
        nodes.release("n1", a);
        let has = |id| table.get(&table.snapshot(), Identity::by_id(id)).is_some();
        assert!(has(a) && has(6));
        nodes.release("n2", a);
        assert!(!has(a) && has(a + 1));
        assert_eq!(nodes.allocate("n1", &labels("a")).unwrap(), a + 2, "ids are reused late");
    }

    #[test]
    fn a_restart_keeps_the_identities_of_nodes_beside_those_of_prefixes() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = ["192.0.2.0/24".parse().unwrap()];
        let start = || testing::of(&Db::new(), Some(folder.path()));
        // With `policy-cidr-match-mode=nodes`.
        let addressed = (&Labels::parse(["reserved:remote-node", "cidr:192.0.2.3/32"])).into();
        let allocate = |prefixes: &Prefixes| {
            let node = prefixes.of_nodes().allocate("n1", &labels("a")).unwrap();
            let addressed = prefixes.of_nodes().allocate("n3", &addressed).unwrap();
            (node, addressed, prefixes.allocate(&prefix).unwrap().into_values().next().unwrap())
        };
        let (_, first, _) = start();
        first.of_nodes().allocate("n0", &labels("b")).unwrap();
        let before = allocate(&first);
        let (_, second, table) = start();
        assert_eq!(allocate(&second), before);
        assert_eq!(second.of_nodes().allocate("n2", &labels("c")).unwrap(), before.1 + 1);
        assert_eq!(second.release_restored(), 1, "that of n0, which has left");
        assert!(table.get(&table.snapshot(), Identity::by_id(before.0)).is_some());
    }

    #[test]
    fn the_host_has_the_label_of_the_api_server_beside_those_of_its_node() {
        let (identities, prefixes, table) = testing::identities();
        let nodes = prefixes.of_nodes();
        let host = || table.get(&table.snapshot(), Identity::by_id(1)).unwrap().labels.texts();
        let set = |zone: &str| identities.set_host_labels((&Labels::parse(["reserved:host", zone])).into());
        nodes.set_host_is_api_server(true);
        assert_eq!(host(), ["reserved:host", "reserved:kube-apiserver"]);
        set("k8s:zone=a");
        assert_eq!(host(), ["reserved:host", "reserved:kube-apiserver", "k8s:zone=a"]);
        nodes.set_host_is_api_server(true);
        nodes.set_host_is_api_server(false);
        assert_eq!(host(), ["reserved:host", "k8s:zone=a"]);
        set("k8s:zone=b");
        assert_eq!(host(), ["reserved:host", "k8s:zone=b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_identity_waits_for_policy_that_is_in_force() {
        let (_, prefixes, table) = testing::identities();
        let nodes = prefixes.of_nodes();
        nodes.policy_follows().await;
        let begin = tokio::time::Instant::now();
        prefixes.policy_follows(table.revision(&table.snapshot()));
        nodes.allocate("n1", &labels("a")).unwrap();
        let follow = async {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            prefixes.policy_follows(table.revision(&table.snapshot()));
        };
        tokio::join!(nodes.policy_follows(), follow);
        assert_eq!(begin.elapsed().as_millis(), 100);
        nodes.allocate("n2", &labels("b")).unwrap();
        nodes.policy_follows().await;
        assert_eq!(begin.elapsed().as_millis(), 2100, "not forever");
    }

    #[test]
    fn a_restart_keeps_the_identities_of_names_that_the_ipcache_has() {
        let folder = tempfile::tempdir().unwrap();
        let start = || testing::of(&Db::new(), Some(folder.path()));
        let labels = |name: &str| (&Labels::parse([name, "reserved:world-ipv4"])).into();
        let inside = (&Labels::parse(["fqdn:c.io", "cidr:192.0.2.0/24", "reserved:world-ipv4"])).into();
        let (_, first, _) = start();
        let ids = first.allocate_names(&[labels("fqdn:a.io"), labels("fqdn:*.b.io")]).unwrap();
        assert_eq!(first.allocate_names(&[labels("fqdn:*.b.io")]).unwrap(), ids[1..]);
        let of_prefix = first.allocate_names(std::slice::from_ref(&inside)).unwrap();
        let of_server = first.allocate_api_servers(&[[192, 0, 2, 9].into()]).unwrap();
        drop(first);
        let (_, second, table) = start();
        // The kernel's ipcache has only the identities of addresses.
        let address = |text: &str| text.parse().unwrap();
        let rows = [("192.0.2.1/32", ids[0]), ("192.0.2.7/32", of_prefix[0]), ("192.0.2.9/32", of_server[0])];
        second.restored(&rows.map(|(text, id)| (address(text), id)));
        let row = table.get(&table.snapshot(), Identity::by_id(ids[0])).unwrap().clone();
        assert_eq!(row.labels, labels("fqdn:a.io"));
        assert_eq!(second.allocate_names(&[labels("fqdn:a.io")]).unwrap(), ids[..1]);
        assert_eq!(second.allocate_names(&[inside]).unwrap(), of_prefix, "one inside a prefix of a policy");
        assert_eq!(second.allocate_api_servers(&[[192, 0, 2, 9].into()]).unwrap(), of_server);
        assert_eq!(second.release_restored(), 1, "that of b.io, which no name has now");
        second.release_names(&ids);
        assert!(table.get(&table.snapshot(), Identity::by_id(ids[0])).is_none());
    }
}
