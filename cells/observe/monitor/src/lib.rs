//! Events of the datapath and of the agent, to all that listen on `monitor1_2.sock`.
//!
//! **Owns** the rings of the map `cilium_events`, one per CPU, and the socket in the run folder. **Needs** `Arc<Maps>`
//! and the run folder. **Provides** `Arc<Monitor>`, from which a cell subscribes to events or to which it publishes
//! them, and `nodeMonitor` of the status.
//!
//! **Life.** The socket is made by a job after the maps are open. The rings exist only while there is a subscription:
//! without one, programs get an error from the kernel instead of a ring and go on, and nothing is mapped. While few events
//! come, each wakes the reader; rings with many are read each 3 ms ([`bpf::perf`]). An event is encoded once for all
//! subscriptions. Each has a queue of `monitor-queue-size` messages (0: 1,024 per CPU, 16,384 at
//! most) and 16 MiB; an event that does not fit is lost for this subscription, which gets the number of lost ones as soon as the
//! queue has space. Events that the kernel could not write into a ring are reported to all subscriptions, by CPU.
//! No reader is waited for: a client that does not read costs its queue.
//!
//! **Access**: mode 0660, group `cilium` if there is one. At most 64 clients; what a client sends is ignored.
//!
//! **Differences from Cilium**: clients learn of their own losses, which Cilium drops silently; a CPU without a ring
//! does not shift the rings of others; the rings are closed when the last client disconnects, not at the next event.

mod cell;
mod client;
mod config;
mod hub;
mod queue;
mod ring;
mod socket;
mod status;

pub use cell::cell;
pub use config::{MonitorConfig, queue_size};
pub use hub::{Monitor, Subscription};
