//! The plan of a policy map's change: from its current to the desired rows without a wrong verdict in between.
//!
//! A program looks up two rows, first that of the peer's identity, then that of all peers (identity 0). A packet's
//! verdict while writes are made must be that of the old rows or that of the new ones.
//!
//! **Rows of one identity.** If new rows are written longest first, and stale rows are deleted afterwards, shortest
//! first, the lookup of each packet changes from the old to the new row at exactly one write: a deletion never uncovers
//! an old row, and a row that is hidden by a new one does not reappear.
//!
//! **Both identities.** For a packet there are thus at most two changes: of the peer's row, and of the row of all
//! peers. A program that reads the peer's row, is delayed, and reads the row of all peers after many writes sees (old,
//! new) in any order of writes, so this pair must have a correct verdict. (new, old) is never seen if all rows of all
//! peers are written before the rows of single peers. Hence the rule: write the rows of all peers first; change the map
//! in place if (old, new) has the old or the new verdict for every packet, else swap it.

mod check;

use std::collections::BTreeSet;

use datapath_abi::PolicyEntry;
use datapath_api::PolicyWrite;

pub use check::{Violation, WrongVerdict, check};

use crate::model::rows::{RowKey, Rows, decide};

/// The maximum number of checked packets: beyond it, checking a plan in place costs more than a swap.
const MAX_CHECKED_PACKETS: usize = 20_000;

/// How to change a policy map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// By these writes in this order; none if the map has the desired rows.
    InPlace(Vec<PolicyWrite>),
    /// By another map.
    Swap,
}

/// Returns the plan from the current to the desired rows in a map that holds `capacity` rows.
///
/// ```
/// use policy::{Plan, RowKey, Rows, plan};
/// # use datapath_abi::PolicyEntry;
/// let rows = |peers: &[u32]| -> Rows {
///     peers.iter().map(|peer| (RowKey::new(false, *peer, 0, 0), PolicyEntry::allow(0))).collect()
/// };
/// assert!(matches!(plan(&rows(&[300]), &rows(&[301]), 16384), Plan::InPlace(writes) if writes.len() == 2));
/// // A reader that finds no row of 300 first, and no row of all peers later, would drop a packet that both plans allow.
/// assert_eq!(plan(&rows(&[0]), &rows(&[300]), 16384), Plan::Swap);
/// ```
pub fn plan(current: &Rows, desired: &Rows, capacity: usize) -> Plan {
    let set = |(key, entry): (&RowKey, &PolicyEntry)| (*key, *entry);
    let mut sets: Vec<(RowKey, PolicyEntry)> =
        desired.iter().filter(|(key, entry)| current.get(key) != Some(entry)).map(set).collect();
    let mut deletes: Vec<RowKey> =
        current.iter().map(|(key, _)| *key).filter(|key| desired.get(key).is_none()).collect();
    let fresh = sets.iter().filter(|(key, _)| current.get(key).is_none()).count();
    // Before Linux 6.13 a full LPM trie refuses even the update of an existing key.
    let spare_for_updates = usize::from(fresh < sets.len());
    if current.len() + fresh + spare_for_updates > capacity {
        return Plan::Swap;
    }
    let changed = || sets.iter().map(|(key, _)| key).chain(&deletes);
    if !torn_reads_are_correct(current, desired, changed) {
        return Plan::Swap;
    }
    let of_peer = |key: &RowKey| key.peer != 0;
    sets.sort_by_key(|(key, _)| (of_peer(key), std::cmp::Reverse(key.bits)));
    deletes.sort_by_key(|key| (of_peer(key), key.bits));
    let sets_of_all = sets.partition_point(|(key, _)| !of_peer(key));
    let deletes_of_all = deletes.partition_point(|key| !of_peer(key));
    let sets: Vec<PolicyWrite> =
        sets.into_iter().map(|(key, entry)| PolicyWrite::Set(key.into(), entry)).collect();
    let deletes: Vec<PolicyWrite> = deletes.into_iter().map(|key| PolicyWrite::Delete(key.into())).collect();
    let (sets, sets_of_peers) = sets.split_at(sets_of_all);
    let (deletes, deletes_of_peers) = deletes.split_at(deletes_of_all);
    Plan::InPlace([sets, deletes, sets_of_peers, deletes_of_peers].concat())
}

/// Whether the old row of a peer together with the new row of all peers has the old or the new verdict, for every
/// packet for which both rows change. Also false if there are more packets to check than the limit.
fn torn_reads_are_correct<'a, I: Iterator<Item = &'a RowKey>>(
    current: &Rows,
    desired: &Rows,
    changed: impl Fn() -> I,
) -> bool {
    let mut budget = MAX_CHECKED_PACKETS;
    for egress in [false, true] {
        let of = move |key: &&RowKey| key.egress == egress;
        let of_all: Vec<(u32, u32)> =
            changed().filter(of).filter(|key| key.peer == 0).map(RowKey::span).collect();
        if of_all.is_empty() {
            continue;
        }
        let edges_of_all = edges(current, desired, egress, 0);
        let peers: BTreeSet<u32> =
            changed().filter(of).map(|key| key.peer).filter(|peer| *peer != 0).collect();
        for peer in peers {
            let points = edges_of_all.iter().copied().chain(edges(current, desired, egress, peer));
            for l4 in points {
                if !of_all.iter().any(|(first, after)| (*first..*after).contains(&l4)) {
                    continue;
                }
                let Some(left) = budget.checked_sub(1) else { return false };
                budget = left;
                let row = |rows: &Rows, peer| rows.longest(egress, peer, l4).map(|(_, entry)| entry);
                let (old, new) = (row(current, peer), row(desired, peer));
                let (old_all, new_all) = (row(current, 0), row(desired, 0));
                if old == new || old_all == new_all {
                    continue;
                }
                let torn = decide(old, new_all);
                if !torn.same(decide(old, old_all)) && !torn.same(decide(new, new_all)) {
                    return false;
                }
            }
        }
    }
    true
}

/// Returns the boundaries of protocols and ports between which a peer's rows have one verdict.
fn edges(current: &Rows, desired: &Rows, egress: bool, peer: u32) -> BTreeSet<u32> {
    let of_peer = |rows: &Rows| rows.spans(egress, peer).collect::<Vec<_>>();
    let spans = of_peer(current).into_iter().chain(of_peer(desired));
    spans.flat_map(|(first, after)| [first, after]).chain([0]).filter(|l4| *l4 < 1 << 24).collect()
}

#[cfg(test)]
mod tests;
