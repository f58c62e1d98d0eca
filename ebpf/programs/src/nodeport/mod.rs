//! Services for clients outside the cluster: NodePort, external and load balancer addresses, ports of pods on the node.
//!
//! A device's packet to a frontend is translated to a backend before anything else is decided about it ([`request`]).
//! Later programs, and the host's stack, see only the backend. Replies are translated where they leave: at the pod's
//! interface ([`reply::from_pod`]), or at the device if the backend uses the host's network ([`reply::at_device`]); they
//! leave by the host's routes for the frontend's address ([`fib`]). Packets to frontends without backends are refused
//! ([`refusal`]), and so are packets with an exhausted hop limit that would leave to another machine.
//!
//! Packets to a backend of another node leave with an address of this node ([`remote`]), so that its replies come back
//! here, or with the client's if the backend's node replies to it itself ([`dsr`]).
//!
//! Uses `conntrack`, `endpoint`, `lb`, `nat`, `overlay`, `packet` and `snat`.

pub(crate) mod dsr;
pub(crate) mod fib;
pub(crate) mod refusal;
pub(crate) mod remote;
pub(crate) mod reply;

use crate::conntrack;
use crate::endpoint;
use crate::lb::{self, Services, maglev, row};
use crate::maps::btf::Rows;
use crate::maps::{cilium_lb4_source_range, cilium_lb6_source_range};
use crate::monitor::drop::Drop;
use crate::nat::{self, Socket};
use crate::nodeport::fib::Routed;
use crate::packet::flow::{self, Flow, SCTP, TCP, UDP};
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::quoted::Quoted;
use crate::packet::skb::Skb;
use datapath_abi::drop::{FIRST_LOGICAL_DATAGRAM_FRAGMENT_NOT_FOUND, IP_FRAGMENTATION_NOT_SUPPORTED};
use datapath_abi::{LbService, LbServiceKey, LbSourceRange, file, lb_flag, lb_flag2, lb_scope, slot};

const FILE: u8 = file::NODEPORT;

/// The maps and programs of an IP family that only services at devices need.
pub(crate) trait NodePort: Services + Routed {
    /// The slot of the program that refuses packets to services without backends.
    const REFUSAL_SLOT: u32;
    /// The slot of the program that translates replies of pods.
    const POD_REPLY_SLOT: u32;
    /// The slot of the program that translates replies of the host, at devices.
    const DEVICE_REPLY_SLOT: u32;
    /// The slot of the program that sends packets to backends of other nodes.
    const REMOTE_SLOT: u32;
    /// The slot of the program that sends packets to backends of other nodes which reply to clients themselves.
    const DSR_SLOT: u32;
    /// The slot of the program that handles packets which may name a frontend of another node.
    const DSR_RECEIVE_SLOT: u32;

    fn source_ranges() -> Rows<LbSourceRange<Self::Address>, u8>;
}

impl NodePort for V4 {
    const REFUSAL_SLOT: u32 = slot::IPV4_NODEPORT_REFUSAL;
    const POD_REPLY_SLOT: u32 = slot::IPV4_NODEPORT_REVNAT;
    const DEVICE_REPLY_SLOT: u32 = slot::IPV4_NODEPORT_NAT_FWD;
    const REMOTE_SLOT: u32 = slot::IPV4_NODEPORT_NAT_EGRESS;
    const DSR_SLOT: u32 = slot::IPV4_NODEPORT_DSR;
    const DSR_RECEIVE_SLOT: u32 = slot::IPV4_NODEPORT_DSR_RECEIVE;

    #[inline(always)]
    fn source_ranges() -> Rows<LbSourceRange<u32>, u8> {
        cilium_lb4_source_range.rows()
    }
}

impl NodePort for V6 {
    const REFUSAL_SLOT: u32 = slot::IPV6_NODEPORT_REFUSAL;
    const POD_REPLY_SLOT: u32 = slot::IPV6_NODEPORT_REVNAT;
    const DEVICE_REPLY_SLOT: u32 = slot::IPV6_NODEPORT_NAT_FWD;
    const REMOTE_SLOT: u32 = slot::IPV6_NODEPORT_NAT_EGRESS;
    const DSR_SLOT: u32 = slot::IPV6_NODEPORT_DSR;
    const DSR_RECEIVE_SLOT: u32 = slot::IPV6_NODEPORT_DSR_RECEIVE;

