//! Services for pods: a packet of a pod is translated to a backend, and a reply back where it enters the pod.

use super::*;
use crate::endpoint;
use crate::lb::surrogate;
use crate::nat::{self, Socket};
use crate::packet::flow::{SCTP, TCP, UDP};
use crate::packet::skb::Context;
use datapath_abi::mark::service_state;
use datapath_abi::{lb_flag2, lb_scope};

/// The service that a packet was sent to. (Not an `Option`: the compiler leaves the fields of `None` uninitialized, and
/// the verifier rejects copies of them.)
#[derive(Clone, Copy)]
pub(crate) struct Service {
    /// Its id, big-endian, for the connection's entry; zero for none.
    pub(crate) rev_nat: u16,
    /// The pod is its own backend.
    pub(crate) loopback: bool,
    /// It was found by its port alone: its address is that of any node.
    pub(crate) surrogate: bool,
    /// The big-endian port of the proxy that has its packets, which are not translated; zero for none.
    pub(crate) proxy_port: u16,
}

impl Service {
    /// No service: the packet goes to its own destination.
    pub(crate) const NONE: Self = Self { rev_nat: 0, loopback: false, surrogate: false, proxy_port: 0 };

    /// Reads the service that the previous program has stored in the context.
    #[inline(always)]
    pub(crate) fn of(skb: Skb) -> Self {
        let state = skb.cb(service_state::SLOT);
        let number = (state >> service_state::REV_NAT_SHIFT) as u16;
        if state & service_state::PROXY != 0 {
            return Self { proxy_port: number, ..Self::NONE };
        }
        Self {
            rev_nat: number,
            loopback: state & service_state::LOOPBACK != 0,
            surrogate: state & service_state::SURROGATE != 0,
            proxy_port: 0,
        }
    }

    /// Stores the service in the context for the next program.
    #[inline(always)]
    pub(crate) fn hand_over(self, skb: Skb) {
        let loopback = if self.loopback { service_state::LOOPBACK } else { 0 };
        let surrogate = if self.surrogate { service_state::SURROGATE } else { 0 };
        let (number, proxy) = match self.proxy_port {
            0 => (self.rev_nat, 0),
            port => (port, service_state::PROXY),
        };
        let state = u32::from(number) << service_state::REV_NAT_SHIFT | loopback | surrogate | proxy;
        skb.set_cb(service_state::SLOT, state);
    }

    /// True if the packet was translated.
    #[inline(always)]
    pub(crate) fn is_some(self) -> bool {
        self.rev_nat != 0
    }
}

/// Translates a packet and its flow to a backend if its destination is a service. The caller must reload its packet
/// pointers if it was.
#[inline(always)]
pub(crate) fn translate<F: Services>(
    skb: Skb,
    flow: &mut Flow<F::Address>,
    now: u32,
) -> Result<Service, Drop> {
    // ICMP has no services: an echo, or an error about a reply, goes to its destination address.
    if !enabled!(per_packet_lb) || !matches!(flow.protocol(), TCP | UDP | SCTP) {
        return Ok(Service::NONE);
    }
    let mut key = LbServiceKey {
        address: flow.destination,
        dport: flow.dport,
        backend_slot: 0,
        proto: flow.protocol(),
        scope: lb_scope::EXTERNAL,
        pad: [0; 2],
    };
    let found = lookup::<F>(&mut key);
    let surrogate = enabled!(nodeport) && found.is_none();
    let found = if surrogate { surrogate::lookup::<F>(flow, &mut key) } else { found };
    let Some(service) = found else { return Ok(Service::NONE) };
    // Translated by another agent on this node.
    let delegated = service.flags2 & lb_flag2::LOOPBACK != 0 && service.flags & lb_flag::HOST_PORT == 0;
    if delegated {
        return Ok(Service::NONE);
    }
    if service.flags2 & lb_flag2::L7_LOAD_BALANCER != 0 {
        return Ok(Service { proxy_port: service.backend_id as u16, ..Service::NONE });
    }
    // Backends of the other family, which only packets at devices reach.
    if enabled!(nat46x64) && service.flags2 & lb_flag2::NAT_46X64 != 0 {
        return Err(drop_here!(SERVICE_BACKEND_NOT_FOUND));
    }
    let rev_nat = service.rev_nat_index;
    let sport = flow.sport;
    let backend = backend::<F>(skb, flow, &mut key, service, now, |key, service, client, now| {
        // Only an annotation gives a service of pods a table.
        if enabled!(algorithm_annotation) && maglev::is_algorithm_of(service, false) {
            maglev::choose::<F>(key, service, client, sport, now)
        } else {
            choose::<F>(key, service, client, now)
        }
    })?;
    let Some(backend) = backend else {
        if enabled!(empty_services_drop) {
            return Err(drop_here!(SERVICE_BACKEND_NOT_FOUND));
        }
        return Ok(Service::NONE);
    };
    let to = Socket { address: backend.address, port: backend.port };
    let loopback = F::same(to.address, flow.source);
    if loopback
        && service.flags2 & lb_flag2::LOCAL_REDIRECT != 0
        && skips::<F>(skb.raw(), &flow.destination, flow.dport.into()) != 0
    {
        return Ok(Service::NONE);
    }
    let source = if loopback { F::loopback() } else { flow.source };
    if surrogate {
        surrogate::hand_over::<F>(skb, flow.destination);
    }
    nat::to_destination::<F>(skb, flow, to, source, loopback)?;
    Ok(Service { rev_nat, loopback, surrogate, proxy_port: 0 })
}

/// Returns 1 if the pod that has sent a packet reaches a frontend itself, to which a policy redirects all others to that
/// pod (`skipRedirectFromBackend`). A function of its own: few services have such policies.
#[inline(never)]
fn skips<F: Services>(raw: *mut Context, frontend: &F::Address, port: u64) -> u64 {
    match endpoint::by_ifindex(Skb::from_raw(raw).ifindex()) {
        Some(me) if me.netns_cookie != 0 => {
            u64::from(F::skips(me.netns_cookie.into(), *frontend, port as u16))
        }
        _ => 0,
    }
}

/// Returns the entry of a service for clients inside of the cluster.
#[inline(always)]
pub(super) fn lookup<F: Services>(key: &mut LbServiceKey<F::Address>) -> Option<&'static LbService> {
    let service = row(&F::services(), key)?;
    if service.flags2 & lb_flag2::TWO_SCOPES == 0 {
        return Some(service);
    }
    key.scope = lb_scope::INTERNAL;
    row(&F::services(), key)
}

/// Translates a reply's source back to the service, at the client pod; the destination of a pod's reply to itself
/// becomes the pod's address again. In an ICMP error the quoted packet is the one that the pod has sent. The caller
/// must reload its packet pointers. Without an entry of the service the packet is unchanged.
#[inline(always)]
pub(crate) fn reply<F: Services>(
    skb: Skb,
    flow: &mut Flow<F::Address>,
    rev_nat: u16,
    loopback: bool,
) -> Result<(), Drop> {
    let Some(service) = row(&F::reverse_nat(), &rev_nat) else { return Ok(()) };
    let mut to = Socket { address: service.address, port: service.port };
    if enabled!(nodeport) && F::same(to.address, F::from_words([0; 4])) {
        let Some(original) = conntrack::nodeport::original_destination::<F>(flow) else { return Ok(()) };
        to.address = original;
    }
    let client = if loopback { flow.source } else { flow.destination };
    if flow.is_related() && flow.has_upper_header() {
        nat::quoted::<F>(skb, flow.offset(), to, client)?;
    }
    nat::to_source::<F>(skb, flow, to, client, loopback)
}
