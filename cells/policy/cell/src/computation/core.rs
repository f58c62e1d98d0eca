//! The computation of rows and the writes of policy maps: an engine with rows that are computed once for all endpoints
//! of an audience, and the rows in each endpoint's map. Calls block on the kernel; there is no clock and no task.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datapath_api::Datapath;
use identity::Identity;
use policy_engine::{
    Basis, Change, CidrGroups, Engine, Filters, NamedPorts, Policy, Resolved, ResourceId, SelectorChanges,
    Settings,
};
use proxy_ports::{Proxies, ReadyPorts};

use crate::computation::computed::{Audience, Computed, Fault, Limit, audience, rows_when_full};
use crate::computation::log_cookies::{LogChanges, LogCookies};
use crate::computation::redirects::{self, Wanted};
use crate::model::computation::{ComputedPolicy, PolicyComputation};
use crate::model::decisions::Decisions;
use crate::model::endpoint::{EndpointPolicy, RealizationState, RowCounts, Subject, Transition};
use crate::model::rows::Rows;
use crate::policymap::install::{MapChange, MapWrite, install};

/// The id of a [`Computed`].
type ComputedId = u64;

/// An endpoint and the rows of its map.
#[derive(Debug)]
struct Installed {
    subject: Subject,
    transition: Option<Arc<Transition>>,
    announced: u64,
    generation: u64,
    /// The rows of its map; `None` if the map has to be read first.
    rows: Option<Arc<Rows>>,
}

/// The result of writing an endpoint's map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) endpoint: u16,
    pub(crate) generation: u64,
    pub(crate) revision: u64,
    pub(crate) enforced: [bool; 2],
    pub(crate) counts: [RowCounts; 2],
    pub(crate) filters: Arc<Filters>,
    pub(crate) state: RealizationState,
    pub(crate) error: Option<Arc<str>>,
    pub(crate) missing_redirects: usize,
    pub(crate) decisions: Decisions,
}

/// The policy of an endpoint as it is computed, before its map is written.
#[derive(Debug, Clone)]
pub(crate) struct Prepared {
    pub(crate) endpoint: u16,
    pub(crate) generation: u64,
    pub(crate) revision: u64,
    pub(crate) enforced: [bool; 2],
    pub(crate) filters: Arc<Filters>,
}

/// The results of writing maps.
#[derive(Debug, Default)]
pub(crate) struct MapWrites {
    /// The outcomes of all endpoints.
    pub(crate) outcomes: Vec<Outcome>,
    /// Maps that were changed in place.
    pub(crate) in_place: usize,
    /// Maps that were replaced.
    pub(crate) swapped: usize,
}

impl MapWrites {
    /// Merges later writes: their outcomes replace the previous ones.
    pub(crate) fn merge(&mut self, later: MapWrites) {
        self.outcomes = later.outcomes;
        self.in_place += later.in_place;
        self.swapped += later.swapped;
    }
}

/// Engine, rows and maps.
pub(crate) struct Core {
    engine: Engine,
    datapath: Arc<dyn Datapath>,
    /// Gets the redirects of endpoints; none in agents without proxies.
    proxies: Option<Arc<Proxies>>,
    /// The proxies that redirects of the rows lead to.
    ready: Arc<ReadyPorts>,
    audiences: HashMap<Audience, ComputedId>,
    computed: HashMap<ComputedId, Computed>,
    next_computed: ComputedId,
    /// The last computation for each identity of an audience.
    computations: BTreeMap<u32, PolicyComputation>,
    /// The identities of which it has changed since they were taken.
    changed_computations: BTreeSet<u32>,
    endpoints: BTreeMap<u16, Installed>,
    /// Changes since rows were computed last.
    change: Change,
    /// Whether outcomes have the rules behind the rows.
    keep_decisions: Arc<AtomicBool>,
    limit: Limit,
    /// The cookies of the rules' texts for the log of verdicts.
    log_cookies: LogCookies,
}

