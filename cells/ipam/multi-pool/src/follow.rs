//! The job between the CiliumNode, the addresses in use and the node's row.

use std::sync::Arc;
use std::time::Duration;

use hive::{Health, JobCx};
use ipam::{Address, Family, Ipam};
use ipnetwork::IpNetwork;
use k8s_tables::Row;
use k8s_types::cilium::{CiliumNode, IpamPools};
use k8s_types::{Key, Kind, decode};
use k8s_writer::{Mutation, NotWritten, Step, Target, Writer};
use local_node::{LocalNode, LocalNodeStore};
use serde_json::{Value, json};
use statedb::Table;
use tokio::time::{Instant, sleep, sleep_until};

use crate::pools::{NodePools, Plan, Settings, Usage, in_order};
use crate::waiting::Waiting;

/// Changes within this time are one round: many pods start at once.
const BATCH_INTERVAL: Duration = Duration::from_millis(100);

/// The reporter of ranges that the CiliumNode had lost.
const RECLAIMED: &str = "reclaimed-ranges";

/// The tables that the job reads, and what it writes.
pub(crate) struct Follower {
    pub(crate) name: String,
    pub(crate) settings: Settings,
    pub(crate) write_interval: Duration,
    pub(crate) store: Arc<LocalNodeStore>,
    pub(crate) objects: Arc<Table<Row<CiliumNode>>>,
    pub(crate) addresses: Arc<Table<Address>>,
    pub(crate) ipam: Arc<Ipam>,
    pub(crate) writer: Arc<Writer>,
    pub(crate) waiting: Arc<Waiting>,
    pub(crate) health: Health,
    pub(crate) pools: NodePools,
}

/// The newest object that was read or written.
#[derive(Debug, Default)]
struct Newest {
    version: u64,
    pools: Value,
    operator_error: String,
}

impl Newest {
    /// Returns the object's fields, unless an object is newer that was known before. Versions are numbers of one sequence
    /// (KEP-5504).
    fn replace(&mut self, object: &CiliumNode) -> bool {
        let version = object.metadata.resource_version.parse().unwrap_or_default();
        if version < self.version {
            return false;
        }
        *self = Newest {
            version,
            pools: in_order(&object.spec.ipam.pools),
            operator_error: object.status.ipam.operator_status.error.to_string(),
        };
        true
    }
}

