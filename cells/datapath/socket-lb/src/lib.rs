//! Translates services when sockets connect or send, by programs of a cgroup: packets carry the backend's address from
//! the start, and nothing is translated a packet.
//!
//! **Owns** the pinned links under `cilium/socketlb/links/cgroup` of the bpf file system, one for each program, and the
//! rows that the programs write into `cilium_lb{4,6}_reverse_sk`. **Needs** `Arc<Maps>` and the options of services and
//! of [`loadbalancer_sockets`], a cgroup v2 at `cgroup-root`, root. **Provides** [`datapath_api::SocketLb`] to the loader:
//! which sockets are covered. The programs are in `ebpf/programs/src/sock`.
//!
//! **Life.** Enabled by `bpf-lb-sock` or `kube-proxy-replacement`; with `bpf-lb-sock-hostns-only` sockets of the host
//! alone. The start hook reports sockets as covered if the links of the previous run, or of Cilium, are there. A job
//! loads the programs and attaches them: a link is updated in place, so that each system call meets the old or the new
//! program. Without a cgroup, or if the kernel refuses a program, health names the remedy, the job tries again with
//! backoff, and packets of pods are translated at their interfaces meanwhile. Every `endpoint-bpf-prog-watchdog-interval` the
//! links are compared with what was attached: a pin that was removed, a link that was detached or runs another program, a
//! cgroup that was made again at the same path are logged and repaired, and counted in health. Live
//! options that are constants of the programs load them again when they change: `enable-no-service-endpoints-routable`
//! and, with `trace-sock`, `monitor-aggregation-interval`, `monitor-aggregation` and its value of `PATCH /config`, which
//! waits for them. Nothing is detached at stop. The next start with the option
//! off removes the links, programs that translate before those that translate back.
//!
//! **Differences from Cilium.** There are no programs for health probes (`cil_sock4_pre_bind`, `cil_sock6_pre_bind`):
//! links of Cilium under these names are removed. Cilium does not start without a cgroup. Socket load balancing that is
//! switched on for pods that run breaks their connections to services in Cilium and here alike: these were translated at
//! the interface, which ends once sockets are covered.
//!
//! **Events.** With `trace-sock` translations are reported to monitors: at aggregation `none` each address before and
//! after a translation, from `lowest` on those of connect and sendmsg, from `medium` on those of connect. With
//! aggregation a node emits one event an interval, as Cilium does. Without the option the programs have no code for it.

mod cell;
mod cgroup;
mod config;
mod error;
mod job;
mod links;
mod live;
mod programs;

pub use cell::cell;
pub use cgroup::mount;
pub use config::SocketLbConfig;
pub use error::Error;
