//! The frontend that a packet is sent to, whether it serves the client, and its backend.

use crate::lb::{self, maglev, row};
use crate::monitor::drop::Drop;
use crate::nodeport::NodePort;
use crate::packet::flow::{Flow, SCTP};
use crate::packet::skb::Skb;
use datapath_abi::{LbBackend, LbService, LbServiceKey, LbSourceRange, file, lb_flag, lb_flag2, lb_scope};

const FILE: u8 = file::NODEPORT;

/// Returns the key of the frontend that a packet may be sent to.
#[inline(always)]
pub(crate) fn key<F: NodePort>(flow: &Flow<F::Address>) -> LbServiceKey<F::Address> {
    LbServiceKey {
        address: flow.destination,
        dport: flow.dport,
        backend_slot: 0,
        proto: flow.protocol(),
        scope: lb_scope::EXTERNAL,
        pad: [0; 2],
    }
}

/// Returns the service of a frontend, if it serves the sender of the packet; `None` if there is no such frontend.
#[inline(always)]
pub(crate) fn find<F: NodePort>(
    key: &LbServiceKey<F::Address>,
    flow: &Flow<F::Address>,
) -> Result<Option<&'static LbService>, Drop> {
    let Some(service) = row(&F::services(), key) else {
        if is_reserved::<F>(flow.destination) {
            return Err(drop_here!(SERVICE_BACKEND_NOT_FOUND));
        }
        return Ok(None);
    };
    check::<F>(service, flow)?;
    Ok(Some(service))
}

/// Returns the backend of a client's packet to a service; `None` if the service has none.
#[inline(always)]
pub(crate) fn backend<F: NodePort>(
    skb: Skb,
    flow: &Flow<F::Address>,
    key: &mut LbServiceKey<F::Address>,
    service: &LbService,
    now: u32,
) -> Result<Option<&'static LbBackend<F::Address>>, Drop> {
    let sport = flow.sport;
    lb::backend::<F>(skb, flow, key, service, now, |key, service, client, now| {
        if maglev::is_algorithm_of(service, enabled!(maglev)) {
            maglev::choose::<F>(key, service, client, sport, now)
        } else {
            lb::choose::<F>(key, service, client, now)
        }
    })
}

/// Checks whether a packet can get the port of a backend: the checksum of SCTP is a CRC over its ports.
#[inline(always)]
pub(crate) fn check_port<A>(flow: &Flow<A>, port: u16) -> Result<(), Drop> {
    if flow.protocol() == SCTP && port != 0 && port != flow.dport {
        return Err(drop_here!(ERROR_WHILE_CORRECTING_L4_CHECKSUM));
    }
    Ok(())
}

/// True for an address that only has services: a load balancer's or a ClusterIP.
#[inline(always)]
pub(crate) fn is_reserved<F: NodePort>(address: F::Address) -> bool {
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
    // Backends of the other family.
    if !enabled!(nat46x64) && service.flags2 & lb_flag2::NAT_46X64 != 0 {
        return Err(drop_here!(SERVICE_BACKEND_NOT_FOUND));
    }
    Ok(())
}
