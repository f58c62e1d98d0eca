//! Collection of connection tracking rows that have ended.
//!
//! **Owns** nothing but the time until the next round: rows are the datapath's, which also overwrites the oldest when a map
//! is full. **Needs** `Arc<Maps>`, `Arc<Metrics>`, the families and the clock of the datapath. **Provides** the metrics
//! `datapath_conntrack_gc_*` by the names of Cilium; [`forget`] for those who take an address away from a workload.
//!
//! **Life.** A first round ten seconds after the start, then one each interval: five minutes at first, shorter when much
//! was found (10 s at least), longer when little was (12 h at most), or fixed by `conntrack-gc-interval`. A round reads
//! the maps 4,096 rows at a time and rests between, so that a full map of 500,000 rows takes about a second of time and
//! a third of it of a CPU.
//!
//! A signal of the datapath that a map takes no more rows (perf ring `cilium_signals`) asks for a round through the maps of
//! that family before its time. Thousands of them are one round, and such rounds are ten seconds apart.
//!
//! A row that ended is taken out together with its value: if a packet has refreshed it since it was read, it is put back,
//! unless the datapath was faster. A live connection therefore keeps its row.
//!
//! ```
//! use std::time::Duration;
//!
//! use conntrack_gc::next_interval;
//!
//! // Two thirds of the map had ended: look more often. Next to nothing had: less often.
//! let five_minutes = Duration::from_secs(300);
//! assert_eq!(next_interval(five_minutes, 0.66), Duration::from_secs(102));
//! assert_eq!(next_interval(five_minutes, 0.01), Duration::from_secs(450));
//! ```
//!
//! **Differences from Cilium.** Cilium deletes what it has read as ended even if a packet came in between. Rounds
//! that signals ask for are ten seconds apart; Cilium starts the next one at once.

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
