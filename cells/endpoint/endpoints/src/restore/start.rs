//! The start hook: reads the state of the previous run, reserves its addresses and identities, and inserts its
//! endpoints into the table. The kernel goes on forwarding meanwhile; once the datapath is ready,
//! [`finish`](crate::restore::finish) completes the restore.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use datapath_abi::identity::{HOST, INGRESS};
use datapath_api::{Datapath, EndpointDatapath};
use identity::{Identities, Identity};
use ipam::Ipam;
use statedb::{Initializer, RwTable};
use tokio::sync::oneshot;

use crate::links::{LinkSource, Links};
use crate::metrics::Counts;
use crate::model::endpoint::Endpoint;
use crate::model::error::StateError;
use crate::model::id::EndpointId;
use crate::model::options::{Defaults, Options};
use crate::model::record::{OptionMap, Record, SecurityLabel};
use crate::names::RecordedNames;
use crate::pod_metadata;
use crate::requests::service::Endpoints;
use crate::restore::damaged::Damaged;
use crate::restore::files::StateFolder;
use crate::restore::host;
use crate::restore::plan::{Discarded, Ignored, Reason, Restored};
use crate::restore::retry::{backoff, read};
use crate::restore::unfinished::{self, UnfinishedLink};
use labels::Filter;

/// Attempts to list links before the start fails. Retrying is cheaper than a failure: a restart by the supervisor takes
/// longer than the delays between the attempts.
const ATTEMPTS: u32 = 5;

/// The hook `endpoint-restore`.
pub(crate) struct StartHook {
    pub(crate) previous: PreviousRun,
    pub(crate) endpoints: Arc<Endpoints>,
    pub(crate) links: Arc<LinkSource>,
    pub(crate) datapath: Arc<dyn Datapath>,
    pub(crate) defaults: Defaults,
    /// Whether restored endpoints keep their options, rather than take the configured ones.
    pub(crate) keep_options: bool,
    pub(crate) counts: Counts,
    /// Done when the identities of restored endpoints are reserved.
    pub(crate) identity_initializer: Initializer<Identity>,
    /// For the job that finishes the restore.
    pub(crate) unfinished: oneshot::Sender<Vec<UnfinishedLink>>,
    /// For the job that reports damaged records.
    pub(crate) damaged: oneshot::Sender<Vec<Damaged>>,
}

impl StartHook {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let begin = Instant::now();
        let links = self.links.clone();
        let links = read("list links", None, backoff().retries(ATTEMPTS), move || links.list()).await?;
        let options = self.defaults.now();
        let new_options = (!self.keep_options).then_some(&options);
        // If the datapath returns an error, the interface of a damaged record stays unknown.
        let known = || self.datapath.restored().unwrap_or_default();
        let outcome = self.previous.restore(&links, new_options, known)?;
        host::upsert(&self.endpoints, &links, &options);
        let table = self.previous.table.reader();
        host::label_identity(&table, &self.previous.identities);
        // Policy waits until this table is complete; it now has all identities that packets carry.
        self.previous.identities.complete(self.identity_initializer);

        // Programs are loaded once for all endpoints, with the host's id as a constant, and wait for it.
        if let Some(id) = host::id(&table) {
            self.datapath.expect_host(id);
        }
        // The receivers are gone only if the hive has stopped already.
        let _ = self.unfinished.send(unfinished::find(&links, &table));
        let Outcome { restored, failed, skipped, damaged, health } = outcome;
        self.endpoints.set_previous_health(health);
        let _ = self.damaged.send(damaged);
        self.counts.phase("restoration", begin.elapsed(), restored, failed, skipped);
        tracing::info!(restored, failed, skipped, "Endpoints of the previous run read");
        Ok(())
    }
}

/// The outcome of reading the previous run's state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Number of restored endpoints.
    pub restored: usize,
    /// Number of endpoints that could not be restored.
    pub failed: usize,
    /// Directories that were ignored, or duplicates of another endpoint.
    pub skipped: usize,
    /// Records that cannot be read.
    pub(crate) damaged: Vec<Damaged>,
    /// The addresses of the health endpoint, which is created again.
    pub(crate) health: Vec<IpAddr>,
}

/// The endpoints of the previous run, and the owners of their addresses and identities.
#[derive(Clone)]
pub(crate) struct PreviousRun {
    pub(crate) table: RwTable<Endpoint>,
    pub(crate) files: StateFolder,
    pub(crate) ipam: Ipam,
    pub(crate) identities: Identities,
    pub(crate) filter: Arc<Filter>,
}

