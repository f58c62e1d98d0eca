//! The configuration in force: the answers of GET and PATCH /config, and its files.
//!
//! **Owns** the run folder as a whole (one agent, `cilium.pid`), the table `runtime-options` (what can be changed while
//! the agent runs), the table `configuration` (each option as each source has it, and the outcome: [`ConfigRow`];
//! options that are not in force also at `GET /apiary/drift`), `state/agent-runtime-config.json` and
//! `state/viper-agent-config.yaml` with those of the two runs before, and the options that only the CNI plugin uses
//! **Needs** the hive's settings, the node's row (addressing), the devices (MTU), the option `state-dir`.
//! **Provides** `Arc<Table<`[`RuntimeOption`](runtime_options::RuntimeOption)`>>`: watch it to act on `PATCH /config`, which waits
//! for each [`Follower`](runtime_options::Follower) of the hive.
//!
//! **Life**: [`instance()`] is the first cell of an agent: its hook takes the run folder or fails naming the agent that
//! has it; the kernel releases it however the agent ends. [`cell()`] stores the configuration in its start hook.
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
//! The configuration file or folder is followed: options that are live change at once, others are named in log, health and
//! `drift_checker_config_delta` until the next start; what is wrong changes nothing. The live ones:
//!
//! | options | a change |
//! |---|---|
//! | `debug`, `log-opt` | changes the log from the next line on |
//! | `metrics` | shows or hides families; what was counted stays |
//! | `enable-policy`, `policy-audit-mode` | as by `PATCH /config` |
//! | `bpf-events-drop-enabled`, `bpf-events-policy-verdict-enabled`, `bpf-events-trace-enabled`, `monitor-aggregation`, `monitor-aggregation-flags`, `monitor-aggregation-interval`, `trace-payloadlen`, `policy-accounting`, `bpf-conntrack-accounting` | loads the programs again |
//! | `bpf-ct-timeout-regular-any`, `bpf-ct-timeout-regular-tcp`, `bpf-ct-timeout-regular-tcp-fin`, `bpf-ct-timeout-regular-tcp-syn`, `bpf-ct-timeout-service-any`, `bpf-ct-timeout-service-tcp`, `bpf-ct-timeout-service-tcp-grace` | loads the programs again; a connection's next packet counts by them |
//! | `allow-icmp-frag-needed`, `enable-extended-ip-protocols`, `enable-sctp`, `enable-no-service-endpoints-routable`, `service-no-backend-response` | loads the programs again |
//! | `bpf-policy-map-full-reconciliation-interval`, `conntrack-gc-interval`, `conntrack-gc-max-interval`, `endpoint-bpf-prog-watchdog-interval`, `endpoint-gc-interval` | is counted from the last round |
//! | `bpf-policy-map-pressure-metrics-threshold` | counts when metrics are read next |
//!
//! Options of cluster objects (table `cilium-configs` of [`config_sources`]) override files and are overridden by the
//! environment, once `config-sources` names the objects, which `build-config` does; without it, or with
//! `apply-dynamic-config=false`, they are only reported. Every option whose value there is another one than the
//! running counts in `drift_checker_config_delta`, also one that a flag overrides, or that this agent does not know and no
//! file has.
//!
//! **Differences from Cilium**: Cilium only reports drift, and brings nothing into force before the next start. It
//! compares texts, this agent values: `60s` is `1m`. A second agent on the same folder is refused. `PATCH /config` answers in
//! tens of milliseconds: nothing is compiled. Options without effect in this agent are accepted and shown; the log
//! has a line of it. `daemonConfigurationMap` has Cilium's members, also of options that no cell of this agent declares.
//! Values of `datapath-mode` and `ipam` that this agent cannot serve are refused at the start.

mod answer;
mod cell;
mod cluster;
mod config;
mod error;
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
