//! How sources write the tables, whatever they are.

use std::sync::Arc;
use std::time::SystemTime;

use statedb::{Initializer, Query, RwTable, TableSpec, Writer};

use crate::object::{Kind, Object, ObjectKey};
use crate::{Namespace, Pod, PolicyObject};

/// What a source has to say of an object.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// It is there and like this.
    Set(Arc<Object>),
    /// It is gone.
    Delete(ObjectKey),
}

/// The tables of cluster objects. Each source takes a writer of its own.
#[derive(Clone)]
pub struct Objects {
    namespaces: Arc<RwTable<Namespace>>,
    pods: Arc<RwTable<Pod>>,
    policies: Arc<RwTable<PolicyObject>>,
}

impl Objects {
    /// The writer of these tables.
    pub fn new(
        namespaces: Arc<RwTable<Namespace>>,
        pods: Arc<RwTable<Pod>>,
        policies: Arc<RwTable<PolicyObject>>,
    ) -> Objects {
        Objects { namespaces, pods, policies }
    }

    /// A source of this name. The tables are complete when all sources have said so.
    ///
    /// # Panics
    /// If a source of this name is not complete yet.
    pub fn source(&self, name: &str) -> SourceWriter {
        let db = self.pods.db().clone();
        let mut txn = db.write((&*self.namespaces, &*self.pods, &*self.policies));
        let (namespaces, pods, policies) = txn.split();
        let initializers = (
            namespaces.register_initializer(name),
            pods.register_initializer(name),
            policies.register_initializer(name),
        );
        txn.commit();
        SourceWriter { tables: self.clone(), name: name.into(), initializers: Some(initializers) }
    }
}

type Initializers = (Initializer<Namespace>, Initializer<Pod>, Initializer<PolicyObject>);

/// Writes what one source knows.
///
/// An object that two sources have is the one's that had it first, as long as it has it: one source never changes or
/// deletes what another one wrote. Policies of two sources are different ones.
pub struct SourceWriter {
    tables: Objects,
    name: Arc<str>,
    initializers: Option<Initializers>,
}

impl SourceWriter {
    /// Writes changes, all at once; rows that are the same already stay untouched. `complete` says that the source has
    /// now told everything once. Gives the objects that another source has.
    pub fn apply(&mut self, changes: Vec<Change>, complete: bool) -> Vec<ObjectKey> {
        let finished = if complete { self.initializers.take() } else { None };
        if changes.is_empty() && finished.is_none() {
            return Vec::new();
        }
        let now = SystemTime::now();
        let mut taken = Vec::new();
        let tables = self.tables.clone();
        let mut txn = tables.pods.db().write((&*tables.namespaces, &*tables.pods, &*tables.policies));
        let (namespaces, pods, policies) = txn.split();
        for change in changes {
            let key = match &change {
                Change::Set(object) => object.key(),
                Change::Delete(key) => key.clone(),
            };
            let done = match change {
                Change::Set(object) => match Arc::unwrap_or_clone(object) {
                    Object::Namespace(row) => set(namespaces, row, &self.name, now),
                    Object::Pod(row) => set(pods, row, &self.name, now),
                    Object::Policy(row) => set(policies, row, &self.name, now),
                },
                Change::Delete(key) => match key.kind {
                    Kind::Namespace => delete(namespaces, Namespace::by_name(&key.name), &self.name),
                    Kind::Pod => delete(pods, Pod::by_name(&key.namespace, &key.name), &self.name),
                    Kind::Policy(kind) => {
                        let query = PolicyObject::by_name(&self.name, kind, &key.namespace, &key.name);
                        delete(policies, query, &self.name)
                    }
                },
            };
            if !done {
                taken.push(key);
            }
        }
        if let Some((a, b, c)) = finished {
            a.done(namespaces);
            b.done(pods);
            c.done(policies);
        }
        txn.commit();
        taken
    }
}

/// What the rows have in common.
trait Sourced: TableSpec + Clone + PartialEq {
    fn source(&mut self) -> &mut Arc<str>;
    fn updated_at(&mut self) -> &mut Option<SystemTime>;
    fn source_is(&self, name: &str) -> bool;
}

macro_rules! sourced {
    ($($row:ty),+) => {
        $(impl Sourced for $row {
            fn source(&mut self) -> &mut Arc<str> {
                &mut self.source
            }
            fn updated_at(&mut self) -> &mut Option<SystemTime> {
                &mut self.updated_at
            }
            fn source_is(&self, name: &str) -> bool {
                &*self.source == name
            }
        })+
    };
}
sourced!(Namespace, Pod, PolicyObject);

/// False if another source has the row.
fn set<T: Sourced>(table: &mut Writer<'_, T>, mut row: T, source: &Arc<str>, now: SystemTime) -> bool {
    *row.source() = source.clone();
    if let Some(old) = table.get(Query::of(&row)) {
        if !old.source_is(source) {
            return false;
        }
        let mut same = (**old).clone();
        *same.updated_at() = None;
        if same == row {
            return true;
        }
    }
    *row.updated_at() = Some(now);
    table.insert(row);
    true
}

/// True also if there is no such row.
fn delete<T: Sourced>(table: &mut Writer<'_, T>, query: Query<T>, source: &str) -> bool {
    match table.get(&query) {
        Some(old) if !old.source_is(source) => false,
        Some(_) => table.delete(&query).is_some(),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use statedb::Db;

    use super::*;

    fn pod(name: &str, account: &str) -> Arc<Object> {
        Arc::new(Object::Pod(Pod {
            namespace: "default".into(),
            name: name.into(),
            service_account: account.into(),
            ..Pod::default()
        }))
    }

    #[test]
    fn sources_do_not_touch_each_others_rows() {
        let db = Db::new();
        let pods = Arc::new(db.table::<Pod>().unwrap());
        let objects =
            Objects::new(Arc::new(db.table().unwrap()), pods.clone(), Arc::new(db.table().unwrap()));
        let (mut a, mut b) = (objects.source("a"), objects.source("b"));
        let account = |name| {
            let snapshot = db.snapshot();
            pods.get(&snapshot, Pod::by_name("default", name)).map(|pod| pod.service_account.to_string())
        };
        assert!(a.apply(vec![Change::Set(pod("x", "1"))], true).is_empty());
        assert!(!pods.initialized(&db.snapshot()));
        let key = pod("x", "").key();
        assert_eq!(b.apply(vec![Change::Set(pod("x", "2"))], true), vec![key.clone()]);
        assert!(pods.initialized(&db.snapshot()));
        assert_eq!(b.apply(vec![Change::Delete(key.clone())], false), vec![key.clone()]);
        assert_eq!(account("x").as_deref(), Some("1"));
        assert!(a.apply(vec![Change::Delete(key)], false).is_empty());
        assert_eq!(account("x"), None);
    }

    #[test]
    fn a_row_that_is_the_same_is_not_written() {
        let db = Db::new();
        let pods = Arc::new(db.table::<Pod>().unwrap());
        let objects =
            Objects::new(Arc::new(db.table().unwrap()), pods.clone(), Arc::new(db.table().unwrap()));
        let mut source = objects.source("a");
        source.apply(vec![Change::Set(pod("x", "1"))], true);
        let before = pods.revision(&db.snapshot());
        source.apply(vec![Change::Set(pod("x", "1"))], false);
        assert_eq!(pods.revision(&db.snapshot()), before);
        source.apply(vec![Change::Set(pod("x", "2"))], false);
        assert_ne!(pods.revision(&db.snapshot()), before);
    }
}
