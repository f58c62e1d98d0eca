//! The job: changes of tables to notifications, while a monitor has subscriptions.

use std::sync::Arc;
use std::time::Duration;

use endpoints::Endpoint;
use hive::JobCx;
use ipcache::Entry;
use monitor::Monitor;
use monitor_events::gob;
use policy::{Policies, PolicyStatus};
use statedb::{Change, Changes, Snapshot, Table, TableSpec, Watch};
use tokio::time::sleep;

use crate::messages::{self, Notification};

/// Changes between two points at which other tasks may run.
const PORTION: usize = 256;

/// Limit of the age of the snapshot with the previous rows, which keeps old versions of all tables in memory.
const MAX_SNAPSHOT_AGE: Duration = Duration::from_secs(30);

/// Follows the tables.
pub(crate) struct Follower {
    pub(crate) monitor: Arc<Monitor>,
    pub(crate) endpoints: Arc<Table<Endpoint>>,
    pub(crate) ipcache: Arc<Table<Entry>>,
    pub(crate) statuses: Arc<Table<PolicyStatus>>,
    pub(crate) policies: Arc<Policies>,
}

/// The changes that a follower has seen: those up to a snapshot, exactly.
pub(crate) struct Position {
    pub(crate) before: Snapshot,
    pub(crate) readers: Readers,
}

/// Readers of changes of the tables.
pub(crate) struct Readers {
    endpoints: Changes<Endpoint>,
    ipcache: Changes<Entry>,
    statuses: Changes<PolicyStatus>,
}

impl Readers {
    /// Skips the changes up to a snapshot that is younger than the readers. A snapshot that is older would miss those
    /// between the two.
    pub(crate) fn skip(&mut self, to: &Snapshot) {
        while !self.endpoints.read(to, PORTION).0.is_empty() {}
        while !self.ipcache.read(to, PORTION).0.is_empty() {}
        while !self.statuses.read(to, PORTION).0.is_empty() {}
    }
}

/// Publishes a notification.
pub(crate) fn publish(monitor: &Monitor, notification: Notification) {
    monitor.publish(|| gob::agent_notify(notification.kind, &notification.text));
}

impl Follower {
    /// Publishes notifications until the job is cancelled.
    pub(crate) async fn run(self, cx: JobCx) {
        let mut subscriptions = self.monitor.subscriptions();
        loop {
            cx.health.ok("No listeners");
            tokio::select! {
                () = cx.cancelled() => return,
                // An error means that the monitor is gone, which this job keeps.
                _ = subscriptions.wait_for(|count| *count > 0) => {}
            }
            cx.health.ok("Following endpoints, policies and the ipcache");
            tokio::select! {
                () = cx.cancelled() => return,
                _ = subscriptions.wait_for(|count| *count == 0) => {}
                never = self.follow(self.begin()) => match never {},
            }
        }
    }

    /// Returns the position of a follower that has seen everything so far.
    pub(crate) fn begin(&self) -> Position {
        let mut readers = self.readers();
        let before = self.endpoints.snapshot();
        readers.skip(&before);
        Position { before, readers }
    }

    pub(crate) fn readers(&self) -> Readers {
        Readers {
            endpoints: self.endpoints.changes().named("agent-notifications").from_now(),
            ipcache: self.ipcache.changes().named("agent-notifications").from_now(),
            statuses: self.statuses.changes().named("agent-notifications").from_now(),
        }
    }

    /// Publishes the changes that follow a position.
    pub(crate) async fn follow(&self, position: Position) -> std::convert::Infallible {
        let Position { mut before, readers } = position;
        let Readers { mut endpoints, mut ipcache, mut statuses } = readers;
        loop {
            let now = self.endpoints.snapshot();
            let watches = [
                self.report(&mut ipcache, &now, |change| {
                    let old = self.ipcache.get(&before, Entry::by_prefix(change.object.prefix));
                    messages::ipcache(old.map(|old| &**old), &change.object, change.deleted)
                })
                .await,
                self.report(&mut endpoints, &now, |change| {
                    let old = self.endpoints.get(&before, Endpoint::by_id(change.object.id()));
                    messages::endpoint(old.map(|old| &**old), &change.object, change.deleted)
                })
                .await,
                self.report(&mut statuses, &now, |change| {
                    let old = self.statuses.get(&before, PolicyStatus::by_object(&change.object.object));
                    let revision = self.policies.revision();
                    messages::policy(old.map(|old| &**old), &change.object, change.deleted, revision)
                })
                .await,
            ];
            before = now;
            let [ipcache_changed, endpoints_changed, statuses_changed] = &watches;
            tokio::select! {
                () = ipcache_changed.changed() => {}
                () = endpoints_changed.changed() => {}
                () = statuses_changed.changed() => {}
                () = sleep(MAX_SNAPSHOT_AGE) => {}
            }
        }
    }

    /// Publishes what the changes up to the snapshot mean. Returns a watch that closes with the next change.
    async fn report<T: TableSpec, N: IntoIterator<Item = Notification>>(
        &self,
        changes: &mut Changes<T>,
        now: &Snapshot,
        notifications: impl Fn(&Change<T>) -> N,
    ) -> Watch {
        loop {
            let (batch, watch) = changes.read(now, PORTION);
            if batch.is_empty() {
                return watch;
            }
            for notification in batch.iter().flat_map(&notifications) {
                publish(&self.monitor, notification);
            }
            tokio::task::yield_now().await;
        }
    }
}
