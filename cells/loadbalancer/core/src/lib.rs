//! Services, frontends and backends as tables, load balancer maps as their mirror.
//!
//! **Owns** the tables `services`, `frontends` and `backends`, and the rows of the pinned maps
//! `cilium_lb{4,6}_{services_v2,backends_v3,reverse_nat,source_range,maglev}` and `cilium_lb_affinity_match`; the file
//! `service-ids.json` of the agent's state.
//! **Needs** the maps, the node's name and addresses.
//! **Provides** [`ServicesWriter`] to the sources, the tables to readers, `GET /service`. Sources of its own are the state file of
//! option `lb-state-file`, and Services, EndpointSlices and Pods of the cluster, where the hive has their tables. The commands
//! `lb/*` look at the maps.
//!
//! **Life.** Ids of the previous run are read from the maps and stay; new ones follow the position in `service-ids.json`, so
//! that ids which connections may still name are not given to others. Nothing in the maps is changed before all sources
//! that were [registered](ServicesWriter::register) have said what they know (or `lb-init-wait-timeout` is over), and
//! nothing is deleted as stale before they have. Nothing is removed at stop: the kernel goes on.
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
//!     txn.commit(); // the frontend's status says when the kernel has it
//!     Ok(())
//! }
//! ```
//!
//! **Differences from Cilium.**
//! - Backends that are not used any more leave the maps last, not first, and a count shrinks before its slots change: no
//!   packet meets a slot whose backend is gone.
//! - A service whose rows do not all fit is not written at all; its status names the map and the option.
//! - Rows are compared with what the maps hold, so that a restart writes nothing, and rows that another program has changed
//!   are put right.
//! - A backend that several services use has the best state that one of them gives it, not the latest.
//! - Affinity matches go with every backend that leaves a frontend, also while others use it.
//! - Ports of the node (NodePort with `kube-proxy-replacement`, HostPort) have all their rows in the maps; the datapath does not serve them yet, which
//!   health says (`node-ports`). At addresses of the node they come back at once when a frontend that had the address goes.
//! - Of slots behind the count of the previous run only those of active backends count as unhealthy; the others say
//!   themselves that they are leaving.
//! - A service that was refused is taken once nothing stands against it any more, whoever did; not only with its own changes.
//! - A wrong field of a cluster's object is reported in health (`passed-over`) and in the log, not only left out. Services for
//!   nodes with certain labels are looked at again when the node's labels change.
//! - A state file with any wrong field changes nothing, and says which, in which line; fields that are not known are
//!   ignored as in Cilium, and reported. A port without protocol is TCP. As long as the file is wrong from the start,
//!   services of the previous run stay.
//! - An address in two slices of a service is one backend with the names of both and the better state. A source range with
//!   blanks around it counts, as for the API server: without it the service would be open to all.

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
    DsrDispatch, LbMode, MaglevSeed, MaglevTableSize, NodePortRange, ServiceIpam, ServiceProxyName,
    StateFilePath, ZoneIds,
};
pub use reflectors::state_file::{StateFileError, parse as parse_state_file, read as read_state_file};
pub use writer::services_writer::{Initializers, Rules, ServicesWriter, State};
pub use writer::txn::ServicesTxn;
