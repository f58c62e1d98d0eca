//! Ends sockets that are connected to backends that are gone.
//!
//! A socket that was translated to a backend when it connected stays with it: a UDP client would send to a backend that
//! is gone as long as the socket lives. This cell aborts such sockets (`SOCK_DESTROY`); the owner gets `ECONNABORTED`
//! and connects again.
//!
//! **Owns** nothing that lasts. **Needs** the tables of [`loadbalancer`], and the pinned maps
//! `cilium_lb{4,6}_reverse_sk`, by which it knows the sockets that were translated to a backend: all others stay.
//! **Provides** nothing to other cells.
//!
//! **Life.** On with `bpf-lb-sock` or `bpf-lb-sock-hostns-only`. What happens to backends within 50 ms is one round. A
//! backend is gone when it was deleted, is neither active nor terminating, or was found unhealthy. UDP, and TCP with
//! `lb-sock-terminate-all-protos`; in the agent's network namespace, and with `bpf-lb-sock-terminate-pod-connections`
//! in those of pods, which are files of the folder `netns` below `state-dir`. Entering these takes `CAP_SYS_ADMIN`,
//! which the agent keeps for it then. Once all sources of services are complete after a start, all such sockets are
//! checked: backends may have gone while no agent ran. On a kernel without `SOCK_DESTROY` (`CONFIG_INET_DIAG_DESTROY`)
//! health reports it and the job ends.
//!
//! **What is missing.** The programs of this agent do not translate at sockets yet: only the programs of another
//! agent on the node write the maps, which health reports (`socket-lb`). As long as they are empty, a round costs
//! nothing.
//!
//! **Differences from Cilium.** A socket stays if the service whose address it was connected to still has the backend;
//! Cilium ends it when any service loses the backend. `kube-proxy-replacement` does not switch socket load balancing on
//! yet.

mod cell;
mod config;
mod diag;
mod follow;
mod namespaces;
mod reverse;
mod round;

pub use cell::{cell, termination};
pub use config::SocketConfig;
pub use diag::{Diag, InetSocket, Transport};
pub use reverse::ReverseSockets;