    #[inline(always)]
    fn source_ranges() -> Rows<LbSourceRange<[u32; 4]>, u8> {
        cilium_lb6_source_range.rows()
    }
}

/// Translates a packet that a device has received to a backend if its destination is a frontend. Any other packet is
/// left as it is. Returns whether it was translated to a backend of this node; a packet to one of another node is passed
/// to [`remote::send`] or [`dsr::send`]. The caller must reload its packet pointers.
#[inline(always)]
pub(crate) fn request<F: NodePort>(skb: Skb) -> Result<bool, Drop> {
    // Too short: the caller decides, as without services.
    let Some(header) = F::header(skb) else { return Ok(false) };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    let ip = unsafe { &*header };
    // The programs of the pod count fragments.
    let mut flow = match flow::of::<F>(skb, ip, flow::UNCOUNTED) {
        Ok(flow) => flow,
        Err(why) => {
            unreadable::<F>(skb, F::destination(ip), why)?;
            return Ok(false);
        }
    };
    if flow.is_related() {
        return error::<F>(skb, &mut flow);
    }
    if !matches!(flow.protocol(), TCP | UDP | SCTP) {
        return Ok(false);
    }
    let mut key = LbServiceKey {
        address: flow.destination,
        dport: flow.dport,
        backend_slot: 0,
        proto: flow.protocol(),
        scope: lb_scope::EXTERNAL,
        pad: [0; 2],
    };
    let Some(service) = row(&F::services(), &key) else {
        if is_reserved::<F>(flow.destination) {
            return Err(drop_here!(SERVICE_BACKEND_NOT_FOUND));
        }
        return Ok(false);
    };
    check::<F>(service, &flow)?;
    // There is no proxy to send its packets to.
    if service.flags2 & lb_flag2::L7_LOAD_BALANCER != 0 {
        return Ok(false);
    }
    let now = conntrack::now();
    let sport = flow.sport;
    let backend = lb::backend::<F>(skb, &flow, &mut key, service, now, |key, service, client, now| {
        if maglev::is_algorithm_of(service, enabled!(maglev)) {
            maglev::choose::<F>(key, service, client, sport, now)
        } else {
            lb::choose::<F>(key, service, client, now)
        }
    })?;
    let Some(backend) = backend else {
        without_backend::<F>(skb, service)?;
        return Ok(false);
    };
    let host_port = service.flags & lb_flag::HOST_PORT != 0;
    let is_remote = endpoint::local::<F>(backend.address).is_none();
    if is_remote && host_port {
        return Err(drop_here!(INVALID_PACKET_DROPPED));
    }
    // The local proxy handles it, which finds the frontend's address in the packet.
    if !is_remote && service.flags2 & lb_flag2::LOOPBACK != 0 && !host_port {
        return Ok(false);
    }
    let is_remote = skb.forget(u64::from(is_remote));
    if is_remote != 0 {
        refusal::check_hops::<F>(skb, refusal::REQUEST)?;
    }
    // The checksum of SCTP is a CRC over its ports.
    if flow.protocol() == SCTP && backend.port != 0 && backend.port != flow.dport {
        return Err(drop_here!(ERROR_WHILE_CORRECTING_L4_CHECKSUM));
    }
    let rev_nat = service.rev_nat_index;
    let (to, source) = (Socket { address: backend.address, port: backend.port }, flow.source);
    nat::to_destination::<F>(skb, &mut flow, to, source, false)?;
    if is_remote != 0 && enabled!(dsr) && dsr::is_mode_of(service) {
        return Err(dsr::hand_over::<F>(skb, Socket { address: key.address, port: key.dport }));
    }
    conntrack::nodeport::admit::<F>(skb, &flow, rev_nat, now)?;
    if is_remote != 0 { Err(remote::hand_over::<F>(skb)) } else { Ok(true) }
}