impl Core {
    pub(crate) fn new(
        settings: Settings,
        datapath: Arc<dyn Datapath>,
        proxies: Option<Arc<Proxies>>,
    ) -> Core {
        let engine = Engine::new(settings);
        let change = Change { revision: engine.revision(), ..Change::default() };
        let limit = Limit { rows: datapath.policy_capacity(), rows_when_full: <_>::default() };
        Core {
            engine,
            limit,
            datapath,
            proxies,
            ready: Arc::default(),
            audiences: HashMap::new(),
            computed: HashMap::new(),
            next_computed: 0,
            computations: BTreeMap::new(),
            changed_computations: BTreeSet::new(),
            endpoints: BTreeMap::new(),
            change,
            keep_decisions: Arc::default(),
            log_cookies: LogCookies::default(),
        }
    }

    /// Continues with the cookies of the previous run.
    pub(crate) fn with_log_cookies(mut self, log_cookies: LogCookies) -> Core {
        self.log_cookies = log_cookies;
        self
    }

    /// Returns the cookies of texts for the log of verdicts.
    pub(crate) fn log_cookies(&self) -> &LogCookies {
        &self.log_cookies
    }

    /// Returns the changes of these cookies since the last call. Rows that may have changed are computed before, so that
    /// readers know all cookies of the next write of the maps.
    pub(crate) fn take_log_changes(&mut self) -> LogChanges {
        self.compute_all();
        self.log_cookies.take_changes()
    }

    /// Has full maps deny by entries (`enable-endpoint-lockdown-on-policy-overflow`) instead of by their absence.
    pub(crate) fn with_lockdown(mut self, lockdown: bool) -> Core {
        self.limit.rows_when_full = rows_when_full(lockdown);
        self
    }

    /// Returns the switch of the rules in outcomes, which is off at first.
    pub(crate) fn keep_decisions(&self) -> Arc<AtomicBool> {
        self.keep_decisions.clone()
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Returns the selectors that have changed: of peers, and of subjects.
    pub(crate) fn take_selector_changes(&mut self) -> [SelectorChanges; 2] {
        [self.engine.take_selector_changes(), self.engine.take_subject_selector_changes()]
    }

    /// Returns the endpoints that the kernel has a policy map of.
    pub(crate) fn attached(&self) -> BTreeSet<u16> {
        // On an error the job does not wait for endpoints of the previous run: enforcing policy must not be delayed.
        let all = self.datapath.restored().unwrap_or_default();
        all.into_iter().map(|endpoint| endpoint.id).collect()
    }

    /// Upserts an identity with its labels and named ports.
    pub(crate) fn add_identity(&mut self, row: &Identity) {
        let change = self.engine.add_identity(row.id, row.labels.clone(), row.named_ports());
        self.change.merge(change);
    }

    /// Removes an identity.
    pub(crate) fn remove_identity(&mut self, id: u32) {
        let change = self.engine.remove_identity(id);
        self.change.merge(change);
    }

    /// Commits a policy, or its removal: it is in force from the next write of the maps on. After many
    /// [`Engine::compact`] is due.
    pub(crate) fn commit(&mut self, resource: &ResourceId, policy: Option<Arc<Policy>>) {
        let change = match policy {
            Some(policy) => self.engine.set(policy),
            None => self.engine.remove(resource),
        };
        self.change.merge(change);
    }

    /// Sets the proxies that redirects lead to from the next write of the maps on. Returns whether they differ.
    pub(crate) fn set_proxies(&mut self, ready: Arc<ReadyPorts>) -> bool {
        if self.ready == ready {
            return false;
        }
        self.ready = ready;
        let change = self.engine.set_proxy_ports(self.ready.clone());
        self.change.merge(change);
        true
    }

    /// Sets the CIDR groups that are in force from the next write of the maps on.
    pub(crate) fn set_cidr_groups(&mut self, groups: &CidrGroups) {
        let change = self.engine.set_cidr_groups(groups);
        self.change.merge(change);
    }

    /// Sets the options that are in force from the next write of the maps on.
    pub(crate) fn set_settings(&mut self, settings: Settings) {
        let change = self.engine.set_settings(settings);
        self.change.merge(change);
    }

    /// Sets the endpoints whose maps are written.
    pub(crate) fn set_endpoints<'a>(&mut self, rows: impl Iterator<Item = &'a EndpointPolicy>) {
        let mut seen = HashSet::new();
        for row in rows {
            let (id, generation) = (row.subject.endpoint, row.generation);
            seen.insert(id);
            if self.endpoints.get(&id).is_some_and(|old| old.generation == generation) {
                continue;
            }
            // A different announcement means that the id was reused: this is another endpoint, with another map.
            let old = self.endpoints.remove(&id).filter(|old| old.announced == row.announced);
            let (subject, announced, transition) =
                (row.subject.clone(), row.announced, row.transition.clone());
            let rows = old.and_then(|old| old.rows);
            self.endpoints.insert(id, Installed { subject, transition, announced, generation, rows });
        }
        self.endpoints.retain(|id, _| seen.contains(id));
    }

