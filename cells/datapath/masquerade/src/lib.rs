//! Which packets of pods get the node's address when they leave the cluster, and where: by the programs of the datapath
//! (`enable-bpf-masquerade`) or by iptables.
//!
//! **Owns** the options of masquerading; contradictions among them and with routing are refused at the start. **Needs**
//! the enabled families and `Arc<Tunnel>`. **Provides** [`MasqueradeConfig`] to `iptables` and `loader`, and
//! [`BpfMasquerading`]: the loader reports when its programs masquerade, and `iptables` removes its rules only then, so
//! that no packet leaves with the address of a pod in between. [`ip_masq_agent`] keeps the ranges of a file of
//! ip-masq-agent in `cilium_ipmasq_v4` and `cilium_ipmasq_v6`; programs are loaded once the file was read.
//!
//! **Differences from Cilium.** A device without an address drops packets of pods instead of sending them from 0.0.0.0.
//! Fragments of pings pass, and ICMP messages of the host that Cilium cannot translate. ICMPv6 errors other than "too
//! big" reach pods. Devices without Ethernet headers do not masquerade. Unknown keys of a file of ip-masq-agent are
//! reported; a file that is wrong at the first start leaves the maps empty, as in Cilium, and is named in health.
//!
//! **Changes of the option.** Connections that the programs masquerade end when masquerading goes back to iptables: the
//! kernel applies its rules to new connections only. The other way they stay, as long as another rule of the node tracks
//! connections, as those of kube-proxy do: without any the kernel stops to translate the connections that it knows.

#![forbid(unsafe_code)]

mod cell;
mod config;
mod error;
mod in_force;
mod ip_masq;

pub use cell::{cell, ip_masq_agent};
pub use config::MasqueradeConfig;
pub use error::Error;
pub use in_force::BpfMasquerading;

use error::check;
