//! Rows of the table into the state folder, the datapath, the ipcache and the allocator: the only writer of them for
//! endpoints.
//!
//! Making an endpoint: record on disk, program and map entries, policy, ipcache, interface up. One of another identity:
//! its policy and what policies of others say of the new identity, then record and map entries, then the ipcache; packets
//! carry the new identity only where everybody knows it, and the old one stays known in quarantine. Of several that change
//! together, as by labels of their namespace, policy keeps what it says of each two of them until both carry the new one.
//! Removing one: map entries, ipcache, identity, addresses, record. So whatever the kernel has of an endpoint is also on
//! disk, and a start after a kill at any step finds all of it.
//!
//! Policy and ipcache are brought into the kernel by their own cells. An endpoint that waits for them is a row in such a
//! state ([`Step`]), which goes on when a watch closes; the thread works on other endpoints meanwhile.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use datapath_abi::ep_flag;
use datapath_api::{Datapath, EndpointDatapath};
use identity::Identities;
use ipam::Ipam;
use ipcache::{Change, Claim, IpcacheWriter, Mapping, Pod, Source};
use ipnetwork::IpNetwork;
use labels::LabelArray;
use policy::{NotRealized, Policies, Realization, Subject};
use reconciler::{
    BatchEntry, BatchOps, Builder, OpCx, OpResult, Operations, Ops, Reconciler, StatusField, StatusKind,
    Waiting,
};
use statedb::{Obj, Rows, RwTable, Table, Watch};
use tokio::time::Instant;

use crate::metrics::Counts;
use crate::model::endpoint::Endpoint;
use crate::model::id::EndpointId;
use crate::model::log::Code;
use crate::model::mac::Mac;
use crate::model::record::Record;
use crate::model::regeneration::{Regeneration, Step};
use crate::model::state::State;
use crate::restore::files::StateFolder;

/// The reconciler's operations, and the cells that endpoints are made with.
pub(crate) struct EndpointOps {
    pub(crate) table: Table<Endpoint>,
    pub(crate) datapath: Arc<dyn Datapath>,
    pub(crate) ipcache: IpcacheWriter,
    pub(crate) identities: Identities,
    pub(crate) policies: Policies,
    pub(crate) ipam: Ipam,
    pub(crate) files: StateFolder,
    pub(crate) counts: Counts,
    /// The node's address of the family of an address, for the REST API.
    pub(crate) host_ip: Arc<dyn Fn(IpAddr) -> Option<IpAddr> + Send + Sync>,
}

/// The reconciler, without anything running.
pub(crate) fn builder(
    table: RwTable<Endpoint>,
    ops: EndpointOps,
) -> Builder<Endpoint, StatusField<Endpoint>, Operations<Endpoint>> {
    Reconciler::builder(table)
        .name("endpoints")
        .status(|endpoint| &endpoint.status, |endpoint, status| endpoint.status = status)
        .batch_ops(ops)
        // An endpoint takes a round for each cell that it waits for.
        .round(1000, 10_000, 1000)
        .blocking()
}

impl Ops<Endpoint> for EndpointOps {
    fn update(&mut self, _: &OpCx<'_>, endpoint: &mut Endpoint) -> OpResult {
        let mut one = [BatchEntry { object: endpoint.clone(), revision: 0, result: Ok(()) }];
        self.make(&mut one);
        let [BatchEntry { object, result, .. }] = one;
        *endpoint = object;
        result
    }

    fn delete(&mut self, _: &OpCx<'_>, endpoint: &Endpoint) -> OpResult {
        match endpoint.state {
            State::Disconnected => Ok(()),
            _ => self.remove(&endpoint.record),
        }
    }

    fn prune(&mut self, _: &OpCx<'_>, endpoints: Rows<'_, Endpoint>) -> OpResult {
        let known: BTreeSet<u16> =
            endpoints.filter(|e| e.state != State::Disconnected).map(|e| e.record.id).collect();
        let pruned = self.datapath.prune(&known)?;
        if !pruned.endpoints.is_empty() || pruned.leftovers > 0 {
            let (endpoints, leftovers) = (&pruned.endpoints, pruned.leftovers);
            tracing::info!(?endpoints, leftovers, "Removed datapath state that belongs to no endpoint");
        }
        Ok(())
    }
}