    /// Invalidates the cached contents of the maps: the next write reads and corrects them.
    pub(crate) fn invalidate_map_cache(&mut self) {
        self.endpoints.values_mut().for_each(|endpoint| endpoint.rows = None);
    }

    /// Returns the rows of all endpoints whose policy has been computed.
    pub(crate) fn resolved(&self) -> Vec<(u16, Arc<Resolved>)> {
        let of = |id: &u16| Some((*id, self.computed(*id)?.1.resolved.clone()?));
        self.endpoints.keys().filter_map(of).collect()
    }

    /// Returns an endpoint with its rows.
    pub(crate) fn computed(&self, endpoint: u16) -> Option<(&Subject, &Computed)> {
        let subject = &self.endpoints.get(&endpoint)?.subject;
        Some((subject, self.computed.get(self.audiences.get(&audience(subject))?)?))
    }

    /// Computes the rows that may have changed, for the next write of the maps. Returns the policies of all endpoints.
    pub(crate) fn prepare(&mut self) -> Vec<Prepared> {
        self.compute_all();
        let revision = self.engine.revision();
        let prepared = self.endpoints.iter().filter_map(|(id, endpoint)| {
            let computed = self.computed.get(self.audiences.get(&audience(&endpoint.subject))?)?;
            Some(Prepared {
                endpoint: *id,
                generation: endpoint.generation,
                revision,
                enforced: computed.enforced,
                filters: computed.filters.clone(),
            })
        });
        prepared.collect()
    }

    fn compute_all(&mut self) {
        self.compute();
        // `compute` may add identities of endpoints that the table does not have yet, which changes the rows of other
        // endpoints: compute these, too.
        if !self.change.refresh.is_empty() {
            self.compute();
        }
    }

