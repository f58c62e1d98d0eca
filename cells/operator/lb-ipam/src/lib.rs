//! Addresses of load balancers: from pools (LB-IPAM), or those of nodes (Node IPAM).
//!
//! **Owns** `status.loadBalancer.ingress` and the condition `cilium.io/IPAMRequestSatisfied` of the services that are its own, and
//! the status of CiliumLoadBalancerIPPools. **Needs** the writer of cluster objects, the
//! [`Leadership`](operator_election::Leadership), the table of Nodes. **Provides** nothing.
//!
//! LB-IPAM (`enable-lb-ipam`) serves load balancers without a class (`default-lb-service-ipam=lbipam`), and those of
//! `io.cilium/bgp-control-plane` and `io.cilium/l2-announcer` when these features are on:
//!
//! - *restore*: nothing is given before all services and pools are known. Addresses in statuses are kept if a pool has them,
//!   also those that another client has written; of two services with one address, the older one keeps it. Others are removed.
//! - *give*: services that request certain addresses get them before others get any, the older ones first; services with one
//!   sharing key share an address as long as their ports differ. Freed addresses serve those that wait.
//! - *pools*: one that is disabled or overlaps an older one gives nothing new, and those that have addresses of it keep them. A
//!   pool that shrinks, goes or selects the service no more takes the address away, and another pool gives one.
//! - *asleep*: while there is no pool at all, statuses stay as they are.
//!
//! Node IPAM (`enable-node-ipam`) gives load balancers of the class `io.cilium/node` (those without a class with
//! `default-lb-service-ipam=nodeipam`) the external addresses of all nodes, internal ones if there are none.
//!
//! Writes are JSON patches of the object at the version that the decision was made on, and only while the lease holds. A service
//! that ceases to be one of LB-IPAM loses the addresses and the condition.
//!
//! **Differences from Cilium**: requested addresses that cannot be read or are of another family make the request unsatisfied.

#![forbid(unsafe_code)]

mod allocator;
mod cell;
mod config;
mod job;
mod node_addresses;
mod node_job;
mod objects;
mod pool;
mod range;
mod request;
mod status;

pub use cell::cell;
pub use config::{DefaultIpam, LbIpamConfig};
