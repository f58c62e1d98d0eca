//! Packets of clients at devices, and ICMP errors about replies to them.

use crate::conntrack;
use crate::endpoint;
use crate::endpoint::deliver;
use crate::host::at_host;
use crate::lb::row;
use crate::monitor::drop::Drop;
use crate::monitor::trace::Trace;
use crate::nat::{self, Socket};
use crate::nat46x64;
use crate::nodeport::frontend::is_reserved;
use crate::nodeport::{NodePort, dsr, frontend, refusal, remote};
use crate::packet::flow::{self, Flow, SCTP, TCP, UDP};
use crate::packet::quoted::Quoted;
use crate::packet::skb::Skb;
use datapath_abi::drop::{FIRST_LOGICAL_DATAGRAM_FRAGMENT_NOT_FOUND, IP_FRAGMENTATION_NOT_SUPPORTED};
use datapath_abi::dsr::dispatch;
use datapath_abi::trace::TO_PROXY;
use datapath_abi::{FAMILY_V4, LbService, file, identity, lb_flag, lb_flag2};

const FILE: u8 = file::NODEPORT;

/// The result for a packet of a client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// It is none of a frontend, or has no backend, and is unchanged.
    Other,
    /// It goes to a backend of this node.
    Local,
    /// It is marked for the proxy of its frontend, to which the stack leads it.
    Proxied,
}

/// Translates a packet that a device has received to a backend if its destination is a frontend. Any other packet is
/// left as it is. A packet to a backend of another node is passed to [`remote::send`] or [`dsr::send`]. The caller must
/// reload its packet pointers.
#[inline(always)]
pub(crate) fn request<F: NodePort>(skb: Skb) -> Result<Request, Drop> {
    // Too short: the caller decides, as without services.
    let Some(header) = F::header(skb) else { return Ok(Request::Other) };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    let ip = unsafe { &*header };
    // The programs of the pod count fragments.
    let mut flow = match flow::of::<F>(skb, ip, flow::UNCOUNTED) {
        Ok(flow) => flow,
        Err(why) => {
            unreadable::<F>(skb, F::destination(ip), why)?;
            return Ok(Request::Other);
        }
    };
    if flow.is_related() {
        if nat46x64::is_about_reply::<F>(skb, &flow) {
            return Err(nat46x64::request(skb));
        }
        return Ok(if error::<F>(skb, &mut flow)? { Request::Local } else { Request::Other });
    }
    if !matches!(flow.protocol(), TCP | UDP | SCTP) {
        return Ok(Request::Other);
    }
    let mut key = frontend::key::<F>(&flow);
    let Some(service) = frontend::find::<F>(&key, &flow)? else { return Ok(Request::Other) };
    if service.flags2 & lb_flag2::L7_LOAD_BALANCER != 0 {
        let port = service.backend_id as u16;
        deliver::to_proxy(skb, port);
        let dst_id = u32::from(u16::from_be(port));
        trace!(skb, Trace { dst_id, ..at_host(TO_PROXY, identity::UNKNOWN, identity::UNKNOWN) });
        return Ok(Request::Proxied);
    }
    if enabled!(nat46x64) && F::NUMBER == FAMILY_V4 && service.flags2 & lb_flag2::NAT_46X64 != 0 {
        return Err(nat46x64::request(skb));
    }
    let now = conntrack::now();
    let backend = frontend::backend::<F>(skb, &flow, &mut key, service, now)?;
    let Some(backend) = backend else {
        without_backend::<F>(skb, service)?;
        return Ok(Request::Other);
    };
    let host_port = service.flags & lb_flag::HOST_PORT != 0;
    let is_remote = endpoint::local::<F>(backend.address).is_none();
    if is_remote && host_port {
        return Err(drop_here!(INVALID_PACKET_DROPPED));
    }
    // The local proxy handles it, which finds the frontend's address in the packet.
    if !is_remote && service.flags2 & lb_flag2::LOOPBACK != 0 && !host_port {
        return Ok(Request::Other);
    }
    let is_remote = skb.forget(u64::from(is_remote));
    if is_remote != 0 {
        refusal::check_hops::<F>(skb, refusal::REQUEST)?;
    }
    if is_remote != 0 && enabled!(dsr) && dsr::is_by(dispatch::IPIP) && dsr::is_mode_of(service) {
        return Err(dsr::send::hand_over::<F>(skb, Socket { address: backend.address, port: 0 }));
    }
    frontend::check_port(&flow, backend.port)?;
    let rev_nat = service.rev_nat_index;
    let (to, client) = (Socket { address: backend.address, port: backend.port }, flow.source);
    if enabled!(nat46x64) && is_remote == 0 {
        let source = nat46x64::source_on_node::<F>(client);
        nat::to_destination::<F>(skb, &mut flow, to, source, true)?;
    } else {
        nat::to_destination::<F>(skb, &mut flow, to, client, false)?;
    }
    if is_remote != 0 && enabled!(dsr) && dsr::is_mode_of(service) {
        return Err(dsr::send::hand_over::<F>(skb, Socket { address: key.address, port: key.dport }));
    }
    conntrack::nodeport::admit::<F>(skb, &flow, rev_nat, now)?;
    if is_remote != 0 { Err(remote::hand_over::<F>(skb)) } else { Ok(Request::Local) }
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
    if is_remote == 0 && nat46x64::is_mapped::<F>(quoted.destination) {
        // Backends of this node know the client by another address.
        let client = nat46x64::source_on_node::<F>(quoted.destination);
        nat::set_quoted_address::<F>(skb, flow.offset(), F::DESTINATION_OFFSET, client)?;
    }
    nat::to_destination::<F>(skb, flow, Socket { port: 0, ..to }, source, false)?;
    if is_remote != 0 { Err(remote::hand_over::<F>(skb)) } else { Ok(true) }
}
