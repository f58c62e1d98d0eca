//! The state that rounds change and the API reads.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hive::health::summarize;
use identity::Identity;
use k8s_tables::Row;
use k8s_tables::cilium::CiliumCIDRGroup;
use parking_lot::{Mutex, MutexGuard};
use policy_engine::{Entry, Parser, Problem, SecretRef, Settings};
use proxy_ports::SecretFaults;
use statedb::Change;

use crate::computation::core::Core;
use crate::computation::keep::Keep;
use crate::computation::repository::{Repository, Services, Staged, id};
use crate::model::object::{ObjectId, PolicyStatus};
use crate::rounds::inputs::ObjectChange;
use crate::rounds::metrics::{Counters, SelectorOperation};
use crate::rounds::services::ServiceTables;

/// Engine, maps and objects.
pub(crate) struct State {
    pub(crate) core: Core,
    pub(crate) repository: Repository,
    /// The revisions of the tables of services that were read last.
    services_seen: Option<[u64; 2]>,
    /// The secrets of rules that proxies cannot use.
    secret_faults: SecretFaults,
}

/// [`State`], shared by the job and readers. The lock is held while maps are written, so it is taken on threads for
/// blocking work only.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<State>>);

impl Shared {
    pub(crate) fn new(core: Core, keep: Keep) -> Shared {
        let repository = Repository::new(keep);
        let secret_faults = SecretFaults::default();
        Shared(Arc::new(Mutex::new(State { core, repository, services_seen: None, secret_faults })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Locks the state and runs `work` on a thread for blocking work.
    pub(crate) async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> T {
        self.with_waited(|state, _| work(state)).await
    }

    /// Runs `work` as [`with`](Self::with) does, which gets the time that the lock has taken.
    pub(crate) async fn with_waited<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut State, Duration) -> T + Send + 'static,
    ) -> T {
        let shared = self.clone();
        let locked = move || {
            let started = Instant::now();
            let mut state = shared.lock();
            work(&mut state, started.elapsed())
        };
        hive::blocking(locked).await
    }
}

impl State {
    /// Validates changed objects, and stages those that are valid or removed.
    pub(crate) fn stage_objects(
        &mut self,
        objects: &[ObjectChange],
        settings: &Settings,
        staged: &mut Staged,
        counters: &Counters,
    ) {
        for change in objects {
            let object = &change.object;
            if change.deleted {
                self.repository.remove(object, staged);
                counters.object_changed("delete", &object.source, true);
                tracing::info!(policy = %id(object).text(), file = %object.origin, "Policy is gone");
                continue;
            }
            let refusal = self.repository.upsert(object, settings, staged);
            counters.object_changed("update", &object.source, refusal.is_none());
            let (policy, file) = (id(object).text(), &object.origin);
            match refusal {
                None => tracing::info!(%policy, %file, "Policy read"),
                Some(refusal) => {
                    tracing::warn!(
                        %policy, %file, %refusal,
                        "Policy refused; its previous version stays in force. Correct the fields and write the file again"
                    );
                }
            }
        }
    }

    /// Validates changed CIDR groups.
    pub(crate) fn stage_groups(&mut self, groups: &[Change<Row<CiliumCIDRGroup>>]) {
        for change in groups {
            let group = &change.object;
            let name = group.metadata.name.as_str();
            if change.deleted {
                self.repository.remove_group(name);
                continue;
            }
            let labels =
                group.metadata.labels.iter().map(|(key, value)| (key.to_string(), value.to_string()));
            let prefixes: Vec<&str> = group.spec.external_cidrs.iter().map(|text| text.as_str()).collect();
            self.repository.upsert_group(name, labels.collect(), &prefixes);
        }
    }

    /// Translates policies with peers by service again if these have changed.
    pub(crate) fn stage_services(&mut self, tables: Option<&ServiceTables>, staged: &mut Staged) {
        match tables.filter(|_| self.repository.uses_services()) {
            Some(tables) => {
                if let Some(services) = tables.read_changed(&mut self.services_seen) {
                    self.repository.set_services(services, staged);
                }
            }
            None => {
                self.services_seen = None;
                self.repository.set_services(Services::new(), staged);
            }
        }
    }

    /// Commits the CIDR groups.
    pub(crate) fn commit_groups(&mut self) {
        self.core.set_cidr_groups(self.repository.groups());
    }

