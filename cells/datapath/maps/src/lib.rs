//! Cilium's pinned maps, typed, under their public names and layouts.
//!
//! **Owns** the pins in `<bpf-root>/tc/globals` as a whole and the table `bpf-maps`; the entries are written by the
//! cells whose state they are. **Needs** root and a bpf file system, which it mounts when absent. **Provides**
//! `Arc<Maps>` with typed handles, `Table<MapRow>`, and answers to `GET /map`, `GET /map/{name}` and `GET
//! /map/{name}/events`.
//!
//! **Life.** Built from options without touching the kernel. The start hook opens what the datapath uses; a job creates
//! the others afterwards, several at a time, and fills the table. Nothing is removed at stop: the kernel is the truth.
//!
//! ```no_run
//! use maps::{FamilyConfig, Maps, MapsConfig};
//!
//! let maps = Maps::new(MapsConfig::default(), FamilyConfig::default());
//! maps.open()?;
//! for (key, info) in maps.lxc().entries()? {
//!     println!("{:?} is endpoint {}", key.ip(), info.lxc_id);
//! }
//! # Ok::<(), anyhow::Error>(())
//! ```
//!
//! **Memory.** Of a container's limit (crate `memory`) 3/8 are for the maps as they are made. If they need more,
//! entries are not allocated ahead whatever `preallocate-bpf-maps` says, and sizes that no option sets are halved until
//! they fit: a smaller connection map forgets idle connections earlier. Log and health of the job `create-maps` report
//! it. Sizes that options set stay; the start is refused if these alone exceed the whole limit.
//!
//! **Differences from Cilium.** Cilium does not look at its container's limit. A map of another size or other flags is
//! replaced by one with its entries, where Cilium starts with an empty one. A map of another type or with other keys or
//! values is refused by name, where Cilium drops it: such a pin is another program's. `cilium_devices` has
//! flags 0x1 always (see the catalog).

pub mod catalog;
mod cell;
mod config;
mod counters;
mod drift_checks;
mod error;
mod events;
mod fit;
mod footprint;
mod lb_text;
mod maps;
mod pins;
mod rest;
mod runtime;
mod schema;
pub mod size;
mod specs;
mod status;
mod table;
pub mod text;

pub use cell::cell;
pub use config::{ClockConfig, FamilyConfig, LivenessConfig, MapsConfig, OutOfRange};
pub use drift_checks::DriftChecks;
pub use error::{Error, Result};
pub use fit::Fit;
pub use maps::{Maps, mount};
pub use pins::Repinned;
pub use schema::SCHEMA;
pub use specs::{OWN_MAPS, POLICY_PREFIX, Specs, policy_name};
pub use table::MapRow;
