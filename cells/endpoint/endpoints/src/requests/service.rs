//! The handle on endpoints: creates, changes and removes them as requests demand, and waits for the outcome.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use api::ControllerUuids;
use api_models::EndpointChangeRequest;
use datapath_api::Datapath;
use identity::Identities;
use ipam::Ipam;
use memory_limit::MemoryLimit;
use policy::Policies;
use reconciler::{Status, StatusKind};
use statedb::{Obj, RwTable, Table};

use crate::model::endpoint::{Endpoint, RESOLVING, UPDATED};
use crate::model::error::Invalid;
use crate::model::id::{EndpointId, Name};
use crate::model::options::{BadOption, Defaults};
use crate::model::record::{OptionMap, Record};
use crate::model::state::State;
use crate::pod_metadata::Objects;
use crate::requests::change;
use crate::requests::creation::Ids;
use crate::requests::fence::{Fence, NotOpen};
use labels::Filter;

/// Limit of a request's wait for the endpoint that it has created or changed.
pub(super) const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// Creates, changes and removes endpoints. Cheap to clone.
#[derive(Clone)]
pub struct Endpoints {
    pub(super) table: RwTable<Endpoint>,
    pub(super) ipam: Ipam,
    fence: Fence,
    /// Options of new endpoints.
    defaults: Defaults,
    pub(crate) context: Context,
    pub(super) ids: Arc<Ids>,
    /// The addresses that the health endpoint had in the previous run.
    previous_health: Arc<OnceLock<Vec<IpAddr>>>,
}

/// The other cells that requests need.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) identities: Identities,
    pub(crate) policies: Policies,
    /// For the REST API's view of policy.
    pub(crate) datapath: Arc<dyn Datapath>,
    pub(crate) filter: Arc<Filter>,
    /// The longest delay before an identity is created for changed labels.
    pub(crate) identity_max_jitter: Duration,
    /// How long a request waits for an identity.
    pub(crate) identity_allocation_timeout: Duration,
    /// Cluster objects; absent without a source of them.
    pub(crate) objects: Option<Objects>,
    /// Refuses endpoints beyond the agent's memory limit.
    pub(crate) memory: Arc<MemoryLimit>,
    pub(crate) uuids: ControllerUuids,
}

