//! Rows of new endpoints. The owner of addresses and of an identity is the endpoint's id, so it is reserved before there is a
//! row: the row comes with all of them in one commit, and the reconciler begins at once.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::SystemTime;

use api_models::EndpointChangeRequest;
use parking_lot::Mutex;
use statedb::TableTxn;

use crate::model::endpoint::Endpoint;
use crate::model::error::Invalid;
use crate::model::id::EndpointId;
use crate::model::record::Record;
use crate::pod_metadata::Metadata;
use crate::requests::change;
use crate::requests::service::{Endpoints, Refused, prefixed};

/// Ids of new endpoints.
#[derive(Debug)]
pub(super) struct Ids {
    /// The next candidate for a free id; ids are reused as late as possible.
    next: AtomicU16,
    /// Those of endpoints that are being created.
    reserved: Mutex<BTreeSet<u16>>,
}

impl Ids {
    pub(super) fn new() -> Ids {
        // Start at a random id: clients may still cache ids of the previous run.
        Ids { next: AtomicU16::new(rand::random()), reserved: Mutex::default() }
    }
}

/// An id that no other endpoint gets while this exists.
#[must_use]
pub(super) struct Reservation<'a> {
    ids: &'a Ids,
    id: u16,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.ids.reserved.lock().remove(&self.id);
    }
}

impl Endpoints {
    /// Checks a new endpoint's record and reserves its id, a free one unless the record has one.
    pub(super) fn reserve(&self, record: &mut Record) -> Result<Reservation<'_>, Invalid> {
        // Nothing is written: the lock keeps others from taking the id meanwhile.
        let txn = self.table.write();
        self.check_new(&txn, record)?;
        if record.id == 0 {
            record.id = self.free_id(&txn)?;
        }
        self.ids.reserved.lock().insert(record.id);
        Ok(Reservation { ids: &self.ids, id: record.id })
    }

    /// Inserts the row of an endpoint with a reserved id, which owns its addresses then. Returns whether it has its labels and
    /// its identity, too; if not, they need a thread for blocking work. After an error it owns nothing.
    pub(super) fn insert_reserved(
        &self,
        record: Record,
        request: &EndpointChangeRequest,
        fetched: Option<&Metadata>,
    ) -> Result<bool, Refused> {
        let row = Endpoint::created(record, SystemTime::now());
        self.take_over_addresses(&row.record, request)?;
        let described = self.described_at_once(&self.table.snapshot(), &row, fetched);
        let described = described.and_then(|description| {
            let is_described = description.is_some();
            let described = description.map_or_else(|| row.clone(), |it| it.applied_to(&row));
            let mut txn = self.table.write();
            // A concurrent request may have created another one for the pod.
            check(self, &txn, &row.record)?;
            txn.insert(described);
            txn.commit();
            Ok(is_described)
        });
        if described.is_err() {
            self.context.identities.release_all(&Endpoint::user(row.record.id));
            if row.record.owns_addresses() {
                self.release_all(&row.record.addresses().collect::<Vec<_>>(), row.record.id);
            }
        }
        described
    }

    /// Inserts a new endpoint into the table. Returns its id, which is a free one unless the record has one.
    pub(super) fn insert(&self, mut record: Record) -> Result<EndpointId, Invalid> {
        let mut txn = self.table.write();
        self.check_new(&txn, &record)?;
        if record.id == 0 {
            record.id = self.free_id(&txn)?;
        }
        let id = EndpointId(record.id);
        txn.insert(Endpoint::created(record, SystemTime::now()));
        txn.commit();
        Ok(id)
    }

    /// Inserts an endpoint of the agent's own into the table; it waits to be regenerated. Returns its id, which is that of the
    /// record if it has one that is free; `None` if no id is free.
    pub(crate) fn insert_own(&self, mut record: Record) -> Option<EndpointId> {
        let mut txn = self.table.write();
        if record.id == 0 || self.is_taken(&txn, record.id) {
            record.id = self.free_id(&txn).ok()?;
        }
        let id = EndpointId(record.id);
        txn.insert(Endpoint::restored(record, SystemTime::now()));
        txn.commit();
        Some(id)
    }

    /// Checks that a new endpoint may have this record, and the id in it if there is one.
    fn check_new(&self, txn: &TableTxn<'_, Endpoint>, record: &Record) -> Result<(), Invalid> {
        check(self, txn, record)?;
        match self.ids.reserved.lock().contains(&record.id) {
            true => Err(Invalid::IdInUse(EndpointId(record.id))),
            false => Ok(()),
        }
    }

    fn is_taken(&self, txn: &TableTxn<'_, Endpoint>, id: u16) -> bool {
        txn.get(Endpoint::by_id(EndpointId(id))).is_some() || self.ids.reserved.lock().contains(&id)
    }

    fn free_id(&self, txn: &TableTxn<'_, Endpoint>) -> Result<u16, Invalid> {
        (0..=u16::MAX)
            .map(|_| self.ids.next.fetch_add(1, Ordering::Relaxed))
            // `cilium_call_policy` has 65,535 slots, 0 to 65,534, so id 65,535 has none.
            .find(|&id| ![0, u16::MAX].contains(&id) && !self.is_taken(txn, id))
            .ok_or(Invalid::NoFreeId)
    }

    /// Takes over the endpoint's addresses from the allocation of the CNI plugin, all or none.
    fn take_over_addresses(&self, record: &Record, request: &EndpointChangeRequest) -> Result<(), Refused> {
        if record.datapath_configuration.external_ipam {
            return Ok(());
        }
        let addressing = request.addressing.clone().unwrap_or_default();
        let with_token = record.addresses().map(|address| {
            let token = match address.is_ipv4() {
                true => addressing.ipv4_expiration_uuid.as_str(),
                false => addressing.ipv6_expiration_uuid.as_str(),
            };
            (address, Some(token).filter(|token| !token.is_empty()))
        });
        Ok(self.ipam.hand_over_all(with_token, &record.pod_name(), record.id)?)
    }
}

/// Checks that an endpoint may have this record beside those of the table.
fn check(endpoints: &Endpoints, txn: &TableTxn<'_, Endpoint>, record: &Record) -> Result<(), Invalid> {
    change::check(txn, record)?;
    match record.addresses().find(|&address| endpoints.ipam.is_router(address)) {
        Some(address) => Err(Invalid::AddressInUse(prefixed(address))),
        None => Ok(()),
    }
}