impl BatchOps<Endpoint> for EndpointOps {
    fn update_batch(&mut self, _: &OpCx<'_>, batch: &mut [BatchEntry<Endpoint>]) {
        self.make(batch);
    }

    fn delete_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<Obj<Endpoint>>]) {
        for entry in batch {
            entry.result = self.delete(cx, &entry.object);
        }
    }
}

impl EndpointOps {
    /// Reconciles each row's endpoint, as far as it comes without waiting.
    fn make(&self, batch: &mut [BatchEntry<Endpoint>]) {
        let mut building = Vec::new();
        for entry in batch {
            match entry.object.state {
                State::Disconnecting => {
                    entry.result = self.remove(&entry.object.record);
                    if entry.result.is_ok() {
                        let now = SystemTime::now();
                        entry.object = entry.object.enter(State::Disconnected, "Endpoint removed", now);
                    }
                }
                // Nothing to do before there is an identity, or before the datapath is known to be ready.
                State::WaitingForIdentity | State::Restoring | State::Disconnected | State::Invalid => {}
                State::WaitingToRegenerate | State::Regenerating | State::Ready => building.push(entry),
            }
        }
        self.begin(&mut building);
        self.await_policy(&mut building);
        self.await_ipcache(&mut building);
        self.await_peers(&mut building);
        building.into_iter().for_each(|entry| self.end(entry));
    }

    /// Announces the endpoints whose regeneration begins.
    fn begin(&self, building: &mut [&mut BatchEntry<Endpoint>]) {
        let (together, leaving) = changing_together(building);
        for entry in building.iter_mut().filter(|entry| entry.object.regeneration.is_none()) {
            let endpoint = &entry.object;
            let changes = changes_identity(endpoint);
            if changes && let Some(waiting) = self.other_change_of_identity(endpoint) {
                entry.result = Err(waiting.into());
                continue;
            }
            entry.result = self.announce(endpoint, &leaving);
            if entry.result.is_ok() {
                let regeneration = Regeneration {
                    step: Step::Policy,
                    policy: self.policies.revision(),
                    deadline: Instant::now() + PATIENCE,
                    together: together.clone().filter(|_| changes),
                };
                entry.object.regeneration = Some(Arc::new(regeneration));
            }
        }
    }

    /// A wait for another endpoint that is about to change its identity: such changes follow each other, unless they come
    /// together, since policy says nothing of the new identity of one and the old one of the other.
    fn other_change_of_identity(&self, endpoint: &Endpoint) -> Option<Waiting> {
        let snapshot = self.table.snapshot();
        let is_other = |other: &&Obj<Endpoint>| {
            other.record.id != endpoint.record.id && other.regeneration.is_some() && changes_identity(other)
        };
        let other = self.table.all(&snapshot).find(is_other)?.id();
        Some(Waiting::on(self.table.get_watch(&snapshot, Endpoint::by_id(other)).1))
    }

    /// Holds the identity and announces the endpoint to policy. A new endpoint is attached before: nothing passes it yet.
    /// `leaving`: identities that several endpoints give up together.
    fn announce(&self, endpoint: &Endpoint, leaving: &BTreeSet<u32>) -> OpResult {
        let record = &*endpoint.record;
        if let Some(label) = record.sec_label.as_ref().filter(|_| !record.op_labels.is_reserved()) {
            let user = Endpoint::user(record.id);
            // Held already, but where another change of labels has been overtaken by this one.
            let id = self.identities.reserve(label.id, &label.labels, &user)?;
            if id != label.id {
                return Err(format!("identity {} is not {}'s any more", label.id, label.labels).into());
            }
            self.identities.set_named_ports(id, &user, &endpoint.named_ports);
        }
        if is_new(endpoint) {
            self.prepare(record)?;
        }
        if let Some(subject) = subject(endpoint) {
            match changes_identity(endpoint) && !leaving.is_empty() {
                true => self.policies.enforce_in_transition(subject, leaving),
                false => self.policies.enforce(subject),
            }
        }
        Ok(())
    }

