//! The job between the CiliumNode, the allocator and the addresses in use.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hive::health::summarize;
use hive::{Health, JobCx};
use ipam::{Address, Family, Ipam, ListedBy, Pools};
use ipnetwork::IpNetwork;
use k8s_tables::Row;
use k8s_types::cilium::CiliumNode;
use k8s_types::{Key, Kind, decode};
use k8s_writer::{Mutation, NotWritten, Step, Target, Writer, Written};
use serde_json::Value;
use statedb::Table;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::node_pool::{self, NodePool};
use crate::status::{Status, Usage};

/// Changes within this time are one round: many pods start at once.
const BATCH_INTERVAL: Duration = Duration::from_millis(100);
/// Addresses and holders that health names at most.
const MAX_REPORTED: usize = 5;

/// The reporter of addresses in use that the object does not list.
const LOST: &str = "lost-addresses";
/// The reporter of writes that fail.
const STATUS: &str = "status";

/// The tables that the job reads, and what it writes.
pub(crate) struct Follower {
    pub(crate) name: String,
    pub(crate) by: ListedBy,
    pub(crate) families: Vec<Family>,
    pub(crate) own_addresses: usize,
    pub(crate) write_interval: Duration,
    pub(crate) objects: Arc<Table<Row<CiliumNode>>>,
    pub(crate) addresses: Arc<Table<Address>>,
    pub(crate) ipam: Arc<Ipam>,
    pub(crate) writer: Arc<Writer>,
    pub(crate) health: Health,
    pub(crate) pools: watch::Sender<Pools>,
}

/// The newest object that was read or written.
#[derive(Debug, Default)]
struct Newest {
    object: Option<CiliumNode>,
    version: u64,
}

impl Newest {
    /// Replaces the object, unless that is older. Versions are numbers of one sequence (KEP-5504).
    fn replace(&mut self, object: &CiliumNode) {
        let version = object.metadata.resource_version.parse().unwrap_or_default();
        if self.object.is_none() || version > self.version {
            *self = Newest { object: Some(object.clone()), version };
        }
    }
}

/// A write in progress.
struct Write {
    end: Pin<Box<dyn Future<Output = Result<Written, NotWritten>> + Send>>,
    /// Addresses whose release it may approve. None of them is allocated until it has ended, also if the operator changes its mind.
    approved: BTreeSet<IpAddr>,
}

