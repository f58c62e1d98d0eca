//! The job that drives identities and ipcache from the names.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use fqdn::Selector;
use futures::future::OptionFuture;
use hive::JobCx;
use hive::job::Backoff;
use identity::{Prefixes, Range};
use ipcache::{Change, Claim, Entry, IpcacheWriter, Mapping, NotApplied, Source};
use ipnetwork::IpNetwork;
use labels::LabelArray;
use statedb::Initializer;
use tokio::time::Instant;

use crate::book::{Batch, labels_of};
use crate::directory::{Shared, Tables};

/// The resource of this cell's claims in the ipcache.
const RESOURCE: &str = "fqdn";
/// An upper bound of the time between a program's lookups in ipcache and policy map: rows of an identity are kept at
/// least this long after the ipcache has lost it.
const IN_FLIGHT: Duration = Duration::from_millis(1);
/// The shortest interval between searches for prefixes of policies in the ipcache, which are linear in its entries.
const SCAN_INTERVAL: Duration = Duration::from_millis(100);
/// Delays between attempts of a round that has failed.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(50);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// The job.
pub(crate) struct Job {
    pub(crate) shared: Arc<Shared>,
    pub(crate) tables: Tables,
    pub(crate) allocator: Arc<Prefixes>,
    pub(crate) ipcache: Arc<IpcacheWriter>,
    /// Completed when the names of the previous run are in the ipcache, which prunes nothing before that.
    pub(crate) initializer: Option<Initializer<Entry>>,
    /// Whether identities of selectors are allocated before their first address.
    pub(crate) preallocate: bool,
    pub(crate) realized: Realized,
}

/// The state of this cell in the allocator and the ipcache.
#[derive(Default)]
pub(crate) struct Realized {
    addresses: BTreeMap<IpAddr, LabelArray>,
    identities: BTreeMap<LabelArray, u32>,
    /// The prefixes of policies, as of the last search.
    prefixes: BTreeSet<IpNetwork>,
    /// The addresses of the API server outside of the cluster, as of the last search.
    api_servers: BTreeSet<IpNetwork>,
    /// The selectors of policies, and the labels of the identities that they have before their first address.
    selectors: BTreeSet<Selector>,
    preallocated: BTreeSet<LabelArray>,
    /// Whether all of these have an identity.
    is_preallocated: bool,
    /// Whether an identity may be unused.
    may_release: bool,
}

