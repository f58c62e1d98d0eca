//! The job that follows pools and services.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use hive::JobCx;
use jiff::Timestamp;
use k8s_tables::Row;
use k8s_types::{Key, Resource as _, SmolStr};
use operator_status::StatusWriter;
use statedb::{Batch, Table};

use crate::allocator::{Allocator, PoolCounts};
use crate::objects::{IpPool, LbService};
use crate::pool::Pool;
use crate::range::Family;
use crate::request::Request;
use crate::status;

/// Problems that health names at most.
const MAX_REPORTED_PROBLEMS: usize = 5;

/// Gives services addresses of pools.
pub(crate) struct LbIpam {
    pub(crate) allocator: Allocator,
    pub(crate) pools: Arc<Table<Row<IpPool>>>,
    pub(crate) services: Arc<Table<Row<LbService>>>,
    pub(crate) write: StatusWriter,
    pub(crate) families: Vec<Family>,
    /// The classes that are served; none is a load balancer without a class.
    pub(crate) classes: Vec<Option<&'static str>>,
    /// Services that were served and belong to others now, with the addresses that they had, until their statuses lack them.
    pub(crate) former: BTreeMap<Key, Vec<IpAddr>>,
    /// The counts of pools, at this revision of the allocator.
    pub(crate) counted: (u64, Vec<(SmolStr, PoolCounts)>),
    /// The errors of pools.
    pub(crate) problems: Vec<String>,
}

impl LbIpam {
    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        cx.health.ok("Waits for the lists of services and pools");
        let (pools, services) = (self.pools.clone(), self.services.clone());
        let listed = async {
            pools.wait_initialized().await;
            services.wait_initialized().await;
        };
        if cx.token().run_until_cancelled(listed).await.is_none() {
            return Ok(());
        }
        let (mut pool_changes, mut service_changes) = (pools.changes(), services.changes());
        // All that there is now is one change: addresses in use are known before any is given.
        drop(service_changes.try_next());
        let mut affected = self.define(&pool_changes.try_next());
        loop {
            self.write(&affected);
            self.report(&cx);
            affected = tokio::select! {
                () = cx.cancelled() => return Ok(()),
                batch = pool_changes.next() => self.define(&batch),
                batch = service_changes.next() => self.follow(&batch),
            };
        }
    }

    /// Takes over changes of pools. Returns the services whose statuses are to be compared.
    fn define(&mut self, batch: &Batch<Row<IpPool>>) -> BTreeSet<Key> {
        let mut has_changed = false;
        for change in batch.iter() {
            let row = &change.object;
            let name = &row.metadata().name;
            has_changed |= match change.deleted {
                true => self.allocator.undefine(name),
                false => {
                    let created = row.metadata().creation_timestamp.map_or(0, |time| time.seconds());
                    self.allocator.define(name.clone(), Pool::new(created, &row.0.spec))
                }
            };
        }
        if !has_changed {
            return BTreeSet::new();
        }
        self.allocator.pools_changed();
        if !self.allocator.has_pools() {
            tracing::info!("There is no CiliumLoadBalancerIPPool; addresses of services stay as they are");
            self.allocator.forget_services();
            return BTreeSet::new();
        }
        let services = self.services.clone();
        let snapshot = services.snapshot();
        let mut all: Vec<&Row<LbService>> =
            services.all(&snapshot).filter(|row| self.is_own(row)).map(|row| &**row).collect();
        // Of two services with the same address the older one keeps it.
        all.sort_by_key(|row| (row.metadata.creation_timestamp, key(row)));
        for row in &all {
            self.upsert(row);
        }
        self.allocator.satisfy_all();
        all.into_iter().map(key).collect()
    }

    /// Takes over changes of services. Returns those whose statuses are to be compared.
    fn follow(&mut self, batch: &Batch<Row<LbService>>) -> BTreeSet<Key> {
        let mut affected = BTreeSet::new();
        let mut others_may_profit = false;
        for change in batch.iter() {
            let row = &change.object;
            let key = key(row);
            if change.deleted {
                others_may_profit |= self.allocator.remove(&key).is_some();
                self.former.remove(&key);
                self.write.forget::<LbService>(&key);
                continue;
            }
            if !self.is_own(row) {
                if let Some(had) = self.allocator.remove(&key) {
                    self.former.insert(key.clone(), had);
                    others_may_profit = true;
                }
            } else if self.allocator.has_pools() {
                self.former.remove(&key);
                others_may_profit |= self.upsert(row);
            }
            affected.insert(key);
        }
        let changed = match others_may_profit {
            true => self.allocator.satisfy_all(),
            false => self.allocator.satisfy(&affected),
        };
        affected.extend(changed);
        affected
    }

    fn is_own(&self, service: &LbService) -> bool {
        service.is_load_balancer(|class| self.classes.contains(&class))
    }

    fn upsert(&mut self, row: &Row<LbService>) -> bool {
        let request = Request::of(row, &self.families);
        self.allocator.upsert(&key(row), request, &status::addresses(row))
    }

    /// Writes the statuses that differ: of these services, and of all pools.
    fn write(&mut self, affected: &BTreeSet<Key>) {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let snapshot = self.services.snapshot();
        for key in affected {
            let Some(row) = self.services.get(&snapshot, Row::<LbService>::by_key(key)) else { continue };
            let status = match (self.allocator.outcome(key), self.former.get(key)) {
                (Some((ips, failure)), _) => {
                    let status = status::of_service(row, ips, failure, &now);
                    if status.is_some() {
                        let reason = failure.map_or("satisfied", |failure| failure.reason());
                        tracing::info!(service = %key, ips = ?ips, reason, "Addresses of a load balancer");
                    }
                    status
                }
                (None, Some(had)) => {
                    let status = status::of_former_service(row, had);
                    if status.is_none() {
                        self.former.remove(key);
                    }
                    status
                }
                (None, None) => continue,
            };
            match status {
                Some(status) => self.write.replace(&self.services, row, status),
                None => self.write.forget::<LbService>(key),
            }
        }
        if self.counted.0 != self.allocator.revision() {
            self.count();
        }
        let snapshot = self.pools.snapshot();
        for (name, counts) in &self.counted.1 {
            let key = Key::new("", name.clone());
            let Some(row) = self.pools.get(&snapshot, Row::<IpPool>::by_key(&key)) else { continue };
            match status::of_pool(row, counts, &now) {
                Some(status) => self.write.replace(&self.pools, row, status),
                None => self.write.forget::<IpPool>(&key),
            }
        }
    }

    fn count(&mut self) {
        self.counted = (self.allocator.revision(), Vec::new());
        self.problems.clear();
        for (name, counts, problems) in self.allocator.pools() {
            let conflict = Some(&counts.conflict).filter(|conflict| !conflict.is_empty());
            let all = problems.iter().chain(conflict);
            self.problems.extend(all.map(|problem| format!("pool {name}: {problem}")));
            self.counted.1.push((name.clone(), counts));
        }
    }

    fn report(&self, cx: &JobCx) {
        if !self.allocator.has_pools() {
            cx.health.ok("There is no pool; addresses of services stay as they are");
            return;
        }
        let (services, waiting, ips) = self.allocator.counts();
        let summary = format!("{services} services have {ips} addresses, {waiting} lack some");
        match self.problems.is_empty() {
            true => cx.health.ok(summary),
            false => {
                let error = hive::health::summarize(&self.problems, MAX_REPORTED_PROBLEMS, "; ");
                cx.health.degraded(summary, error);
            }
        }
    }
}

fn key(row: &Row<LbService>) -> Key {
    Key::new(row.metadata.namespace.clone(), row.metadata.name.clone())
}
