//! Rules of iptables that packets of pods need on their way through the host.
//!
//! **Owns** the chains `CILIUM_*` in the tables of iptables and ip6tables, and the rules that lead to them; the sets
//! `cilium_node_set_v4` and `cilium_node_set_v6`, with table `ipsets`; table `no-track`. **Needs**
//! the tables `local-node`, `nodes`, `devices` and `routes`, `Arc<Tunnel>`, the programs of iptables, `CAP_NET_ADMIN` and `CAP_NET_RAW`.
//! **Provides** [`datapath_api::HostMark`], [`proxy_ports::RuleReader`], [`NoTrackRules`], and the part of `GET /healthz` about masquerading.
//!
//! **Life.** A job compares the kernel's rules with the desired ones ([`rules`] computes them, [`changes`] the
//! difference) after the start, when what they depend on changes, when nf_tables reports that another program has
//! changed them, and every half an hour. It writes what differs in one transaction a table, by a single process per
//! family; nothing else is touched, and a restart with equal rules writes nothing. Programs run on threads that may
//! block, are bounded in time, and are killed with the agent. Nothing waits for the rules: without the programs, or
//! with a kernel that refuses a rule, health has the reason, and all else works. Rules stay at the stop.
//!
//! With native routing, packets to nodes keep the pod's address: the sets have the addresses of all nodes, a reconciler
//! writes them from table `ipsets`, over nfnetlink.
//!
//! Ports of table `proxy-ports` have rules that lead packets to them; once they are in force, the job declares it.
//! Without these rules, such as in a kernel without `xt_TPROXY`, redirected traffic is denied, and all else works.
//! With `enable-bpf-tproxy` the programs give packets to sockets of proxies, and ports have no rules.
//!
//! Traffic in table `no-track` is not tracked, and accepted although it is part of no connection; other cells write rows
//! by [`NoTrackRules`].
//!
//! With `install-no-conntrack-iptables-rules` no IPv4 traffic of the range that the network routes is tracked; rules of
//! single pods are left out then.
//!
//! With `install-iptables-rules=false` chains of a previous run are removed; the rule that marks the host's packets is
//! then one of nftables (`loader`).
//!
//! ```
//! use iptables::rules::{Family, Inputs, chains};
//!
//! let inputs = Inputs {
//!     tunnel_port: Some(8472),
//!     socket_match: true,
//!     delivery: "cilium_host".to_owned(),
//!     no_feeder: vec![],
//!     masquerade: None,
//!     proxies: Default::default(),
//!     untracked_range: None,
//!     untracked: Default::default(),
//! };
//! let chains = chains(Family::V4, &inputs);
//! assert_eq!(chains[0].name, "CILIUM_INPUT");
//! ```
//!
//! **Differences from Cilium.** Cilium renames its chains, builds new ones rule by rule and deletes the old ones, about
//! 70 processes a time; here a start runs 7, a restart 3. Cilium repairs rules within 30 minutes, here within a second
//! with nf_tables. Both backends are searched for chains of a previous run. The program `ipset` is not needed.

mod backend;
mod cell;
pub mod changes;
mod config;
mod desired;
mod error;
pub mod ipset;
mod job;
mod no_conntrack;
mod no_track;
mod notifications;
mod pass;
mod program;
pub mod rules;
pub mod saved;

pub use cell::cell;
pub use config::IptablesConfig;
pub use error::Error;
pub use no_track::{NoTrack, NoTrackRules, Protocol, Traffic, Untracked};
