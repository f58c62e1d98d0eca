//! Terminates sockets that are connected to removed backends.
//!
//! A socket that was translated to a backend when it connected stays with it: a UDP client would send to a removed
//! backend as long as the socket lives. This cell aborts such sockets (`SOCK_DESTROY`); the owner gets `ECONNABORTED`
//! and reconnects.
//!
//! **Owns** no persistent state. **Needs** the tables of [`loadbalancer`], and the pinned maps
//! `cilium_lb{4,6}_reverse_sk`, which identify the sockets that were translated to a backend: all others stay.
//! **Provides** nothing to other cells.
//!
//! **Lifecycle.** Enabled by `bpf-lb-sock` or `kube-proxy-replacement`. Changes of backends within 50 ms are one
//! round. A backend counts as removed when it was deleted, is neither active nor terminating, or was found unhealthy.
//! UDP, and TCP with `lb-sock-terminate-all-protos`; in the agent's network namespace, and with
//! `bpf-lb-sock-terminate-pod-connections` in those of pods, which are files of the folder `netns` below `state-dir`.
//! Entering these takes `CAP_SYS_ADMIN`, which the agent then keeps. Once all sources of services are complete after a
//! start, all such sockets are checked: backends may have been removed while no agent ran. On a kernel without
//! `SOCK_DESTROY` (`CONFIG_INET_DIAG_DESTROY`) health reports it and the job ends.
//!
//! As long as the maps are empty, a round costs nothing.
//!
//! **Differences from Cilium.** A socket stays if the service whose address it was connected to still has the backend;
//! Cilium terminates it when any service loses the backend.

mod cell;
mod config;
mod diag;
mod follow;
mod namespaces;
mod reverse;
mod round;

pub use cell::{cell, termination};
pub use config::{SocketConfig, SocketMode};
pub use diag::{Diag, InetSocket, Transport};
pub use reverse::ReverseSockets;
