//! Serves health checks of cloud load balancers: the number of a service's backends on this node.
//!
//! **Owns** the listeners on the ports `healthCheckNodePort` of services with `externalTrafficPolicy: Local`, and with
//! option `enable-health-check-loadbalancer-ip` the services `<name>:healthserver` that redirect load balancer
//! addresses to them. **Needs** the tables of [`loadbalancer`] and its writer, the node's name and addresses.
//! **Provides** nothing to other cells.
//!
//! **Lifecycle.** Enabled by `kube-proxy-replacement` and `enable-health-check-nodeport`. One server a service, as long
//! as it has a frontend of type LoadBalancer or NodePort; changes are processed at most every 100 ms. A port that is in
//! use is retried after 0.2 s to 10 s. Of several services with the same port the present owner keeps it, else the
//! first by name gets it; health names the others (`ports`), and one of them gets it when the owner goes.
//!
//! **The response**, to any method and path: 200 if the node has backends, 503 if not, from the tables at that moment.
//!
//! ```text
//! HTTP/1.1 200 OK
//! Content-Type: application/json
//! X-Content-Type-Options: nosniff
//! X-Load-Balancing-Endpoint-Weight: 2
//!
//! {"service":{"namespace":"shop","name":"web"},"localEndpoints":2}
//! ```
//!
//! All servers together have at most 256 connections of 16 kB, and a request must arrive within 10 s: at the limit the
//! oldest connection is closed.
//!
//! **Differences from Cilium.** The redirecting services follow changes of the node's addresses. A service without load
//! balancer address, or whose address another one owns, is reported in health (`load-balancer-addresses`) and retried.

mod answer;
mod cell;
mod config;
mod control;
mod listener;
mod redirect;
mod wanted;

pub use cell::cell;
pub use config::{HealthServerConfig, ListenOn};
