//! The CNI configuration file, by which the container runtime finds the plugin.
//!
//! **Owns** the file `write-cni-conf-when-ready`, and with `cni-exclusive` the names of all other configurations in its
//! folder. **Needs** the options of [`CniConfig`] and `debug`. **Provides** the parts `cni-file` and `cni-chaining` of
//! `GET /healthz`.
//!
//! **Life.** The start hook writes the file before the agent serves its API: from then on the runtime calls the plugin,
//! which waits for the agent. A job writes it again after each change of the folder, and retries failures, with
//! growing delays. The file stays when the agent stops; the chart removes it at uninstall.
//!
//! **Content.** The network `cilium` with this plugin alone; `portmap` or `flannel` with the plugins of these
//! names; with `cni-chaining-target` the network of that name from another file of the folder, in which this plugin is
//! inserted last; with `read-cni-conf` a file as it is. Written atomically, mode 0600, and only if something differs.
//!
//! ```
//! let text = cni_config::render(&cni_config::Network {
//!     chaining: cni_config::ChainingMode::None,
//!     debug: false,
//!     log_file: "/var/run/cilium/cilium-cni.log",
//! })?;
//! assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["plugins"][0]["type"], "cilium-cni");
//! # Ok::<(), cni_config::Error>(())
//! ```
//!
//! **Differences from Cilium.** A deleted file is written again without `cni-exclusive`, too. With the target `*` a
//! network that is lifted from a single `.conf` keeps its own name. A folder that changes all the time is visited once a
//! second.

mod cell;
mod chain;
mod config;
mod error;
mod folder;
mod template;

pub use cell::cell;
pub use config::{ChainingMode, CniConfig};
pub use error::Error;
pub use template::{Network, render};