/// The error of a request that is not fulfilled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The request is invalid; nothing was changed.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// An option of the request is invalid; nothing was changed.
    #[error(transparent)]
    Option(#[from] BadOption),
    /// No endpoint has the name.
    #[error("endpoint not found")]
    NotFound,
    /// An address of the endpoint cannot be taken over.
    #[error(transparent)]
    Address(#[from] ipam::Error),
    /// The endpoint's labels have no identity.
    #[error("unable to resolve identity: {0}")]
    Identity(#[from] identity::Error),
    /// The reconciler could not write the endpoint's state; the error is that of the row's status.
    #[error("unable to regenerate endpoint: {0}")]
    Regeneration(String),
    /// A deletion has overtaken the request.
    #[error("endpoint was deleted while processing the request")]
    Deleted,
    /// The endpoint is still being regenerated.
    #[error("timed out while waiting for initial endpoint generation to complete")]
    TimedOut,
    /// The change is in the table; regenerating the endpoint has failed and is retried.
    #[error("error while regenerating endpoint. For more info run: 'cilium-dbg endpoint get {endpoint}'")]
    Update {
        /// The endpoint.
        endpoint: EndpointId,
        /// The cause.
        #[source]
        source: Box<Refused>,
    },
    /// The endpoint would exceed the memory that the agent may use.
    #[error("no room for another endpoint: {0}")]
    Memory(#[from] memory_limit::Full),
    /// The agent does not accept requests for endpoints yet.
    #[error(transparent)]
    NotOpen(#[from] NotOpen),
}

impl Endpoints {
    pub(crate) fn new(
        table: RwTable<Endpoint>,
        ipam: Ipam,
        fence: Fence,
        defaults: Defaults,
        context: Context,
    ) -> Endpoints {
        let ids = Arc::new(Ids::new());
        Endpoints { table, ipam, fence, defaults, context, ids, previous_health: Arc::default() }
    }

    /// Returns the table's reader.
    pub fn table(&self) -> Table<Endpoint> {
        self.table.reader()
    }

    /// Creates an endpoint. With `sync-build-endpoint` it is ready when this returns. One that fails is removed again.
    pub async fn create(&self, request: &EndpointChangeRequest) -> Result<Obj<Endpoint>, Refused> {
        self.fence.wait().await?;
        self.context.memory.room()?;
        let mut record = change::record(request).map_err(Invalid::from)?;
        record.op_labels = change::labels(&request.labels, &self.context.filter)?;
        record.options = OptionMap { map: self.defaults.now() };
        let fetched = match &self.context.objects {
            Some(objects) => objects.await_pod(&record).await,
            None => None,
        };
        let reserved = self.reserve(&mut record)?;
        let id = EndpointId(record.id);
        let described = match self.insert_reserved(record, request, fetched.as_ref()) {
            Ok(true) => Ok(()),
            Ok(false) => self.describe_first(id, fetched).await,
            Err(refused) => Err(refused),
        };
        drop(reserved);
        let created = match described {
            Ok(()) if request.sync_build_endpoint => self.regenerated(id).await,
            described => described,
        };
        let created = created.and_then(|()| self.row(id).ok_or(Refused::NotFound));
        if let Err(error) = &created {
            tracing::warn!(endpointID = id.0, %error, "Creation of endpoint failed");
            self.remove(id).await;
        }
        created
    }

    /// Creates an endpoint of the agent's own, with the reserved labels and the identity of the record, and waits until it is
    /// ready. The addresses of the record, which the caller has allocated, become the endpoint's: they are released with it, and
    /// if it fails. One that fails is removed again.
    pub async fn create_own(&self, mut record: Record) -> Result<Obj<Endpoint>, Refused> {
        let addresses: Vec<IpAddr> = record.addresses().collect();
        record.options = OptionMap { map: self.defaults.now() };
        let created = match self.fence.wait().await {
            Ok(()) => self.insert(record).map_err(Refused::from),
            Err(closed) => Err(closed.into()),
        };
        let id = match created {
            Ok(id) => id,
            Err(error) => {
                self.release_all(&addresses, 0);
                return Err(error);
            }
        };
        let created = match addresses.iter().try_for_each(|ip| self.ipam.hand_over(*ip, None, "", id.0)) {
            Ok(()) => {
                self.change(id, |row| {
                    let now = SystemTime::now();
                    row.identified(RESOLVING, now).triggered("endpoint creation", "endpoint creation", now)
                });
                self.regenerated(id).await
            }
            Err(error) => Err(error.into()),
        };
        let created = created.and_then(|()| self.row(id).ok_or(Refused::NotFound));
        if created.is_err() {
            self.remove(id).await;
            self.release_all(&addresses, id.0);
        }
        created
    }

    /// Removes an endpoint of the agent's own; false if that has failed and is retried.
    pub async fn remove_own(&self, id: EndpointId) -> bool {
        self.remove(id).await
    }

    /// Returns the addresses that the health endpoint had in the previous run; none before the start has read its record.
    pub fn previous_health(&self) -> &[IpAddr] {
        self.previous_health.get().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn set_previous_health(&self, addresses: Vec<IpAddr>) {
        // Set once: there is one start.
        let _ = self.previous_health.set(addresses);
    }

    pub(super) fn release_all(&self, addresses: &[IpAddr], endpoint: u16) {
        for address in addresses {
            self.ipam.release_endpoint(*address, endpoint);
        }
    }

    /// Changes an endpoint's interface, MACs or addresses, and waits until it is regenerated.
    pub async fn patch(&self, name: &Name, request: &EndpointChangeRequest) -> Result<(), Refused> {
        self.fence.wait().await?;
        let wanted = change::record(request).map_err(Invalid::from)?;
        let old = self.modifiable(name)?;
        let Some(record) = change::patched(&old.record, wanted) else { return Ok(()) };
        self.replace(&old, record, "endpoint was updated via API").await
    }

    /// Sets an endpoint's options, all or none, and the labels that clients may set unless they are `None`.
    pub async fn configure<'a>(
        &self,
        name: &Name,
        options: impl IntoIterator<Item = (&'a str, &'a str)>,
        user_labels: Option<&[String]>,
    ) -> Result<(), Refused> {
        self.fence.wait().await?;
        let old = self.modifiable(name)?;
        let mut record = (*old.record).clone();
        record.options.map = record.options.map.changed(options)?;
        if let Some(user) = user_labels {
            record.op_labels = change::relabelled(&record.op_labels, user)?;
        }
        if record == *old.record {
            return Ok(());
        }
        self.replace(&old, record, "endpoint configuration update via API").await
    }

    /// Sets the labels that clients may set.
    pub async fn relabel(&self, name: &Name, user: &[String]) -> Result<(), Refused> {
        self.fence.wait().await?;
        let old = self.find(name).ok_or(Refused::NotFound)?;
        let op_labels = change::relabelled(&old.record.op_labels, user)?;
        if op_labels == old.record.op_labels {
            return Ok(());
        }
        let record = Record { op_labels, ..(*old.record).clone() };
        self.replace(&old, record, UPDATED).await
    }

    async fn replace(&self, old: &Endpoint, record: Record, why: &str) -> Result<(), Refused> {
        let (id, now) = (old.id(), SystemTime::now());
        let identify = move |endpoints: &Endpoints| {
            let mut record = record.clone();
            endpoints.identify(&mut record, Duration::ZERO).map(|()| record)
        };
        let record = self.with_identity(identify).await?;
        {
            let mut txn = self.table.write();
            let others = |address| {
                txn.list(Endpoint::by_address(address)).find(|other| other.record.id != id.0).is_some()
            };
            let taken = |address| others(address) || self.ipam.is_router(address);
            if let Some(address) = record.addresses().find(|&address| taken(address)) {
                return Err(Invalid::AddressInUse(prefixed(address)).into());
            }
            change::check_interface(&txn, &record)?;
            let Some(current) = txn.get(Endpoint::by_id(id)).filter(|e| !e.state.is_leaving()).cloned()
            else {
                return Err(Refused::NotFound);
            };
            let other = record.sec_label != current.record.sec_label
                || current.state == State::WaitingForIdentity && current.record.sec_label.is_some();
            let next = current.with_record(record);
            let next = if other { next.identified(RESOLVING, now) } else { next };
            txn.insert(next.triggered(if why == UPDATED { "LabelsUpdate" } else { why }, why, now));
            txn.commit();
        }
        self.regenerated(id).await.map_err(|cause| Refused::Update { endpoint: id, source: Box::new(cause) })
    }

    /// Removes the endpoint with the name. Returns the number of failed steps, which are retried.
    pub async fn delete(&self, name: &Name) -> Result<usize, Refused> {
        self.fence.wait().await?;
        let id = self.modifiable(name)?.id();
        Ok(usize::from(!self.remove(id).await))
    }

    /// Removes all endpoints of a container.
    pub async fn delete_container(&self, container: &str) -> Result<usize, Refused> {
        self.fence.wait().await?;
        self.drain(container).await
    }

    /// As [`delete_container`](Self::delete_container), before requests are accepted.
    pub(crate) async fn drain(&self, container: &str) -> Result<usize, Refused> {
        let snapshot = self.table.snapshot();
        let ids: Vec<EndpointId> =
            self.table.list(&snapshot, Endpoint::by_container(container)).map(|e| e.id()).collect();
        if ids.is_empty() {
            return Err(Refused::NotFound);
        }
        let removed = futures::future::join_all(ids.into_iter().map(|id| self.remove(id))).await;
        Ok(removed.into_iter().filter(|removed| !removed).count())
    }

    /// Removes an endpoint and waits until its kernel state is gone; false if that has failed and is retried.
    pub(crate) async fn remove(&self, id: EndpointId) -> bool {
        {
            let mut txn = self.table.write();
            // A row that is already marked stays as it is: the removal in flight could not write its outcome into a new
            // version of the row.
            let row = txn.get(Endpoint::by_id(id)).cloned();
            let going = |state| matches!(state, State::Disconnecting | State::Disconnected);
            if let Some(row) = row.filter(|row| !going(row.state)) {
                let left = row.enter(State::Disconnecting, "Deleting endpoint", SystemTime::now());
                txn.insert(Endpoint { regeneration: None, status: Status::pending(), ..left });
                txn.commit();
            }
        }
        loop {
            let snapshot = self.table.snapshot();
            let (row, watch) = self.table.get_watch(&snapshot, Endpoint::by_id(id));
            match row {
                None => return true,
                Some(row) if row.state == State::Disconnected => {
                    self.forget(id);
                    return true;
                }
                // Another endpoint has the id by now.
                Some(row) if row.state != State::Disconnecting => return true,
                Some(row) if row.status.kind() == StatusKind::Error => return false,
                Some(_) => watch.changed().await,
            }
        }
    }

    /// Deletes the row of an endpoint that is removed; not that of another one, which may have its id by now.
    pub(crate) fn forget(&self, id: EndpointId) {
        let mut txn = self.table.write();
        if txn.get(Endpoint::by_id(id)).is_some_and(|row| row.state == State::Disconnected) {
            txn.delete(Endpoint::by_id(id));
            txn.commit();
        }
    }

    /// Returns the endpoint with the name, unless it is being removed.
    pub fn find(&self, name: &Name) -> Option<Obj<Endpoint>> {
        let snapshot = self.table.snapshot();
        let legacy = matches!(name, Name::Container(_) | Name::Pod(_));
        let mut rows = self.table.list(&snapshot, Endpoint::by_name(name)?);
        rows.find(|row| !(row.state.is_leaving() || legacy && row.record.disable_legacy_identifiers)).cloned()
    }

    fn modifiable(&self, name: &Name) -> Result<Obj<Endpoint>, Refused> {
        let row = self.find(name).ok_or(Refused::NotFound)?;
        match row.record.op_labels.is_reserved() {
            true => Err(Invalid::Reserved.into()),
            false => Ok(row),
        }
    }

    fn row(&self, id: EndpointId) -> Option<Obj<Endpoint>> {
        self.table.get(&self.table.snapshot(), Endpoint::by_id(id)).cloned()
    }

    /// Changes a row, if it exists.
    pub(crate) fn change(&self, id: EndpointId, change: impl FnOnce(&Endpoint) -> Endpoint) {
        let mut txn = self.table.write();
        if let Some(row) = txn.get(Endpoint::by_id(id)).cloned() {
            txn.insert(change(&row));
            txn.commit();
        }
    }

    /// Changes rows in one transaction.
    pub(crate) fn change_all(&self, ids: &[EndpointId], change: impl Fn(&Endpoint) -> Endpoint) {
        let mut txn = self.table.write();
        for &id in ids {
            if let Some(row) = txn.get(Endpoint::by_id(id)).cloned() {
                txn.insert(change(&row));
            }
        }
        txn.commit();
    }

    /// Waits until the endpoint's regeneration has succeeded or failed.
    async fn regenerated(&self, id: EndpointId) -> Result<(), Refused> {
        let outcome = async {
            loop {
                let snapshot = self.table.snapshot();
                let (row, watch) = self.table.get_watch(&snapshot, Endpoint::by_id(id));
                let row = row.filter(|row| !row.state.is_leaving()).ok_or(Refused::Deleted)?;
                match row.status.kind() {
                    StatusKind::Done if row.state == State::Ready => return Ok(()),
                    StatusKind::Error => {
                        let error = row.status.error().unwrap_or("unknown error");
                        return Err(Refused::Regeneration(error.to_owned()));
                    }
                    _ => watch.changed().await,
                }
            }
        };
        tokio::time::timeout(WAIT_LIMIT, outcome).await.unwrap_or(Err(Refused::TimedOut))
    }
}

/// Returns the address with its family, as in errors of Cilium: `ipv4:10.0.0.1`.
pub(super) fn prefixed(address: IpAddr) -> String {
    let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    format!("{family}:{address}")
}
