//! Rows of a policy map: their order, and the lookup of a packet.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;

use datapath_abi::{PolicyEntry, PolicyKey, policy_flag};

/// Bits of protocol and port together.
const L4_BITS: u8 = 24;
/// A precedence that no row can exceed: a deny of the highest priority, which ends the lookup.
const HIGHEST: u32 = u32::MAX;

/// The key of a row, ordered so that rows of one direction and peer are adjacent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey {
    /// Whether it is for traffic from the endpoint.
    pub egress: bool,
    /// The identity of the other side, 0 for all peers.
    pub peer: u32,
    /// The prefix length on protocol and port: 0, 8 or 9 to 24 bits.
    pub bits: u8,
    /// Protocol and port, 24 bits, zero beyond the prefix.
    pub l4: u32,
}

impl RowKey {
    /// Returns a key with the bits beyond its prefix cleared.
    pub fn new(egress: bool, peer: u32, bits: u8, l4: u32) -> RowKey {
        let bits = bits.min(L4_BITS);
        RowKey { egress, peer, bits, l4: masked(l4, bits) }
    }

    /// Returns the protocol, 0 for all.
    pub fn protocol(&self) -> u8 {
        (self.l4 >> 16) as u8
    }

    /// Returns the first and last port; all of them if the key has none.
    pub fn ports(&self) -> (u16, u16) {
        let span = (1u32 << (L4_BITS - self.bits.max(8))) - 1;
        (self.l4 as u16, (self.l4 | span) as u16)
    }

    /// Whether packets of the other key are packets of this one; ignores peers and directions.
    pub fn covers(&self, other: &RowKey) -> bool {
        self.bits <= other.bits && masked(other.l4, self.bits) == self.l4
    }

    /// Returns the range of all keys of a direction and peer.
    fn span_of(egress: bool, peer: u32) -> RangeInclusive<RowKey> {
        RowKey { egress, peer, bits: 0, l4: 0 }..=RowKey { egress, peer, bits: u8::MAX, l4: u32::MAX }
    }

    /// Returns the first protocol and port of the key and the one after its last.
    pub(crate) fn span(&self) -> (u32, u32) {
        (self.l4, self.l4 + (1 << (L4_BITS - self.bits)))
    }
}

impl From<PolicyKey> for RowKey {
    fn from(key: PolicyKey) -> RowKey {
        let bits = key.prefixlen.saturating_sub(PolicyKey::STATIC_BITS).min(L4_BITS.into()) as u8;
        let l4 = u32::from(key.protocol) << 16 | u32::from(u16::from_be(key.dport));
        RowKey::new(key.egress & 1 != 0, key.sec_label, bits, l4)
    }
}

impl From<RowKey> for PolicyKey {
    fn from(key: RowKey) -> PolicyKey {
        PolicyKey {
            prefixlen: PolicyKey::STATIC_BITS + u32::from(key.bits),
            sec_label: key.peer,
            egress: key.egress.into(),
            protocol: key.protocol(),
            dport: (key.l4 as u16).to_be(),
        }
    }
}

fn masked(l4: u32, bits: u8) -> u32 {
    l4 & !((1u32 << (L4_BITS - bits)) - 1) & 0x00ff_ffff
}

/// The verdict on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It is dropped: no row matches it.
    NoMatch,
    /// A row drops it.
    Deny,
    /// It passes: through a proxy if its port is not 0, only after authentication of its sender if the type is not 0.
    Allow {
        /// The proxy port in network byte order.
        proxy_port: u16,
        /// Type of authentication.
        auth_type: u8,
    },
}

impl Verdict {
    /// Whether the packet passes.
    pub fn passes(self) -> bool {
        matches!(self, Verdict::Allow { .. })
    }

    /// Whether both have the same effect on a packet, whichever row decides.
    pub(crate) fn same(self, other: Verdict) -> bool {
        self == other || !self.passes() && !other.passes()
    }
}

/// Rows of a policy map.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    rows: BTreeMap<RowKey, PolicyEntry>,
    /// A bit for each prefix length that a row has ever had: lookups try only these. Removals do not clear bits,
    /// because another row may have the length.
    lengths: u32,
    /// XOR of the hashes of all rows, which makes comparing and hashing sets of rows cheap.
    digest: u64,
}

