//! The agent's metrics registry and its Prometheus endpoint.
//!
//! **Owns** the registry: names with the prefix `cilium_`, which families are exported (`--metrics +x -y`), the text
//! that is served on `--prometheus-serve-addr`; and the metrics of the process, of the framework and of tables.
//! **Needs** nothing; uses the hive's `Arc<Db>` if there is one. **Provides** `Arc<`[`Metrics`]`>`, in which cells
//! register their families under Cilium's names, and the commands `metrics`, `metrics/plot` and `metrics/html`, which
//! show the exported metrics and samples of the last two hours.
//!
//! ```
//! use std::sync::Arc;
//!
//! use metrics::Metrics;
//! use prometheus_client::metrics::counter::Counter;
//!
//! fn new_gc(metrics: Arc<Metrics>) {
//!     let deletions = Counter::<u64>::default();
//!     metrics.register("fqdn_gc_deletions_total", "Deleted names", deletions.clone());
//!     deletions.inc();
//! }
//!
//! let metrics = Arc::new(Metrics::default());
//! new_gc(metrics.clone());
//! assert!(metrics.text().ends_with("cilium_fqdn_gc_deletions_total 1\n"));
//! ```
//!
//! **Memory**: a family holds one value for each combination of labels, so labels must come from bounded sets. The last
//! 24 samples are kept, of at most 2,000 values.
//!
//! **Differences from Cilium**: floats are printed as `1.0` where Go prints `1`; the `go_` families are absent.

mod agent;
mod cell;
mod commands;
mod config;
mod controllers;
mod feature;
mod number;
mod plot;
mod process;
mod profile;
mod reconcilers;
mod registry;
mod sampled;
mod sampler;
mod samples;
mod selection;
mod server;
mod tables;
mod text;

pub use agent::{VERSION, platform};
pub use cell::cell;
pub use config::MetricsConfig;
pub use profile::MetricsProfile;
pub use registry::Metrics;
pub use selection::Selection;
