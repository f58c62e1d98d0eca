//! Answers cloud load balancers that ask how many backends of a service this node has.
//!
//! **Owns** the listeners on the ports `healthCheckNodePort` of services with `externalTrafficPolicy: Local`, and with
//! option `enable-health-check-loadbalancer-ip` the services `<name>:healthserver` that lead from load balancer
//! addresses to them. **Needs** the tables of [`loadbalancer`] and its writer, the node's name and addresses.
//! **Provides** nothing to other cells.
//!
//! **Life.** On with `kube-proxy-replacement` and `enable-health-check-nodeport`. One server a service, as long as it
//! has a frontend of type LoadBalancer or NodePort; changes are taken at most every 100 ms. A port that cannot be had
//! is tried again after 0.2 s to 10 s. Of several services with the same port the one that has it keeps it, else the
//! first by name gets it; health names the others (`ports`), and one of them has it when the owner goes.
//!
//! **The answer**, to any method and path: 200 if the node has backends, 503 if not, from the tables as they are at
//! that moment.
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
//! All servers together have at most 256 connections of 16 kB, and a request arrives within 10 s: a client that opens
//! many or sends slowly loses its own, oldest first.
//!
//! **Differences from Cilium.** The redirecting services follow the node's addresses as they change. A service without
//! load balancer address, or whose address another one has, is reported in health (`load-balancer-addresses`) and tried
//! again.

mod answer;
mod cell;
mod config;
mod control;
mod listener;
mod redirect;
mod wanted;

pub use cell::cell;
pub use config::{HealthServerConfig, ListenOn};