impl Rows {
    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows: everything is denied then.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Iterates over all rows in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&RowKey, &PolicyEntry)> {
        self.rows.iter()
    }

    /// Returns the row of exactly this key.
    pub fn get(&self, key: &RowKey) -> Option<&PolicyEntry> {
        self.rows.get(key)
    }

    /// Adds or replaces a row.
    pub fn insert(&mut self, key: RowKey, entry: PolicyEntry) {
        self.lengths |= 1 << key.bits;
        self.digest ^= digest(&key, &entry);
        if let Some(old) = self.rows.insert(key, entry) {
            self.digest ^= digest(&key, &old);
        }
    }

    /// Removes a row.
    pub fn remove(&mut self, key: &RowKey) {
        if let Some(old) = self.rows.remove(key) {
            self.digest ^= digest(key, &old);
        }
    }

    /// Returns the map entries of the rows.
    pub fn to_kernel(&self) -> Vec<(PolicyKey, PolicyEntry)> {
        self.rows.iter().map(|(key, entry)| (PolicyKey::from(*key), *entry)).collect()
    }

    /// Returns the traffic that the rows of a peer cover.
    pub(crate) fn spans(&self, egress: bool, peer: u32) -> impl Iterator<Item = (u32, u32)> {
        self.rows.range(RowKey::span_of(egress, peer)).map(|(key, _)| key.span())
    }

    /// Returns the longest row of a peer that matches.
    pub(crate) fn longest(&self, egress: bool, peer: u32, l4: u32) -> Option<(RowKey, PolicyEntry)> {
        (0..=L4_BITS).rev().filter(|bits| self.lengths >> bits & 1 != 0).find_map(|bits| {
            let key = RowKey::new(egress, peer, bits, l4);
            self.rows.get(&key).map(|entry| (key, *entry))
        })
    }

    /// Returns these rows with those of some peers replaced, so that traffic with these peers has the verdicts of
    /// `before`, even where rows for all peers match.
    pub(crate) fn with_verdicts_of(&self, before: &Rows, peers: &BTreeSet<u32>) -> Rows {
        let others = self.rows.iter().filter(|(key, _)| !peers.contains(&key.peer));
        let mut both: Rows = others.map(|(key, entry)| (*key, *entry)).collect();
        for (peer, egress) in
            peers.iter().filter(|peer| **peer != 0).flat_map(|peer| [(*peer, false), (*peer, true)])
        {
            both.insert(RowKey::new(egress, peer, 0, 0), before.flattened(egress, peer, 0, 0));
            for of in [peer, 0] {
                for (key, _) in before.rows.range(RowKey::span_of(egress, of)) {
                    both.insert(RowKey { peer, ..*key }, before.flattened(egress, peer, key.bits, key.l4));
                }
            }
        }
        both
    }

    /// Returns a row with the verdict on all packets that a key matches and no longer key does, and with precedence
    /// over every other row.
    fn flattened(&self, egress: bool, peer: u32, bits: u8, l4: u32) -> PolicyEntry {
        let row = |of| {
            let lengths = (0..=bits).rev().filter(|bits| self.lengths >> bits & 1 != 0);
            lengths.map(|bits| RowKey::new(egress, of, bits, l4)).find_map(|key| self.rows.get(&key).copied())
        };
        let flags = bits << policy_flag::PREFIX_SHIFT;
        let (of_peer, of_all) = (row(peer), row(0));
        let cookie = winner(of_peer, of_all).map_or(0, |(row, _)| row.cookie);
        let above = PolicyEntry { flags, precedence: HIGHEST, cookie, ..PolicyEntry::default() };
        match decide(of_peer, of_all) {
            Verdict::Allow { proxy_port, auth_type } => PolicyEntry { proxy_port, auth_type, ..above },
            Verdict::Deny | Verdict::NoMatch => PolicyEntry { flags: flags | policy_flag::DENY, ..above },
        }
    }

    /// Returns the row that decides about a packet, by the programs' lookup: that of the peer's identity or that of all
    /// peers.
    pub fn deciding(&self, egress: bool, peer: u32, l4: u32) -> Option<(RowKey, PolicyEntry)> {
        let of_peer = self.longest(egress, peer, l4);
        let of_all = self.longest(egress, 0, l4);
        match (of_peer, of_all) {
            (Some(peer), Some(all)) if wins(&all.1, &peer.1) => Some(all),
            (None, all) => all,
            (peer, _) => peer,
        }
    }

    /// Returns the verdict on a packet.
    pub fn verdict(&self, egress: bool, peer: u32, l4: u32) -> Verdict {
        let of_peer = self.longest(egress, peer, l4).map(|(_, entry)| entry);
        decide(of_peer, self.longest(egress, 0, l4).map(|(_, entry)| entry))
    }
}

impl PartialEq for Rows {
    fn eq(&self, other: &Rows) -> bool {
        self.digest == other.digest && self.rows == other.rows
    }
}

impl Eq for Rows {}

impl Hash for Rows {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest);
    }
}

fn digest(key: &RowKey, entry: &PolicyEntry) -> u64 {
    let mut hasher = DefaultHasher::new();
    (key, entry).hash(&mut hasher);
    hasher.finish()
}

