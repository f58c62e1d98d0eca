//! Envoy configurations of the cluster: CiliumEnvoyConfigs and CiliumClusterwideEnvoyConfigs.
//!
//! **Owns** the tables `ciliumenvoyconfigs` (valid objects, as this node sees them) and `envoy-resources` (what Envoy gets
//! of each, and of the services that they refer to), the ports of their listeners, and the redirects of services.
//! **Needs** option `enable-envoy-config`, the objects, [`envoy_proxy::Envoy`], `Arc<Proxies>` for ports, the writer of
//! services, the node's labels; with native routing the handles of routes and rules. **Provides** nothing: it acts on
//! Envoy, ports, services, and on table 2005 (`from_proxy`).
//!
//! **Life.** An object is parsed once for each change (`parse`, a pure function): JSON becomes messages of Envoy's API, of
//! any extension, names are qualified by the object, and Cilium's filters are added. A fault refuses the object as a
//! whole; its last valid version stays, health names object, path and remedy. A configuration for this node gets ports and
//! goes to Envoy in steps (`progress`): clusters, then listeners, then rules of iptables to their ports, and only then the
//! services are redirected. Removal takes the opposite order. A refusal of Envoy keeps what it has accepted before,
//! and is tried again; a port that it cannot bind is exchanged.
//!
//! **Services.** Of two configurations that redirect the same port of a service the older one takes effect; its end
//! restores the other. Backends of all services that configurations refer to are addresses of clusters
//! (`NAMESPACE/NAME`, `NAMESPACE/NAME:*`, `NAMESPACE/NAME:PORT`).
//!
//! **Packets of redirected services** are not translated: their frontends have the flag and the port of the listener in
//! the maps, as in Cilium, and the programs mark packets for that port. Sockets of the host connect to it.
//!
//! **Ingress and the Gateway API** are configurations that the operator makes. Listeners of redirected services have the
//! node's ingress addresses, from which Envoy connects to backends, and the policy of the ingress endpoint. When these
//! addresses come later, the listeners follow.
//!
//! **Secrets** of the namespace `envoy-secrets-namespace`, and of those of Ingress and of the Gateway API, are resources of SDS, which [`envoy_proxy`] follows. They are in no
//! table: nothing that shows tables shows them.
//!
//! **A restart** keeps ports. Services of listeners that had one are redirected at once, before the load balancer writes
//! them: an Envoy of its own pod has served on. Envoy gets no resources before all objects have been read, so that it
//! loses none.
//!
//! # Differences from Cilium
//! A bad resource refuses its object, not itself alone; a service of a listener that does not exist is such a fault.
//! Ports are only reserved for objects that are for this node. Cilium lets the last one of several configurations win.
//! Rules of field validation are left to Envoy, which refuses what breaks them.

#![forbid(unsafe_code)]

mod backends;
mod cell;
mod config;
mod controller;
mod error;
mod from_proxy;
mod model;
mod objects;
mod parse;
mod progress;
#[cfg(test)]
mod real_envoy;
mod redirects;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
mod world;

pub use cell::cell;
pub use config::ConfigsConfig;
pub use error::Invalid;
pub use model::{ClusterAddresses, EnvoyConfig, EnvoyResource};