    /// Computes the rows that may have changed, and writes them to every map. With `keep_prefixes` a map keeps its rows of
    /// the previous run for prefixes until the next write: packets carry their identities until the ipcache has new ones.
    pub(crate) fn write_maps(&mut self, keep_prefixes: bool) -> MapWrites {
        self.compute_all();
        let keep_decisions = self.keep_decisions.load(Ordering::Relaxed);
        let mut writes = MapWrites::default();
        let mut changes = Vec::new();
        // The index of the outcome of each change.
        let mut changed = Vec::new();
        let mut wanted = Wanted::new();
        for (endpoint_id, endpoint) in &mut self.endpoints {
            let id_of = self.audiences.get(&audience(&endpoint.subject));
            let Some(computed) = id_of.and_then(|id| self.computed.get(id)) else { continue };
            let before = endpoint.transition.as_ref().filter(|_| computed.is_usable()).and_then(|change| {
                let id = self.audiences.get(&audience(&change.from))?;
                let before = self.computed.get(id).filter(|before| before.is_usable())?;
                redirects::add(&mut wanted, *endpoint_id, &before.redirects, &self.ready);
                let both = computed.rows.with_verdicts_of(&before.rows, &change.peers);
                (both.len() <= self.limit.rows).then(|| Arc::new(both))
            });
            let has_map = endpoint.subject.has_policy_map();
            // After those of the former identity: the rules of the new one count.
            if has_map {
                redirects::add(&mut wanted, *endpoint_id, &computed.redirects, &self.ready);
            }
            let rows = before.unwrap_or_else(|| computed.rows.clone());
            let keeps_map = !has_map || matches!(computed.fault, Some(Fault::ConflictFromStart(_)));
            let done = keeps_map || endpoint.rows.as_ref().is_some_and(|held| Arc::ptr_eq(held, &rows));
            if !done {
                let (mut current, mut desired) = (endpoint.rows.take(), rows);
                if keep_prefixes
                    && current.is_none()
                    && computed.is_usable()
                    && let Some((found, both)) =
                        with_prefixes_before(&*self.datapath, *endpoint_id, &computed.rows)
                {
                    current = Some(Arc::new(found));
                    desired = both.map_or(desired, Arc::new);
                }
                changes.push(MapChange {
                    endpoint: *endpoint_id,
                    current,
                    desired,
                    swap: computed.is_full(),
                });
                changed.push(writes.outcomes.len());
            }
            // Without a map nothing can be too large for it, and nothing is redirected.
            let fault = computed.fault.as_ref().filter(|fault| has_map || fault.is_of_rules());
            writes.outcomes.push(Outcome {
                endpoint: *endpoint_id,
                generation: endpoint.generation,
                revision: self.engine.revision(),
                enforced: computed.enforced,
                counts: if has_map { computed.counts } else { Default::default() },
                filters: computed.filters.clone(),
                state: fault.map_or(RealizationState::Realized, Fault::state),
                error: fault.map(|fault| fault.text().clone()),
                missing_redirects: if has_map { computed.missing_redirects } else { 0 },
                decisions: Decisions::new(computed.resolved.clone().filter(|_| keep_decisions)),
            });
        }
        if let Some(proxies) = &self.proxies {
            proxies.upsert_redirects(wanted.values().cloned().collect());
        }
        // Events name cookies from the first write on: the texts are on disk before, for the next run.
        self.log_cookies.store();
        let results = install(&*self.datapath, &changes);
        let mut failed = HashSet::new();
        for ((change, at), result) in changes.into_iter().zip(changed).zip(results) {
            match result {
                Ok(write) => {
                    writes.in_place += usize::from(write == MapWrite::InPlace);
                    writes.swapped += usize::from(write == MapWrite::Swapped);
                    if let Some(endpoint) = self.endpoints.get_mut(&change.endpoint) {
                        endpoint.rows = Some(change.desired);
                    }
                }
                Err(error) => {
                    failed.insert(change.endpoint);
                    let outcome = &mut writes.outcomes[at];
                    outcome.state = RealizationState::Failed;
                    outcome.error = Some(error.to_string().into());
                }
            }
        }
        if let Some(proxies) = &self.proxies {
            // The map of an endpoint whose write has failed may still lead packets to its former proxies.
            proxies.retain_redirects(|row| {
                failed.contains(&row.endpoint) || wanted.contains_key(&(row.endpoint, row.redirect.clone()))
            });
        }
        self.release_log_cookies();
        writes
    }

