//! The writer of the node's row.

use std::sync::Arc;

use statedb::{Initializer, Obj, RwTable, Table};

use crate::LocalNode;

/// Changes the local node; others read table `local-node`.
#[derive(Clone, Debug)]
pub struct LocalNodeStore {
    table: Arc<RwTable<LocalNode>>,
}

impl LocalNodeStore {
    /// Creates a store over the writer's half of the table.
    #[must_use]
    pub fn new(table: Arc<RwTable<LocalNode>>) -> Self {
        Self { table }
    }

    /// Returns the reader's half.
    #[must_use]
    pub fn table(&self) -> Table<LocalNode> {
        self.table.reader()
    }

    /// Returns the node's current row; `None` before the cell has started.
    #[must_use]
    pub fn node(&self) -> Option<Obj<LocalNode>> {
        let snapshot = self.table.snapshot();
        self.table.get(&snapshot, LocalNode::query()).cloned()
    }

    /// Inserts the first row; the table is then complete.
    pub(crate) fn start(&self, node: LocalNode, initializer: Initializer<LocalNode>) {
        let mut txn = self.table.write();
        txn.insert(node);
        initializer.done(&mut txn);
        txn.commit();
    }

    /// Changes the node; nothing is written if `change` has no effect. The name is the key and cannot be changed.
    pub fn update(&self, change: impl FnOnce(&mut LocalNode)) {
        let mut txn = self.table.write();
        let Some(known) = txn.get(LocalNode::query()) else {
            return;
        };
        let mut node = LocalNode::clone(known);
        change(&mut node);
        node.name.clone_from(&known.name);
        if **known != node {
            txn.insert(node);
            txn.commit();
        }
    }
}

#[cfg(test)]
mod tests {
    use statedb::Db;

    use super::*;

    #[test]
    fn updates_change_the_one_row() {
        let db = Db::new();
        let store = LocalNodeStore::new(Arc::new(db.table().unwrap()));
        store.update(|_| panic!("there is no node yet"));
        let mut txn = store.table.write();
        let initializer = txn.register_initializer("test");
        txn.commit();
        store.start(LocalNode { name: "a".into(), ..LocalNode::default() }, initializer);
        assert!(store.table().initialized(&db.snapshot()));
        let revision = || store.table().revision(&db.snapshot());
        let before = revision();
        store.update(|_| {});
        assert_eq!(revision(), before);
        store.update(|n| {
            n.router_ipv4 = Some([10, 0, 0, 1].into());
            n.name = "b".into();
        });
        let node = store.node().unwrap();
        assert_eq!((node.name.as_str(), node.router_ipv4), ("a", Some([10, 0, 0, 1].into())));
        assert_eq!(store.table().len(&db.snapshot()), 1);
    }
}
