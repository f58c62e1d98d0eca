//! Source files by id: drop events and metrics name the place in Cilium's sources that counted a packet; our programs
//! use the file with the same function there (constants: source_file). Line numbers are arbitrary.

/// `bpf_host.c`.
pub const BPF_HOST: u8 = 1;
/// `bpf_lxc.c`.
pub const BPF_LXC: u8 = 2;
/// `bpf_overlay.c`.
pub const BPF_OVERLAY: u8 = 3;
/// `bpf_xdp.c`.
pub const BPF_XDP: u8 = 4;
/// `bpf_sock.c`.
pub const BPF_SOCK: u8 = 5;
/// `bpf_wireguard.c`.
pub const BPF_WIREGUARD: u8 = 7;
/// `drop.h`.
pub const DROP: u8 = 101;
/// `srv6.h`.
pub const SRV6: u8 = 102;
/// `icmp6.h`.
pub const ICMP6: u8 = 103;
/// `nodeport.h`.
pub const NODEPORT: u8 = 104;
/// `lb.h`.
pub const LB: u8 = 105;
/// `mcast.h`.
pub const MCAST: u8 = 106;
/// `ipv4.h`.
pub const IPV4: u8 = 107;
/// `conntrack.h`.
pub const CONNTRACK: u8 = 108;
/// `local_delivery.h`.
pub const LOCAL_DELIVERY: u8 = 109;
/// `trace.h`.
pub const TRACE: u8 = 110;
/// `encap.h`.
pub const ENCAP: u8 = 111;
/// `host_firewall.h`.
pub const HOST_FIREWALL: u8 = 112;
/// `nodeport_egress.h`.
pub const NODEPORT_EGRESS: u8 = 113;
/// `ipv6.h`.
pub const IPV6: u8 = 114;
/// `classifiers.h`.
pub const CLASSIFIERS: u8 = 115;

const NAMES: [(u8, &str); 21] = [
    (BPF_HOST, "bpf_host.c"),
    (BPF_LXC, "bpf_lxc.c"),
    (BPF_OVERLAY, "bpf_overlay.c"),
    (BPF_XDP, "bpf_xdp.c"),
    (BPF_SOCK, "bpf_sock.c"),
    (BPF_WIREGUARD, "bpf_wireguard.c"),
    (DROP, "drop.h"),
    (SRV6, "srv6.h"),
    (ICMP6, "icmp6.h"),
    (NODEPORT, "nodeport.h"),
    (LB, "lb.h"),
    (MCAST, "mcast.h"),
    (IPV4, "ipv4.h"),
    (CONNTRACK, "conntrack.h"),
    (LOCAL_DELIVERY, "local_delivery.h"),
    (TRACE, "trace.h"),
    (ENCAP, "encap.h"),
    (HOST_FIREWALL, "host_firewall.h"),
    (NODEPORT_EGRESS, "nodeport_egress.h"),
    (IPV6, "ipv6.h"),
    (CLASSIFIERS, "classifiers.h"),
];

/// Returns the name of a source file; `None` for an unknown id.
pub fn name(id: u8) -> Option<&'static str> {
    NAMES.iter().find(|(number, _)| *number == id).map(|(_, name)| *name)
}
