//! Rows of the table into the state folder, the datapath, the ipcache and the allocator: the only writer of them for
//! endpoints.
//!
//! Making an endpoint: record on disk, program and rows, policy, ipcache, interface up. One of another identity: its
//! policy and what policies of others say of the new number, then record and rows, then the ipcache; packets carry the
//! new number only where everybody knows it, and the old one stays known in quarantine. Of several that change together,
//! as by labels of their namespace, policy keeps what it says of each two of them until both carry the new one. Removing one: rows, ipcache,
//! identity, addresses, record. So whatever the kernel has of an endpoint is also on disk, and a start after a kill at any step
//! finds all of it.

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
use policy::{NotRealized, Policies, Subject};
use reconciler::{BatchEntry, BatchOps, Builder, OpCx, OpResult, Operations, Ops, Reconciler, StatusField};
use statedb::{Obj, Rows, RwTable};

use crate::metrics::Counts;
use crate::model::endpoint::Endpoint;
use crate::model::id::EndpointId;
use crate::model::log::Code;
use crate::model::mac::Mac;
use crate::model::record::Record;
use crate::model::state::State;
use crate::restore::files::StateFolder;

/// What endpoints are made of.
pub(crate) struct EndpointOps {
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
    /// Brings each row's endpoint to where the row says it should be; waits for the ipcache once for all.
    fn make(&self, batch: &mut [BatchEntry<Endpoint>]) {
        let leaving = leaving(batch);
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
                State::WaitingToRegenerate | State::Regenerating | State::Ready => {
                    entry.result = self.announce(&entry.object, &leaving);
                    building.push(entry);
                }
            }
        }
        self.wait_for_policy(&mut building);
        for entry in building.iter_mut().filter(|entry| entry.result.is_ok() && !is_new(&entry.object)) {
            entry.result = self.prepare(&entry.object.record);
        }
        self.publish(&mut building);
        self.end_transition(&building, &leaving);
        for entry in building {
            if entry.result.is_ok() && entry.object.record.has_interface() {
                entry.result = self.datapath.up(&datapath(&entry.object.record)).map_err(Into::into);
            }
            let now = SystemTime::now();
            self.counts.regeneration(&entry.object.reason, entry.result.is_ok());
            entry.object = match &entry.result {
                Ok(()) => {
                    let identity = entry.object.record.identity();
                    self.identities.keep_only(&Endpoint::user(entry.object.record.id), identity);
                    Endpoint { applied_identity: identity, ..entry.object.regenerated(now) }
                }
                Err(error) => {
                    let (id, error) = (entry.object.record.id, error.to_string());
                    // What is tried again and again is told once.
                    if !entry.object.has_failed_with(&error) {
                        tracing::warn!(endpointID = id, %error, "Regeneration of endpoint failed, trying again");
                    }
                    entry.object.failed(&error, now)
                }
            };
        }
    }

    /// Holds the identity and says whom policy is about. A new endpoint is attached before: nothing passes it yet.
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

    /// Removes the rows of previous identities from policy maps, once packets and the ipcache carry the new ones.
    fn end_transition(&self, building: &[&mut BatchEntry<Endpoint>], leaving: &BTreeSet<u32>) {
        if leaving.is_empty() {
            return;
        }
        // Programs in flight may still hold an identity that they looked up before.
        std::thread::sleep(IN_FLIGHT);
        let changed = building.iter().filter(|entry| entry.result.is_ok() && changes_identity(&entry.object));
        changed.filter_map(|entry| subject(&entry.object)).for_each(|subject| self.policies.enforce(subject));
    }

    /// Waits until the kernel has the policies: those of the endpoints, and of all others what they say of new
    /// identities, which packets carry only after this. An endpoint of the run before goes on with the policy that
    /// it has, until all sources have been read.
    fn wait_for_policy(&self, building: &mut [&mut BatchEntry<Endpoint>]) {
        let waiting = |entry: &&mut BatchEntry<Endpoint>| {
            let endpoint = &entry.object;
            let goes_on = endpoint.builds == 0 && endpoint.applied_identity == endpoint.record.identity();
            entry.result.is_ok() && endpoint.record.has_interface() && !goes_on
        };
        let (entries, realized): (Vec<_>, Vec<_>) = building
            .iter_mut()
            .map(|entry| &mut **entry)
            .filter(waiting)
            .map(|entry| {
                let id = entry.object.record.id;
                (entry, self.policies.realized(id))
            })
            .unzip();
        if entries.is_empty() {
            return;
        }
        let all = realized.into_iter().map(|realized| tokio::time::timeout(POLICY_PATIENCE, realized));
        // This thread is the runtime's, for blocking work: see `blocking` of the builder.
        let all = tokio::runtime::Handle::current().block_on(async { futures::future::join_all(all).await });
        for (entry, realized) in entries.into_iter().zip(all) {
            match realized {
                Ok(Ok(_)) => {}
                // It is denied wholly, which is safe; table and metrics of policy say so.
                Ok(Err(error @ NotRealized::Full { .. })) => {
                    let note = format!("Policy map is full: {error}");
                    tracing::warn!(endpointID = entry.object.record.id, %error, "Policy of endpoint does not fit");
                    entry.object = entry.object.note(Code::Warning, &note, SystemTime::now());
                }
                Ok(Err(error)) => entry.result = Err(error.into()),
                Err(_) => entry.result = Err("timed out while waiting for policy".into()),
            }
        }
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

    /// Addresses into the ipcache, waiting until the kernel has them.
    fn publish(&self, building: &mut [&mut BatchEntry<Endpoint>]) {
        let ready = building.iter().filter(|entry| entry.result.is_ok());
        let changes: Vec<Change> = ready.flat_map(|entry| self.claims(&entry.object.record)).collect();
        if changes.is_empty() {
            return;
        }
        let revision = self.ipcache.apply(changes);
        for entry in building.iter_mut().filter(|entry| entry.result.is_ok()) {
            let prefixes: Vec<IpNetwork> = entry.object.record.addresses().map(IpNetwork::from).collect();
            let applied = self.ipcache.applied(revision, &prefixes);
            // This thread is the runtime's, for blocking work: see `blocking` of the builder.
            entry.result = tokio::runtime::Handle::current().block_on(applied).map_err(Into::into);
        }
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

/// How long an endpoint waits for its policy, which takes milliseconds once all sources have been read.
const POLICY_PATIENCE: Duration = Duration::from_secs(10);

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

/// The identities that endpoints of a batch give up, if there are several such endpoints: one that changes alone meets
/// peers that stay as they are, and policy has rows about both of its identities for them.
fn leaving(batch: &[BatchEntry<Endpoint>]) -> BTreeSet<u32> {
    let changing = || batch.iter().map(|entry| &entry.object).filter(|endpoint| changes_identity(endpoint));
    match changing().nth(1) {
        Some(_) => changing().map(|endpoint| endpoint.applied_identity).collect(),
        None => BTreeSet::new(),
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
