//! The handle by which other cells enforce policy on endpoints.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use statedb::{RwTable, Table, Watch};

use crate::model::endpoint::{EndpointPolicy, RealizationState, Subject, Transition};

/// Enforces policy on endpoints. Cheap to clone.
#[derive(Clone)]
pub struct Policies {
    table: RwTable<EndpointPolicy>,
    /// The revision of the desired policies.
    revision: Arc<AtomicU64>,
    /// Whether rows have their rules.
    keep_decisions: Arc<AtomicBool>,
    /// The sequence number of the last call.
    calls: Arc<AtomicU64>,
    /// The initial state of rows: pending, except in tests of other cells, where no job realizes them.
    initial: RealizationState,
}

/// The state of an endpoint's policy in the kernel.
#[derive(Debug)]
pub enum Realization {
    /// The kernel has the policy at this revision.
    Done(u64),
    /// The kernel does not have it yet; the watch closes when the row changes.
    Pending(Watch),
}

/// The error of an endpoint whose policy is not in the kernel. The policy job retries on its own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotRealized {
    /// The endpoint was not announced, or has been removed.
    #[error("no policy is enforced on endpoint {endpoint}")]
    Unknown {
        /// The endpoint.
        endpoint: u16,
    },
    /// Its policy map is full: all its traffic is denied until its rows fit.
    #[error("{reason}")]
    Full {
        /// The cause, with its remedy.
        reason: Arc<str>,
    },
    /// Its rules contradict each other: the kernel keeps the policy that it has.
    #[error("{reason}")]
    Conflict {
        /// The rules, with the remedy.
        reason: Arc<str>,
    },
    /// A write to the kernel failed.
    #[error("unable to write the policy of endpoint {endpoint}: {reason}")]
    Failed {
        /// The endpoint.
        endpoint: u16,
        /// The error.
        reason: Arc<str>,
    },
}

impl Policies {
    pub(crate) fn new(table: RwTable<EndpointPolicy>, revision: Arc<AtomicU64>) -> Policies {
        let keep_decisions = Arc::default();
        Policies {
            table,
            revision,
            keep_decisions,
            calls: Arc::default(),
            initial: RealizationState::Pending,
        }
    }

    /// Returns this handle with the switch of the rules in rows.
    pub(crate) fn with_decisions(self, keep_decisions: Arc<AtomicBool>) -> Policies {
        Policies { keep_decisions, ..self }
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn with_initial_state(self, initial: RealizationState) -> Policies {
        Policies { initial, ..self }
    }

    /// Enforces policy on an endpoint whose policy map exists, or updates its subject. The map follows;
    /// [`realized`](Self::realized) waits for it. Before all sources are complete nothing is written: an endpoint of
    /// the previous run keeps its rows, a new one stays denied.
    pub fn enforce(&self, subject: Subject) {
        self.change(subject, |_| None);
    }

    /// Enforces policy on an endpoint whose identity changes together with those of others: traffic with peers that
    /// carry one of these old identities keeps its verdicts until `enforce` is called for the subject. See
    /// [`enforce`](Self::enforce).
    pub fn enforce_in_transition(&self, subject: Subject, peers: &BTreeSet<u32>) {
        let identity = subject.identity;
        self.change(subject, |row| {
            let from = match &row.transition {
                Some(transition) => transition.from.clone(),
                None => row.subject.clone(),
            };
            // A first call has no previous rules: those of the previous run are unknown.
            let has_changed = from.identity != identity && row.realized > 0;
            has_changed.then(|| Arc::new(Transition { from, peers: peers.clone() }))
        });
    }

    fn change(&self, subject: Subject, transition: impl FnOnce(&EndpointPolicy) -> Option<Arc<Transition>>) {
        let (state, realized) = match self.initial {
            RealizationState::Realized => (RealizationState::Realized, self.revision()),
            other => (other, 0),
        };
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let mut txn = self.table.write();
        match txn.get(EndpointPolicy::by_endpoint(subject.endpoint)) {
            Some(row) => {
                let transition = transition(row);
                if row.subject == subject && row.transition == transition {
                    return;
                }
                let (generation, error) = (number, None);
                let row = EndpointPolicy { subject, transition, generation, state, error, ..(**row).clone() };
                txn.insert(row);
            }
            None => {
                txn.insert(EndpointPolicy { state, realized, ..EndpointPolicy::new(subject, number) });
            }
        }
        txn.commit();
    }

    /// Waits until the kernel has the endpoint's policy: of the last subject of [`enforce`](Self::enforce), at the
    /// current revision of the policies or a later one, which it returns; prefixes of its rules are in the ipcache.
    pub async fn realized(&self, endpoint: u16) -> Result<u64, NotRealized> {
        let revision = self.revision();
        loop {
            match self.realization(endpoint, revision)? {
                Realization::Done(revision) => return Ok(revision),
                Realization::Pending(watch) => watch.changed().await,
            }
        }
    }

    /// Whether the kernel has the endpoint's policy at this revision or a later one; see [`realized`](Self::realized).
    pub fn realization(&self, endpoint: u16, revision: u64) -> Result<Realization, NotRealized> {
        let snapshot = self.table.snapshot();
        let (row, watch) = self.table.get_watch(&snapshot, EndpointPolicy::by_endpoint(endpoint));
        let row = row.ok_or(NotRealized::Unknown { endpoint })?;
        let reason = row.error.clone().unwrap_or_default();
        match row.state {
            RealizationState::Realized if row.realized >= revision => Ok(Realization::Done(row.realized)),
            RealizationState::Full => Err(NotRealized::Full { reason }),
            RealizationState::Conflict => Err(NotRealized::Conflict { reason }),
            RealizationState::Failed => Err(NotRealized::Failed { endpoint, reason }),
            RealizationState::Pending | RealizationState::Realized => Ok(Realization::Pending(watch)),
        }
    }

    /// Keeps the rules behind the rows in the kernel in [`EndpointPolicy::decisions`], from the next round on. Costs a copy
    /// of an endpoint's rows for each change of its peers.
    pub fn keep_decisions(&self) {
        self.keep_decisions.store(true, Ordering::Relaxed);
    }

    /// Ends enforcement on an endpoint that is being removed: its map is no longer written.
    pub fn forget(&self, endpoint: u16) {
        self.table.transact(|txn| txn.delete(EndpointPolicy::by_endpoint(endpoint)));
    }

    /// Returns the revision of the desired policies, at least 1.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// Returns the table `endpoint-policies`.
    pub fn table(&self) -> Table<EndpointPolicy> {
        self.table.reader()
    }
}
