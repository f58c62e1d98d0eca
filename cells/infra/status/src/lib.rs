//! The agent's status: `GET /healthz` on the socket and for the kubelet.
//!
//! **Owns** the agent's status: `GET /healthz` of the REST API, and the probes' server on 127.0.0.1 and ::1
//! (`--agent-health-port`). **Needs** the [`StatusSource`](api::StatusSource)s of other cells and the hive's health
//! tree. **Provides** the [`Collector`].
//!
//! **Life**: the start hook collects the first status; then a job does so every `status-collector-interval`. A thread
//! of its own answers the probes and watches the agent's jobs: one that has work and makes no progress within its
//! deadline (`status-collector-failure-threshold` if it has none of its own), or a source that fails, makes the status
//! stale. The job is named in `stale` of the status, in the log, and in the table `health` below `watchdog`, until it
//! makes progress again. The thread waits for no cell and for no thread of the agent's runtime. Time during which the
//! process did not run does not count towards a deadline ([`Watchdog`](hive::job::Watchdog)).
//!
//! **The table** `health` has a row for each reporter of the hive's health tree, written with the report itself
//! ([`Report`]). Failures and ends of reporters are logged, 1,000 lines at most, in
//! `state/cilium-agent-health-history.log` across restarts. The commands `health`, `health/ok` and `health/history`
//! show both.
//!
//! **The verdict** (`cilium.state`) follows Cilium's rules in their order: stale data, kvstore, Kubernetes
//! (header `require-k8s-connectivity`), CNI configuration, else `Ok` with the version. The kubelet gets 200 for `Ok`
//! and `Disabled`, else 503, without a body. With `kube-proxy-replacement` and an address in
//! `kube-proxy-replacement-healthz-bind-address` load balancers get the same status there, disregarding the API server,
//! with kube-proxy's body (times in RFC 3339): `{"lastUpdated": "..","currentTime": ".."}`; and 503 while the node is
//! being deleted.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::SystemTime;
//!
//! use api::StatusSource;
//! use status::{Collector, Question};
//!
//! # fn main() -> anyhow::Result<()> {
//! let node = StatusSource::new("node", |status| {
//!     if let Some(cluster) = &mut status.cluster {
//!         cluster.self_name = "worker-1".to_owned();
//!     }
//! });
//! let hive = hive::Hive::builder(Vec::new()).build()?;
//! let collector = Collector::new(vec![node], hive.health().clone(), hive.jobs().clone());
//! let question = Question { brief: false, require_k8s: true, require_modules: true };
//! assert!(collector.status(question).is_none(), "before the first round");
//! collector.round(SystemTime::now());
//! let status = collector.status(question).unwrap();
//! assert_eq!(status.cilium.unwrap().state, "Ok");
//! assert_eq!(status.cluster.unwrap().self_name, "worker-1");
//! # Ok(())
//! # }
//! ```
//!
//! **Differences from Cilium**: on the socket a degraded module makes the state `Warning` and is named; it does not
//! fail probes, as a restart does not fix what the module retries already. Controllers are the hive's jobs. The status
//! on the socket is collected for each request; probes get that of the last round.

mod cell;
mod collector;
mod commands;
mod config;
mod error;
mod features;
mod history;
mod jobs;
mod kubelet;
mod mirror;
mod proxy;
mod report;
mod thread;
mod tree;
mod watch;

pub use cell::{cell, table};
pub use collector::{Collector, Question};
pub use config::HealthConfig;
pub use error::Error;
pub use report::{LEVEL, Report};
