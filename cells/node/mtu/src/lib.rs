//! The MTU of pods and of routes to them, which follows the devices of the node.
//!
//! **Owns** the table `mtu`; the MTU of `cilium_host`, `cilium_net` and of pods' interfaces, and that of the default routes of
//! pods. **Needs** the tables `devices` and `endpoints`; [`MtuConfig`](tunnel::MtuConfig) and [`Tunnel`](tunnel::Tunnel); the
//! files of pods' network namespaces. **Provides** the table.
//!
//! **Life.** The table has the MTUs that the devices which face the network give, or the option `mtu`. When they change, and
//! at the start for pods of the previous run, the job `endpoint-mtu-updater` changes both sides of each pod's interface and
//! its default routes. The CNI plugin reads the MTUs from `GET /config`; a pod that was made while they changed is changed
//! like one that was there before. When the node has no such device any more, the last MTUs stay. Devices that packets of
//! pods do not fit into are named in health; pods have at least the [minimum](tunnel::Tunnel::mtu_bounds) all the same, as the
//! kernel would remove IPv6 from their interfaces.
//!
//! A pod without its network namespace has ended, and is left alone. Interfaces of other CNI plugins are theirs: those of
//! ours have the alternative name `cilium_cni:<name>` in the pod. To enter namespaces the agent needs `CAP_SYS_ADMIN`, which
//! it drops unless an option keeps it; without it pods are left as they are, both sides alike, and health names the cause: the
//! host answers their large packets by ICMP then.
//!
//! ```
//! use hive::prelude::*;
//!
//! let endpoints = statedb::table::<endpoints::Endpoint>();
//! let options = [config::<local_node::StateConfig>(), config::<maps::FamilyConfig>()];
//! hive::validate([statedb::cell(), devices::cell(), tunnel::cell(), bundle(options), endpoints, mtu::cell()]).unwrap();
//! ```
//!
//! **Differences from Cilium.** Namespaces are those of the endpoints, not all files of a folder. The host's side
//! never has a smaller MTU than the pod's: it drops larger packets without an ICMP message.

#![forbid(unsafe_code)]

mod cell;
mod error;
mod follow;
mod pod;
mod table;
mod update;

pub use cell::cell;
pub use error::Error;
pub use table::Mtu;
