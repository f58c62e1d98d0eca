//! Finds entries that the kernel has lost or that became stale, by the live table of neighbours.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use devices::Neighbor;
use hive::JobCx;
use reconciler::{Status, StatusKind};
use statedb::{RwTable, Table};
use tokio::time::sleep;

use crate::kernel::Properties;
use crate::{DesiredNeighbor, Upkeep};

/// Minimum interval of refreshes.
const INTERVAL: Duration = Duration::from_secs(1);
/// `NUD_STALE` of `linux/neighbour.h`: known, but not confirmed for a while.
const STATE_STALE: u16 = 0x04;

/// The job that marks rows as refreshing.
pub(crate) struct Refresher {
    pub(crate) desired: Arc<RwTable<DesiredNeighbor>>,
    pub(crate) live: Arc<Table<Neighbor>>,
    pub(crate) upkeep: Upkeep,
}

impl Refresher {
    /// Compares rows with entries that have changed, as long as the hive runs.
    pub(crate) async fn run(self, cx: JobCx) {
        let token = cx.token().clone();
        token.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&self) {
        let mut changes = self.live.changes();
        // Entries to look at: those that have changed, and those of which the row is being reconciled.
        let mut affected: BTreeSet<(IpAddr, u32)> = BTreeSet::new();
        loop {
            let (batch, changed) = changes.read(&self.live.snapshot(), usize::MAX);
            let lost = batch.iter().filter(|change| change.deleted || !self.is_fresh(&change.object));
            affected.extend(lost.map(|change| (change.object.ip, change.object.link_index)));
            let is_any_marked = self.refresh(&mut affected);
            if is_any_marked || !affected.is_empty() {
                sleep(INTERVAL).await;
            }
            if affected.is_empty() {
                changed.changed().await;
            }
        }
    }

    /// Whether an entry needs no attention.
    fn is_fresh(&self, entry: &Neighbor) -> bool {
        let found = Properties { state: entry.state, flags: entry.flags, flags_ext: entry.flags_ext };
        let is_stale =
            self.upkeep == Upkeep::Agent && !found.is_permanent() && entry.state & STATE_STALE != 0;
        found.is_kept(self.upkeep) && !is_stale
    }

    /// Marks those of the entries as refreshing that are desired and not fresh now; whether there were any. Entries of
    /// which the row is being reconciled are left to look at again, as the change may be younger than the operation.
    fn refresh(&self, entries: &mut BTreeSet<(IpAddr, u32)>) -> bool {
        let snapshot = self.live.snapshot();
        let mut rows: Vec<DesiredNeighbor> = Vec::new();
        entries.retain(|(ip, link_index)| {
            let row = self.desired.get(&snapshot, DesiredNeighbor::by_id(*ip, *link_index));
            let live = self.live.get(&snapshot, Neighbor::by_id(*link_index, *ip));
            let Some(row) = row.filter(|_| live.is_none_or(|entry| !self.is_fresh(entry))) else {
                return false;
            };
            match row.status.kind() {
                StatusKind::Done => {
                    rows.push(DesiredNeighbor::clone(row));
                    false
                }
                // The reconciler tries again by itself.
                StatusKind::Error => false,
                _ => true,
            }
        });
        if rows.is_empty() {
            return false;
        }
        let mut txn = self.desired.write();
        for row in rows {
            let current = txn.get(DesiredNeighbor::by_id(row.ip, row.link_index));
            // A row that was written meanwhile is reconciled because of that write.
            if current.is_some_and(|current| current.status.id() == row.status.id()) {
                txn.insert(DesiredNeighbor { status: Status::refreshing(), ..row });
            }
        }
        txn.commit();
        true
    }
}
