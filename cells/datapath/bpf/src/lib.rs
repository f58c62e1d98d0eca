//! A safe bpf(2) wrapper: typed maps, batches, pins, links and program test runs.
//!
//! **Owns** nothing: every handle is closed when dropped; pinned objects stay. **Needs** root (or `CAP_BPF` and
//! `CAP_NET_ADMIN`) and a mounted bpf file system for pins. **Provides**
//! - maps: [`Map`], [`PerCpuMap`], [`ObjectMap`] (programs or maps as values) over [`RawMap`], from a [`MapSpec`];
//! - [`BpfFs`]: Cilium's pin paths, and pinned maps that are reused, migrated to a new layout or refused;
//! - [`ObjectFile`]: programs linked by aya-obj and loaded with maps the caller chooses; a [`Collection`] of them can be
//!   kept in a folder of pins for another process; [`Program`] runs them on packets;
//! - [`Link`] (tcx, XDP, cgroup) and [`tc::Tc`] (cls_bpf filters): attachment of programs to interfaces and cgroups;
//! - [`perf`]: rings of events that programs write;
//! - [`Clock`]: the clock that programs read, as they read it;
//! - [`probe()`]: the kernel features the datapath needs;
//! - [`Usage`]: kernel memory of maps and programs; [`observe_calls`]: durations of the system calls.
//!
//! All calls block while the kernel works: microseconds, except where the docs mention a grace period.
//!
//! ```no_run
//! use bpf::{BpfFs, Map, MapFlags, MapSpec, MapType};
//!
//! const SPEC: MapSpec = MapSpec::new("example", MapType::Hash, 4, 8, 1024, MapFlags::NO_PREALLOC);
//! let fs = BpfFs::open("/sys/fs/bpf")?;
//! let (raw, origin) = fs.open_or_create(&SPEC)?;
//! let map: Map<u32, u64> = Map::new(raw)?;
//! map.update_batch(&[(1, 10), (2, 20)])?;
//! assert_eq!(map.lookup(&2)?, Some(20));
//! # let _ = origin;
//! # Ok::<(), bpf::Error>(())
//! ```
//!
//! Why not aya's own handles: they open pins without comparing layouts, attach by interface name in the current
//! namespace only, have no batches, and parse the kernel's type information (15 ms) at every load.

mod bpffs;
mod calls;
mod clock;
mod error;
mod link;
mod map;
mod moving;
mod netns;
mod object;
pub mod perf;
mod pinned;
mod probe;
mod prog;
mod raw_map;
mod spec;
mod sys;
pub mod tc;
mod usage;

pub use bpffs::{BpfFs, Origin, is_bpffs, names_in, unpin};
pub use calls::observe_calls;
pub use clock::{Clock, monotonic};
pub use datapath_abi::Pod;
pub use error::{Error, LayoutMismatch, Result};
pub use link::{Direction, Link, LinkInfo, XdpMode};
pub use map::{Map, ObjectMap, PerCpuMap, bytes_of, values_of};
pub use moving::{MOVING, Move};
pub use netns::netns_cookie;
pub use object::{Collection, ObjectFile};
pub use probe::{Features, probe};
pub use prog::{Program, ProgramInfo, TestRun};
pub use raw_map::{MapInfo, RawMap, UpdateMode, WriteObserver, possible_cpus};
pub use spec::{Layout, MapFlags, MapSpec, MapType, Verdict};
pub use usage::Usage;
