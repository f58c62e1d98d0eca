//! The handle by which cells desire rules.

use std::sync::Arc;

use devices::rtnetlink::Rule;
use parking_lot::Mutex;
use reconciler::{Handle, Status, StatusKind};
use statedb::{Initializer, RwTable, Table};

use crate::{DesiredRule, Error, WAIT_LIMIT};

/// Priorities and tables of rules that are the agent's alone.
pub(crate) type Claims = Arc<Mutex<Vec<(u32, u32)>>>;

/// Desires rules on behalf of owners; they are kept in the kernel until their owner deletes them.
#[derive(Clone, Debug)]
pub struct Rules {
    table: Arc<RwTable<DesiredRule>>,
    reconciler: Handle,
    claims: Claims,
}

impl Rules {
    pub(crate) fn new(table: Arc<RwTable<DesiredRule>>, reconciler: Handle, claims: Claims) -> Self {
        Self { table, reconciler, claims }
    }

    /// Returns the table of all desired rules.
    #[must_use]
    pub fn table(&self) -> Table<DesiredRule> {
        self.table.reader()
    }

    /// Declares that all rules of this priority that lead to this table are made by agents: those of the previous run,
    /// and of Cilium, that are not desired are deleted by prunes. All other rules are of other processes.
    pub fn claim(&self, priority: u32, table: u32) {
        self.claims.lock().push((priority, table));
        // Of one that comes after the first prune.
        self.reconciler.prune();
    }

    /// Registers a source of rules. Until it [has finished](Self::finish) no rule of the previous run is deleted.
    pub fn register_initializer(&self, name: &str) -> Initializer<DesiredRule> {
        let mut txn = self.table.write();
        let initializer = txn.register_initializer(name);
        txn.commit();
        initializer
    }

    /// Declares that a source has named all of its rules.
    pub fn finish(&self, initializer: Initializer<DesiredRule>) {
        let mut txn = self.table.write();
        initializer.done(&mut txn);
        txn.commit();
    }

    /// Sets all rules of an owner: those that are not named are deleted, equal ones are not touched. Returns the table's
    /// revision.
    pub fn replace(&self, owner: &str, rules: impl IntoIterator<Item = DesiredRule>) -> u64 {
        let owner = Arc::from(owner);
        let rules = rules.into_iter().map(|rule| DesiredRule { owner: Arc::clone(&owner), ..rule });
        let rules: Vec<DesiredRule> = rules.collect();
        let mut txn = self.table.write();
        let stale = txn.prefix(DesiredRule::by_owner(&owner)).map(|row| row.rule);
        let stale: Vec<Rule> = stale.filter(|rule| !rules.iter().any(|row| row.rule == *rule)).collect();
        for rule in stale {
            txn.delete(DesiredRule::by_id(&owner, rule));
        }
        for row in rules {
            let current = txn.get(DesiredRule::by_id(&owner, row.rule));
            if current.is_none_or(|current| current.replaces != row.replaces) {
                txn.insert(DesiredRule { status: Status::pending(), ..row });
            }
        }
        let snapshot = txn.commit();
        self.table.revision(&snapshot)
    }

    /// Deletes all rules of an owner. Returns the table's revision.
    pub fn remove_owner(&self, owner: &str) -> u64 {
        self.replace(owner, [])
    }

    /// Waits at most [`WAIT_LIMIT`] until the kernel has the rules of an owner.
    pub async fn wait(&self, owner: &str) -> Result<(), Error> {
        let revision = self.table.revision(&self.table.snapshot());
        let tried = tokio::time::timeout(WAIT_LIMIT, self.reconciler.wait_until(revision)).await;
        tried.map_err(|_| Error::Timeout { limit: WAIT_LIMIT })?.map_err(|_| Error::Stopped)?;
        let snapshot = self.table.snapshot();
        let mut rows = self.table.prefix(&snapshot, DesiredRule::by_owner(owner));
        match rows.find(|row| row.status.kind() == StatusKind::Error) {
            Some(row) => {
                Err(Error::RuleNotInstalled { reason: row.status.error().unwrap_or_default().to_owned() })
            }
            None => Ok(()),
        }
    }
}
