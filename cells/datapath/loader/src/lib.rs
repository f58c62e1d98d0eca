//! Loads the shared datapath programs and attaches endpoints and devices to them.
//!
//! **Owns** the map entries and pins of endpoints (`ep_config`, `ep_ids`, `ep_by_ifindex`, `ep_policies`,
//! `cilium_policy_v2_NNNNN`, `cilium_lxc`, `cilium_devices`), the devices `cilium_host` and `cilium_net` with the
//! router's addresses, the tunnel device `cilium_vxlan` or `cilium_geneve`, `cilium_ipip4` and `cilium_ipip6`, programs on interfaces, tcx and XDP links
//! under `cilium/devices`, kept programs under `cilium/programs`, the list of `/prefilter`. **Needs** `Arc<Maps>`, `Arc<Tunnel>`, the tables `local-node`, `devices` and `node-addresses`, perhaps
//! `runtime-options`, `Arc<Sysctl>`, root. **Provides** [`datapath_api::Datapath`] as `Arc<dyn Datapath>`.
//!
//! **Life.** The start hook restores the endpoints of the previous run and repairs pins after the settings entries
//! (`restore`). A job (`host_job`) waits for the router's address, then loads one set of programs, switches every pod's
//! interface to it (`Datapath::ready` resolves), adds the router's addresses, and attaches programs to devices; then it
//! follows the tables: a node-wide switch changed by `PATCH /config` causes another load, which replaces the programs
//! in use (tens of milliseconds, no packet lost), and the request waits for it. The programs stay pinned under
//! `cilium/programs`: a start with the same object, constants and maps takes them, and nothing is verified again. Other jobs keep policy maps ready
//! in their slots and guard interfaces of pods that were not announced; a rule of nftables (table `inet apiary`) drops
//! their packets until then. Another marks the host's packets, before programs are attached that rely on that mark,
//! until a rule of iptables does ([`datapath_api::HostMark`]). Every `endpoint-bpf-prog-watchdog-interval`, and when the
//! kernel reports a removal, everything is compared with the desired state and repaired (`watchdog`). Nothing is
//! detached at stop: forwarding continues.
//!
//! **Differences from Cilium.** One set of programs serves all endpoints: creating one loads nothing and waits for no
//! grace period. Pods' interfaces have tc filters, no pin under `cilium/endpoints`; an endpoint taken over with a
//! pinned tcx link keeps it. The program array is `cilium_calls_shared_<id>`, that of XDP
//! `ep_xdp_calls_<id>`, one for each load. Programs of the kernel
//! stay attached when an endpoint is deleted, and drop its packets. In Cilium, packets of an unannounced pod take the
//! host's routes; here they are dropped. BPF host routing is off with endpoint routes, and packets of pods bypass the
//! stack only by devices that deliver replies past it as well.

mod cell;
mod config;
mod endpoints;
mod guard;
mod host_job;
mod interfaces;
mod prefilter;
mod programs;
mod restore;
mod services;
mod status;
mod watchdog;

pub use cell::cell;
pub use config::{ConntrackConfig, LoaderConfig};
pub use endpoints::conntrack_purge::{ConntrackPurge, OwnAddresses};
pub use endpoints::kernel::{KernelDatapath, KernelOptions};
pub use endpoints::pod_interface::{POD_INTERFACE_PREFIX, is_pod_interface};
pub use endpoints::pool::{PolicyMap, PolicyPool, READY, READY_FIRST};
pub use endpoints::slots::{QUARANTINE, SHRINK_INTERVAL};
pub use guard::nftables::{RULE_TABLE, has_rule, remove_rule};
pub use interfaces::device_links;
pub use interfaces::host;
pub use interfaces::tunnel;
pub use prefilter::PrefilterConfig;
pub use programs::set::ProgramSet;
pub use restore::endpoints::restore;
pub use services::ServicesConfig;
pub use watchdog::compare::repair_pins;
pub use watchdog::repairs::{Kind as RepairKind, Repair};
