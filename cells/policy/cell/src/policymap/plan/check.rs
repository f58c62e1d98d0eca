//! Checks a plan exhaustively: every intermediate state, for every class of packets.

use std::collections::BTreeSet;

use datapath_api::PolicyWrite;

use crate::model::rows::{RowKey, Rows, Verdict, decide};

/// A violation by the writes of a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The writes do not end at the desired rows.
    #[error("the writes end at other rows than the desired ones")]
    Unfinished,
    /// A packet has neither the old nor the new verdict.
    #[error(transparent)]
    Verdict(Box<WrongVerdict>),
}

/// A packet that has neither the old nor the new verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "after {peer_row_after} writes, everyone's row read after {all_row_after}: peer {peer}, protocol and port {l4:#08x}, \
     egress {egress}: {found:?} is neither {before:?} nor {after:?}"
)]
pub struct WrongVerdict {
    /// Writes done when the row of the peer was read.
    pub peer_row_after: usize,
    /// Writes done when the row of all peers was read.
    pub all_row_after: usize,
    /// Direction of the packet.
    pub egress: bool,
    /// Identity of the peer.
    pub peer: u32,
    /// Protocol and port.
    pub l4: u32,
    /// The packet's verdict.
    pub found: Verdict,
    /// The verdict of the old rows.
    pub before: Verdict,
    /// The verdict of the new rows.
    pub after: Verdict,
}

/// Applies the writes one by one and checks every class of packets that they can affect, including for a program that
/// reads the peer's row, is delayed for any number of writes, and then reads the row of all peers. Returns the first
/// violation.
///
/// Quadratic in the number of writes, for each class of packets.
pub fn check(current: &Rows, desired: &Rows, writes: &[PolicyWrite]) -> Result<(), Violation> {
    let mut states = vec![current.clone()];
    for write in writes {
        let mut next = states[states.len() - 1].clone();
        match write {
            PolicyWrite::Set(key, entry) => next.insert(RowKey::from(*key), *entry),
            PolicyWrite::Delete(key) => next.remove(&RowKey::from(*key)),
        }
        states.push(next);
    }
    if states.last() != Some(desired) {
        return Err(Violation::Unfinished);
    }
    let keys = || states.iter().flat_map(|rows| rows.iter().map(|(key, _)| *key));
    for egress in [false, true] {
        let of = move |key: &RowKey| key.egress == egress;
        let named: BTreeSet<u32> = keys().filter(of).map(|key| key.peer).filter(|peer| *peer != 0).collect();
        let stranger = (1..).find(|peer| !named.contains(peer));
        let ends = keys().filter(of).flat_map(|key| <[u32; 2]>::from(key.span()));
        let points: BTreeSet<u32> = ends.chain([0]).filter(|l4| *l4 < 1 << 24).collect();
        for peer in named.iter().copied().chain(stranger) {
            for l4 in points.iter().copied() {
                packet(&states, egress, peer, l4)?;
            }
        }
    }
    Ok(())
}

fn packet(states: &[Rows], egress: bool, peer: u32, l4: u32) -> Result<(), Violation> {
    let rows: Vec<_> = states
        .iter()
        .map(|rows| [peer, 0].map(|peer| rows.longest(egress, peer, l4).map(|(_, entry)| entry)))
        .collect();
    let last = rows.len() - 1;
    let (before, after) = (decide(rows[0][0], rows[0][1]), decide(rows[last][0], rows[last][1]));
    for i in 0..=last {
        for j in i..=last {
            let found = decide(rows[i][0], rows[j][1]);
            if !found.same(before) && !found.same(after) {
                let (peer_row_after, all_row_after) = (i, j);
                let wrong =
                    WrongVerdict { peer_row_after, all_row_after, egress, peer, l4, found, before, after };
                return Err(Violation::Verdict(Box::new(wrong)));
            }
        }
    }
    Ok(())
}