    /// Releases the cookies that no map has. None is released while the content of a map is unknown.
    fn release_log_cookies(&mut self) {
        if self.log_cookies.is_empty() {
            return;
        }
        let mut seen: HashSet<*const Rows> = HashSet::new();
        let mut used: HashSet<u32> = HashSet::new();
        let mut add = |rows: &Arc<Rows>| {
            if seen.insert(Arc::as_ptr(rows)) {
                used.extend(rows.iter().map(|(_, entry)| entry.cookie));
            }
        };
        self.computed.values().for_each(|computed| add(&computed.rows));
        for endpoint in self.endpoints.values().filter(|endpoint| endpoint.subject.has_policy_map()) {
            let Some(rows) = &endpoint.rows else { return };
            add(rows);
        }
        self.log_cookies.retain(&used);
        self.log_cookies.store();
    }

    /// Computes the rows of audiences that are affected by changes since the last call.
    fn compute(&mut self) {
        let change = std::mem::replace(
            &mut self.change,
            Change { revision: self.engine.revision(), ..Change::default() },
        );
        let subjects = self.endpoints.values().flat_map(|endpoint| {
            [Some(&endpoint.subject), endpoint.transition.as_ref().map(|change| &change.from)]
        });
        let current: HashSet<Audience> = subjects.flatten().map(audience).collect();
        self.audiences.retain(|audience, _| current.contains(audience));
        let identities: HashSet<u32> = current.iter().map(|audience| audience.identity).collect();
        self.computations.retain(|identity, _| {
            let is_current = identities.contains(identity);
            if !is_current {
                self.changed_computations.insert(*identity);
            }
            is_current
        });
        let mut refreshed: HashSet<ComputedId> = HashSet::new();
        let mut unknown: Vec<Audience> = Vec::new();
        for audience in current {
            let listed = |list: &[u32]| list.binary_search(&audience.identity).is_ok();
            let known = self.audiences.get(&audience).and_then(|id| Some((*id, self.computed.get_mut(id)?)));
            match known {
                Some((id, computed)) if !listed(&change.subjects) => {
                    if !listed(&change.refresh) || refreshed.contains(&id) {
                        continue;
                    }
                    if computed.resolved.is_some() {
                        refreshed.insert(id);
                        let (engine, limit, log_cookies) = (&self.engine, &self.limit, &mut self.log_cookies);
                        computed.refresh(engine, &change.peers, &audience.ports, limit, log_cookies);
                    } else {
                        unknown.push(audience);
                    }
                }
                _ => unknown.push(audience),
            }
        }
        let resolved: BTreeSet<u32> = unknown.iter().map(|audience| audience.identity).collect();
        self.resolve_all(unknown);
        resolved.into_iter().for_each(|identity| self.record_computation(identity));
        let used: HashSet<ComputedId> = self.audiences.values().copied().collect();
        self.computed.retain(|id, _| used.contains(id));
    }

    /// Records that an identity's policy was computed.
    fn record_computation(&mut self, identity: u32) {
        let of_identity = self.audiences.iter().find(|(audience, _)| audience.identity == identity);
        let Some(computed) = of_identity.and_then(|(_, id)| self.computed.get(id)) else { return };
        let [ingress_policy_enabled, egress_policy_enabled] = computed.enforced;
        let revision = self.engine.revision();
        let new_policy = ComputedPolicy { revision, ingress_policy_enabled, egress_policy_enabled };
        let error = computed.fault.as_ref().map(|fault| fault.text().clone());
        let before = self.computations.get(&identity);
        let old_policy = before.and_then(|row| match row.new_policy.revision == revision {
            true => row.old_policy,
            false => Some(row.new_policy),
        });
        let row = PolicyComputation { identity, new_policy, old_policy, error };
        if before != Some(&row) {
            self.computations.insert(identity, row);
            self.changed_computations.insert(identity);
        }
    }

    /// Returns the computations that have changed since the last call, `None` for identities without endpoints.
    pub(crate) fn take_computations(&mut self) -> Vec<(u32, Option<PolicyComputation>)> {
        let changed = std::mem::take(&mut self.changed_computations);
        changed.into_iter().map(|identity| (identity, self.computations.get(&identity).cloned())).collect()
    }

