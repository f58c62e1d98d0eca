//! The job that looks up next hops: from forwardable addresses, devices and routes to desired neighbours.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use devices::{Device, Route};
use hive::JobCx;
use hive::job::Backoff;
use reconciler::Status;
use statedb::{Initializer, RwTable, Snapshot, Table, Watch};
use tokio::time::{Instant, sleep};

use crate::kernel::Kernel;
use crate::metrics::Numbers;
use crate::next_hops::{Hop, Hops, NextHops};
use crate::{DesiredNeighbor, Error, ForwardableIp};

/// Minimum interval of calculations.
const INTERVAL: Duration = Duration::from_millis(100);
/// Lookups may take this part of the time at most, one in so many.
const SHARE_OF_TIME: u32 = 20;
/// Intervals of attempts after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// The inputs and the output of the job.
pub(crate) struct Calculator {
    pub(crate) forwardable: Arc<Table<ForwardableIp>>,
    pub(crate) devices: Arc<Table<Device>>,
    pub(crate) routes: Arc<Table<Route>>,
    pub(crate) desired: Arc<RwTable<DesiredNeighbor>>,
    pub(crate) numbers: Numbers,
}

/// The inputs of the next hops of all addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Basis {
    /// Indexes of the devices on which next hops are resolved.
    links: Vec<u32>,
    /// Digest of the routes by these devices.
    routes: u64,
}

impl Calculator {
    /// Follows the tables as long as the hive runs.
    pub(crate) async fn run(self, cx: JobCx, initializer: Initializer<DesiredNeighbor>) {
        let token = cx.token().clone();
        token.run_until_cancelled(self.follow(&cx, initializer)).await;
    }

    async fn follow(self, cx: &JobCx, initializer: Initializer<DesiredNeighbor>) {
        let mut initializer = Some(initializer);
        let mut basis = Basis::default();
        let mut changes = self.forwardable.changes();
        let mut known = NextHops::default();
        // Addresses that have changed since the last lookup that has succeeded.
        let mut pending: BTreeSet<IpAddr> = BTreeSet::new();
        let mut backoff = Backoff::exponential(RETRY.0, RETRY.1);
        loop {
            let snapshot = self.desired.reader().snapshot();
            let (batch, ips_changed) = changes.read(&snapshot, usize::MAX);
            let (is_complete, completed) = self.forwardable.initialized_watch(&snapshot);
            let (now, devices_changed, routes_changed) = self.basis(&snapshot);
            let is_there = |ip: IpAddr| self.forwardable.get(&snapshot, ForwardableIp::by_ip(ip)).is_some();
            // Another owner of an address changes nothing.
            let changed = batch.iter().map(|change| change.object.ip);
            pending.extend(changed.filter(|ip| is_there(*ip) != known.has(*ip)));
            if now != basis {
                basis = now;
                pending.extend(self.forwardable.all(&snapshot).map(|row| row.ip));
            }
            let (new, gone): (Vec<IpAddr>, Vec<IpAddr>) = pending.iter().partition(|ip| is_there(**ip));
            let (begin, count) = (Instant::now(), new.len() * basis.links.len());
            drop(snapshot);
            match self.look_up(new, basis.links.clone()).await {
                Ok(found) => {
                    self.numbers.lookups.inc_by(i64::try_from(count).unwrap_or(i64::MAX));
                    pending.clear();
                    let gone = gone.into_iter().map(|ip| (ip, None));
                    let touched =
                        known.replace(found.into_iter().map(|(ip, hops)| (ip, Some(hops))).chain(gone));
                    let finished = if is_complete { initializer.take() } else { None };
                    self.write(&known, touched, finished);
                    backoff.reset();
                    cx.health.ok(format!("{} addresses", known.len()));
                }
                Err(error) => {
                    tracing::warn!(%error, "Next hops could not be looked up, trying again");
                    cx.health.degraded("Next hops could not be looked up", error);
                    sleep(backoff.next_wait().unwrap_or(RETRY.1)).await;
                    continue;
                }
            }
            sleep(INTERVAL.max(begin.elapsed() * SHARE_OF_TIME)).await;
            tokio::select! {
                () = ips_changed.changed() => {}
                () = devices_changed.changed() => {}
                () = routes_changed.changed() => {}
                () = completed.changed(), if !is_complete => {}
            }
        }
    }

    fn basis(&self, snapshot: &Snapshot) -> (Basis, Watch, Watch) {
        let (selected, devices_changed) = self.devices.list_watch(snapshot, Device::by_selected(true));
        let (_, routes_changed) = self.routes.all_watch(snapshot);
        let links = selected.filter(|device| device.hardware_addr.ethernet().is_some());
        let links: Vec<u32> = links.map(|device| device.index).collect();
        let mut digest = DefaultHasher::new();
        for link in &links {
            for route in self.routes.list(snapshot, Route::by_link(*link)) {
                (route.key, route.kind, route.gateway).hash(&mut digest);
            }
        }
        (Basis { links, routes: digest.finish() }, devices_changed, routes_changed)
    }

    /// Looks up the next hops to addresses by each of the links, on a thread for blocking work.
    async fn look_up(&self, ips: Vec<IpAddr>, links: Vec<u32>) -> Result<HashMap<IpAddr, Hops>, Error> {
        if ips.is_empty() || links.is_empty() {
            return Ok(ips.into_iter().map(|ip| (ip, Hops::new())).collect());
        }
        let look_up = move || {
            let mut kernel = Kernel::open()?;
            let mut found = HashMap::with_capacity(ips.len());
            for ip in ips {
                let mut hops = Hops::new();
                for link in &links {
                    hops.extend(kernel.next_hop(ip, *link)?.map(|hop| (*link, hop)));
                }
                found.insert(ip, hops);
            }
            Ok(found)
        };
        hive::blocking(look_up).await
    }

    /// Writes the rows of next hops that may have come or gone.
    fn write(
        &self,
        known: &NextHops,
        touched: BTreeSet<Hop>,
        finished: Option<Initializer<DesiredNeighbor>>,
    ) {
        if touched.is_empty() && finished.is_none() {
            return;
        }
        let mut txn = self.desired.write();
        for hop in touched {
            let (link_index, ip) = hop;
            let is_there = txn.get(DesiredNeighbor::by_id(ip, link_index)).is_some();
            match known.is_used(hop) {
                true if !is_there => {
                    drop(txn.insert(DesiredNeighbor { ip, link_index, status: Status::pending() }));
                }
                false if is_there => drop(txn.delete(DesiredNeighbor::by_id(ip, link_index))),
                _ => {}
            }
        }
        if let Some(initializer) = finished {
            initializer.done(&mut txn);
        }
        txn.commit();
    }
}
