//! The state that rounds change and the API reads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hive::health::summarize;
use identity::Identity;
use k8s_tables::PolicyObject;
use policy_engine::Settings;
use statedb::Change;

use crate::computation::core::{Core, Round};
use crate::computation::keep::Keep;
use crate::computation::repository::{Repository, Staged, id};
use crate::rounds::metrics::Numbers;

/// Engine, maps and objects.
pub(crate) struct State {
    pub(crate) core: Core,
    pub(crate) repository: Repository,
}

/// [`State`], shared by the job and readers. Locked on threads for blocking work only.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<State>>);

impl Shared {
    pub(crate) fn new(core: Core, keep: Keep) -> Shared {
        Shared(Arc::new(Mutex::new(State { core, repository: Repository::new(keep) })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on the state where blocking is allowed.
    pub(crate) async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> T {
        let shared = self.clone();
        hive::blocking(move || work(&mut shared.lock())).await
    }
}

impl State {
    /// Checks objects that have changed; those that are right, and those that are gone, are staged.
    pub(crate) fn read(
        &mut self,
        objects: &[Change<PolicyObject>],
        settings: &Settings,
        staged: &mut Staged,
        numbers: &Numbers,
    ) {
        for change in objects {
            let object = &*change.object;
            if change.deleted {
                self.repository.remove(object, staged);
                numbers.changed("delete", &object.source, true);
                tracing::info!(policy = %id(object).text(), file = %object.origin, "Policy is gone");
                continue;
            }
            let refusal = self.repository.upsert(object, settings, staged);
            numbers.changed("update", &object.source, refusal.is_none());
            let (policy, file) = (id(object).text(), &object.origin);
            match refusal {
                None => tracing::info!(%policy, %file, "Policy read"),
                Some(refusal) => {
                    tracing::warn!(
                        %policy, %file, %refusal,
                        "Policy refused; what was in force of it before stays. Correct the fields and write the file again"
                    );
                }
            }
        }
    }

    /// Applies changes of identities to the engine.
    pub(crate) fn apply_identity_changes(&mut self, identities: &[Change<Identity>]) {
        for change in identities {
            match change.deleted {
                true => self.core.remove_identity(change.object.id),
                false => self.core.add_identity(&change.object),
            }
        }
    }

    /// Applies policies and options, and writes the policy maps.
    pub(crate) fn bring(&mut self, settings: Settings, staged: Staged, revision: &AtomicU64) -> Round {
        self.commit(settings, staged, revision);
        self.core.round()
    }

    /// As [`bring`](Self::bring), at a start whose prefixes are not in the ipcache yet.
    pub(crate) fn bring_first(&mut self, settings: Settings, staged: Staged, revision: &AtomicU64) -> Round {
        self.commit(settings, staged, revision);
        self.core.first_round()
    }

    fn commit(&mut self, settings: Settings, staged: Staged, revision: &AtomicU64) {
        self.core.set_settings(settings);
        self.core.commit(staged);
        // Callers of `realized` wait for these rules from now on.
        revision.store(self.core.engine().revision(), Ordering::Release);
    }

    /// Objects that are refused, for health: the first ones by name.
    pub(crate) fn refused(&self) -> Option<String> {
        const SHOWN: usize = 5;
        let all = self.repository.refused().map(|(_, origin, refusal)| format!("{origin}: {refusal}"));
        Some(summarize(all, SHOWN, "; ")).filter(|text| !text.is_empty())
    }
}