    /// Applies changes of identities to the engine. `waited`: the time that the lock has taken.
    pub(crate) fn apply_identity_changes(
        &mut self,
        identities: &[Change<Identity>],
        counters: &Counters,
        waited: Duration,
    ) {
        let started = Instant::now();
        for change in identities {
            match change.deleted {
                true => self.core.remove_identity(change.object.id),
                false => self.core.add_identity(&change.object),
            }
        }
        self.core.engine_mut().compact();
        if !identities.is_empty() {
            counters.selector_lock(SelectorOperation::IdentityUpdates, waited);
            counters.selector_operation(SelectorOperation::IdentityUpdates, started.elapsed());
        }
    }

    /// Commits policies and options. From now on the revision is that of the new rules.
    pub(crate) fn commit(
        &mut self,
        settings: Settings,
        staged: Staged,
        revision: &AtomicU64,
        counters: &Counters,
    ) {
        self.core.set_settings(settings);
        for (resource, policy) in staged {
            let engine = self.core.engine();
            counters.features.replaced(engine.policy(&resource).map(|old| &**old), policy.as_deref());
            let (added, removed) = engine.peer_selector_churn();
            let started = Instant::now();
            self.core.commit(&resource, policy);
            let took = started.elapsed();
            let (added_since, removed_since) = self.core.engine().peer_selector_churn();
            if added_since > added {
                counters.selector_operation(SelectorOperation::Add, took);
            }
            if removed_since > removed {
                counters.selector_operation(SelectorOperation::Remove, took);
            }
        }
        self.core.engine_mut().compact();
        // Stored after the commit and before the writes: callers of `realized` wait for the new rules from now on.
        revision.store(self.core.engine().revision(), Ordering::Release);
    }

    /// Sets the secrets that proxies cannot use. Returns the objects whose status may differ: those that name secrets.
    pub(crate) fn set_secret_faults(&mut self, secret_faults: SecretFaults) -> Vec<ObjectId> {
        if self.secret_faults == secret_faults {
            return Vec::new();
        }
        self.secret_faults = secret_faults;
        let names_secrets = |object: &&ObjectId| {
            let policy = self.repository.in_force(object);
            policy.is_some_and(|policy| policy.entries.iter().any(|entry| secrets(entry).next().is_some()))
        };
        self.repository.objects().filter(names_secrets).cloned().collect()
    }

    /// Returns the status of an object, with the entries that depend on proxies without a port, and on secrets that
    /// proxies cannot use.
    pub(crate) fn status(&self, object: &ObjectId, revision: u64) -> Option<PolicyStatus> {
        let mut status = self.repository.status(object, revision)?;
        let entries = self.repository.in_force(object).into_iter().flat_map(|policy| &policy.entries);
        for entry in entries {
            let kinds = self.core.engine().missing_proxies(entry).into_iter().map(Parser::name);
            let kinds: Vec<&str> = kinds.collect();
            if !kinds.is_empty() {
                let reason =
                    format!("denied as far as it needs a proxy: there is none for {}", kinds.join(", "));
                status.problems.push(Problem { path: entry.path.to_string(), reason, remedy: "" });
            }
            let named: BTreeSet<&SecretRef> = secrets(entry).collect();
            for (SecretRef { namespace, name }, fault) in
                self.secret_faults.iter().filter(|(secret, _)| named.contains(secret))
            {
                let reason = format!("denied as far as it needs secret {namespace}/{name}: {fault}");
                status.problems.push(Problem { path: entry.path.to_string(), reason, remedy: "" });
            }
        }
        Some(status)
    }

    /// Returns a summary of refused objects, for health; `None` if there are none.
    pub(crate) fn refused(&self) -> Option<String> {
        const MAX_SHOWN: usize = 5;
        let all = self.repository.refused().map(|(_, origin, refusal)| format!("{origin}: {refusal}"));
        let all = all.chain(self.repository.refused_groups().cloned());
        Some(summarize(all, MAX_SHOWN, "; ")).filter(|text| !text.is_empty())
    }
}

/// Iterates over the secrets that an entry names; some repeatedly.
fn secrets(entry: &Entry) -> impl Iterator<Item = &SecretRef> {
    entry.redirects.iter().flat_map(|redirect| redirect.rules.secrets())
}
