//! Finds rules that the kernel has lost, by its notifications.

use std::sync::Arc;
use std::time::Duration;

use devices::rtnetlink::{self, Rule};
use hive::JobCx;
use netlink::{Protocol, Received, Subscription};
use reconciler::{Status, StatusKind};
use statedb::RwTable;
use tokio::time::sleep;

use crate::DesiredRule;

/// The groups of notifications about rules of both families.
const GROUPS: [u32; 2] = [libc::RTNLGRP_IPV4_RULE, libc::RTNLGRP_IPV6_RULE];
/// Minimum interval of comparisons, and the delay of one after a notification.
const INTERVAL: Duration = Duration::from_millis(300);
/// Maximum interval while another process undoes each repair.
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// Number of repairs in a row after which the interval is doubled with each one.
const REPAIRS_UNTIL_BACKOFF: u32 = 4;
/// Interval of comparisons with a kernel that reports no changes.
const POLL_INTERVAL: Duration = Duration::from_secs(60);

/// The job that marks lost rules as refreshing.
pub(super) struct Refresher {
    pub(super) desired: Arc<RwTable<DesiredRule>>,
}

impl Refresher {
    /// Compares after each change of the kernel's rules, as long as the hive runs.
    pub(super) async fn run(self, cx: JobCx) {
        let token = cx.token().clone();
        token.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&self) {
        let subscription = Subscription::open(Protocol::Route, &GROUPS, None);
        let mut subscription = subscription
            .map_err(|error| tracing::info!(%error, "The kernel does not report changes of rules"))
            .ok();
        let mut repairs: u32 = 0;
        loop {
            changed(&mut subscription).await;
            let doublings = repairs.saturating_sub(REPAIRS_UNTIL_BACKOFF).min(8);
            sleep((INTERVAL * (1 << doublings)).min(MAX_INTERVAL)).await;
            // One comparison covers all notifications so far; those of own writes find nothing lost.
            while let Some(Ok(_)) = subscription.as_mut().and_then(Subscription::try_receive) {}
            match rtnetlink::call(|nl| nl.rules()).await {
                Ok(rules) if self.mark(&rules) => repairs = repairs.saturating_add(1),
                Ok(_) => repairs = repairs.saturating_sub(1),
                Err(error) => tracing::info!(%error, "Rules could not be compared"),
            }
        }
    }

    /// Marks the rows of rules that the kernel lacks, or has at the place that they replace; whether there were any.
    fn mark(&self, found: &[Rule]) -> bool {
        let is_lost = |row: &DesiredRule| {
            let is_back = row.replaced().is_some_and(|replaced| found.contains(&replaced));
            row.status.kind() == StatusKind::Done && (is_back || !found.contains(&row.rule))
        };
        let snapshot = self.desired.snapshot();
        if !self.desired.all(&snapshot).any(|row| is_lost(row)) {
            return false;
        }
        let mut txn = self.desired.write();
        let lost: Vec<DesiredRule> =
            txn.all().filter(|row| is_lost(row)).map(|row| DesiredRule::clone(row)).collect();
        for row in lost {
            tracing::info!(rule = %row.rule, owner = %row.owner, "Rule was lost, write it again");
            txn.insert(DesiredRule { status: Status::refreshing(), ..row });
        }
        txn.commit();
        true
    }
}

/// Waits until rules may have changed. Cancel safe.
async fn changed(subscription: &mut Option<Subscription>) {
    let Some(open) = subscription else { return sleep(POLL_INTERVAL).await };
    match open.receive().await {
        Ok(Received::Packet | Received::Overflow) => {}
        Err(error) => {
            tracing::info!(%error, "The kernel does not report changes of rules any more");
            *subscription = None;
        }
    }
}
