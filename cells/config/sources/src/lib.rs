//! The agent's configuration in cluster objects: ConfigMaps, CiliumNodeConfigs, annotations and labels of the node.
//!
//! **Owns** the table `cilium-configs` ([`ClusterConfig`]: an option in one object) and the options that name
//! the objects ([`SourcesConfig`]). **Needs** the hive's sources of cluster objects (`Arc<dyn k8s_types::Source>`);
//! without any the table is initialized and empty. **Provides** `Arc<Table<ClusterConfig>>` to
//! `daemon-config`, which compares it with the running configuration.
//!
//! **Life**: one job watches each object by its name. Rows are added and removed with the objects; an object that
//! cannot be read keeps its last good options, and is reported in health and once in the log.
//!
//! An option has a row for each object that sets it; the row with the lowest priority takes precedence: that of the
//! last object of `config-sources`, unless `config-sources-overrides` forbids overriding the first object's value of
//! the key.
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
//! [`build()`] does not run in an agent: it is the command `build-config` of an init container, which reads the same
//! objects once (CiliumNodeConfigs by the labels of the node) and writes the folder that the agent is started with. Its
//! keys `config-sources` and `config-sources-overrides` name the objects for the agent to follow.
//!
//! **Differences from Cilium**: malformed JSON in the options is refused at the start; Cilium logs an error and follows
//! nothing. One job follows all objects. `build-config` does not touch a folder that is already equal, and removes
//! deleted keys.

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
