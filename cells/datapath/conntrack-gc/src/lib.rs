//! Collection of connection tracking entries that have ended.
//!
//! **Owns** nothing but the time until the next round: the entries are the datapath's, which also overwrites the oldest
//! when a map is full. **Needs** `Arc<Maps>`, `Arc<Metrics>`, the families and the clock of the datapath. **Provides**
//! the metrics `datapath_conntrack_gc_*` by the names of Cilium; [`forget`] for callers that release addresses of
//! workloads.
//!
//! **Life.** A first round ten seconds after the start, then one each interval: five minutes at first, shorter when
//! many entries had ended (10 s at least), longer when few had (12 h at most), or fixed by `conntrack-gc-interval`. A
//! round reads the maps 4,096 entries at a time and pauses in between, so that a full map of 500,000 entries takes
//! about a second and a third of that of a CPU.
//!
//! A signal of the datapath that a map is full (perf ring `cilium_signals`) requests a round through the maps of
//! that family before its time. Signals are coalesced: such rounds are ten seconds apart.
//!
//! An ended entry is deleted together with its value: if a packet has refreshed it since it was read, it is written again,
//! unless the datapath was faster. A live connection therefore keeps its entry.
//!
//! ```
//! use std::time::Duration;
//!
//! use conntrack_gc::next_interval;
//!
//! // Two thirds of the map had ended: collect more often. Next to nothing had: less often.
//! let five_minutes = Duration::from_secs(300);
//! assert_eq!(next_interval(five_minutes, 0.66), Duration::from_secs(102));
//! assert_eq!(next_interval(five_minutes, 0.01), Duration::from_secs(450));
//! ```
//!
//! **Differences from Cilium.** Cilium deletes what it has read as ended even if a packet came in between. Rounds
//! that signals request are ten seconds apart; Cilium starts the next one at once.

mod cell;
mod collect;
mod config;
mod interval;
mod metrics;
mod signals;

pub use cell::cell;
pub use collect::{Collected, MAPS, collect, ends_among, forget};
pub use config::ConntrackGcConfig;
pub use interval::{MAX_INTERVAL, MIN_INTERVAL, STARTING_INTERVAL, next_interval};
