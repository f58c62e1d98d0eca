//! Reconciles the tables of services and skips with the policies.

use hive::health::{SHOWN, summarize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use endpoints::{Endpoint, State};
use hive::JobCx;
use k8s_tables::Row;
use k8s_tables::cilium::CiliumLocalRedirectPolicy;
use k8s_tables::core::Pod;
use loadbalancer::{Frontend, FrontendParams, Initializers, LbAddress, ServiceName, ServicesWriter, Source};
use prometheus_client::metrics::histogram::Histogram;
use statedb::{Initializer, Query, RwTable, Snapshot, Table, TableSpec};

use crate::candidate::Candidate;
use crate::config::Ranges;
use crate::evaluate::{Desired, Frontends, Redirect, evaluate};
use crate::policy::LocalRedirectPolicy;
use crate::skip::DesiredSkip;

/// Changes within this time are coalesced.
const DEBOUNCE_INTERVAL: Duration = Duration::from_millis(100);

/// The time for which pods must be unchanged before they are evaluated, like the coalescing of Cilium's table of pods:
/// a service that is deleted together with its pods then goes first, and its own backends do not replace those of the
/// policy for a moment.
const POD_QUIET_TIME: Duration = Duration::from_millis(50);

/// The maximum number of waits of a round because pods continue to change.
const MAX_POD_WAITS: usize = 4;

/// The initializer's name.
pub(crate) const INITIALIZER: &str = "lrp-controller";

/// The tables that the controller reads and writes.
#[derive(Clone)]
pub(crate) struct Tables {
    pub(crate) objects: Table<Row<CiliumLocalRedirectPolicy>>,
    pub(crate) pods: Table<Row<Pod>>,
    pub(crate) endpoints: Option<Table<Endpoint>>,
    pub(crate) policies: RwTable<LocalRedirectPolicy>,
    pub(crate) skips: RwTable<DesiredSkip>,
}

/// The controller of policies, pods and frontends.
pub(crate) struct Controller {
    writer: ServicesWriter,
    tables: Tables,
    ranges: Ranges,
    /// The rows in the tables of services that policies have caused.
    applied: Desired,
    /// Invalid objects, with the reasons.
    malformed: BTreeMap<String, String>,
    initializers: Option<Initializers>,
    skip_initializer: Option<Initializer<DesiredSkip>>,
    durations: Histogram,
    /// The number of pods with skips, as last reported to health.
    reported: usize,
}

impl Controller {
    pub(crate) fn new(writer: ServicesWriter, tables: Tables, ranges: Ranges, durations: Histogram) -> Self {
        let (skip_initializer, _) = tables.skips.transact(|txn| txn.register_initializer(INITIALIZER));
        Controller {
            initializers: Some(writer.register(INITIALIZER)),
            skip_initializer: Some(skip_initializer),
            writer,
            tables,
            ranges,
            applied: Desired::default(),
            malformed: BTreeMap::new(),
            durations,
            reported: 0,
        }
    }

    /// Follows the tables until the agent stops.
    pub(crate) async fn follow(mut self, cx: JobCx) -> anyhow::Result<()> {
        cx.health.ok("Running");
        let mut snapshot = self.tables.objects.snapshot();
        loop {
            let begin = Instant::now();
            let round = hive::blocking(move || {
                self.round(&snapshot);
                (self, snapshot)
            });
            (self, snapshot) = round.await;
            self.durations.observe(begin.elapsed().as_secs_f64());
            self.report(&cx);
            self.report_skips(&cx);
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = self.changed(snapshot) => {}
            }
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                debounced = self.debounced() => snapshot = debounced,
            }
        }
    }

    /// Returns a snapshot after [`DEBOUNCE_INTERVAL`], later if pods have changed within [`POD_QUIET_TIME`].
    async fn debounced(&self) -> Snapshot {
        let pods = &self.tables.pods;
        tokio::time::sleep(DEBOUNCE_INTERVAL - POD_QUIET_TIME).await;
        let mut snapshot = pods.snapshot();
        for _ in 0..=MAX_POD_WAITS {
            let before = pods.revision(&snapshot);
            tokio::time::sleep(POD_QUIET_TIME).await;
            snapshot = pods.snapshot();
            if pods.revision(&snapshot) == before {
                break;
            }
        }
        snapshot
    }

    fn report(&self, cx: &JobCx) {
        let conflicts = self.applied.conflicts.iter().flat_map(|(policy, conflicts)| {
            conflicts.iter().map(move |conflict| format!("{policy}: {conflict}"))
        });
        let malformed = self.malformed.iter().map(|(name, error)| format!("{name}: {error}"));
        let error = summarize(malformed.chain(conflicts), SHOWN, "\n");
        match error.is_empty() {
            true => cx.health.ok("Running"),
            false => cx.health.degraded("Local redirect policies are not followed", error),
        }
    }

    /// Reports skips that the datapath does not implement yet.
    fn report_skips(&mut self, cx: &JobCx) {
        let pods = self.applied.skips.len();
        if pods != self.reported {
            let health = cx.health.child("skip-redirect");
            match pods {
                0 => health.close(),
                _ => health
                    .ok(format!("{pods} pod(s) are in the skip maps; the datapath does not read them yet")),
            }
            self.reported = pods;
        }
    }

    /// Waits for a relevant change since the snapshot.
    async fn changed(&self, since: Snapshot) {
        let snapshot = &since;
        let Tables { objects, pods, endpoints, policies, skips } = &self.tables;
        let frontends = self.writer.frontends();
        // Without policies other tables are irrelevant.
        let follows = !policies.is_empty(snapshot) || !self.applied.services.is_empty();
        let (object_watch, pod_watch, skip_watch) =
            (objects.watch(snapshot), pods.watch(snapshot), skips.watch(snapshot));
        let endpoint_watch = endpoints.as_ref().map(|endpoints| endpoints.watch(snapshot));
        let of_endpoints = async {
            match endpoint_watch {
                Some(watch) => watch.changed().await,
                None => std::future::pending().await,
            }
        };
        let has_skips = !skips.is_empty(snapshot);
        let frontend_watch = frontends.watch(snapshot);
        let starts = self.initializers.is_some() || self.skip_initializer.is_some();
        drop(since);
        tokio::select! {
            () = object_watch.changed() => {}
            () = pod_watch.changed(), if follows => {}
            () = frontend_watch.changed(), if follows => {}
            () = skip_watch.changed(), if follows => {}
            () = of_endpoints, if follows || has_skips => {}
            // No single watch reports that the other sources are complete, so it is polled.
            () = tokio::time::sleep(DEBOUNCE_INTERVAL), if starts => {}
        }
    }

    /// Updates the tables from the objects of a snapshot.
    pub(crate) fn round(&mut self, snapshot: &Snapshot) {
        self.read(snapshot);
        let policies: Vec<_> = {
            let now = self.tables.policies.snapshot();
            self.tables.policies.all(&now).cloned().collect()
        };
        let pods: Vec<Candidate> = match policies.is_empty() {
            true => Vec::new(),
            false => self.tables.pods.all(snapshot).filter_map(|pod| Candidate::of(pod)).collect(),
        };
        let seen = Seen { table: self.writer.frontends(), snapshot };
        let desired = evaluate(policies.iter().map(|policy| &**policy), &pods, &seen);
        self.log_conflicts(&desired);
        if self.differs(&desired, snapshot) {
            self.apply(&desired);
        }
        self.skip(&desired, snapshot);
        self.applied = desired;
        self.complete(snapshot);
    }

    /// Updates the table of policies from the objects.
    fn read(&mut self, snapshot: &Snapshot) {
        let Tables { objects, policies, .. } = &self.tables;
        let mut wanted = BTreeMap::new();
        let mut malformed = BTreeMap::new();
        for object in objects.all(snapshot) {
            match LocalRedirectPolicy::parse(object, &self.ranges) {
                Ok(policy) => _ = wanted.insert(policy.id.as_str().to_owned(), policy),
                Err(error) => {
                    let (name, error) = (object.key(), error.to_string());
                    if self.malformed.get(&name) != Some(&error) {
                        tracing::warn!(policy = name, error, "Rejecting malformed CiliumLocalRedirectPolicy");
                    }
                    malformed.insert(name, error);
                }
            }
        }
        self.malformed = malformed;
        let known = policies.snapshot();
        let gone: Vec<String> = policies
            .all(&known)
            .filter(|policy| !wanted.contains_key(policy.id.as_str()))
            .map(|policy| policy.id.to_string())
            .collect();
        wanted.retain(|id, policy| {
            let old = policies.get(&known, Query::primary(id.as_str()));
            old.is_none_or(|old| **old != *policy)
        });
        if gone.is_empty() && wanted.is_empty() {
            return;
        }
        policies.transact(|txn| {
            for id in gone {
                txn.delete(Query::primary(id.as_str()));
            }
            for policy in wanted.into_values() {
                txn.insert(policy);
            }
        });
    }

    /// Logs new conflicts.
    fn log_conflicts(&self, desired: &Desired) {
        for (policy, conflicts) in &desired.conflicts {
            let known = self.applied.conflicts.get(policy);
            for conflict in
                conflicts.iter().filter(|conflict| known.is_none_or(|known| !known.contains(conflict)))
            {
                tracing::error!(%policy, %conflict, "Local redirect policy does not get an address");
            }
        }
    }

    /// Whether the tables of services differ from the desired rows.
    fn differs(&self, desired: &Desired, snapshot: &Snapshot) -> bool {
        let frontends = self.writer.frontends();
        let redirected = |(address, to): (&LbAddress, &ServiceName)| {
            let frontend = frontends.get(snapshot, Frontend::by_address(address));
            frontend.is_some_and(|frontend| frontend.redirect_to.as_ref() == Some(to))
        };
        let (before, after) = (&self.applied, desired);
        before.services != after.services
            || before.redirects != after.redirects
            || !desired.redirects.iter().all(redirected)
            // A requested address may have had another owner.
            || !desired.services.iter().all(|(name, redirect)| {
                redirect.frontends.iter().all(|params| {
                    let frontend = frontends.get(snapshot, Frontend::by_address(&params.address));
                    frontend.is_some_and(|frontend| frontend.service.name == *name)
                })
            })
    }

    fn apply(&self, desired: &Desired) {
        let mut txn = self.writer.write();
        for name in self.applied.services.keys().filter(|name| !desired.services.contains_key(name)) {
            txn.delete_service(name);
            txn.set_backends(name, Source::Kubernetes, Vec::new());
        }
        for address in
            self.applied.redirects.keys().filter(|address| !desired.redirects.contains_key(address))
        {
            txn.set_redirect_to(address, None);
        }
        // Addresses that move to another policy are released before it claims them.
        for (name, before) in &self.applied.services {
            let Some(after) = desired.services.get(name) else { continue };
            let kept: Vec<FrontendParams> = before
                .frontends
                .iter()
                .filter(|frontend| after.frontends.contains(frontend))
                .cloned()
                .collect();
            if kept.len() < before.frontends.len() {
                upsert(&mut txn, name, kept);
            }
        }
        for (name, Redirect { frontends, backends }) in &desired.services {
            // Backends first, so that a redirected frontend has them at once.
            txn.set_backends(name, Source::Kubernetes, backends.clone());
            upsert(&mut txn, name, frontends.clone());
        }
        for (address, to) in &desired.redirects {
            txn.set_redirect_to(address, Some(to.clone()));
        }
        txn.commit();
    }

    /// Updates the table of skips. Rows stay until the endpoints of their pods are deleted.
    fn skip(&self, desired: &Desired, snapshot: &Snapshot) {
        let Tables { skips, endpoints, .. } = &self.tables;
        let now = skips.snapshot();
        let rows: BTreeMap<&str, &DesiredSkip> =
            skips.all(&now).map(|row| (row.pod.as_str(), &**row)).collect();
        let pods: BTreeSet<&str> =
            rows.keys().copied().chain(desired.skips.keys().map(String::as_str)).collect();
        let (mut changed, mut gone) = (Vec::new(), Vec::new());
        for pod in pods {
            let new = DesiredSkip::new(pod.to_owned());
            let row = rows.get(pod).copied();
            let old = row.unwrap_or(&new);
            // Without the table of endpoints another program writes the cookies.
            let cookie = match endpoints {
                Some(endpoints) => cookie(endpoints, snapshot, pod),
                None => Cookie::Known(old.netns_cookie),
            };
            let wanted = desired.skips.get(pod);
            let netns_cookie = match cookie {
                Cookie::Known(cookie) => cookie,
                Cookie::NoEndpoint if wanted.is_none() => {
                    gone.push(pod.to_owned());
                    continue;
                }
                Cookie::NoEndpoint => None,
            };
            // Addresses that another program has written into the row are kept.
            let before = self.applied.skips.get(pod);
            let mut addresses = old.skips.clone();
            addresses.retain(|service, _| before.is_none_or(|skips| !skips.addresses.contains_key(service)));
            let policy = match wanted {
                Some(wanted) => {
                    addresses.extend(wanted.addresses.clone());
                    Some(wanted.policy.clone())
                }
                None => old.policy.clone(),
            };
            changed.extend(old.with(policy, addresses, netns_cookie));
        }
        if changed.is_empty() && gone.is_empty() {
            return;
        }
        skips.transact(|txn| {
            for pod in gone {
                txn.delete(DesiredSkip::by_pod(&pod));
            }
            for row in changed {
                txn.insert(row);
            }
        });
    }

    /// Marks the initial objects as complete. The reconciler of services waits for it: a frontend that will be
    /// redirected must not be written with its own backends first.
    fn complete(&mut self, snapshot: &Snapshot) {
        let Tables { objects, pods, endpoints, skips, .. } = &self.tables;
        if !objects.initialized(snapshot) || !pods.initialized(snapshot) {
            return;
        }
        let frontends = self.writer.frontends();
        if self.initializers.is_some()
            && frontends.pending_initializers(snapshot).iter().all(|name| &**name == INITIALIZER)
            && let Some(initializers) = self.initializers.take()
        {
            self.writer.complete(initializers);
        }
        if frontends.initialized(snapshot)
            && endpoints.as_ref().is_none_or(|endpoints| endpoints.initialized(snapshot))
            && let Some(initializer) = self.skip_initializer.take()
        {
            skips.transact(|txn| initializer.done(txn));
        }
    }
}