impl FromIterator<(RowKey, PolicyEntry)> for Rows {
    fn from_iter<I: IntoIterator<Item = (RowKey, PolicyEntry)>>(rows: I) -> Rows {
        // Built at once, its nodes are full; by single insertions in order they are half empty.
        let rows: BTreeMap<RowKey, PolicyEntry> = rows.into_iter().collect();
        let lengths = rows.keys().fold(0, |lengths, key| lengths | 1 << key.bits);
        let digest = rows.iter().fold(0, |all, (key, entry)| all ^ digest(key, entry));
        Rows { rows, lengths, digest }
    }
}

impl FromIterator<(PolicyKey, PolicyEntry)> for Rows {
    fn from_iter<I: IntoIterator<Item = (PolicyKey, PolicyEntry)>>(rows: I) -> Rows {
        rows.into_iter().map(|(key, entry)| (RowKey::from(key), entry)).collect()
    }
}

/// Returns the verdict of two rows: that of the peer's identity and that of all peers.
pub(crate) fn decide(of_peer: Option<PolicyEntry>, of_all: Option<PolicyEntry>) -> Verdict {
    let Some((winner, other)) = winner(of_peer, of_all) else { return Verdict::NoMatch };
    if winner.deny() {
        return Verdict::Deny;
    }
    let explicit = winner.auth_type & policy_flag::EXPLICIT_AUTH != 0;
    let kind = |row: &PolicyEntry| row.auth_type & !policy_flag::EXPLICIT_AUTH;
    let inherited = other.filter(|other| !explicit && other.precedence == winner.precedence);
    let auth_type = inherited.map_or(0, |other| kind(&other)).max(kind(&winner));
    Verdict::Allow { proxy_port: winner.proxy_port, auth_type }
}

/// Returns the row that decides, and the other one.
fn winner(
    of_peer: Option<PolicyEntry>,
    of_all: Option<PolicyEntry>,
) -> Option<(PolicyEntry, Option<PolicyEntry>)> {
    match (of_peer, of_all) {
        (Some(peer), Some(all)) if wins(&all, &peer) => Some((all, Some(peer))),
        (Some(peer), all) => Some((peer, all)),
        (None, all) => Some((all?, None)),
    }
}

/// Whether the row of all peers decides, not that of the peer.
fn wins(all: &PolicyEntry, peer: &PolicyEntry) -> bool {
    peer.precedence != HIGHEST
        && (all.precedence, all.lpm_prefix_length()) > (peer.precedence, peer.lpm_prefix_length())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEERS: [u32; 4] = [0, 300, 301, 302];

    /// A pseudo-random generator (LCG) with a fixed seed: every run has the same sequence.
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u32) -> u32 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as u32 % limit
        }

        fn rows(&mut self) -> Rows {
            let count = self.below(12);
            (0..count).map(|_| self.row()).collect()
        }

        fn row(&mut self) -> (RowKey, PolicyEntry) {
            let bits = [0, 8, 20, 24][self.below(4) as usize];
            let port = self.below(4) * 8 + self.below(2);
            let l4 = [6, 17][self.below(2) as usize] << 16 | port;
            let precedence = [1, 2, HIGHEST][self.below(3) as usize];
            // Rows of the highest precedence are always denies, as the engine produces them.
            let deny = u8::from(precedence == HIGHEST || self.below(5) < 2) * policy_flag::DENY;
            let flags = bits << policy_flag::PREFIX_SHIFT | deny;
            let peer = PEERS[self.below(4) as usize];
            let key = RowKey::new(self.below(2) == 0, peer, bits, l4);
            (key, PolicyEntry { flags, precedence, ..PolicyEntry::default() })
        }
    }

    /// Peers in transition have the verdicts of the old rows, all others those of the new rows.
    #[test]
    fn rows_with_verdicts_of_before_are_exactly_that() {
        let mut random = Random(10);
        let mut different = 0;
        for _ in 0..2000 {
            let (before, after) = (random.rows(), random.rows());
            let peers = BTreeSet::from([300, 302]);
            let both = after.with_verdicts_of(&before, &peers);
            for egress in [false, true] {
                for peer in [300, 301, 302, 303] {
                    for (protocol, port) in
                        [1, 6, 17].into_iter().flat_map(|p| (0..40).map(move |port| (p, port)))
                    {
                        let l4 = protocol << 16 | port;
                        let expected = if peers.contains(&peer) { &before } else { &after };
                        let (expected, found) =
                            (expected.verdict(egress, peer, l4), both.verdict(egress, peer, l4));
                        assert!(
                            found.same(expected),
                            "{before:?}\n{after:?}\n{egress} {peer} {l4:#x}: {found:?}"
                        );
                        different += usize::from(!after.verdict(egress, peer, l4).same(found));
                    }
                }
            }
        }
        assert!(different > 10_000, "{different} verdicts that the new rows alone would have changed");
    }
}