impl Job {
    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        // Rules and identities of the previous run apply until then; the table of selectors is not complete.
        if cx.token().run_until_cancelled(self.allocator.policy_in_force()).await.is_none() {
            return Ok(());
        }
        self.shared.book.lock().forget_restored_rules();
        let mut backoff = Backoff::exponential(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        let (mut last_scan, mut is_scan_due, mut are_selectors_due) = (None::<Instant>, true, true);
        let mut ipcache_watch = self.tables.ipcache.all_watch(&self.tables.ipcache.snapshot()).1;
        let mut selectors_watch = self.tables.selectors.all_watch(&self.tables.selectors.snapshot()).1;
        loop {
            let working = cx.working();
            if is_scan_due && last_scan.is_none_or(|last| last.elapsed() >= SCAN_INTERVAL) {
                let snapshot = self.tables.ipcache.snapshot();
                let (entries, watch) = self.tables.ipcache.all_watch(&snapshot);
                let (mut prefixes, mut api_servers) = (BTreeSet::new(), BTreeSet::new());
                for entry in entries {
                    if is_of_policy(entry) {
                        prefixes.insert(entry.prefix);
                    }
                    if entry.claims().iter().any(|claim| claim.source == Source::KubeApiServer) {
                        api_servers.insert(entry.prefix);
                    }
                }
                (ipcache_watch, last_scan, is_scan_due) = (watch, Some(Instant::now()), false);
                let realized = &mut self.realized;
                if (&prefixes, &api_servers) != (&realized.prefixes, &realized.api_servers) {
                    (realized.prefixes, realized.api_servers) = (prefixes, api_servers);
                    self.shared.book.lock().recheck();
                }
            }
            if are_selectors_due {
                let snapshot = self.tables.selectors.snapshot();
                let (rows, watch) = self.tables.selectors.all_watch(&snapshot);
                let selectors: BTreeSet<Selector> = rows
                    .filter_map(|row| row.0.fqdn.as_deref())
                    .map(|fqdn| Selector {
                        match_name: fqdn.match_name.to_string(),
                        match_pattern: fqdn.match_pattern.to_string(),
                    })
                    .collect();
                (selectors_watch, are_selectors_due) = (watch, false);
                self.set_selectors(selectors);
            }
            let batch = self.shared.book.lock().batch();
            let retry = match self.round(batch).await {
                Ok(()) => {
                    backoff.reset();
                    cx.health.ok(format_args!("{} addresses of names", self.realized.addresses.len()));
                    if let Some(initializer) = self.initializer.take() {
                        self.ipcache.complete(initializer);
                    }
                    None
                }
                Err(error) => {
                    tracing::warn!(%error, "Unable to give identities to addresses of DNS names, trying again");
                    cx.health.degraded("Addresses of DNS names have no identities", &*error);
                    backoff.next_wait()
                }
            };
            drop(working);
            let next_scan = last_scan.filter(|_| is_scan_due).map(|last| last + SCAN_INTERVAL);
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = self.shared.wake.notified() => {}
                () = selectors_watch.changed() => are_selectors_due = true,
                () = ipcache_watch.changed(), if !is_scan_due => is_scan_due = true,
                Some(()) = OptionFuture::from(next_scan.map(tokio::time::sleep_until)) => {}
                Some(()) = OptionFuture::from(retry.map(tokio::time::sleep)) => {}
            }
        }
    }

    /// Makes these the selectors of names.
    fn set_selectors(&mut self, selectors: BTreeSet<Selector>) {
        let count = i64::try_from(selectors.len()).unwrap_or(i64::MAX);
        self.shared.counters.selectors.set(count);
        // The table changes with the identities of each selector, too.
        if selectors == self.realized.selectors {
            return;
        }
        self.shared.book.lock().set_selectors(&selectors);
        let preallocated = self.preallocated(&selectors);
        let realized = &mut self.realized;
        (realized.selectors, realized.preallocated) = (selectors, preallocated);
        (realized.is_preallocated, realized.may_release) = (false, true);
    }

    /// Realizes a batch: identities, policy maps, ipcache, and last the release of what is unused. The cost is that of
    /// the batch, unless selectors have changed or addresses have lost an identity: an answer waits for it.
    async fn round(&mut self, batch: Batch) -> anyhow::Result<()> {
        let Batch { addresses, change } = batch;
        let (families, realized) = (self.tables.families, &self.realized);
        let desired = addresses.into_iter().map(|(address, selectors)| {
            let Realized { prefixes, api_servers, .. } = realized;
            let labels = || labels_of(address, &selectors, prefixes, api_servers, families);
            (address, (!selectors.is_empty()).then(labels))
        });
        let changed: BTreeMap<IpAddr, Option<LabelArray>> =
            desired.filter(|(address, labels)| realized.addresses.get(address) != labels.as_ref()).collect();
        let preallocated = realized.preallocated.iter().filter(|_| !realized.is_preallocated);
        let needed = changed.values().flatten().chain(preallocated);
        let new: BTreeSet<LabelArray> =
            needed.filter(|labels| !realized.identities.contains_key(labels)).cloned().collect();
        if !new.is_empty() {
            let (allocator, sets) = (self.allocator.clone(), new.iter().cloned().collect::<Vec<_>>());
            let ids = hive::blocking(move || allocator.allocate_names(&sets)).await?;
            self.realized.identities.extend(new.into_iter().zip(ids));
            self.allocator.of_nodes().policy_follows().await;
        }
        self.realized.is_preallocated = true;
        if let Err(error) = self.publish(changed).await {
            // Those that were allocated for the batch.
            self.realized.may_release = true;
            return Err(error.into());
        }
        self.shared.done(change);
        self.release().await;
        Ok(())
    }

    /// Returns the labels of the identities that selectors have before their first address.
    fn preallocated(&self, selectors: &BTreeSet<Selector>) -> BTreeSet<LabelArray> {
        if !self.preallocate {
            return BTreeSet::new();
        }
        let unspecified: [IpAddr; 2] =
            [std::net::Ipv4Addr::UNSPECIFIED.into(), std::net::Ipv6Addr::UNSPECIFIED.into()];
        let families = self.tables.families;
        let enabled = unspecified.into_iter().zip(families).filter(|(_, is_enabled)| *is_enabled);
        let of_family = |(address, _)| {
            let labels = move |selector: &Selector| {
                let (selectors, none) = (BTreeSet::from([selector.clone()]), BTreeSet::new());
                labels_of(address, &selectors, &none, &none, families)
            };
            selectors.iter().map(labels)
        };
        enabled.flat_map(of_family).collect()
    }

    /// Writes addresses to the ipcache and waits until the kernel has them.
    async fn publish(&mut self, changed: BTreeMap<IpAddr, Option<LabelArray>>) -> Result<(), NotApplied> {
        if changed.is_empty() {
            return Ok(());
        }
        let identities = &self.realized.identities;
        let change = |(address, labels): (&IpAddr, &Option<LabelArray>)| {
            let prefix = IpNetwork::from(*address);
            let Some(identity) = labels.as_ref().and_then(|labels| identities.get(labels)) else {
                return Change::Delete(prefix, Source::Names, RESOURCE.into());
            };
            let mapping = Mapping::identity(*identity);
            Change::Upsert(prefix, Claim { source: Source::Names, resource: RESOURCE.into(), mapping })
        };
        let revision = self.ipcache.apply(changed.iter().map(change));
        let prefixes: Vec<IpNetwork> = changed.keys().map(|address| IpNetwork::from(*address)).collect();
        match self.ipcache.applied(revision, &prefixes).await {
            // The ipcache retries and reports it: other addresses must not wait.
            Err(error @ NotApplied::Refused { .. }) => {
                tracing::warn!(%error, "An address of a DNS name does not take effect yet");
            }
            other => other?,
        }
        for (address, labels) in changed {
            let previous = match labels {
                Some(labels) => self.realized.addresses.insert(address, labels),
                None => self.realized.addresses.remove(&address),
            };
            self.realized.may_release |= previous.is_some();
        }
        Ok(())
    }

    /// Releases identities without an address or selector.
    async fn release(&mut self) {
        if !std::mem::take(&mut self.realized.may_release) {
            return;
        }
        let of_addresses = self.realized.addresses.values();
        let used: BTreeSet<&LabelArray> = of_addresses.chain(&self.realized.preallocated).collect();
        let unused = self.realized.identities.iter().filter(|(labels, _)| !used.contains(labels));
        let unused: Vec<(LabelArray, u32)> = unused.map(|(labels, id)| (labels.clone(), *id)).collect();
        if unused.is_empty() {
            return;
        }
        tokio::time::sleep(IN_FLIGHT).await;
        let (allocator, ids) = (self.allocator.clone(), unused.iter().map(|(_, id)| *id).collect::<Vec<_>>());
        hive::blocking(move || allocator.release_names(&ids)).await;
        for (labels, _) in unused {
            self.realized.identities.remove(&labels);
        }
    }
}

/// Whether a policy names the prefix: its claim has an identity of the prefix.
fn is_of_policy(entry: &Entry) -> bool {
    let is_of_policy =
        |claim: &Claim| claim.source == Source::Generated && Range::PREFIXES.contains(claim.mapping.identity);
    entry.claims().iter().any(is_of_policy)
}