impl PreviousRun {
    /// Inserts the endpoints into the table, in state `restoring`, with their addresses and identities reserved.
    /// Removes directories of those that cannot be restored and quarantines unreadable records; the kernel state of
    /// both is removed by the first prune. `options` replaces those of the records; `known` returns the kernel's
    /// endpoints.
    pub(crate) fn restore(
        &self,
        links: &Links,
        options: Option<&Options>,
        known: impl FnOnce() -> Vec<EndpointDatapath>,
    ) -> Result<Outcome, StateError> {
        let files = &self.files;
        let plan = files.preview(links)?;
        let mut outcome = Outcome { health: plan.health, ..Outcome::default() };
        for Ignored { directory, problem } in &plan.ignore {
            let path = files.root().join(directory);
            tracing::warn!(path = %path.display(), %problem, "Ignoring a state directory");
            outcome.skipped += 1;
        }
        outcome.failed += plan.damaged.len();
        outcome.damaged = self.damaged(&plan.damaged, links, known);
        for Discarded { directory, id, reason } in &plan.discard {
            match id {
                Some(EndpointId(id)) if *reason == Reason::Health => self.release(*id),
                Some(EndpointId(id)) => {
                    tracing::info!(endpointID = id, %reason, "Unable to restore endpoint, cleaning it up");
                    self.release(*id);
                    outcome.failed += 1;
                }
                None => outcome.skipped += 1,
            }
            files.discard(directory)?;
        }
        let mut records = Vec::new();
        for Restored { directory, mut record } in plan.restore {
            if let Some(options) = options {
                record.options = OptionMap { map: options.clone() };
            }
            let id = EndpointId(record.id);
            if let Err((ip, error)) = self.reserve(&record) {
                tracing::warn!(endpointID = id.0, %ip, %error, "Unable to restore endpoint, cleaning it up");
                self.release(id.0);
                files.discard(&directory)?;
                outcome.failed += 1;
                continue;
            }
            if directory != id.to_string() {
                files.rename(&directory, id)?;
            }
            self.identify(&mut record);
            files.names().restore(id, RecordedNames::take(&mut record));
            records.push(record);
            outcome.restored += 1;
        }
        // After the endpoints: an endpoint with a readable record has precedence over a damaged one.
        outcome.damaged.iter().for_each(|damaged| damaged.reserve(&self.ipam));
        // Only after all endpoints have reserved the identities that their packets carry.
        records.iter_mut().for_each(|record| self.unify_identity(record));
        let rows = records.into_iter().map(|record| Endpoint::restored(record, SystemTime::now()));
        let mut txn = self.table.write();
        for row in rows {
            txn.insert(row);
        }
        txn.commit();
        Ok(outcome)
    }

    /// Quarantines unreadable records. Returns them and those of earlier runs that are still unresolved.
    fn damaged(
        &self,
        damaged: &[Ignored],
        links: &Links,
        known: impl FnOnce() -> Vec<EndpointDatapath>,
    ) -> Vec<Damaged> {
        let known = if damaged.is_empty() { Vec::new() } else { known() };
        let mut all: Vec<Damaged> =
            damaged.iter().map(|record| Damaged::quarantine(&self.files, record, &known)).collect();
        for earlier in Damaged::quarantined(&self.files, links) {
            if !all.contains(&earlier) {
                all.push(earlier);
            }
        }
        all
    }

    fn reserve(&self, record: &Record) -> Result<(), (IpAddr, ipam::Error)> {
        if !record.owns_addresses() {
            return Ok(());
        }
        let owner = format!("{} [restored]", record.pod_name());
        let mut addresses = record.addresses();
        let reserve = |ip| self.ipam.hand_over(ip, None, &owner, record.id).map_err(|error| (ip, error));
        addresses.try_for_each(reserve)
    }

    /// Releases the reservations of an endpoint that is not restored.
    fn release(&self, id: u16) {
        for address in self.ipam.endpoint_addresses(id) {
            self.ipam.release_endpoint(address, id);
        }
    }

    /// Reserves the record's identity, which packets carry; another one if the prefixes of `--labels` have changed or
    /// it cannot be kept. If no identity is left the record stays as it is.
    fn identify(&self, record: &mut Record) {
        // Their ids are fixed: an allocator would give the labels of the host, which are those of the node, another one.
        let fixed = match (record.is_host(), record.is_ingress()) {
            (true, _) => Some(HOST),
            (_, true) => Some(INGRESS),
            _ => None,
        };
        if let Some(id) = fixed {
            record.sec_label = Some(SecurityLabel { id, labels: record.op_labels.identity() });
            return;
        }
        if !record.op_labels.is_reserved() {
            record.op_labels = pod_metadata::filtered(&record.op_labels, &self.filter);
        }
        let (labels, user) = (record.op_labels.identity(), Endpoint::user(record.id));
        let id = match &record.sec_label {
            Some(label) if label.labels == labels => self.identities.reserve(label.id, &labels, &user),
            // The old id stays with its labels until the kernel has the new one.
            Some(label) => self
                .identities
                .reserve(label.id, &label.labels, &user)
                .and_then(|_| self.identities.allocate(&labels, &user)),
            None => self.identities.allocate(&labels, &user),
        };
        match id {
            Ok(id) => record.sec_label = Some(SecurityLabel { id, labels }),
            Err(error) => {
                tracing::warn!(endpointID = record.id, %error, "Unable to keep an endpoint's identity")
            }
        }
    }

    /// Moves the record to the smallest identity in use of its labels, where damage has given them several. The old id
    /// stays with its labels until the kernel has the other one.
    fn unify_identity(&self, record: &mut Record) {
        let is_reserved = record.op_labels.is_reserved();
        let Some(label) = record.sec_label.as_mut().filter(|_| !is_reserved) else { return };
        match self.identities.allocate(&label.labels, &Endpoint::user(record.id)) {
            Ok(id) if id != label.id => {
                let (endpoint, old) = (record.id, label.id);
                tracing::warn!(
                    endpointID = endpoint,
                    old,
                    identity = id,
                    "Labels had two identities; one of them goes"
                );
                label.id = id;
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(endpointID = record.id, %error, "Unable to keep an endpoint's identity")
            }
        }
    }
}
