//! Connections of clients outside the cluster to services, from the device to the backend.
//!
//! The connection of client and backend has an `OUT` entry with `node_port` and the service's id, which the program of
//! the device creates and the programs on the way back read. The entry is that of the packet after translation, so that
//! two services with the same backend do not share it. Its twin, the `IN` entry of the pod's own programs, has the flag
//! only: it says that there may be an `OUT` entry.

use super::*;
use crate::nat::Translate;
use crate::packet::quoted::Quoted;

/// Creates or refreshes the entry of a connection of a client to a backend, by a packet after its translation.
#[inline(always)]
pub(crate) fn admit<F: Family>(
    skb: Skb,
    flow: &Flow<F::Address>,
    rev_nat: u16,
    now: u32,
) -> Result<(), Drop> {
    let key = forward::<F>(flow, Direction::Egress);
    // SAFETY: null or a map entry, which outlives the program's run; fields are aligned integers.
    if let Some(entry) = unsafe { row::<F>(&key, flow.is_tcp()).as_mut() }
        && entry.flags & ct_flag::NODE_PORT != 0
        && entry.rev_nat_index == rev_nat
        && let Hit::Open { .. } = hit(entry, skb, flow, Direction::Egress, now)
    {
        return Ok(());
    }
    // A connection by the backend's own address on the same ports, which is known to the pod's programs.
    let twin = forward::<F>(flow, Direction::Ingress);
    // SAFETY: as above.
    if let Some(entry) = unsafe { row::<F>(&twin, flow.is_tcp()).as_mut() } {
        entry.flags |= ct_flag::NODE_PORT;
    }
    let mut entry = CtEntry {
        rev_nat_index: rev_nat,
        flags: ct_flag::NODE_PORT,
        src_sec_id: F::world(),
        ..CtEntry::default()
    };
    begin(&mut entry, skb, flow, Direction::Egress, now);
    insert::<F>(&key, &entry, flow.is_tcp()).map_err(|errno| full::<F>(skb, errno))
}

/// Returns the id, big-endian, of the service by which a device of this node has received a packet that enters a pod;
/// 0 for none.
#[inline(always)]
pub(crate) fn entered_by<F: Family>(skb: Skb, flow: &Flow<F::Address>) -> u16 {
    let key = forward::<F>(flow, Direction::Egress);
    skb.forget(u64::from(service_of::<F>(&key, flow.is_tcp()))) as u16
}

/// Returns the id, big-endian, of the service by which the receiver of a packet has reached its sender, and refreshes
/// the entry; 0 for none. Of an ICMP error the packet that it quotes decides.
#[inline(always)]
pub(crate) fn replied_by<F: Translate>(skb: Skb, flow: &Flow<F::Address>, now: u32) -> u16 {
    let id = if flow.is_related() {
        match Quoted::of::<F>(skb, flow) {
            Some(quoted) => {
                let (daddr, saddr) = (quoted.source, quoted.destination);
                let (dport, sport, nexthdr) = (quoted.dport, quoted.sport, quoted.protocol());
                let key = CtTuple { daddr, saddr, dport, sport, nexthdr, flags: tuple_flag::OUT };
                service_of::<F>(&key, quoted.is_tcp())
            }
            None => 0,
        }
    } else {
        let key = reversed::<F>(flow, Direction::Ingress);
        // SAFETY: null or a map entry, which outlives the program's run; fields are aligned integers.
        match unsafe { row::<F>(&key, flow.is_tcp()).as_mut() } {
            Some(entry) if entry.flags & ct_flag::NODE_PORT != 0 => {
                hit(entry, skb, flow, Direction::Ingress, now);
                entry.rev_nat_index
            }
            _ => 0,
        }
    };
    skb.forget(u64::from(id)) as u16
}

/// Returns the id of the backend that a client of a service was sent to, by a packet of the service to the client, as
/// an ICMP error quotes it; 0 for none.
#[inline(always)]
pub(crate) fn backend_of<F: Family>(quoted: &Quoted<F::Address>) -> u32 {
    let (daddr, saddr) = (quoted.source, quoted.destination);
    let (dport, sport, nexthdr) = (quoted.dport, quoted.sport, quoted.protocol());
    let key = CtTuple { daddr, saddr, dport, sport, nexthdr, flags: tuple_flag::SERVICE };
    // SAFETY: null or a map entry, which outlives the program's run.
    unsafe { row::<F>(&key, quoted.is_tcp()).as_ref() }.map_or(0, |entry| entry.backend_id as u32)
}

#[inline(always)]
fn service_of<F: Family>(key: &CtTuple<F::Address>, tcp: bool) -> u16 {
    // SAFETY: null or a map entry, which outlives the program's run.
    match unsafe { row::<F>(key, tcp).as_ref() } {
        Some(entry) if entry.flags & ct_flag::NODE_PORT != 0 => entry.rev_nat_index,
        _ => 0,
    }
}

/// True if a packet that a pod sends belongs to a connection that is not translated.
#[inline(always)]
pub(crate) fn is_direct<F: Family>(flow: &Flow<F::Address>) -> bool {
    !row::<F>(&forward::<F>(flow, Direction::Egress), flow.is_tcp()).is_null()
}

/// Returns the destination that a pod has sent the first packet of a connection to, by a reply that enters the pod.
#[inline(always)]
pub(crate) fn original_destination<F: Family>(flow: &Flow<F::Address>) -> Option<F::Address> {
    let key = reversed::<F>(flow, Direction::Ingress);
    // SAFETY: null or a map entry, which outlives the program's run.
    let entry = unsafe { row::<F>(&key, flow.is_tcp()).as_ref()? };
    Some(F::from_words(entry.nat_address()))
}
