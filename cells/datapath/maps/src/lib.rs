//! Cilium's pinned maps, typed, under their public names and layouts.
//!
//! **Owns** all pins in `<bpf-root>/tc/globals` and the table `bpf-maps`; map entries are written by the cells of which
//! they contain the state. **Needs** root and a bpf file system, which it mounts when absent. **Provides**
//! `Arc<Maps>` with typed handles, `Table<MapRow>`, and answers to `GET /map`, `GET /map/{name}` and `GET
//! /map/{name}/events`.
//!
//! **Lifecycle.** The constructor does not touch the kernel. The start hook opens the maps that the datapath uses; a
//! job creates the others afterwards, several at a time, and fills the table. Pins stay when the agent stops: the
//! kernel's state is the source of truth.
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
//! **Memory.** The empty maps may take 3/8 of the container's memory limit (crate `memory`). If they need more, entries
//! are not preallocated, even if `preallocate-bpf-maps` is set; if that is not enough, sizes that no option sets are
//! halved until the maps fit: a smaller connection map evicts idle connections earlier. The log and the health of the
//! job `create-maps` report it. Sizes that options set are kept; the start fails if these alone exceed the whole limit.
//!
//! **Differences from Cilium.** Cilium ignores its container's limit. A pinned map with another
//! size or other flags is replaced by one with the same entries, where Cilium starts with an empty one. A pinned map
//! with another type, key size or value size is an error that names it, where Cilium removes it: such a pin belongs to
//! another program. `cilium_devices` always has flags 0x1 (see [`catalog`]).

pub mod catalog;
mod cell;
mod config;
mod counters;
mod drift_checks;
mod error;
mod events;
mod fit;
mod footprint;
mod gauges;
mod lb_text;
mod maps;
mod memory;
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
pub use maps::{Maps, is_opened_as_is, mount};
pub use pins::Repinned;
pub use schema::{SCHEMA, recorded_schema};
pub use specs::{MASQUERADE_MAP, NatSwitches, OWN_MAPS, POLICY_PREFIX, Specs, policy_name};
pub use table::MapRow;
