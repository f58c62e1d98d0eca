//! The agent's metrics registry and its Prometheus endpoint.
//!
//! **Owns** the registry: names with the prefix `cilium_`, which families are exported (`--metrics +x -y`), the text
//! that is served on `--prometheus-serve-addr`; and the metrics of the process, of the framework and of tables.
//! **Needs** nothing; the hive's `Arc<Db>` if there is one. **Provides** `Arc<`[`Metrics`]`>`, into which cells put their families by the names of Cilium, and
//! the commands `metrics`, `metrics/plot` and `metrics/html`, which show what is exported and samples of the last two hours.
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
//! **Memory**: a family holds one number for each combination of labels. Labels come from bounded sets only. Of at most 2,000 numbers
//! the last 24 samples are kept.
//!
//! **Differences from Cilium**: floats are printed as `1.0` where Go prints `1`; the `go_` families are absent.

mod agent;
mod cell;
mod commands;
mod config;
mod feature;
mod number;
mod plot;
mod process;
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
pub use registry::Metrics;
pub use selection::Selection;
