//! Services, frontends and backends as tables, and the load balancer maps that are reconciled with them.
//!
//! **Owns** the tables `services`, `frontends` and `backends`, and the entries of the pinned maps
//! `cilium_lb{4,6}_{services_v2,backends_v3,reverse_nat,source_range,maglev}` and `cilium_lb_affinity_match`; the file
//! `service-ids.json` of the agent's state.
//! **Needs** the maps, the node's name and addresses.
//! **Provides** [`ServicesWriter`] to the sources, the tables to readers, `GET /service`, the commands `lb/*` on the
//! maps. Its own sources are the state file of option `lb-state-file`, and Services, EndpointSlices and Pods of the
//! cluster, if the hive has their tables.
//!
//! **Lifecycle.** Ids of the previous run are restored from the maps; new ones follow the position in
//! `service-ids.json`: ids that connections may still use are not assigned again. Nothing in the maps is changed before
//! all [registered](ServicesWriter::register) sources are complete (or `lb-init-wait-timeout` is over), and nothing is
//! pruned before they are. Nothing is removed at stop: the kernel continues to forward.
//!
//! ```
//! use loadbalancer::{Backend, FrontendParams, FrontendType, LbAddress, Protocol, Service, ServiceName, ServicesWriter, Source};
//!
//! fn announce(services: &ServicesWriter) -> Result<(), loadbalancer::Refused> {
//!     let name = ServiceName::new("shop", "web");
//!     let address = LbAddress::new([10, 96, 0, 7].into(), 80, Protocol::Tcp);
//!     let frontend =
//!         FrontendParams { address, kind: FrontendType::ClusterIP, port_name: "".into(), service_port: 80 };
//!     let backend = LbAddress::new([10, 244, 0, 9].into(), 8080, Protocol::Tcp);
//!
//!     let mut txn = services.write();
//!     txn.upsert_service(Service::new(name.clone(), Source::Api), vec![frontend])?;
//!     txn.set_backends(&name, Source::Api, vec![Backend::new(name.clone(), backend, Source::Api)]);
//!     txn.commit(); // the frontend's status is done when the kernel has it
//!     Ok(())
//! }
//! ```
//!
//! **Differences from Cilium.**
//! - Unused backends leave the maps last, not first, and a count shrinks before its slots change: no packet meets a
//!   slot without a backend.
//! - A service whose entries do not all fit is not written at all; its status names the map and the option.
//! - Desired entries are compared with those in the maps: a restart writes nothing, and entries that another program
//!   has changed are repaired.
//! - A backend of several services has the best state that it has for any of them, not the latest.
//! - Affinity matches are deleted with every backend that leaves a frontend, even if other frontends still use it.
//! - Ports of the node (NodePort with `kube-proxy-replacement`, HostPort) have all their entries in the maps. Devices
//!   serve HostPort only with `kube-proxy-replacement`, which health reports (`node-ports`). At an address of the node they are restored at once when a frontend that had the address is deleted.
//! - Of slots beyond the count of the previous run only those of active backends are restored as unhealthy; slices
//!   report terminating backends again.
//! - A refused service is retried once its addresses are released, by any source; not only when it changes itself.
//! - An invalid field of a cluster's object is reported in health (`passed-over`) and in the log, not only ignored.
//!   Services for nodes with certain labels are evaluated again when the node's labels change.
//! - A state file with an invalid field changes nothing, and the error names the field and its line; unknown fields are
//!   ignored as in Cilium, and reported. A port without protocol is TCP. If the file is invalid at the start, services
//!   of the previous run stay until it is valid.
//! - An address in two slices of a service is one backend with the names of both and the better state. A source range
//!   with surrounding blanks is parsed, as by the API server: ignoring it would open the service to all clients.

mod cell;
mod commands;
mod config;
mod lbmap;
mod metrics;
mod model;
mod option_values;
mod reconciler;
mod reflectors;
mod rest;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod writer;

pub use cell::{cell, control_plane};
pub use config::ServicesConfig;
pub use lbmap::dump;
pub use lbmap::kernel::KernelMaps;
pub use lbmap::maglev;
pub use lbmap::provider::LbMapsProvider;
pub use lbmap::rows;
pub use metrics::MapOperations;
pub use model::address::{BadAddress, LbAddress, Protocol, Scope};
pub use model::backend::{Backend, BackendKey, BackendState, DEFAULT_WEIGHT, Zone};
pub use model::error::Refused;
pub use model::families::Families;
pub use model::frontend::{Frontend, FrontendParams, FrontendType};
pub use model::name::ServiceName;
pub use model::service::{
    Algorithm, ForwardingMode, NatPolicy, ProxyRedirect, Service, TrafficDistribution, TrafficPolicy,
};
pub use model::source::Source;
pub use option_values::{
    Acceleration, DsrDispatch, LbMode, MaglevSeed, MaglevTableSize, NodePortRange, ServiceIpam,
    ServiceProxyName, StateFilePath, ZoneIds,
};
pub use reflectors::state_file::{StateFileError, parse as parse_state_file, read as read_state_file};
pub use writer::services_writer::{Initializers, Rules, ServicesWriter, State};
pub use writer::txn::ServicesTxn;
