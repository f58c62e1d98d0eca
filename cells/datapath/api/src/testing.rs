//! A datapath without a kernel, for the tests of cells that use one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use datapath_abi::{PolicyEntry, PolicyKey, PolicyStatsKey, PolicyStatsValue};
use futures::future::{BoxFuture, FutureExt};
use parking_lot::{Mutex, MutexGuard};

use crate::datapath::{Datapath, EndpointDatapath, PolicyWrite, Pruned};
use crate::error::DatapathError;

/// A call that a [`FakeDatapath`] has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// An endpoint was attached.
    Attach(u16),
    /// An endpoint's interface was set up.
    Up(u16),
    /// An endpoint was detached.
    Detach(u16),
    /// The host endpoint's id was announced.
    ExpectHost(u16),
    /// The host endpoint was attached.
    AttachHost(u16),
    /// An endpoint's policy map was changed in place, by this number of writes.
    WritePolicy(u16, usize),
    /// An endpoint's policy map was replaced by one with this number of entries.
    SwapPolicy(u16, usize),
    /// Everything but these ids was pruned.
    Prune(Vec<u16>),
}

/// A fake datapath that keeps endpoints in memory, records calls in order, and fails on demand.
///
/// ```
/// use datapath_api::testing::{Call, FakeDatapath};
/// use datapath_api::{Datapath, EndpointDatapath};
///
/// let datapath = FakeDatapath::new();
/// let endpoint = EndpointDatapath { id: 7, ifindex: 3, ..EndpointDatapath::default() };
/// datapath.attach(&endpoint)?;
/// datapath.up(&endpoint)?;
/// assert_eq!(datapath.calls(), [Call::Attach(7), Call::Up(7)]);
/// datapath.fail_attach(8);
/// assert!(datapath.attach(&EndpointDatapath { id: 8, ..endpoint }).is_err());
/// # Ok::<(), datapath_api::DatapathError>(())
/// ```
#[derive(Debug, Default)]
pub struct FakeDatapath {
    state: Mutex<State>,
}

/// Default capacity of policy maps in entries.
const POLICY_CAPACITY: usize = 16384;

/// Entries of a policy map, by key.
type PolicyRows = HashMap<PolicyKey, PolicyEntry>;

#[derive(Debug, Default)]
struct State {
    policies: BTreeMap<u16, PolicyRows>,
    policy_counts: Vec<(PolicyStatsKey, PolicyStatsValue)>,
    policy_capacity: Option<usize>,
    host_firewall: bool,
    endpoints: BTreeMap<u16, EndpointDatapath>,
    up: BTreeSet<u16>,
    failing: BTreeSet<u16>,
    failing_dumps: usize,
    calls: Vec<Call>,
}

impl FakeDatapath {
    /// Creates an empty datapath.
    pub fn new() -> FakeDatapath {
        FakeDatapath::default()
    }

    /// Creates a datapath with endpoints of a previous run, their interfaces up.
    pub fn with_endpoints(endpoints: impl IntoIterator<Item = EndpointDatapath>) -> FakeDatapath {
        let fake = FakeDatapath::new();
        for endpoint in endpoints {
            let mut state = fake.state();
            state.up.insert(endpoint.id);
            state.policies.insert(endpoint.id, PolicyRows::new());
            state.endpoints.insert(endpoint.id, endpoint);
        }
        fake
    }

    /// Makes attaching that endpoint fail from now on.
    pub fn fail_attach(&self, id: u16) {
        self.state().failing.insert(id);
    }

    /// Makes the next `times` dumps of endpoints fail.
    pub fn fail_restored(&self, times: usize) {
        self.state().failing_dumps = times;
    }

    /// Sets the counts of policy maps' entries.
    pub fn set_policy_counts(&self, counts: impl IntoIterator<Item = (PolicyStatsKey, PolicyStatsValue)>) {
        self.state().policy_counts = counts.into_iter().collect();
    }

    /// Sets the capacity of policy maps in entries.
    pub fn set_policy_capacity(&self, rows: usize) {
        self.state().policy_capacity = Some(rows);
    }

    /// Enables policy of the host endpoint.
    pub fn set_host_firewall(&self) {
        self.state().host_firewall = true;
    }

    /// Inserts entries into an endpoint's policy map as left by a previous run: no call is recorded.
    pub fn restore_policy(&self, id: u16, rows: impl IntoIterator<Item = (PolicyKey, PolicyEntry)>) {
        self.state().policies.insert(id, rows.into_iter().collect());
    }

    /// Makes attaching that endpoint succeed again.
    pub fn heal(&self, id: u16) {
        self.state().failing.remove(&id);
    }

    /// Returns the calls so far.
    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    /// Forgets the calls so far, so that a long run measures only what it tests.
    pub fn clear_calls(&self) {
        self.state().calls = Vec::new();
    }

    /// Returns the endpoint with that id, as last attached.
    pub fn endpoint(&self, id: u16) -> Option<EndpointDatapath> {
        self.state().endpoints.get(&id).cloned()
    }