    /// Starts a new revision without a change of policies.
    pub(crate) fn bump_revision(&mut self) {
        let change = self.engine.bump_revision();
        self.change.merge(change);
    }

    /// Has the policies of identities computed that were computed from a previous revision.
    pub(crate) fn invalidate_computations(&mut self) {
        let revision = self.engine.revision();
        let is_old = |row: &&PolicyComputation| row.new_policy.revision < revision;
        let old = self.computations.values().filter(is_old).map(|row| row.identity).collect();
        let change = self.engine.invalidate(old);
        self.change.merge(change);
    }

    /// Resolves the rows of these audiences, once per basis. Equal rows are interned, so that a plan between two sets
    /// of rows is computed once, and maps whose rows are unchanged are not written.
    fn resolve_all(&mut self, audiences: Vec<Audience>) {
        let mut made: HashMap<(Basis, NamedPorts), ComputedId> = HashMap::new();
        let mut shared: HashSet<Arc<Rows>> = match audiences.is_empty() {
            true => HashSet::new(),
            false => self.computed.values().map(|computed| computed.rows.clone()).collect(),
        };
        for audience in audiences {
            self.add_own_identity(&audience);
            let key = self.engine.basis(audience.identity).map(|basis| (basis, audience.ports.clone()));
            let id = key.as_ref().and_then(|key| made.get(key)).copied().unwrap_or_else(|| {
                let old = self.audiences.get(&audience).and_then(|id| self.computed.get(id));
                let mut new =
                    Computed::resolve(&self.engine, &audience, &self.limit, old, &mut self.log_cookies);
                match shared.get(&new.rows) {
                    Some(same) => new.rows = same.clone(),
                    None => drop(shared.insert(new.rows.clone())),
                }
                let id = self.next_computed;
                self.next_computed += 1;
                // Rows that stay because of a conflict are those of one audience.
                if !matches!(new.fault, Some(Fault::Conflict(_) | Fault::ConflictFromStart(_))) {
                    made.extend(key.map(|key| (key, id)));
                }
                self.computed.insert(id, new);
                id
            });
            self.audiences.insert(audience, id);
        }
    }

    /// Adds the audience's identity to the engine, which an endpoint may have before it is in the table of identities.
    fn add_own_identity(&mut self, audience: &Audience) {
        if self.engine.labels(audience.identity).is_some() {
            return;
        }
        let of = |endpoint: &&Installed| endpoint.subject.identity == audience.identity;
        if let Some(endpoint) = self.endpoints.values().find(of) {
            let (labels, ports) = (endpoint.subject.labels.clone(), audience.ports.clone());
            let change = self.engine.add_identity(audience.identity, labels, ports);
            self.change.merge(change);
        }
    }
}

/// Returns the rows of a map of the previous run and, if it has rows for prefixes that `rows` lacks, `rows` extended by
/// these; `None` if the map cannot be read or its capacity does not suffice.
fn with_prefixes_before(datapath: &dyn Datapath, endpoint: u16, rows: &Rows) -> Option<(Rows, Option<Rows>)> {
    let found: Rows = datapath.policy_rows(endpoint).ok()?.into_iter().collect();
    let known: HashSet<u32> = rows.iter().map(|(key, _)| key.peer).collect();
    let is_prefix = |peer| identity::Scope::of(peer) == identity::Scope::Local;
    let kept: Vec<_> =
        found.iter().filter(|(key, _)| is_prefix(key.peer) && !known.contains(&key.peer)).collect();
    if kept.is_empty() {
        return Some((found, None));
    }
    let mut both = rows.clone();
    kept.into_iter().for_each(|(key, entry)| both.insert(*key, *entry));
    (both.len() <= datapath.policy_capacity()).then_some((found, Some(both)))
}