impl Follower {
    /// Runs until the job is cancelled.
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        tokio::select! {
            () = cx.cancelled() => Ok(()),
            result = self.follow(&cx.health) => result,
        }
    }

    async fn follow(self, health: &Health) -> anyhow::Result<()> {
        let (mut newest, mut started) = (Newest::default(), BTreeSet::new());
        let (mut write, mut due) = (None::<Write>, Instant::now());
        let (usage_sender, usage_receiver) = watch::channel(Usage::default());
        loop {
            let snapshot = self.objects.snapshot();
            let (row, object_watch) = self.objects.get_watch(&snapshot, Row::by_name("", &self.name));
            if let Some(row) = row {
                newest.replace(&row.object);
            }
            let Some(object) = &newest.object else {
                self.wait_for_object(health);
                drop(snapshot);
                object_watch.changed().await;
                continue;
            };
            let pool = NodePool::read(object);
            // Before the addresses are read: none that is found vacant below can be allocated any more.
            let approved = write.as_ref().map(|write| write.approved.clone()).unwrap_or_default();
            let wait = self.publish(object, &pool, &approved, &mut started);
            let addresses = self.addresses.snapshot();
            let address_watch = self.addresses.watch(&addresses);
            let usage = self.usage(&pool, &addresses);
            self.report(health, &pool, &usage, wait);
            if let Some(write) = &mut write {
                write.approved.extend(&usage.vacant);
            }
            usage_sender.send_replace(usage.clone());
            let is_written =
                !self.writer.has_server() || Status::of(object) == Status::desired(object, &usage);
            if !is_written && write.is_none() && due <= Instant::now() {
                write = Some(self.begin(usage_receiver.clone(), usage.vacant));
            }
            drop((snapshot, addresses));
            tokio::select! {
                () = object_watch.changed() => {}
                () = address_watch.changed() => {}
                () = sleep_until(due), if !is_written && write.is_none() => {}
                end = end(&mut write) => {
                    write = None;
                    due = Instant::now() + self.write_interval;
                    self.ended(end, &mut newest);
                }
            }
            sleep(BATCH_INTERVAL).await;
        }
    }

    /// Gives the allocator the addresses of the object. Returns why it does not allocate yet.
    fn publish(
        &self,
        object: &CiliumNode,
        pool: &NodePool,
        approved: &BTreeSet<IpAddr>,
        started: &mut BTreeSet<Family>,
    ) -> Option<String> {
        let wait = node_pool::wait(object, pool, self.own_addresses);
        let mut pools = Pools::of_listed(pool.listed(self.by, approved), self.families.clone());
        let mut reasons = Vec::new();
        for family in &self.families {
            let lacks = || format!("CiliumNode {} has no {family} address in spec.ipam.pool", self.name);
            let reason = wait.clone().or_else(|| (!pool.has(*family)).then(lacks));
            // Once there were enough, a pool that shrinks is exhausted, and does not begin again.
            if let (Some(reason), false) = (&reason, started.contains(family)) {
                pools = pools.waiting(*family, reason);
                if !reasons.contains(reason) {
                    reasons.push(reason.clone());
                }
            } else {
                started.insert(*family);
            }
        }
        self.replace(pools);
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    fn replace(&self, pools: Pools) {
        self.pools.send_if_modified(|present| {
            let is_other = *present != pools;
            *present = pools;
            is_other
        });
    }

    fn usage(&self, pool: &NodePool, snapshot: &statedb::Snapshot) -> Usage {
        let rows = self.addresses.all(snapshot).filter(|row| row.allocated());
        Usage {
            owners: rows.map(|row| (row.address, row.owner.clone())).collect(),
            vacant: pool.marked().filter(|marked| self.ipam.is_vacant(IpNetwork::from(*marked))).collect(),
        }
    }

    /// Writes the status, as the newest object and the newest usage demand it at each attempt.
    fn begin(&self, usage: watch::Receiver<Usage>, approved: BTreeSet<IpAddr>) -> Write {
        let decide = move |present: Option<&Value>| {
            let Some(present) = present else { return Step::Later("there is no CiliumNode yet".to_owned()) };
            let Ok(object) = decode::<CiliumNode>(present.to_string().as_bytes()) else {
                return Step::Later("the CiliumNode cannot be decoded".to_owned());
            };
            let desired = Status::desired(&object, &usage.borrow());
            if desired == Status::of(&object) {
                return Step::Done;
            }
            let mut present = present.clone();
            desired.write(&mut present);
            Step::UpdateStatus(present)
        };
        let target = Target::new(Kind::CiliumNode, Key::new("", self.name.as_str())).part("used");
        Write { end: Box::pin(self.writer.enqueue(target, Mutation::new(decide)).done()), approved }
    }

    fn ended(&self, end: Result<Written, NotWritten>, newest: &mut Newest) {
        let reporter = self.health.child(STATUS);
        match end {
            Ok(written) => {
                let object = written.object.and_then(|json| decode::<CiliumNode>(&json).ok());
                if let Some(object) = object {
                    newest.replace(&object);
                }
                reporter.close();
            }
            Err(error) => reporter.degraded("The status of the CiliumNode is not written", error),
        }
    }

    fn wait_for_object(&self, health: &Health) {
        let reason = format!("there is no CiliumNode {} yet", self.name);
        health.degraded("Waits for addresses", &reason);
        let waiting = |pools: Pools, family: &Family| pools.waiting(*family, &reason);
        self.replace(self.families.iter().fold(Pools::default(), waiting));
    }

    fn report(&self, health: &Health, pool: &NodePool, usage: &Usage, wait: Option<String>) {
        let problems = summarize(&pool.problems, MAX_REPORTED, "; ");
        let used = usage.owners.keys().filter(|address| pool.get(**address).is_some()).count();
        match (wait, problems.is_empty()) {
            (Some(wait), _) => {
                if health.degraded_anew("Waits for addresses", &wait) {
                    tracing::info!(
                        reason = wait,
                        "Waiting for IPs to become available in CRD-backed allocation pool"
                    );
                }
            }
            (None, false) => {
                if health.degraded_anew("Addresses of the CiliumNode are wrong", &problems) {
                    tracing::warn!(
                        node = self.name,
                        error = problems,
                        "Addresses of the CiliumNode are wrong"
                    );
                }
            }
            (None, true) => health.ok(format!("{used} of {} addresses of the pool are in use", pool.len())),
        }
        let lost: Vec<(&IpAddr, &Arc<str>)> =
            usage.owners.iter().filter(|(address, _)| pool.get(**address).is_none()).collect();
        let reporter = self.health.child(LOST);
        if lost.is_empty() {
            return reporter.close();
        }
        let (message, error) =
            ("Addresses in use are not the node's any more", lost_addresses(&self.name, &lost));
        if reporter.degraded_anew(message, &error) {
            tracing::warn!(node = self.name, error, "{message}");
        }
    }
}

/// Waits for the end of a write; forever without one.
async fn end(write: &mut Option<Write>) -> Result<Written, NotWritten> {
    match write {
        Some(write) => write.end.as_mut().await,
        None => std::future::pending().await,
    }
}

/// Names addresses, and the holders of most of them.
fn lost_addresses(node: &str, lost: &[(&IpAddr, &Arc<str>)]) -> String {
    let mut holders: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, owner) in lost {
        let holder = owner.split_once('/').map_or(&***owner, |(namespace, _)| namespace);
        *holders.entry(holder).or_default() += 1;
    }
    let mut holders: Vec<(&str, usize)> = holders.into_iter().collect();
    holders.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let holders = holders.iter().map(|(holder, count)| format!("{holder} {count}"));
    let named = lost.iter().map(|(address, owner)| format!("{address} of {owner}"));
    format!(
        "pool default of CiliumNode {node}: {} addresses in use are not in spec.ipam.pool: {} (held by {}); they stay valid \
         until their owners are deleted",
        lost.len(),
        summarize(named, MAX_REPORTED, ", "),
        summarize(holders, MAX_REPORTED, ", "),
    )
}
