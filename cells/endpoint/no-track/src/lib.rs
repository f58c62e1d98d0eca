//! Traffic of pods that netfilter does not track, by annotations of the pods.
//!
//! **Owns** the rows of table `no-track`, by the handle [`NoTrackRules`](iptables::NoTrackRules). **Needs** the tables
//! `endpoints` and `k8s-pods`. **Provides** nothing.
//!
//! | annotation | of | value |
//! |---|---|---|
//! | `policy.cilium.io/no-track-port`, `io.cilium.no-track-port` | pods with an endpoint | a port: TCP and UDP, all addresses of the endpoint |
//! | `network.cilium.io/no-track-host-ports` | pods in the node's network | ports such as `443/tcp,53/udp`; TCP without a protocol |
//!
//! **Life.** A job follows both tables. Changes of annotations take effect at once, and end with the endpoint or the pod.
//! The first key that a pod has is taken. A wrong value is logged once, with the pod; the previous value stays in force.
//! Until both tables are complete, rules of the previous run stay in the kernel.
//!
//! ```
//! use hive::prelude::*;
//! use iptables::NoTrackRules;
//! use k8s_tables::{Row, core::Pod};
//!
//! let tables = [statedb::table::<endpoints::Endpoint>(), statedb::table::<Row<Pod>>()];
//! let rules = [statedb::table::<iptables::NoTrack>(), provide(NoTrackRules::of)];
//! hive::validate([statedb::cell(), bundle(tables), bundle(rules), no_track::cell()]).unwrap();
//! ```
//!
//! **Differences from Cilium.** Ports of the host are exempt regardless of `install-no-conntrack-iptables-rules`, and more
//! than 15 of a protocol are several rules; Cilium's reconciler fails with them.

#![forbid(unsafe_code)]

mod annotation;
mod cell;
mod follow;

pub use cell::cell;