fn upsert(txn: &mut loadbalancer::ServicesTxn<'_>, name: &ServiceName, frontends: Vec<FrontendParams>) {
    let service = loadbalancer::Service::new(name.clone(), Source::Kubernetes);
    if let Err(error) = txn.upsert_service(service, frontends) {
        // Another service has claimed it in the meantime; the next round reports the conflict.
        tracing::debug!(service = %name, %error, "Address of a local redirect policy is taken");
    }
}

/// The state of a pod's network namespace.
enum Cookie {
    /// The pod has an endpoint, possibly with a cookie.
    Known(Option<u64>),
    NoEndpoint,
}

fn cookie(endpoints: &Table<Endpoint>, snapshot: &Snapshot, pod: &str) -> Cookie {
    let leaves = |endpoint: &Endpoint| matches!(endpoint.state, State::Disconnecting | State::Disconnected);
    let mut of_pod =
        endpoints.list(snapshot, Endpoint::by_pod(pod)).filter(|endpoint| !leaves(endpoint)).peekable();
    if of_pod.peek().is_none() {
        return Cookie::NoEndpoint;
    }
    // A pod may have several interfaces in one network namespace.
    Cookie::Known(of_pod.map(|endpoint| endpoint.record.netns_cookie).find(|cookie| *cookie != 0))
}

/// The frontends of a snapshot.
struct Seen<'s> {
    table: Table<Frontend>,
    snapshot: &'s Snapshot,
}

impl Frontends for Seen<'_> {
    fn of_service(&self, service: &ServiceName) -> Vec<FrontendParams> {
        let frontends = self.table.list(self.snapshot, Frontend::by_service(service));
        frontends.map(|frontend| frontend.params.clone()).collect()
    }

    fn owner(&self, address: &LbAddress) -> Option<ServiceName> {
        let frontend = self.table.get(self.snapshot, Frontend::by_address(address))?;
        Some(frontend.service.name.clone())
    }
}
