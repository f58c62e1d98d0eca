//! The configuration in force: `GET` and `PATCH /config`, and its files.
//!
//! **Owns** the run folder as a whole (one agent, `cilium.pid`), the table `runtime-options` (what can be changed while
//! the agent runs), the table `configuration` (each option as each source has it, and the outcome: [`ConfigRow`];
//! options that are not in force also at `GET /apiary/drift`), `state/agent-runtime-config.json` and
//! `state/viper-agent-config.yaml` with those of the two previous runs, and the options that only the CNI plugin uses.
//! **Needs** the hive's settings, the node's row (addressing), the devices (MTU), the option `state-dir`.
//! **Provides** `Arc<Table<`[`RuntimeOption`](runtime_options::RuntimeOption)`>>`: watch it to act on `PATCH /config`, which waits
//! for each [`Follower`](runtime_options::Follower) of the hive.
//!
//! **Life**: [`instance()`] is the first cell of an agent: its hook locks the run folder, or fails with the pid of the
//! agent that has it; the kernel releases the lock, also after a crash. [`cell()`] stores the configuration in its
//! start hook.
//!
//! ```
//! use daemon_config::Instance;
//!
//! let folder = tempfile::tempdir()?;
//! let first = Instance::take(folder.path())?;
//! assert!(Instance::take(folder.path()).is_err(), "one agent a folder");
//! drop(first);
//! Instance::take(folder.path())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The configuration file or folder is followed: live options change at once, others are reported in log, health and
//! `drift_checker_config_delta` until the next start; an invalid configuration changes nothing. The live options:
//!
//! | options | effect of a change |
//! |---|---|
//! | `debug`, `log-opt` | changes the log from the next line on |
//! | `metrics` | exports or hides families; counters keep their values |
//! | `enable-policy`, `policy-audit-mode` | the same as by `PATCH /config` |
//! | `bpf-events-drop-enabled`, `bpf-events-policy-verdict-enabled`, `bpf-events-trace-enabled`, `monitor-aggregation`, `monitor-aggregation-flags`, `monitor-aggregation-interval`, `trace-payloadlen`, `policy-accounting`, `bpf-conntrack-accounting` | reloads the programs |
//! | `bpf-ct-timeout-regular-any`, `bpf-ct-timeout-regular-tcp`, `bpf-ct-timeout-regular-tcp-fin`, `bpf-ct-timeout-regular-tcp-syn`, `bpf-ct-timeout-service-any`, `bpf-ct-timeout-service-tcp`, `bpf-ct-timeout-service-tcp-grace` | reloads the programs; applies to a connection from its next packet on |
//! | `allow-icmp-frag-needed`, `enable-extended-ip-protocols`, `enable-sctp`, `enable-no-service-endpoints-routable`, `service-no-backend-response` | reloads the programs |
//! | `bpf-policy-map-full-reconciliation-interval`, `conntrack-gc-interval`, `conntrack-gc-max-interval`, `endpoint-bpf-prog-watchdog-interval`, `endpoint-gc-interval` | applies to the interval since the last round |
//! | `bpf-policy-map-pressure-metrics-threshold` | applies to the next scrape |
//!
//! Options in cluster objects (table `cilium-configs` of [`config_sources`]) take precedence over files, and the
//! environment over them, if `config-sources` names the objects, which `build-config` does; without it, or with
//! `apply-dynamic-config=false`, differences are only reported. Every option with a value that differs from the running
//! one counts in `drift_checker_config_delta`, also if a flag overrides it, or if it is unknown to this agent and set
//! in no file.
//!
//! **Differences from Cilium**: Cilium only reports drift; changes take effect at the next start. It compares texts,
//! this agent compares values: `60s` equals `1m`. A second agent on the same folder is refused. `PATCH /config`
//! responds within tens of milliseconds, since nothing is compiled. Options without effect in this agent are accepted,
//! returned, and logged. `daemonConfigurationMap` has Cilium's members, also for options that no cell of this agent
//! declares. Values of `datapath-mode` that this agent does not support are refused at the start.

mod answer;
mod cell;
mod cluster;
mod config;
mod error;
mod features;
mod files;
mod follow;
mod instance;
mod names;
mod runtime;
mod spec;
mod table;

pub use cell::{cell, instance};
pub use config::CniConfig;
pub use error::Error;
pub use follow::FollowConfig;
pub use instance::{Holder, Instance};
pub use runtime::RuntimeConfig;
pub use table::ConfigRow;
