//! The agent's configuration as cluster objects have it: ConfigMaps, CiliumNodeConfigs, annotations of the node.
//!
//! **Owns** the table `cilium-configs` ([`ClusterConfig`]: an option as one object has it) and the options that name
//! the objects ([`SourcesConfig`]). **Needs** the hive's sources of cluster objects (`Arc<dyn k8s_types::Source>`);
//! without any the table is complete and empty. **Provides** `Arc<Table<ClusterConfig>>` to
//! `daemon-config`, which compares it with the running configuration.
//!
//! **Life**: one job watches each object by its name. The objects' keys come and go with them; one that cannot be read
//! keeps its last good options, reported in health and once in the log.
//!
//! Each option has a row for each object that has it, and the row with the lowest priority counts: the last object of
//! `config-sources`, unless `config-sources-overrides` forbids that the first one's value of the key is changed.
//!
//! ```
//! use config_sources::{ConfigSource, Overrides};
//!
//! let sources = ConfigSource::parse_list(
//!     r#"[{"kind":"config-map","namespace":"kube-system","name":"cilium-config"},{"kind":"node","name":"n1"}]"#,
//! )?;
//! assert_eq!(sources[1].to_string(), "Node n1");
//! let overrides = Overrides::parse(r#"{"denyConfigKeys":["mtu"]}"#)?;
//! let of_map_and_node = |key| [0, 1].map(|index| overrides.priority(key, index, 2));
//! assert_eq!((of_map_and_node("debug"), of_map_and_node("mtu")), ([2, 1], [2, 3]));
//! # Ok::<(), config_sources::Error>(())
//! ```
//!
//! [`build()`] is the other half, and no part of an agent: the command `build-config` of an init container, which reads the
//! same objects once, CiliumNodeConfigs by the labels of the node, and writes the folder that the agent is started with. The
//! keys `config-sources` and `config-sources-overrides` among them name the objects for the agent to follow.
//!
//! **Differences from Cilium**: options that are no JSON of the right form are refused at the start, where Cilium
//! logs an error and follows nothing. One job follows all objects. `build-config` leaves a folder alone
//! that is equal already, and removes keys that are gone.

mod build;
mod cell;
mod config;
mod error;
mod folder;
mod object;
mod objects;
mod resolve;
mod row;
mod spec;

pub use build::{BuildConfig, Surroundings, build};
pub use cell::cell;
pub use config::SourcesConfig;
pub use error::Error;
pub use row::ClusterConfig;
pub use spec::{ConfigSource, Overrides, SourceKind};
