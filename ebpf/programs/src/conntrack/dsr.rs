//! Connections of clients that came by another node without a translation of their source (DSR).
//!
//! The connection of client and backend has an `OUT` entry with `dsr_internal` and the frontend that the client has asked
//! for, which the device's program writes. Replies get the frontend's address by it.

use super::*;
use crate::nat::Socket;
use crate::packet::quoted::Quoted;
use crate::snat::{self, Snat};

/// Creates or refreshes the entry of a connection, by a packet that names its frontend.
#[inline(always)]
pub(crate) fn admit<F: Family>(
    skb: Skb,
    flow: &Flow<F::Address>,
    frontend: Socket<F::Address>,
    now: u32,
) -> Result<(), Drop> {
    let key = forward::<F>(flow, Direction::Egress);
    // SAFETY: null or a map entry, which outlives the program's run; fields are aligned integers.
    if let Some(entry) = unsafe { row::<F>(&key, flow.is_tcp()).as_mut() }
        && let Some(known) = frontend_in::<F>(entry)
        && known.port == frontend.port
        && F::same(known.address, frontend.address)
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
    let mut entry = CtEntry { flags: ct_flag::DSR_INTERNAL, src_sec_id: F::world(), ..CtEntry::default() };
    entry.set_nat(F::words(frontend.address), frontend.port);
    begin(&mut entry, skb, flow, Direction::Egress, now);
    insert::<F>(&key, &entry, flow.is_tcp()).map_err(|errno| full::<F>(skb, errno))
}

/// Refreshes the entry of a connection by a packet that does not name its frontend. Returns whether there is one.
#[inline(always)]
pub(crate) fn keep<F: Family>(skb: Skb, flow: &Flow<F::Address>, now: u32) -> bool {
    let key = forward::<F>(flow, Direction::Egress);
    // SAFETY: null or a map entry, which outlives the program's run; fields are aligned integers.
    let kept = match unsafe { row::<F>(&key, flow.is_tcp()).as_mut() } {
        Some(entry) if entry.flags & ct_flag::DSR_INTERNAL != 0 => {
            hit(entry, skb, flow, Direction::Egress, now);
            1
        }
        _ => 0,
    };
    skb.forget(kept) != 0
}

/// Ends the use of the frontend for a connection: its ports are those of a new one, by the backend's own address.
#[inline(always)]
pub(crate) fn end<F: Family>(flow: &Flow<F::Address>) {
    let key = forward::<F>(flow, Direction::Egress);
    // SAFETY: null or a map entry, which outlives the program's run; fields are aligned integers.
    if let Some(entry) = unsafe { row::<F>(&key, flow.is_tcp()).as_mut() }
        && entry.flags & ct_flag::DSR_INTERNAL != 0
    {
        entry.flags &= !ct_flag::DSR_INTERNAL;
    }
}

/// True for a packet that enters a pod if its client has asked for a frontend of another node.
#[inline(always)]
pub(crate) fn is_entered<F: Family>(flow: &Flow<F::Address>) -> bool {
    let key = forward::<F>(flow, Direction::Egress);
    // SAFETY: null or a map entry, which outlives the program's run.
    match unsafe { row::<F>(&key, flow.is_tcp()).as_ref() } {
        Some(entry) => entry.flags & ct_flag::DSR_INTERNAL != 0,
        None => false,
    }
}

/// Returns the frontend by which the receiver of a packet has reached its sender, and refreshes the entry. Of an ICMP
/// error the packet that it quotes decides.
#[inline(always)]
pub(crate) fn replied_by<F: Snat>(skb: Skb, flow: &Flow<F::Address>, now: u32) -> Option<Socket<F::Address>> {
    if flow.is_related() {
        let quoted = Quoted::of::<F>(skb, flow)?;
        let (daddr, saddr) = (quoted.source, quoted.destination);
        let (dport, sport, nexthdr) = (quoted.dport, quoted.sport, quoted.protocol());
        let key = CtTuple { daddr, saddr, dport, sport, nexthdr, flags: tuple_flag::OUT };
        // SAFETY: null or a map entry, which outlives the program's run.
        return frontend_in::<F>(unsafe { row::<F>(&key, quoted.is_tcp()).as_ref()? });
    }
    let key = reversed::<F>(flow, Direction::Ingress);
    // SAFETY: null or a map entry, which outlives the program's run; fields are aligned integers.
    let entry = unsafe { row::<F>(&key, flow.is_tcp()).as_mut()? };
    let frontend = frontend_in::<F>(entry)?;
    hit(entry, skb, flow, Direction::Ingress, now);
    if frontend.port == 0 { beside_entry::<F>(flow) } else { Some(frontend) }
}

/// Returns the frontend of a connection whose entry does not have it: older versions of Cilium wrote it into a row of the NAT
/// map, by the tuple of replies. Such connections outlive the change to this agent.
#[inline(always)]
fn beside_entry<F: Snat>(flow: &Flow<F::Address>) -> Option<Socket<F::Address>> {
    let frontend = F::row(&snat::key_of(flow, tuple_flag::OUT))?;
    Some(Socket { address: frontend.address, port: frontend.port })
}

#[inline(always)]
fn frontend_in<F: Family>(entry: &CtEntry) -> Option<Socket<F::Address>> {
    if entry.flags & ct_flag::DSR_INTERNAL == 0 {
        return None;
    }
    Some(Socket { address: F::from_words(entry.nat_address()), port: entry.nat_port })
}