/// Decides about a packet without ports. Fragments of datagrams to an address with services only must not reach the
/// stack, as the rest of the datagram does not. Any other packet is nothing to services.
#[inline(always)]
fn unreadable<F: NodePort>(skb: Skb, destination: F::Address, why: Drop) -> Result<(), Drop> {
    let why = why.any(skb);
    let fragment =
        matches!(why.reason(), FIRST_LOGICAL_DATAGRAM_FRAGMENT_NOT_FOUND | IP_FRAGMENTATION_NOT_SUPPORTED);
    if fragment && is_reserved::<F>(destination) { Err(why) } else { Ok(()) }
}

/// True for an address that only has services: a load balancer's or a ClusterIP.
#[inline(always)]
fn is_reserved<F: NodePort>(address: F::Address) -> bool {
    let (scope, pad) = (lb_scope::EXTERNAL, [0; 2]);
    let key = LbServiceKey { address, dport: 0, backend_slot: 0, proto: 0, scope, pad };
    row(&F::services(), &key).is_some()
}

/// Checks whether a frontend serves a client from outside.
#[inline(always)]
fn check<F: NodePort>(service: &LbService, flow: &Flow<F::Address>) -> Result<(), Drop> {
    if service.flags & lb_flag::SOURCE_RANGE != 0 {
        const STATIC_BITS: u32 = 32;
        let prefixlen = STATIC_BITS + F::BITS;
        let key =
            LbSourceRange { prefixlen, rev_nat_id: service.rev_nat_index, pad: 0, address: flow.source };
        let listed = row(&F::source_ranges(), &key).is_some();
        let denies = service.flags2 & lb_flag2::QUARANTINED_OR_DENY != 0;
        if listed == denies {
            return Err(drop_here!(DENIED_BY_LB_SRC_RANGE_CHECK));
        }
    }
    if service.flags & lb_flag::ROUTABLE == 0 {
        return Err(drop_here!(IS_A_CLUSTERIP));
    }
    if service.flags2 & lb_flag2::NAT_46X64 != 0 {
        return Err(drop_here!(SERVICE_BACKEND_NOT_FOUND));
    }
    Ok(())
}

/// Decides about a packet to a frontend without backends.
#[inline(always)]
fn without_backend<F: NodePort>(skb: Skb, service: &LbService) -> Result<(), Drop> {
    if enabled!(empty_services_drop) {
        if enabled!(empty_services_reject) {
            // The tail call does not return unless the program is missing.
            refusal::hand_over::<F>(skb, refusal::NO_BACKEND);
        }
        return Err(drop_here!(SERVICE_BACKEND_NOT_FOUND));
    }
    const OF_THE_NODE: u8 = lb_flag::EXTERNAL_IP | lb_flag::NODE_PORT | lb_flag::LOAD_BALANCER;
    let only_local = if service.flags & OF_THE_NODE != 0 {
        service.flags & lb_flag::EXT_LOCAL_SCOPE != 0
    } else {
        service.flags2 & lb_flag2::INT_LOCAL_SCOPE != 0
    };
    // Another node may have backends, but its packets do not come here.
    if only_local { Err(drop_here!(SERVICE_BACKEND_NOT_FOUND)) } else { Ok(()) }
}

/// Translates an ICMP error about a reply of a service to the backend that has sent the reply: its stack learns path
/// MTUs and closed ports from it. An error about any other packet is left as it is. Returns
/// whether it was translated.
#[inline(always)]
fn error<F: NodePort>(skb: Skb, flow: &mut Flow<F::Address>) -> Result<bool, Drop> {
    let Some(quoted) = Quoted::of::<F>(skb, flow) else { return Ok(false) };
    if !F::same(quoted.source, flow.destination) {
        return Ok(false);
    }
    let id = conntrack::nodeport::backend_of::<F>(&quoted);
    let Some(backend) = row(&F::backends(), &id) else { return Ok(false) };
    let is_remote = skb.forget(u64::from(endpoint::local::<F>(backend.address).is_none()));
    let to = Socket { address: backend.address, port: backend.port };
    let source = flow.source;
    nat::quoted_source::<F>(skb, flow.offset(), to)?;
    nat::to_destination::<F>(skb, flow, Socket { port: 0, ..to }, source, false)?;
    if is_remote != 0 { Err(remote::hand_over::<F>(skb)) } else { Ok(true) }
}
