//! Garbage collection of expired connection tracking entries.
//!
//! **Owns** only the schedule of its runs: the datapath owns the entries, and also evicts the oldest
//! when a map is full. **Needs** `Arc<Maps>`, `Arc<Metrics>`, `Arc<Signals>`, the families and the clock of the datapath. **Provides**
//! the metrics `datapath_conntrack_gc_*` by the names of Cilium; [`forget`] for callers that release addresses of
//! workloads.
//!
//! **Life.** A first run ten seconds after the start, then one per interval: five minutes at first, shorter when
//! many entries had expired (10 s at least), longer when few had (12 h at most), or fixed by `conntrack-gc-interval`. A
//! run reads the maps 4,096 entries at a time and rests after each chunk, so that it takes less than 5 % of a processor
//! ([`Pace`]). A run that a full map waits for does not.
//!
//! A signal of the datapath that a map is full (perf ring `cilium_signals`) requests a run through the maps of
//! that family before the interval ends. Signals are coalesced: such runs are at least ten seconds apart.
//!
//! Such a run also purges translations of that family without a connection, which a crash between two rows or an
//! eviction has left: they hold ports.
//!
//! An expired entry is deleted and its value returned: if a packet has refreshed it since it was read, it is written
//! back, unless the datapath has recreated it. A live connection therefore keeps its entry.
//!
//! ```
//! use std::time::Duration;
//!
//! use conntrack_gc::next_interval;
//!
//! // Two thirds of the map had expired: collect more often. Almost nothing had: less often.
//! let five_minutes = Duration::from_secs(300);
//! assert_eq!(next_interval(five_minutes, 0.66), Duration::from_secs(102));
//! assert_eq!(next_interval(five_minutes, 0.01), Duration::from_secs(450));
//! ```
//!
//! **Differences from Cilium.** Cilium deletes an entry that it has read as expired even if a packet came in between.
//! Runs that signals request are at least ten seconds apart; Cilium starts the next one at once.

mod cell;
mod collect;
mod config;
mod interval;
mod metrics;
mod orphans;
mod pace;
mod translation;

pub use cell::cell;
pub use collect::{Collected, MAPS, collect, collect_with, ends_among, forget};
pub use config::ConntrackGcConfig;
pub use interval::{MAX_INTERVAL, MIN_INTERVAL, STARTING_INTERVAL, next_interval};
pub use orphans::{Orphans, purge_orphans};
pub use pace::Pace;
