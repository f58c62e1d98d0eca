//! Notifications of the agent, for all that listen on `monitor1_2.sock`.
//!
//! **Owns** nothing. **Needs** `Arc<Monitor>`, the tables `endpoints`, `ipcache` and `policies`, `Arc<Policies>`.
//! **Provides** events of type 130 to the monitor: the agent has started; an endpoint was created, deleted, regenerated,
//! or could not be regenerated; a policy was updated or deleted; an entry of the ipcache was upserted or deleted.
//!
//! **Life.** While a monitor has subscriptions, a job reads the changes of the tables, in portions, and compares each row
//! with the snapshot of the previous round, of which it keeps one for at most 30 s. Without a subscription it waits for
//! one: there is neither a reader of changes nor a snapshot. A second job reports the start once the endpoints of the
//! previous run are restored.
//!
//! **Differences from Cilium**: changes of one row that are committed while a round runs are one notification, with the
//! last state; between kinds of notifications the order is that of the tables, not of the changes. The ipcache is
//! reported as changed once it is to change, before or after the kernel has the entry. Times are in UTC.

mod cell;
mod follow;
mod messages;
#[cfg(test)]
mod tests;

pub use cell::cell;