    /// Whether the endpoint's interface was set up.
    pub fn is_up(&self, id: u16) -> bool {
        self.state().up.contains(&id)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Datapath for FakeDatapath {
    fn ready(&self) -> BoxFuture<'static, ()> {
        async {}.boxed()
    }

    fn attach(&self, endpoint: &EndpointDatapath) -> Result<(), DatapathError> {
        let mut state = self.state();
        if endpoint.id == 0 {
            return Err(DatapathError::InvalidId { id: 0 });
        }
        if state.failing.contains(&endpoint.id) {
            let EndpointDatapath { id, ifindex, ifname, .. } = endpoint.clone();
            return Err(DatapathError::NoInterface { id, ifindex, ifname });
        }
        state.calls.push(Call::Attach(endpoint.id));
        state.policies.entry(endpoint.id).or_default();
        state.endpoints.insert(endpoint.id, endpoint.clone());
        Ok(())
    }

    fn up(&self, endpoint: &EndpointDatapath) -> Result<(), DatapathError> {
        let mut state = self.state();
        state.calls.push(Call::Up(endpoint.id));
        state.up.insert(endpoint.id);
        Ok(())
    }

    fn detach(&self, id: u16) -> Result<bool, DatapathError> {
        let mut state = self.state();
        state.calls.push(Call::Detach(id));
        state.up.remove(&id);
        state.policies.remove(&id);
        Ok(state.endpoints.remove(&id).is_some())
    }

    fn expect_host(&self, id: u16) {
        self.state().calls.push(Call::ExpectHost(id));
    }

    fn attach_host(&self, id: u16, _flags: u32) -> Result<(), DatapathError> {
        let mut state = self.state();
        state.calls.push(Call::AttachHost(id));
        if !state.host_firewall || !state.policies.contains_key(&id) {
            let rows = [false, true].map(|egress| (PolicyKey::any(egress), PolicyEntry::allow(0)));
            state.policies.insert(id, rows.into());
        }
        Ok(())
    }

    fn policy_rows(&self, id: u16) -> Result<Vec<(PolicyKey, PolicyEntry)>, DatapathError> {
        let state = self.state();
        let rows = state.policies.get(&id).ok_or(DatapathError::NotAttached { id })?;
        Ok(rows.iter().map(|(key, entry)| (*key, *entry)).collect())
    }

    fn policy_counts(&self) -> Result<Vec<(PolicyStatsKey, PolicyStatsValue)>, DatapathError> {
        Ok(self.state().policy_counts.clone())
    }

    fn write_policy(&self, id: u16, writes: &[PolicyWrite]) -> Result<(), DatapathError> {
        let capacity = self.policy_capacity();
        let mut state = self.state();
        let rows = state.policies.get_mut(&id).ok_or(DatapathError::NotAttached { id })?;
        for write in writes {
            match write {
                // As LPM tries before Linux 6.13: a full trie also refuses a new value for an existing key.
                PolicyWrite::Set(..) if rows.len() >= capacity => {
                    return Err(DatapathError::PolicyFull { id, capacity });
                }
                PolicyWrite::Set(key, entry) => drop(rows.insert(*key, *entry)),
                PolicyWrite::Delete(key) => drop(rows.remove(key)),
            }
        }
        state.calls.push(Call::WritePolicy(id, writes.len()));
        Ok(())
    }

    fn swap_policy(&self, id: u16, rows: &[(PolicyKey, PolicyEntry)]) -> Result<(), DatapathError> {
        let capacity = self.policy_capacity();
        let mut state = self.state();
        let old = state.policies.get_mut(&id).ok_or(DatapathError::NotAttached { id })?;
        if rows.len() > capacity {
            return Err(DatapathError::PolicyFull { id, capacity });
        }
        *old = rows.iter().copied().collect();
        state.calls.push(Call::SwapPolicy(id, rows.len()));
        Ok(())
    }

    fn policy_capacity(&self) -> usize {
        self.state().policy_capacity.unwrap_or(POLICY_CAPACITY)
    }

    fn icmp_rules(&self) -> bool {
        true
    }

    fn host_firewall(&self) -> bool {
        self.state().host_firewall
    }

    fn restored(&self) -> Result<Vec<EndpointDatapath>, DatapathError> {
        let mut state = self.state();
        if let Some(left) = state.failing_dumps.checked_sub(1) {
            state.failing_dumps = left;
            return Err(DatapathError::NotReady);
        }
        Ok(state
            .endpoints
            .values()
            .map(|e| EndpointDatapath { ifname: String::new(), ..e.clone() })
            .collect())
    }

    fn prune(&self, known: &BTreeSet<u16>) -> Result<Pruned, DatapathError> {
        let mut state = self.state();
        state.calls.push(Call::Prune(known.iter().copied().collect()));
        let endpoints: Vec<u16> = state.endpoints.keys().copied().filter(|id| !known.contains(id)).collect();
        state.endpoints.retain(|id, _| known.contains(id));
        Ok(Pruned { endpoints, leftovers: 0 })
    }
}
