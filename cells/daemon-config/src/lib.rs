//! The configuration in force: what GET and PATCH /config answer and what is stored of it.
//!
//! **Owns** the run folder as a whole (one agent, `cilium.pid`), the table `runtime-options` (what can be changed while
//! the agent runs), `state/agent-runtime-config.json` and `state/viper-agent-config.yaml` with those of the two runs
//! before, and the options that only the CNI plugin acts on ([`CniConfig`]).
//! **Needs** the hive's settings, the node's row (addressing), the devices (MTU), the option `state-dir`.
//! **Gives** `Arc<Table<`[`RuntimeOption`](runtime_options::RuntimeOption)`>>`: watch it to act on `PATCH /config`, which waits
//! for each [`Follower`](runtime_options::Follower) of the hive.
//!
//! **Life**: [`instance()`] is the first cell of an agent: its hook takes the run folder or fails naming the agent that
//! has it; the kernel gives it up however the agent ends. [`cell()`] stores the configuration in its start hook.
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
//! `drift_checker_config_delta` until the next start; what is wrong changes nothing.
//!
//! **Differences from Cilium**: a second agent on the same folder is refused. `PATCH /config` answers in
//! tens of milliseconds: nothing is compiled. Options without effect in this agent are accepted and shown; the log
//! says so. `daemonConfigurationMap` has the settings that cells of this agent declare, under the original's names.
//! Values of `datapath-mode` and `ipam` that this agent cannot serve are refused at the start.

mod answer;
mod cell;
mod config;
mod error;
mod files;
mod follow;
mod instance;
mod names;
mod runtime;
mod spec;

pub use cell::{cell, instance};
pub use config::CniConfig;
pub use error::Error;
pub use follow::FollowConfig;
pub use instance::{Holder, Instance};
pub use runtime::RuntimeConfig;