    /// Lets those go on whose policies the kernel has: of the endpoints, of those that change identity together with them,
    /// and of all others what they say of new identities, which packets carry only after this. An endpoint of the previous
    /// run goes on with the policy that it has, until all sources have been read.
    fn await_policy(&self, building: &mut [&mut BatchEntry<Endpoint>]) {
        let mut claims = Vec::new();
        for entry in at(building, Step::Policy) {
            entry.result = self.policy_is_realized(&mut entry.object);
            let endpoint = &entry.object;
            if entry.result.is_ok() && !is_new(endpoint) {
                entry.result = self.prepare(&endpoint.record);
            }
            if entry.result.is_ok() {
                claims.extend(self.claims(&entry.object.record));
                go_on(&mut entry.object, Step::Ipcache);
            }
        }
        if !claims.is_empty() {
            self.ipcache.apply(claims);
        }
    }

    fn policy_is_realized(&self, endpoint: &mut Endpoint) -> OpResult {
        let goes_on = endpoint.builds == 0 && endpoint.applied_identity == endpoint.record.identity();
        let Some(regeneration) = endpoint.regeneration.clone() else { return Ok(()) };
        if goes_on || !endpoint.record.has_interface() {
            return Ok(());
        }
        let id = endpoint.record.id;
        match self.policies.realization(id, regeneration.policy) {
            Ok(Realization::Done(_)) => match self.peer_without_policy(id, &regeneration) {
                Some(watch) => wait(&regeneration, watch),
                None => Ok(()),
            },
            Ok(Realization::Pending(watch)) => wait(&regeneration, watch),
            // All its traffic is denied, which is safe; table and metrics of policy show it.
            Err(error @ NotRealized::Full { .. }) => {
                let note = format!("Policy map is full: {error}");
                tracing::warn!(endpointID = id, %error, "Policy of endpoint does not fit");
                *endpoint = endpoint.note(Code::Warning, &note, SystemTime::now());
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A watch on the policy of an endpoint that changes identity together with this one, where the kernel has not got it:
    /// its map says nothing of this one's new identity yet. One whose policy cannot be written holds nothing up.
    fn peer_without_policy(&self, id: u16, regeneration: &Regeneration) -> Option<Watch> {
        let peers = regeneration.together.as_deref().into_iter().flatten().filter(|peer| **peer != id);
        peers.copied().find_map(|peer| match self.policies.realization(peer, regeneration.policy) {
            Ok(Realization::Pending(watch)) => Some(watch),
            Ok(Realization::Done(_)) | Err(_) => None,
        })
    }

    /// Lets those go on whose addresses the kernel has in the ipcache.
    fn await_ipcache(&self, building: &mut [&mut BatchEntry<Endpoint>]) {
        for entry in at(building, Step::Ipcache) {
            let prefixes: Vec<IpNetwork> = entry.object.record.addresses().map(IpNetwork::from).collect();
            entry.result = match (self.ipcache.pending(&prefixes), &entry.object.regeneration) {
                (Ok(Some(watch)), Some(regeneration)) => wait(regeneration, watch),
                (Ok(_), _) => Ok(()),
                (Err(error), _) => Err(error.into()),
            };
            if entry.result.is_ok() {
                go_on(&mut entry.object, Step::Peers);
            }
        }
    }

    /// Of endpoints that change identity together: removes the rows of previous identities from policy maps, once packets
    /// and the ipcache carry the new ones of all.
    fn await_peers(&self, building: &mut [&mut BatchEntry<Endpoint>]) {
        let here: BTreeSet<u16> = at(building, Step::Peers).map(|entry| entry.object.record.id).collect();
        let mut ending = Vec::new();
        for entry in at(building, Step::Peers) {
            let Some(regeneration) = entry.object.regeneration.clone() else { continue };
            let Some(together) = &regeneration.together else { continue };
            match together.difference(&here).find_map(|&peer| self.is_behind(peer, together)) {
                Some(watch) if Instant::now() < regeneration.deadline => {
                    entry.result = wait(&regeneration, watch);
                }
                // A peer that does not come so far is tried again by itself.
                _ => ending.extend(subject(&entry.object)),
            }
        }
        if !ending.is_empty() {
            // Programs in flight may still hold an identity that they looked up before.
            std::thread::sleep(IN_FLIGHT);
            ending.into_iter().for_each(|subject| self.policies.enforce(subject));
        }
    }

    /// A watch on a peer whose packets do not carry its new identity yet.
    fn is_behind(&self, peer: u16, together: &Arc<BTreeSet<u16>>) -> Option<Watch> {
        let snapshot = self.table.snapshot();
        let (row, watch) = self.table.get_watch(&snapshot, Endpoint::by_id(EndpointId(peer)));
        let row = row?;
        let waits_as_well = row.regeneration.as_ref().is_some_and(|regeneration| {
            regeneration.step == Step::Peers && regeneration.together.as_ref() == Some(together)
        });
        let has_failed = row.status.kind() == StatusKind::Error;
        (changes_identity(row) && !waits_as_well && !has_failed).then_some(watch)
    }

    /// The interface of an endpoint that has come so far, and what has become of it.
    fn end(&self, entry: &mut BatchEntry<Endpoint>) {
        let endpoint = &entry.object;
        if entry.result.is_ok() && endpoint.record.has_interface() {
            entry.result = self.datapath.up(&datapath(&endpoint.record)).map_err(Into::into);
        }
        let now = SystemTime::now();
        entry.object = match &entry.result {
            Ok(()) => {
                let identity = endpoint.record.identity();
                self.identities.keep_only(&Endpoint::user(endpoint.record.id), identity);
                self.counts.regeneration(&endpoint.reason, true);
                Endpoint { applied_identity: identity, ..endpoint.regenerated(now) }
            }
            Err(error) if error.is::<Waiting>() => endpoint.waiting(now),
            Err(error) => {
                let (id, error) = (endpoint.record.id, error.to_string());
                self.counts.regeneration(&endpoint.reason, false);
                // An error that is retried is logged once.
                if !endpoint.has_failed_with(&error) {
                    tracing::warn!(endpointID = id, %error, "Regeneration of endpoint failed, trying again");
                }
                endpoint.failed(&error, now)
            }
        };
    }

    /// Record and datapath; the interface stays down.
    fn prepare(&self, record: &Record) -> OpResult {
        self.files.save(record)?;
        if record.is_host() {
            self.datapath.attach_host(record.id)?;
        } else if record.has_interface() {
            self.datapath.attach(&datapath(record))?;
        }
        Ok(())
    }

    fn claims(&self, record: &Record) -> impl Iterator<Item = Change> + use<'_> {
        let pod = (!record.k8s_pod_name.is_empty()).then(|| Pod {
            namespace: record.k8s_namespace.as_str().into(),
            name: record.k8s_pod_name.as_str().into(),
        });
        let (identity, resource) = (record.identity(), resource(record));
        let addresses: Vec<IpAddr> = record.addresses().collect();
        addresses.into_iter().map(move |address| {
            let host_ip = (self.host_ip)(address);
            let mapping = Mapping { host_ip, pod: pod.clone(), ..Mapping::identity(identity) };
            let claim = Claim { source: Source::Local, resource: resource.as_str().into(), mapping };
            Change::Upsert(address.into(), claim)
        })
    }

    /// Packets drop from the first step on; the record goes last, so that a start finds what is left to remove.
    fn remove(&self, record: &Record) -> OpResult {
        self.policies.forget(record.id);
        self.datapath.detach(record.id)?;
        let resource = resource(record);
        self.ipcache.apply(
            record
                .addresses()
                .map(|address| Change::Delete(address.into(), Source::Local, resource.as_str().into())),
        );
        self.identities.release_all(&Endpoint::user(record.id));
        if !record.datapath_configuration.external_ipam {
            for address in record.addresses() {
                self.ipam.release_endpoint(address, record.id);
            }
        }
        self.files.remove(EndpointId(record.id))?;
        Ok(())
    }
}

/// How long a regeneration waits for others, which takes milliseconds once all sources have been read.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a program may take from an identity that it has looked up to the policy map.
const IN_FLIGHT: Duration = Duration::from_millis(1);

/// The endpoint as policy sees it; none for one without an interface or an identity.
fn subject(endpoint: &Endpoint) -> Option<Subject> {
    let label = endpoint.record.sec_label.as_ref().filter(|_| endpoint.record.has_interface())?;
    Some(Subject {
        endpoint: endpoint.record.id,
        identity: label.id,
        labels: LabelArray::from(&label.labels),
        named_ports: endpoint.named_ports.clone(),
    })
}

/// Whether packets of the endpoint carry an identity that it is to give up.
fn changes_identity(endpoint: &Endpoint) -> bool {
    let builds = matches!(endpoint.state, State::WaitingToRegenerate | State::Regenerating | State::Ready);
    builds && !is_new(endpoint) && endpoint.applied_identity != endpoint.record.identity()
}

/// The endpoints that begin to change their identities together, and the identities that they give up; nothing if it is
/// one alone: it meets peers that stay as they are, and policy has rows about both of its identities for them.
fn changing_together(building: &[&mut BatchEntry<Endpoint>]) -> (Option<Arc<BTreeSet<u16>>>, BTreeSet<u32>) {
    let all = building.iter().map(|entry| &entry.object);
    let changing: Vec<&Endpoint> =
        all.filter(|endpoint| endpoint.regeneration.is_none() && changes_identity(endpoint)).collect();
    match &*changing {
        [_, _, ..] => {
            let together = changing.iter().map(|endpoint| endpoint.record.id).collect();
            (Some(Arc::new(together)), changing.iter().map(|endpoint| endpoint.applied_identity).collect())
        }
        _ => (None, BTreeSet::new()),
    }
}

/// The entries that have come to this step, and no further.
fn at<'a, 'b>(
    building: &'a mut [&'b mut BatchEntry<Endpoint>],
    step: Step,
) -> impl Iterator<Item = &'a mut BatchEntry<Endpoint>> + use<'a, 'b> {
    let is_there = move |entry: &&mut BatchEntry<Endpoint>| {
        let regeneration = entry.object.regeneration.as_ref();
        entry.result.is_ok() && regeneration.is_some_and(|regeneration| regeneration.step == step)
    };
    building.iter_mut().map(|entry| &mut **entry).filter(is_there)
}

