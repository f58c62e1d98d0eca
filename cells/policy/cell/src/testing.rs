//! The handle without its cell, for tests of cells that use it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use policy_engine::Filters;
use statedb::{Db, RwTable};

use crate::handle::Policies;
use crate::model::endpoint::{EndpointPolicy, RealizationState};

/// A handle whose endpoints are realized by calls of the test, or at once.
///
/// ```
/// use policy::testing::FakePolicies;
/// use policy::{EndpointPolicy, Subject};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let fake = FakePolicies::new(&statedb::Db::new());
/// let labels = [labels::Label::parse("k8s:app=web")].into_iter().collect();
/// fake.policies().enforce(Subject { endpoint: 7, identity: 300, labels, named_ports: Default::default() });
/// fake.realize(7);
/// assert_eq!(fake.policies().realized(7).await, Ok(1));
/// fake.fail(7, "no memory");
/// assert!(fake.policies().realized(7).await.is_err());
/// # }
/// ```
pub struct FakePolicies {
    table: RwTable<EndpointPolicy>,
    policies: Policies,
}

impl FakePolicies {
    /// Returns a handle at revision 1, endpoints stay pending until [`realize`](Self::realize).
    ///
    /// # Panics
    /// If the database has the table already.
    pub fn new(db: &Db) -> FakePolicies {
        let table = db.table::<EndpointPolicy>().unwrap_or_else(|error| panic!("{error}"));
        let policies = Policies::new(table.clone(), Arc::new(AtomicU64::new(1)));
        FakePolicies { table, policies }
    }

    /// Returns a handle whose endpoints are realized at once.
    ///
    /// # Panics
    /// If the database has the table already.
    pub fn realizing(db: &Db) -> FakePolicies {
        let fake = FakePolicies::new(db);
        let policies = fake.policies.clone().with_initial_state(RealizationState::Realized);
        FakePolicies { policies, ..fake }
    }

    /// Returns the handle.
    pub fn policies(&self) -> Policies {
        self.policies.clone()
    }

    /// Marks the endpoint's policy as realized.
    pub fn realize(&self, endpoint: u16) {
        let revision = self.policies.revision();
        self.change(endpoint, |row| {
            (row.state, row.revision, row.realized) = (RealizationState::Realized, revision, revision);
            row.error = None;
        });
    }

    /// Marks the endpoint's policy as failed.
    pub fn fail(&self, endpoint: u16, reason: &str) {
        self.change(endpoint, |row| {
            row.state = RealizationState::Failed;
            row.error = Some(reason.into());
        });
    }

    /// Sets the endpoint's computed rules, which the kernel does not have.
    pub fn compute(&self, endpoint: u16, filters: Filters) {
        self.change(endpoint, |row| row.filters = filters.into());
    }

    fn change(&self, endpoint: u16, change: impl FnOnce(&mut EndpointPolicy)) {
        self.table.transact(|txn| txn.update(EndpointPolicy::by_endpoint(endpoint), change));
    }
}