impl Follower {
    /// Runs until the job is cancelled.
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        tokio::select! {
            () = cx.cancelled() => Ok(()),
            result = self.follow(&cx.health) => result,
        }
    }

    async fn follow(mut self, health: &Health) -> anyhow::Result<()> {
        let (mut newest, mut written_at) = (None::<Newest>, None::<Instant>);
        let mut requests = self.waiting.subscribe();
        let mut is_first = true;
        loop {
            requests.mark_unchanged();
            let snapshot = self.objects.snapshot();
            let (object, object_watch) = self.objects.get_watch(&snapshot, Row::by_name("", &self.name));
            if let Some(row) = object {
                if newest.get_or_insert_default().replace(&row.object) {
                    self.pools.observe(&self.settings, &row.object);
                }
                if std::mem::take(&mut is_first) {
                    self.clear_used(row);
                }
            }
            let Some(newest) = &mut newest else {
                self.wait_for_object(health);
                drop(snapshot);
                object_watch.changed().await;
                continue;
            };
            let addresses = self.addresses.snapshot();
            let address_watch = self.addresses.watch(&addresses);
            let (plan, expires) = self.plan();
            self.report(health, newest);
            let due = written_at.map(|at| at + self.write_interval).filter(|due| *due > Instant::now());
            let is_written = newest.pools == plan.desired;
            if !is_written && due.is_none() {
                match self.write(&newest.pools, &plan.desired).await {
                    Ok(object) => {
                        newest.replace(&object);
                        self.pools.written(&self.settings, &object);
                        if newest.pools == plan.desired {
                            written_at = Some(Instant::now());
                        }
                    }
                    Err(error) => health.degraded("The CiliumNode is not written", error),
                }
                sleep(BATCH_INTERVAL).await;
                continue;
            }
            drop((snapshot, addresses));
            tokio::select! {
                () = object_watch.changed() => {}
                () = address_watch.changed() => {}
                _ = requests.changed() => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if !is_written => {}
                () = sleep_until(expires.unwrap_or_else(Instant::now)), if expires.is_some() => {}
            }
            sleep(BATCH_INTERVAL).await;
        }
    }

    /// Decides, and brings the node's row in step.
    fn plan(&mut self) -> (Plan, Option<Instant>) {
        let (mut usage, expires) = self.usage();
        let mut plan = self.pools.plan(&self.settings, &usage);
        self.assign(&plan);
        // Only the row shows which ranges in use have just left the object.
        let lost = self.store.node().map(|node| self.lost(&node, &usage)).unwrap_or_default();
        if lost != usage.lost {
            usage.lost = lost;
            plan = self.pools.plan(&self.settings, &usage);
            self.assign(&plan);
        }
        // The row has no such range any more: no allocation begins with one, and those that had begun are seen here.
        let raced: Vec<IpNetwork> =
            plan.released.iter().copied().filter(|cidr| !self.ipam.is_vacant(*cidr)).collect();
        if !raced.is_empty() {
            raced.into_iter().for_each(|cidr| self.pools.keep(cidr));
            let (usage, _) = self.usage();
            plan = self.pools.plan(&self.settings, &usage);
            self.assign(&plan);
        }
        for cidr in &plan.released {
            tracing::info!(%cidr, "Releasing a pod range that no address is used of");
        }
        (plan, expires)
    }

    fn usage(&self) -> (Usage, Option<Instant>) {
        let (needed, expires) = self.waiting.count();
        let mut usage = Usage { needed, ..Usage::default() };
        let snapshot = self.addresses.snapshot();
        for row in self.addresses.all(&snapshot) {
            match row.allocated() {
                true => {
                    usage.allocated.insert(row.address);
                    *usage.needed.entry((row.pool.clone(), Family::of(row.address))).or_default() += 1;
                }
                false => drop(usage.resting.insert(row.address)),
            }
        }
        if let Some(node) = self.store.node() {
            usage.lost = self.lost(&node, &usage);
        }
        (usage, expires)
    }

    /// Returns withdrawn ranges in use that no other node has.
    fn lost(&self, node: &LocalNode, usage: &Usage) -> Vec<(String, IpNetwork)> {
        let pools =
            node.pools.iter().flat_map(|pool| pool.cidrs.iter().map(|cidr| (pool.name.clone(), *cidr)));
        let is_lost = |(_, cidr): &(String, IpNetwork)| {
            node.withdrawn_alloc_cidrs.contains(cidr)
                && usage.allocated.iter().any(|address| cidr.contains(*address))
                && !self.is_anothers(*cidr)
        };
        pools.filter(is_lost).collect()
    }

    fn is_anothers(&self, cidr: IpNetwork) -> bool {
        let snapshot = self.objects.snapshot();
        let overlaps = |text: &str| {
            text.parse::<IpNetwork>()
                .is_ok_and(|other| other.contains(cidr.network()) || cidr.contains(other.network()))
        };
        let mut others = self.objects.all(&snapshot).filter(|row| row.metadata.name != self.name.as_str());
        others.any(|row| {
            let ipam = &row.spec.ipam;
            let pools = ipam.pools.allocated.iter().flat_map(|pool| &pool.cidrs);
            pools.chain(&ipam.pod_cidrs).any(|text| overlaps(text))
        })
    }

    fn assign(&self, plan: &Plan) {
        let default = &*self.settings.default_pool;
        let wait = |family| {
            let is_on = self.settings.families.contains(&family);
            (is_on && !self.pools.has(default, family)).then(|| self.missing())
        };
        let (ipv4, ipv6) = (wait(Family::V4), wait(Family::V6));
        self.store.update(|node| {
            node.assign_pools(default, plan.pools.clone());
            (node.ipv4_cidr_wait, node.ipv6_cidr_wait) = (ipv4, ipv6);
        });
    }

    fn missing(&self) -> String {
        format!(
            "CiliumNode {} has no range of the pool {} in spec.ipam.pools.allocated, which the operator assigns",
            self.name, self.settings.default_pool
        )
    }

    fn wait_for_object(&self, health: &Health) {
        let reason = format!("there is no CiliumNode {} yet", self.name);
        health.degraded("Waits for ranges of pools", &reason);
        self.store.update(|node| {
            for (family, wait) in
                [(Family::V4, &mut node.ipv4_cidr_wait), (Family::V6, &mut node.ipv6_cidr_wait)]
            {
                if wait.is_some() && self.settings.families.contains(&family) {
                    *wait = Some(reason.clone());
                }
            }
        });
    }

    fn report(&self, health: &Health, newest: &Newest) {
        let mut problems = self.pools.problems.clone();
        let lacks =
            self.settings.families.iter().any(|family| !self.pools.has(&self.settings.default_pool, *family));
        if lacks {
            problems.push(self.missing());
        }
        if !newest.operator_error.is_empty() {
            problems.push(format!("the operator reports: {}", newest.operator_error));
        }
        match problems.is_empty() {
            true => health.ok(self.pools.summary()),
            false => {
                let problems = problems.join("; ");
                if health.degraded_anew("Pools of this node", &problems) {
                    tracing::warn!(node = self.name, error = problems, "Pools of this node");
                }
            }
        }
        let reclaimed = self.pools.reclaimed();
        let reporter = self.health.child(RECLAIMED);
        match reclaimed.is_empty() {
            true => reporter.close(),
            false => {
                let error =
                    format!("{}; they give no new address until the next start", reclaimed.join(", "));
                let message = "Ranges in use were missing in the CiliumNode and are written again";
                if reporter.degraded_anew(message, &error) {
                    tracing::warn!(node = self.name, error, "{message}");
                }
            }
        }
    }

    /// Replaces `spec.ipam.pools`, if they are those that the decision was made on. Returns the object as it is then.
    async fn write(&mut self, basis: &Value, desired: &Value) -> Result<CiliumNode, anyhow::Error> {
        self.pools.sent();
        let (basis, desired) = (basis.clone(), desired.clone());
        let decide = move |present: Option<&Value>| {
            let Some(present) = present else { return Step::Later("there is no CiliumNode yet".to_owned()) };
            let pools = present.pointer("/spec/ipam/pools").cloned().unwrap_or_else(|| json!({}));
            let found = serde_json::from_value::<IpamPools>(pools).map(|pools| in_order(&pools));
            if found.is_ok_and(|found| found == desired || found != basis) {
                return Step::Done;
            }
            let mut object = present.clone();
            object["spec"]["ipam"]["pools"] = desired.clone();
            Step::Update(object)
        };
        let target = Target::new(Kind::CiliumNode, Key::new("", self.name.as_str())).part("pools");
        let written = self.writer.enqueue(target.clone(), Mutation::new(decide)).done().await?;
        let gone =
            || NotWritten::GaveUp { target: target.to_string(), reason: "it does not exist any more".into() };
        Ok(decode(&written.object.ok_or_else(gone)?)?)
    }

    /// Removes the addresses of another mode from the status, once.
    fn clear_used(&self, object: &CiliumNode) {
        if object.status.ipam.used.is_empty() {
            return;
        }
        let clear = Mutation::edit_status(|object| {
            if let Some(Value::Object(ipam)) = object.pointer_mut("/status/ipam") {
                ipam.remove("used");
            }
        });
        let target = Target::new(Kind::CiliumNode, Key::new("", self.name.as_str())).part("used");
        // Dropped: the status has no effect on this mode.
        drop(self.writer.enqueue(target, clear));
    }
}