/// The endpoint goes on to the next step.
fn go_on(endpoint: &mut Endpoint, step: Step) {
    if let Some(regeneration) = &mut endpoint.regeneration {
        Arc::make_mut(regeneration).step = step;
    }
}

/// Waits for the watch, unless it has been waited for long enough.
fn wait(regeneration: &Regeneration, watch: Watch) -> OpResult {
    match (Instant::now() < regeneration.deadline, regeneration.step) {
        (true, _) => Err(Waiting::on(watch).until(regeneration.deadline).into()),
        (false, Step::Policy) => Err("timed out while waiting for policy".into()),
        (false, Step::Ipcache) => Err("timed out while waiting for the ipcache".into()),
        (false, Step::Peers) => Err("timed out while waiting for other endpoints".into()),
    }
}

/// Whether the kernel does not know the endpoint yet.
fn is_new(endpoint: &Endpoint) -> bool {
    endpoint.applied_identity == 0
}

/// The endpoint's name as a source of ipcache claims.
fn resource(record: &Record) -> String {
    format!("endpoint/{}", record.id)
}

/// The record as the datapath wants it.
pub(crate) fn datapath(record: &Record) -> EndpointDatapath {
    let octets = |mac: Option<Mac>| mac.map_or([0; 6], |mac| mac.0);
    let unchecked =
        if record.datapath_configuration.disable_sip_verification { ep_flag::SOURCE_CHECK } else { 0 };
    EndpointDatapath {
        id: record.id,
        identity: record.identity(),
        ifindex: record.if_index,
        ifname: record.if_name.clone(),
        mac: octets(record.mac),
        node_mac: octets(record.node_mac),
        ipv4: record.ipv4,
        ipv6: record.ipv6,
        flags: record.options.map.flags() & !unchecked,
    }
}
