//! Flows of the node's packets, written to files as lines of JSON.
//!
//! **Owns** the files of exporters: that of `hubble-export-file-path`, and those of the entries of
//! `hubble-flowlogs-config-path`, a YAML file that is followed while the agent runs. **Needs** `Arc<`[`hubble::Feed`]`>`.
//! **Provides** metrics `hubble_dynamic_exporter_*`.
//!
//! **Life.** Without Hubble or without an exporter there is no job. Else one job follows the ring of flows at its own
//! pace and has each exporter write on a thread for blocking work: a slow disk never delays decoding. An event that
//! was overwritten before it was read, or could not be written, is counted in a line `lost_events` of the file as soon as
//! a line can be written again. Files are made with their first line, renamed when they are full (the name of
//! lumberjack: `events-2026-11-21T12-05-29.803.log`), deleted and compressed beside the writes, and made again if they are
//! removed or renamed. An invalid file of exporters is refused as a whole: the exporters before it stay. A pipe or a
//! terminal, also as the standard output, gets whole lines for as long as it takes them; a reader that stops is waited for
//! 100 ms once, then lines are lost and counted until it reads again.
//!
//! A line is Cilium's `ExportEvent`, byte for byte: a flow, a notification of the agent, a debug message or a loss. Of filters
//! only those by `event_type` select events that are no flows. Aggregated flows take about 1 KB for each combination of their
//! fields, at most 16,384 combinations: then the interval ends early.
//!
//! ```
//! use hubble_exporter::flow_logs;
//!
//! let file = "flowLogs: [{name: drops, filePath: /var/log/drops.log, includeFilters: [{verdict: [DROPPED]}]}]";
//! let specs = flow_logs(file)?;
//! assert_eq!(specs[0].limits.max_size, 10 << 20);
//! # Ok::<(), hubble_exporter::BadFile>(())
//! ```

mod aggregate;
mod cell;
mod clock;
mod config;
mod exporter;
mod file;
mod job;
mod metrics;
mod set;
mod spec;
mod stream;

pub use cell::cell;
pub use config::ExporterConfig;
pub use exporter::{Exporter, Moment};
pub use file::{Cleanup, Limits};
pub use set::{Changes, Exporters};
pub use spec::{BadFile, BadSpec, Spec, flow_logs};
