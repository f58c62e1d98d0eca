//! The datapath against the kernel: every configuration loads, every kind of packet gets its verdict
//! (BPF_PROG_TEST_RUN on unpinned maps; nothing of the machine is touched), and real ones arrive (namespaces).

mod auth;
mod configurations;
mod conntrack;
mod counts;
mod denied;
mod dsr;
mod dsr_geneve;
mod events;
mod firewall;
mod fragments;
mod from_pod;
mod host;
mod ipip;
mod ipip_termination;
mod kit;
mod l4;
mod maglev;
mod masquerade;
mod nat46x64;
mod neighbours;
mod nodeport;
mod nodeport_overlay;
mod nodeport_remote;
mod overlay;
mod packet;
mod policy;
mod protocols;
mod proxy;
mod service;
mod services;
mod traffic;
mod uplink;
mod vlan;
mod xdp;
mod xdp_tunnel;
