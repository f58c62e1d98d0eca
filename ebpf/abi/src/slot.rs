//! Slots of the private program array `cilium_calls` (50 entries).
//!
//! The slots are those of Cilium for programs with the same function (constants: tail_call_slot); they are
//! private to one load of the object, not an ABI.

/// Entries of the array.
pub const ENTRIES: u32 = 50;
/// IPv4 from the tunnel. Cilium's overlay object has the slots of pods here, which are taken in a shared array.
pub const IPV4_FROM_OVERLAY: u32 = 1;
/// IPv6 from the tunnel.
pub const IPV6_FROM_OVERLAY: u32 = 2;
/// Neighbour solicitations of pods.
pub const ICMP6_NS: u32 = 4;
/// IPv6 packets of pods with an exhausted hop limit.
pub const ICMP6_TIME_EXCEEDED: u32 = 5;
/// ARP requests of pods.
pub const ARP: u32 = 6;
/// IPv4 from a pod.
pub const IPV4_FROM_LXC: u32 = 7;
/// IPv4 that becomes IPv6.
pub const IPV46_RFC6052: u32 = 8;
/// IPv6 that becomes IPv4.
pub const IPV64_RFC6052: u32 = 9;
/// IPv6 from a pod.
pub const IPV6_FROM_LXC: u32 = 10;
/// IPv4 into the pod of the endpoint named in the upper half of `cb[1]`.
pub const IPV4_POLICY: u32 = 11;
/// IPv6 into a pod.
pub const IPV6_POLICY: u32 = 12;
/// IPv4 from the host.
pub const IPV4_FROM_HOST: u32 = 23;
/// IPv6 from the host.
pub const IPV6_FROM_HOST: u32 = 24;
/// IPv4 that a device of the node received, before delivery: replies to translated packets.
pub const IPV4_NAT_INGRESS: u32 = 36;
/// IPv6 that a device of the node received, before delivery.
pub const IPV6_NAT_INGRESS: u32 = 37;
/// IPv4 that leaves by a device of the node.
pub const IPV4_SNAT_FORWARD: u32 = 38;
/// IPv6 that leaves by a device of the node.
pub const IPV6_SNAT_FORWARD: u32 = 39;
/// IPv4 to the host, with the host firewall. In Cilium these four are slots of other programs, which are not built here.
pub const IPV4_HOST_INGRESS: u32 = 41;
/// IPv4 of the host, with the host firewall.
pub const IPV4_HOST_EGRESS: u32 = 34;
/// IPv6 to the host, with the host firewall.
pub const IPV6_HOST_INGRESS: u32 = 43;
/// IPv6 of the host, with the host firewall.
pub const IPV6_HOST_EGRESS: u32 = 35;
/// IPv4 from a device of the node.
pub const IPV4_FROM_NETDEV: u32 = 42;
/// IPv6 from a device of the node.
pub const IPV6_FROM_NETDEV: u32 = 44;
/// IPv4 packets of pods to a service without backends.
pub const IPV4_NO_SERVICE: u32 = 45;
/// IPv6 packets of pods to a service without backends.
pub const IPV6_NO_SERVICE: u32 = 46;
/// IPv4 packets of pods that policy denies.
pub const IPV4_POLICY_DENIED: u32 = 48;
/// IPv6 packets of pods that policy denies.
pub const IPV6_POLICY_DENIED: u32 = 49;
/// IPv4 from a pod, after service translation.
pub const IPV4_FROM_LXC_CONT: u32 = 26;
/// IPv6 from a pod, after service translation.
pub const IPV6_FROM_LXC_CONT: u32 = 27;
/// Replies of pods to IPv4 clients of services at devices.
pub const IPV4_NODEPORT_REVNAT: u32 = 17;
/// Replies of pods to IPv6 clients of services at devices.
pub const IPV6_NODEPORT_REVNAT: u32 = 19;
/// IPv4 that a device sends, with services at devices.
pub const IPV4_NODEPORT_NAT_FWD: u32 = 20;
/// IPv6 that a device sends, with services at devices.
pub const IPV6_NODEPORT_NAT_FWD: u32 = 25;
/// IPv4 packets of devices to a service without backends. Cilium has the slots of pods for them, which are taken in a
/// shared array; these are its slots of connection tracking.
pub const IPV4_NODEPORT_REFUSAL: u32 = 28;
/// IPv6 packets of devices to a service without backends.
pub const IPV6_NODEPORT_REFUSAL: u32 = 31;
/// IPv4 to backends of services on other nodes.
pub const IPV4_NODEPORT_NAT_EGRESS: u32 = 15;
/// IPv6 to backends of services on other nodes.
pub const IPV6_NODEPORT_NAT_EGRESS: u32 = 16;
/// IPv4 to backends of services on other nodes, which reply to clients themselves.
pub const IPV4_NODEPORT_DSR: u32 = 21;
/// IPv6 to backends of services on other nodes, which reply to clients themselves.
pub const IPV6_NODEPORT_DSR: u32 = 22;
/// IPv4 that may name a frontend of another node. A program of its own here, in Cilium's slot of connection tracking.
pub const IPV4_NODEPORT_DSR_RECEIVE: u32 = 30;
/// IPv6 that may name a frontend of another node.
pub const IPV6_NODEPORT_DSR_RECEIVE: u32 = 33;
/// IPv4 that is too long for its route with the name of the frontend.
pub const IPV4_NODEPORT_DSR_TOO_BIG: u32 = 29;
/// IPv6 that is too long for its route with the name of the frontend.
pub const IPV6_NODEPORT_DSR_TOO_BIG: u32 = 32;
/// IPv4 replies of backends on other nodes. Cilium has the slot of replies of pods for them, which is taken in a shared
/// array; this is its slot of clusters.
pub const IPV4_NODEPORT_REMOTE_REVNAT: u32 = 40;
/// IPv4 with an outer header that a device of the node received. In Cilium this is a part of the device's program.
pub const IPV4_IPIP: u32 = 13;
/// IPv6 with an outer header.
pub const IPV6_IPIP: u32 = 14;
/// IPv6 replies of backends on other nodes.
pub const IPV6_NODEPORT_REMOTE_REVNAT: u32 = 18;
